"""`blockscale compare`: what is ruined, equal, or cannot be compared, and what the totals count."""

import json
import os
import pathlib
import pty
import re
import shutil
import subprocess

import numpy
import pytest
from cli_testing import Program
from safetensors.numpy import save_file

RED = "\x1b[31m"
NAN = numpy.float32("nan")
INFINITY = numpy.float32("inf")


def ramp(count: int = 64) -> numpy.ndarray:
    return numpy.arange(1, count + 1, dtype=numpy.float32)


def changed(index: int, value: float) -> numpy.ndarray:
    values = ramp()
    values[index] = value
    return values


@pytest.fixture(name="ruined")
def ruined_fixture(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with `model` and `model-nvfp4`, of which two layers are ruined."""
    a = dict.fromkeys(("a.equal", "b.worse", "c.nan", "d.better", "e.inf"), ramp())
    b = a | {
        "b.worse": changed(0, 9),
        "c.nan": changed(3, NAN),
        "d.better": changed(0, 1.5),
        "e.inf": changed(5, INFINITY),
    }
    for name, tensors in (("model", a), ("model-nvfp4", b)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    return tmp_path


def test_ruined_tensors_come_first(program: Program, ruined: pathlib.Path):
    text = program.ok("compare", ruined / "model", ruined / "model-nvfp4")
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows[1:6]] == ["c.nan", "e.inf", "a.equal", "b.worse", "d.better"]
    assert rows[1][4:7] == ["NaN"] * 3
    assert rows[2][4:7] == ["-inf", "inf", "inf"]
    assert re.search(r"^total of 4 converted tensors +NaN +NaN +NaN +1.0 KiB", text, re.MULTILINE)
    assert "2 tensors are ruined: NaN or infinity in one checkpoint only" in text
    assert "\x1b" not in text


def test_json_tells_equal_nan_and_minus_infinity_apart(program: Program, ruined: pathlib.Path):
    report = program.json("compare", ruined / "model", ruined / "model-nvfp4")
    found = {t["name"]: (t["status"], t["sqnr"], t["converted"]) for t in report["tensors"]}
    assert list(found) == ["c.nan", "e.inf", "a.equal", "b.worse", "d.better"]
    assert found["c.nan"] == ("ruined", "NaN", True)
    assert found["e.inf"] == ("ruined", "-inf", True)
    assert found["a.equal"] == ("equal", "equal", False)
    assert found["b.worse"][0] == "differs"
    for tensor in report["tensors"]:
        if tensor["status"] == "differs":
            assert tensor["sqnr"] == f"{tensor['sqnr_db']:.2f}"
        else:
            assert tensor["sqnr_db"] is None
    total = report["total"]
    assert (total["converted_tensors"], total["status"], total["sqnr"]) == (4, "ruined", "NaN")
    assert (total["bytes_a"], total["bytes_b"]) == (1024, 1024)


def test_total_counts_converted_tensors(program: Program, model: pathlib.Path):
    result = model.parent / "result"
    program("convert", model, result, "--recipe", "nvfp4")
    report = program.json("compare", model, result)
    converted = [t for t in report["tensors"] if t["recipe_a"] != t["recipe_b"]]
    assert 0 < len(converted) < len(report["tensors"])
    assert [t for t in report["tensors"] if t["converted"]] == converted
    total = report["total"]
    assert total["converted_tensors"] == len(converted)
    for key in ("bytes_a", "bytes_b", "signal", "noise"):
        assert total[key] == pytest.approx(sum(t[key] for t in converted)), key
    assert total["sqnr_db"] == pytest.approx(10 * numpy.log10(total["signal"] / total["noise"]))
    text = program.ok("compare", model, result)
    assert re.search(
        rf"^total of {len(converted)} converted tensors +{total['sqnr']} ", text, re.MULTILINE
    )
    assert "ruined" not in text


def test_an_only_tensor_with_nan_is_not_equal(program: Program, tmp_path: pathlib.Path):
    save_file({"x": ramp()}, tmp_path / "a.safetensors")
    save_file({"x": changed(0, NAN)}, tmp_path / "b.safetensors")
    text = program.ok("compare", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert "equal" not in text and text.count("NaN") >= 6
    same = program.ok("compare", tmp_path / "b.safetensors", tmp_path / "b.safetensors")
    assert "equal" in same and "ruined" not in same


def test_nothing_in_common_is_an_error(program: Program, tmp_path: pathlib.Path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"x": ramp(), "y": ramp()}, a)
    save_file({"y": ramp(8)}, b)
    for options in ([], ["--json"]):
        message = program.fails("invalid_argument", "compare", a, b, *options)
        assert f"{b}: has no tensor of the same name and shape as one of {a}" in message
        assert message.endswith('it has "y", the other 2 tensors, such as "x"')


def test_other_dtypes_are_listed(program: Program, tmp_path: pathlib.Path):
    a = {
        "ids": numpy.arange(4, dtype=numpy.int64),
        "mask": numpy.array([True, False]),
        "wide": numpy.linspace(0, 1, 8),
    }
    b = a | {"ids": a["ids"][::-1].copy(), "wide": a["wide"] * (1 + 1e-12)}
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    report = program.json("compare", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    found = {t["name"]: (t["recipe_a"], t["recipe_b"], t["status"]) for t in report["tensors"]}
    assert found == {
        "ids": ("I64", "I64", "differs"),
        "mask": ("BOOL", "BOOL", "equal"),
        "wide": ("F64", "F64", "differs"),
    }
    assert report["tensors"][2]["sqnr_db"] == pytest.approx(240, abs=1)
    assert report["total"]["converted_tensors"] == 2


def test_what_cannot_be_read_is_not_compared(program: Program, tmp_path: pathlib.Path):
    def save(name: str, data: bytes) -> pathlib.Path:
        header = json.dumps({"x": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}})
        file = tmp_path / name
        file.write_bytes(len(header).to_bytes(8, "little") + header.encode() + data)
        return file

    a, b = save("a.safetensors", b"abc"), save("b.safetensors", b"abd")
    report = program.json("compare", a, b)
    (tensor,) = report["tensors"]
    assert (tensor["recipe_a"], tensor["status"]) == ("F6_E2M3", "not_compared")
    assert report["total"]["status"] == "not_compared"
    text = program.ok("compare", a, b)
    assert text.count("not compared") == 2 and "equal" not in text
    assert program.json("compare", a, a)["total"]["status"] == "equal"


def on_a_terminal(program: Program, *arguments: object, **environment: str) -> str:
    """Standard output of a run whose standard output is a terminal."""
    main, end = pty.openpty()
    process = subprocess.Popen(
        [program.path, *map(str, arguments)],
        stdout=end,
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"} | environment,
    )
    os.close(end)
    text = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:  # what Linux says when the other end is closed
            part = b""
        if not part:
            break
        text += part
    os.close(main)
    assert process.wait() == 0
    return text.decode()


def test_red_is_for_terminals_that_have_it(program: Program, ruined: pathlib.Path):
    arguments = ["compare", ruined / "model", ruined / "model-nvfp4"]
    text = on_a_terminal(program, *arguments, TERM="xterm")
    red = [line.removeprefix(RED).split()[0] for line in text.splitlines() if RED in line]
    assert red == ["c.nan", "e.inf", "total"]
    for environment in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": ""}):
        assert "\x1b" not in on_a_terminal(program, *arguments, **environment)
    assert "\x1b" not in on_a_terminal(program, *arguments, "--json", TERM="xterm")


def documented_commands(program: Program, root: pathlib.Path) -> list[str]:
    """The pipelines through jq of docs/cli.md and of the help."""
    page = (root / "docs/cli.md").read_text()
    pages = re.findall(r"^blockscale compare .*\| jq .*$", page, re.MULTILINE)
    text = program.ok("compare", "--help")
    helps = re.findall(
        r"^    blockscale compare [^\n]*\| jq .*?\n\n?(?=\S|\Z)", text + "\n", re.M | re.S
    )
    assert len(pages) == len(helps) == 1
    return pages + helps


def test_the_documented_jq_lines_work(
    program: Program, root: pathlib.Path, ruined: pathlib.Path, tmp_path: pathlib.Path
):
    if shutil.which("jq") is None:
        pytest.skip("no jq on the path")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/blockscale").symlink_to(program.path)
    for command in documented_commands(program, root):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail\n{command}"],
            cwd=ruined,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        lines = [line.split() for line in done.stdout.splitlines()]
        assert [name for _, name in lines] == ["c.nan", "e.inf", "b.worse", "d.better"]
        assert [sqnr for sqnr, _ in lines[:2]] == ["NaN", "-inf"]
        assert float(lines[2][0]) < float(lines[3][0])
