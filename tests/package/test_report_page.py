"""What the page of the HTML report holds."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import blockscale
import numpy as np
import pytest
from blockscale.report import write_report
from report_pages import PACKAGE, PROGRAM, assert_self_contained, compare, svgs
from safetensors.numpy import save_file


def run_report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blockscale.report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


EMBEDDING = {
    "name": "nvfp4-W4A4",
    "weight": "nvfp4",
    "activation": "nvfp4",
    "cosine_min": 0.9286,
    "cosine_mean": 0.9665,
    "rank_correlation": 0.9834,
    "weight_bytes": 5_970_000,
    "sentences_per_second": 100.0,
    "sentence_pairs": 211,
}
DEQUANTISE = {"recipe": "nvfp4", "dtype": "bf16", "threads": 1, "memcpy_share": 0.5}
QUANTISE = DEQUANTISE | {"transform": "identity"}
PEAKS = {"threads": 1, "read_bytes_per_second": 2e10, "f32": 1e11, "bf16": 2e11, "int8": 0}
MEASURED = {"recipe_a": "bf16", "recipe_b": "nvfp4", "gflops": 100.0}
MEASURED |= {"threads": 1, "median_seconds": 1e-3, "multiplier": "bf16"}
MEASURED |= {"bytes": 10_000_000, "operations": 10_000_000}  # 0.5 ms of reading


def test_page_of_many_checkpoints(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    write_report(
        checkpoints / "model",
        [checkpoints / name for name in ("nvfp4", "bf16", "mxfp8_e4m3")],
        output,
        title="A & <B>",
        embedding=[EMBEDDING],
        bench=[
            {"rows": 64, "k": 64, "cases": [QUANTISE]},
            {"m": 1, "n": 2, "k": 3, "threads": 1, "peaks": [PEAKS], "cases": [MEASURED]},
        ],
    )
    text = output.read_text()
    page = assert_self_contained(text)
    assert "<h1>A &amp; &lt;B&gt;</h1>" in text
    assert sum(tag == "img" for tag, _ in page.tags) == 6
    names = re.findall(r"<tr><td>([^<]*)", text)
    assert names[:3] == ["bf16", "mxfp8_e4m3", "nvfp4"]  # the largest first
    expected = blockscale.compare(checkpoints / "model", checkpoints / "nvfp4")
    worst = min(t.sqnr_db for t in expected.tensors if t.recipe_b == "nvfp4")
    assert f"<td>{expected.total.sqnr_db:.2f}</td><td>{worst:.2f}</td>" in text
    assert "422 sentences" in page.text and "0.9665" in page.text


def test_the_worst_layers_are_named(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    write_report(checkpoints / "model", [checkpoints / "nvfp4"], output)
    text = output.read_text()
    report = blockscale.compare(checkpoints / "model", checkpoints / "nvfp4")
    converted = sorted((t for t in report.tensors if t.converted), key=lambda t: t.sqnr_db)
    table = text.split("<h2>The layers that lost most</h2>")[1].split("</table>")[0]
    rows = [re.findall(r"<td>([^<]*)", row) for row in re.findall(r"<tr>(.*?)</tr>", table)][1:]
    expected = [
        [t.name, "nvfp4", "f32 → nvfp4", f"{t.sqnr_db:.2f}"]
        + [f"{t.sqnr_db - report.total.sqnr_db:+.2f}"]
        for t in converted[:5]
    ]
    assert [[html.unescape(cell) for cell in row] for row in rows] == expected
    write_report(
        checkpoints / "model", [checkpoints / "nvfp4", checkpoints / "bf16"], tmp_path / "two.html"
    )
    for name in ("nvfp4", "bf16"):
        worst = min(
            blockscale.compare(checkpoints / "model", checkpoints / name).tensors,
            key=lambda t: t.sqnr_db,
        )
        assert f"<tr><td>{html.escape(worst.name)}</td>" in (tmp_path / "two.html").read_text()


def test_there_is_one_average(ruined: Path) -> None:
    """The total's, of all values together; without ruined layers where there are some."""
    from blockscale.report import data

    (whole, broken) = data.candidates(
        ruined / "model", [ruined / "whole", ruined / "broken"], threads=1
    )
    assert whole.average_sqnr_db == whole.total_sqnr_db
    kept = [t for t in broken.changed if t.status != "ruined"]
    assert len(kept) == len(broken.changed) - 2
    expected = 10 * np.log10(sum(t.signal for t in kept) / sum(t.noise for t in kept))
    assert broken.average_sqnr_db == pytest.approx(expected)
    assert broken.total_sqnr_db == -np.inf


