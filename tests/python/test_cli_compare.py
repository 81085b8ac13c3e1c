"""`blockscale compare`: what is ruined, equal, or cannot be compared, and what the totals count."""

import json
import os
import pathlib
import re
import subprocess

import numpy
import pytest
from cli_testing import Program, open_terminal
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
    main, end = open_terminal()
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


def names(report: dict) -> list[str]:
    return [tensor["name"] for tensor in report["tensors"]]


def test_sorting_by_each_column(program: Program, ruined: pathlib.Path):
    paths = ruined / "model", ruined / "model-nvfp4"
    for column, order in {
        "name": ["a.equal", "b.worse", "c.nan", "d.better", "e.inf"],
        "sqnr": ["c.nan", "e.inf", "b.worse", "d.better", "a.equal"],
        "max_error": ["c.nan", "e.inf", "b.worse", "d.better", "a.equal"],
        "mean_error": ["c.nan", "e.inf", "b.worse", "d.better", "a.equal"],
    }.items():
        assert names(program.json("compare", *paths, "--sort", column)) == order, column
    save_file({"x": ramp(8), "y": ramp(64), "z": ramp(32).astype(numpy.float16)}, paths[0] / "m")
    (paths[0] / "m").rename(ruined / "sizes.safetensors")
    sizes = [ruined / "sizes.safetensors"] * 2
    for column in ("shape", "bytes_a", "bytes_b"):
        order = ["y", "z", "x"]
        assert names(program.json("compare", *sizes, "--sort", column)) == order, column
    for column in ("recipe_a", "recipe_b"):
        order = ["z", "x", "y"]  # f16 before f32
        assert names(program.json("compare", *sizes, "--sort", column)) == order, column


def test_top_shows_the_first_and_totals_count_all(program: Program, ruined: pathlib.Path):
    arguments = ["compare", ruined / "model", ruined / "model-nvfp4"]
    whole = program.json(*arguments)
    report = program.json(*arguments, "--sort", "sqnr", "--top", 3)
    assert names(report) == ["c.nan", "e.inf", "b.worse"]
    assert report["total"] == whole["total"]
    text = program.ok(*arguments, "--sort", "sqnr", "--top", 3)
    assert "3 of 5 tensors shown" in text and "2 tensors are ruined" in text
    assert "d.better" not in text and "total of 4 converted tensors" in text
    assert names(program.json(*arguments, "--top", 99)) == names(whole)
    assert "shown" not in program.ok(*arguments, "--top", 99)


def test_only_chosen_tensors_are_compared(program: Program, ruined: pathlib.Path):
    save_file({"extra": ramp(), "b.worse": ramp()}, ruined / "more.safetensors")
    arguments = ["compare", ruined / "model", ruined / "model-nvfp4"]
    report = program.json(*arguments, "--tensor", "re:[bd]\\.", "--tensor", "a.*")
    assert names(report) == ["a.equal", "b.worse", "d.better"]
    assert report["total"]["converted_tensors"] == 2
    assert report["total"]["noise"] == sum(t["noise"] for t in report["tensors"])
    message = program.fails("invalid_argument", *arguments, "--tensor", "b.wrose")
    assert 'tensors: "b.wrose" matches no tensor; near: "b.worse"' in message
    other = ["compare", ruined / "model", ruined / "more.safetensors"]
    report = program.json(*other, "--tensor", "b.*")
    assert (report["only_a"], report["only_b"]) == ([], [])
    assert program.json(*other, "--tensor", "*r*e")["only_b"] == []
    assert program.json(*other, "--tensor", "b.*", "--tensor", "extra")["only_b"] == ["extra"]
    message = program.fails("invalid_argument", *other, "--tensor", "extra")
    assert "tensors: none that was chosen is in both checkpoints" in message


def test_the_documented_lines_name_the_worst_layers(
    program: Program, root: pathlib.Path, ruined: pathlib.Path
):
    page = (root / "docs/cli.md").read_text()
    line = re.compile(r"^ *blockscale (compare .* --sort sqnr --top 5)$", re.MULTILINE)
    lines = line.findall(page) + line.findall(program.ok("compare", "--help"))
    assert len(lines) == 2
    for words in lines:
        text = program.ok(*(word.replace("./", f"{ruined}/") for word in words.split()))
        rows = [row.split()[0] for row in text.splitlines()[1:6]]
        assert rows == ["c.nan", "e.inf", "b.worse", "d.better", "a.equal"]
