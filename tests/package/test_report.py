"""The HTML report: `blockscale compare --html`, how it finds Python, and what the page holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import blockscale
import numpy as np
import pytest
from blockscale.report import write_report
from safetensors.numpy import save_file

PROGRAM = Path(blockscale.__file__).parent / "bin" / "blockscale"
PACKAGE = Path(blockscale.__file__).parents[1]


def save_model(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    tensors = {
        f"encoder.layer.{layer}.{name}.weight": rng.standard_normal((64, 128), np.float32)
        for layer in range(12)
        for name in ("query", "output.dense")
    }
    tensors["encoder.layer.0.<script>&.weight"] = rng.standard_normal((32, 64), np.float32)
    tensors["encoder.norm.weight"] = np.ones(64, np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and what it became in several recipes."""
    folder = tmp_path_factory.mktemp("report")
    model = save_model(folder / "model")
    for recipe in ("nvfp4", "mxfp8_e4m3", "bf16"):
        blockscale.convert(model, folder / recipe, recipe)
    return folder


def compare(
    checkpoints: Path, output: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`blockscale compare model nvfp4 --html output` with this Python, unless told otherwise."""
    return subprocess.run(
        [PROGRAM, "compare", checkpoints / "model", checkpoints / "nvfp4", "--html", output]
        + list(options),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE)}
        | {"BLOCKSCALE_PYTHON": sys.executable}
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_fails(
    done: subprocess.CompletedProcess[str], code: int, output: Path, *words: str
) -> None:
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.startswith("blockscale compare: error: "), done.stderr
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr, done.stderr
    assert [p for p in output.parent.iterdir() if p.name.startswith((".", "report"))] == []


class Page(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_self_contained(text: str) -> Page:
    """No script, no link, nothing fetched; the SVGs inside neither."""
    import base64

    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "a", "base", "form"}
    assert not re.search(r"@import|url\(", text)
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        if tag == "img":
            kind, _, data = attributes["src"].partition(",")
            assert kind == "data:image/svg+xml;base64"
            assert attributes["alt"]
            svg = base64.b64decode(data).decode()
            assert "<script" not in svg
            outside = re.findall(r"(?:href|src)=\"([^\"]*)\"", svg)
            assert all(target.startswith("#") for target in outside)
            assert not re.search(r"url\((?!#)", svg)
        else:
            assert "src" not in attributes and "href" not in attributes
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in (
        page.tags
    )
    assert len(text) < 1 << 20
    return page


def test_html_beside_the_table(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    done = compare(checkpoints, output)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "SQNR dB" in done.stdout and str(output) in done.stdout
    page = assert_self_contained(output.read_text())
    assert sum(tag == "img" for tag, _ in page.tags) == 3  # size, layers, errors
    assert "25 tensors" in page.text and "nvfp4" in page.text
    assert list(tmp_path.iterdir()) == [output]


def test_json_names_the_page(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    done = compare(checkpoints, output, "--json")
    assert json.loads(done.stdout)["html"] == str(output)
    assert output.exists()


def test_python_m_blockscale_uses_its_own_python(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    command = [sys.executable, "-m", "blockscale", "compare"]
    command += [checkpoints / "model", checkpoints / "nvfp4", "--html", output]
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(PACKAGE)}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert output.exists()


def test_python3_on_path_is_the_default(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python3").chmod(0o755)
    done = compare(checkpoints, output, BLOCKSCALE_PYTHON="", PATH=f"{folder}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert output.exists()


def test_folder_named_blockscale_is_no_package(
    checkpoints: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "blockscale").mkdir()
    (tmp_path / "blockscale" / "__init__.py").write_text("raise SystemExit(99)\n")
    monkeypatch.chdir(tmp_path)
    assert compare(checkpoints, tmp_path / "report.html").returncode == 0


@pytest.mark.parametrize("python", ["/nonexistent/python3", ""])
def test_no_python(checkpoints: Path, tmp_path: Path, python: str) -> None:
    output = tmp_path / "report.html"
    done = compare(checkpoints, output, BLOCKSCALE_PYTHON=python, PATH="/nonexistent")
    assert_fails(done, 5, output, "cannot be run", "blockscale[report]", "BLOCKSCALE_PYTHON")


def test_python_without_the_package(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = compare(checkpoints, output, BLOCKSCALE_PYTHON=str(bare))
    assert_fails(done, 5, output, str(bare), "blockscale", "pip install 'blockscale[report]'")


def test_python_without_matplotlib(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "matplotlib.py").write_text("raise ModuleNotFoundError(\"No module named 'x'\")\n")
    done = compare(checkpoints, output, PYTHONPATH=f"{stub}:{PACKAGE}")
    assert_fails(done, 5, output, "matplotlib", "pip install 'blockscale[report]'")


@pytest.mark.parametrize(("signal", "code"), [(2, 130), (15, 130), (9, 8)])
def test_python_ended_by_a_signal(
    checkpoints: Path, tmp_path: Path, signal: int, code: int
) -> None:
    output = tmp_path / "report.html"
    killed = tmp_path / "killed"
    killed.write_text(f"#!/bin/sh\nkill -{signal} $$\n")
    killed.chmod(0o755)
    done = compare(checkpoints, output, BLOCKSCALE_PYTHON=str(killed))
    assert_fails(done, code, output, f"signal {signal}")


def test_existing_file_is_kept_unless_told(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    output.write_text("mine")
    done = compare(checkpoints, output)
    assert (done.returncode, done.stdout) == (6, "")
    assert "exists; --overwrite replaces it" in done.stderr
    assert output.read_text() == "mine"
    with pytest.raises(FileExistsError, match="exists"):
        write_report(checkpoints / "model", [checkpoints / "nvfp4"], output)
    assert output.read_text() == "mine"
    assert compare(checkpoints, output, "--overwrite").returncode == 0
    assert output.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("none/report.html", 5, "no such folder"),
        (".", 3, "names a folder"),
    ],
)
def test_output_that_cannot_be(
    checkpoints: Path, tmp_path: Path, name: str, code: int, words: str
) -> None:
    done = compare(checkpoints, tmp_path / name)
    assert_fails(done, code, tmp_path / "report.html", words)


def test_only_a_regular_file_is_replaced(checkpoints: Path, tmp_path: Path) -> None:
    fifo, link, nowhere = tmp_path / "fifo", tmp_path / "link", tmp_path / "nowhere"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    nowhere.symlink_to("nothing")
    for output in (fifo, link, nowhere):
        with pytest.raises(ValueError, match="regular file|leads nowhere"):
            write_report(checkpoints / "model", [checkpoints / "nvfp4"], output, overwrite=True)
    assert fifo.is_fifo() and link.is_symlink() and not nowhere.exists()
    (tmp_path / "real.html").write_text("before")
    (tmp_path / "report.html").symlink_to("real.html")
    write_report(
        checkpoints / "model", [checkpoints / "nvfp4"], tmp_path / "report.html", overwrite=True
    )
    assert (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "real.html").read_text().startswith("<!doctype html>")


def test_full_disk_leaves_nothing(checkpoints: Path, tmp_path: Path, monkeypatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_report(checkpoints / "model", [checkpoints / "nvfp4"], tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


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
QUANTISE = {"recipe": "nvfp4", "dtype": "bf16", "threads": 1, "memcpy_share": 0.5}
PRODUCT = {"recipe_a": "bf16", "recipe_b": "nvfp4", "gflops": 100.0}


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
            {"m": 1, "n": 2, "k": 3, "threads": 1, "cases": [PRODUCT]},
        ],
    )
    text = output.read_text()
    page = assert_self_contained(text)
    assert "<h1>A &amp; &lt;B&gt;</h1>" in text
    assert sum(tag == "img" for tag, _ in page.tags) == 6
    names = re.findall(r"<tr><td>([^<]*)", text)
    assert names[:3] == ["bf16", "mxfp8_e4m3", "nvfp4"]  # the largest first
    expected = blockscale.compare(checkpoints / "model", checkpoints / "nvfp4")
    layers = sorted(t.sqnr_db for t in expected.tensors if t.recipe_b == "nvfp4")
    assert f"<td>{layers[len(layers) // 2]:.1f}</td><td>{layers[0]:.1f}</td>" in text
    assert "422 sentences" in page.text and "0.9665" in page.text


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
    small = np.mean((errors > 0) & (errors < data.BIN_EDGES[0]))
    total = candidate.histogram.shares.sum() + candidate.histogram.exact + small
    assert total == pytest.approx(1.0, abs=1e-3)
    assert candidate.bits_per_weight == pytest.approx(4.5, abs=0.1)


def test_layers_are_in_the_models_order() -> None:
    from blockscale.report.data import natural_key, short_layer

    names = [f"encoder.layer.{i}.output.dense.weight" for i in (10, 2, 0)]
    assert [short_layer(n) for n in sorted(names, key=natural_key)] == [
        "0.output.dense",
        "2.output.dense",
        "10.output.dense",
    ]