@pytest.mark.parametrize("count", [1, 6, 7, 10, 12, 16])
def test_colours_differ(count: int) -> None:
    """Each pair, RED included, is told apart in CIE's L*a*b*, where 2.3 is just seen."""
    from blockscale.report import plots

    def lab(colour: str) -> np.ndarray:
        rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
        x, y, z = np.cbrt(np.array(to_xyz) @ linear / [0.9505, 1, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    shown = [lab(colour) for colour in [*plots.colours(count), plots.RED]]
    assert len(shown) == count + 1
    for i, one in enumerate(shown):
        assert all(np.linalg.norm(one - other) > 25 for other in shown[:i])


def test_layers_that_differ_have_colours_that_do(checkpoints: Path) -> None:
    """Also where all layers are within a fraction of what colours reach at most."""
    from blockscale.report import data, plots

    names = [checkpoints / "nvfp4", checkpoints / "mxfp8_e4m3"]
    found = data.candidates(checkpoints / "model", names, threads=1)
    furthest = max(abs(v - c.average_sqnr_db) for c in found for v in c.sqnr_db().values())
    assert plots.loss_span(found) == min(3, max(0.5, furthest))
    svg = base64.b64decode(plots.sqnr_by_layer(found).partition(",")[2]).decode()
    cells = svg.split("QuadMesh")[1].split("<g id=")[0]
    assert len(set(re.findall(r"#[0-9a-f]{6}", cells))) > 5


@pytest.fixture(scope="module")
def searched(checkpoints: Path) -> Path:
    """The folder's `nvfp4-mse`, and `conversion.json` that says how it was made."""
    command = [PROGRAM, "convert", checkpoints / "model", checkpoints / "nvfp4-mse"]
    command += ["--recipe", "nvfp4", "--scales", "mse", "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    (checkpoints / "conversion.json").write_bytes(done.stdout)
    return checkpoints / "conversion.json"


def test_each_layers_gain_of_searched_scales(searched: Path, tmp_path: Path) -> None:
    folder, output = searched.parent, tmp_path / "report.html"
    done = subprocess.run(
        [PROGRAM, "compare", folder / "model", folder / "nvfp4-mse", "--html", output]
        + ["--conversion", searched],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE)}
        | {"BLOCKSCALE_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = assert_self_contained(output.read_text())
    assert "What searched scales gained in nvfp4 mse" in page.text
    gains = {
        t["name"]: t["error_ratio"]
        for t in json.loads(searched.read_text())["tensors"]
        if t["error_ratio"] is not None
    }
    assert len(gains) == 25
    plot = svgs(page)[-1]
    labels = re.findall(r">(\d+\.\d)</text>", plot)
    assert sorted(labels) == sorted(f"{100 * ratio:.1f}" for ratio in gains.values())
    # what the plot says is what the two checkpoints' errors are to each other
    noise = [
        {t.name: t.noise for t in blockscale.compare(folder / "model", folder / name).tensors}
        for name in ("nvfp4-mse", "nvfp4")
    ]
    for name, ratio in gains.items():
        assert ratio == pytest.approx(noise[0][name] / noise[1][name], rel=1e-3)
        assert ratio < 1
    worst = max(gains, key=lambda name: gains[name])
    assert f"{100 * gains[worst]:.1f} in {worst} (least)" in page.text


@pytest.mark.parametrize(
    ("conversion", "message"),
    [
        ({"destination": "x/other", "tensors": []}, "is to 'other', must be to one of nvfp4"),
        ({"destination": "nvfp4", "tensors": [{"name": "a", "error_ratio": None}]}, "without"),
        ({}, "is to '', must be to one of nvfp4"),
    ],
)
def test_conversions_that_say_nothing(
    checkpoints: Path, tmp_path: Path, conversion: dict[str, object], message: str
) -> None:
    pages = checkpoints / "model", [checkpoints / "nvfp4"]
    with pytest.raises(ValueError, match=f"conversion: .*{message}"):
        write_report(*pages, tmp_path / "report.html", conversions=[conversion])
    (tmp_path / "c.json").write_text(json.dumps(conversion))
    done = compare(checkpoints, tmp_path / "page.html", "--conversion", str(tmp_path / "c.json"))
    assert done.returncode == 3 and message in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_page_of_chosen_tensors(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    done = compare(checkpoints, output, "--tensor", "*.query.weight", "--top", "1")
    assert done.returncode == 0, done.stderr
    page = assert_self_contained(output.read_text())
    assert "Counted are only the 12 converted tensors" in page.text
    assert "output.dense" not in page.text and "1 of 12 tensors shown" in done.stdout


def test_page_of_products_alone(tmp_path: Path) -> None:
    """Twice a result: one shape as `bench gemm` has it, several as `./dev bench` keeps them."""
    multiplied = MEASURED | {"bytes": 10_000, "operations": 150_000_000}  # 0.75 ms of bf16
    of_16 = {"m": 16, "n": 2, "k": 3, "cases": [multiplied]}
    of_1 = {"m": 1, "n": 2, "k": 3, "cases": [MEASURED]}
    one, kept, output = (tmp_path / name for name in ("one.json", "kept.json", "page.html"))
    one.write_text(json.dumps({"peaks": [PEAKS], "threads": 1, **of_1}))
    two = PEAKS | {"threads": 2}
    other = of_16 | {"cases": [multiplied, MEASURED | {"threads": 2}]}
    kept.write_text(json.dumps({"results": {"peaks": [PEAKS, two], "shapes": [of_1, other]}}))
    done = run_report("--bench", one, "--bench", kept, "--output", output)
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    page = assert_self_contained(text)
    assert sum(tag == "img" for tag, _ in page.tags) == 3
    assert "How fast products are on 2 threads" in page.text
    assert text.count("<td>reading</td><td>0.50</td>") == 3
    assert "<td>16 × 2 × 3</td><td>1000</td><td>150</td><td>bf16</td><td>0.75</td>" in text


def test_threads_without_products_have_no_section(tmp_path: Path) -> None:
    """`./dev bench gemm --torch --shapes 1x1536x384`: peaks of two threads, products of one."""
    shape = {"m": 1, "n": 2, "k": 3, "cases": [MEASURED]}
    kept, output = tmp_path / "kept.json", tmp_path / "page.html"
    kept.write_text(
        json.dumps({"results": {"peaks": [PEAKS, PEAKS | {"threads": 2}], "shapes": [shape]}})
    )
    done = run_report("--bench", kept, "--output", output)
    assert done.returncode == 0, done.stderr
    assert "on one thread" in output.read_text() and "on 2 threads" not in output.read_text()


@pytest.mark.parametrize(
    "bench",
    [
        {"peaks": [PEAKS]},
        {"device": "NVIDIA H200", "m": 1, "n": 2, "k": 3, "cases": [{"recipe_a": "fp8_row"}]},
        {"rows": 64, "k": 64, "cases": [DEQUANTISE]},
        {"threads": 1, "fresh_ms": 1.0},
    ],
    ids=["peaks", "a product on a GPU", "dequantize", "copy"],
)
def test_other_measurements_are_refused(tmp_path: Path, bench: dict[str, object]) -> None:
    (tmp_path / "bench.json").write_text(json.dumps(bench))
    done = run_report("--bench", tmp_path / "bench.json", "--output", tmp_path / "page.html")
    assert done.returncode == 3 and "bench: is no result of `bench quantize`" in done.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_page_is_about_something(checkpoints: Path, tmp_path: Path) -> None:
    for arguments in ([], [checkpoints / "model"]):
        done = run_report(*arguments, "--output", tmp_path / "page.html")
        assert done.returncode == 2 and "give ORIGINAL and CONVERTED, or --bench" in done.stderr


def test_equal_checkpoints(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    write_report(checkpoints / "model", [checkpoints / "model"], output)
    page = assert_self_contained(output.read_text())
    assert "equal" in page.text
    assert not any(tag == "img" for tag, _ in page.tags)


def test_histogram_counts_every_error(checkpoints: Path) -> None:
    from blockscale.report import data

    (candidate,) = data.candidates(checkpoints / "model", [checkpoints / "nvfp4"], 1)
    before = blockscale.Checkpoint(checkpoints / "model")
    after = blockscale.Checkpoint(checkpoints / "nvfp4")
    errors = np.concatenate(
        [
            (np.abs(before[t.name] - blockscale.dequantize(after[t.name])).astype(np.float64))
            / np.sqrt(np.mean(np.square(before[t.name], dtype=np.float64)))
            for t in candidate.changed
        ],
        axis=None,
    )
    assert candidate.histogram is not None
    assert candidate.histogram.median == pytest.approx(np.median(errors), rel=1e-5)
    assert candidate.histogram.exact == np.mean(errors == 0)
    assert candidate.histogram.lost == 0
    small = np.mean((errors > 0) & (errors < data.BIN_EDGES[0]))
    total = candidate.histogram.shares.sum() + candidate.histogram.exact + small
    assert total == pytest.approx(1.0, abs=1e-3)
    assert candidate.bits_per_weight == pytest.approx(4.5, abs=0.1)


RUINED = "encoder.layer.10.query.weight"
ZEROS = "encoder.layer.2.output.dense.weight"


@pytest.fixture(scope="module")
def ruined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model`, and `broken` with one layer of NaN and one with values in place of zeros."""
    folder = tmp_path_factory.mktemp("ruined")
    rng = np.random.default_rng(1)
    model = {
        f"encoder.layer.{layer}.{name}.weight": rng.standard_normal((32, 64), np.float32)
        for layer in range(12)
        for name in ("query", "output.dense")
    }
    model[ZEROS] = np.zeros((32, 64), np.float32)
    broken = {name: values.astype(np.float16) for name, values in model.items()}
    broken[RUINED] = np.full((32, 64), np.nan, np.float16)
    broken[ZEROS] = np.ones((32, 64), np.float16)
    whole = {name: values.astype(np.float16) for name, values in model.items()}
    for name, tensors in (("model", model), ("broken", broken), ("whole", whole)):
        (folder / name).mkdir()
        save_file(tensors, folder / name / "model.safetensors")
    return folder


@pytest.mark.parametrize("names", [["broken"], ["whole", "broken"]], ids=len)
def test_ruined_layers_come_first(ruined: Path, tmp_path: Path, names: list[str]) -> None:
    output = tmp_path / "report.html"
    write_report(ruined / "model", [ruined / name for name in names], output)
    text = output.read_text()
    page = assert_self_contained(text)
    assert "<h2 class='ruined'>2 layers are ruined</h2>" in text
    red = re.findall(r"<tr class='ruined'>(.*?)</tr>", text)
    assert [re.findall(r"<td>([^<]*)</td>", row)[:4:3] for row in red[:2]] == [
        [ZEROS, "-inf"],
        [RUINED, "NaN"],
    ]
    assert text.index("are ruined") < text.index("<th scope='col'>bits per weight")
    assert red[2].endswith("<td>ruined</td><td>ruined</td>")  # the checkpoint's row
    layers = next(svg for svg in svgs(page) if ">10.query</text>" in svg)
    labels = re.findall(r">(\d+\.(?:query|output\.dense))</text>", layers)
    assert labels[:2] == ["2.output.dense", "10.query"] and len(labels) == 24
    assert "#b00020" in layers and "NaN" in layers and "-inf" in layers


def test_a_layer_of_nan_alone(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", np.nan)):
        (tmp_path / name).mkdir()
        tensors = {"layer.weight": np.full((4, 8), value, np.float32)}
        save_file(tensors, tmp_path / name / "model.safetensors")
    output = tmp_path / "report.html"
    write_report(tmp_path / "a", [tmp_path / "b"], output)
    text = output.read_text()
    assert "<h2 class='ruined'>1 layer is ruined</h2>" in text
    assert "equal" not in re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    svgs(assert_self_contained(text))


def test_nothing_in_common_is_an_error(checkpoints: Path, tmp_path: Path) -> None:
    save_file({"other": np.ones(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="there is nothing to compare"):
        write_report(checkpoints / "model", [tmp_path / "other.safetensors"], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_embeddings_of_nan_stay_in_the_plot(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    broken = EMBEDDING | {"name": "broken", "cosine_min": float("nan"), "cosine_mean": 0.5}
    pages = checkpoints / "model", [checkpoints / "nvfp4"]
    write_report(*pages, output, embedding=[EMBEDDING, broken])
    (plot,) = (svg for svg in svgs(assert_self_contained(output.read_text())) if ">broken<" in svg)
    assert "ruined: NaN" in plot


ODD_NAMES = [
    "layer$\\frac{$.weight",
    "$x_1$ <b>&amp;'\"</b>",
    "_hidden",
    "100%{}\\alpha^2",
    "重み\u202e\uffff",
]


@pytest.mark.parametrize("several", [False, True])
def test_names_are_text(tmp_path: Path, several: bool) -> None:
    """Neither HTML, nor matplotlib's mathematics, nor a legend takes a name for its own."""
    import xml.etree.ElementTree as ElementTree

    from blockscale.report.data import printable

    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((8, 32), np.float32) for name in ODD_NAMES}
    folders = {"model": 1.0, "_$a$<i>&": 1.01, "b\udc80$": np.nan}
    for name, factor in folders.items():
        (tmp_path / name).mkdir()
        changed = {key: (values * np.float32(factor)) for key, values in tensors.items()}
        save_file(changed, tmp_path / "model.safetensors")
        (tmp_path / "model.safetensors").rename(tmp_path / name / "model.safetensors")
    converted = [tmp_path / name for name in list(folders)[1:]][: 1 + several]
    output = tmp_path / "report.html"
    write_report(tmp_path / "model", converted, output)
    page = assert_self_contained(output.read_text())
    assert [tag for tag, _ in page.tags if tag in ("b", "i")] == ["b"]  # the page's own
    found = set()
    for svg in svgs(page):
        for element in ElementTree.fromstring(svg).iter():
            found.add((element.text or "").strip())
    for name in ODD_NAMES:
        assert printable(name).removesuffix(".weight") in found
    assert all(printable(path.name) in "\n".join(found) for path in converted if several)
    if several:
        assert all(printable(name) in page.text for name in ODD_NAMES)


def test_histograms_of_bf16_need_no_ml_dtypes(tmp_path: Path, monkeypatch) -> None:
    from blockscale import _arrays
    from blockscale.report import data

    rng = np.random.default_rng(0)
    save_file({"m.weight": rng.standard_normal((64, 64), np.float32)}, tmp_path / "a.safetensors")
    blockscale.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "bf16")
    paths = tmp_path / "a.safetensors", [tmp_path / "b.safetensors"]
    (typed,) = data.candidates(*paths, 1)
    monkeypatch.setattr(_arrays, "_ml_dtype", lambda _: None)
    (plain,) = data.candidates(*paths, 1)
    assert typed.histogram is not None and plain.histogram is not None
    assert plain.histogram.median == typed.histogram.median < 0.01


def test_layers_are_in_the_models_order() -> None:
    from blockscale.report.data import natural_key, short_layer

    names = [f"encoder.layer.{i}.output.dense.weight" for i in (10, 2, 0)]
    assert [short_layer(n) for n in sorted(names, key=natural_key)] == [
        "0.output.dense",
        "2.output.dense",
        "10.output.dense",
    ]
