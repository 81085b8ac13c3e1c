"""The HTML report: `blockscale compare --html`, how it finds Python, and the file it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from blockscale.report import write_report
from report_pages import PACKAGE, assert_self_contained, compare


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


def test_html_beside_the_table(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    done = compare(checkpoints, output)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "SQNR dB" in done.stdout and str(output) in done.stdout
    page = assert_self_contained(output.read_text())
    assert sum(tag == "img" for tag, _ in page.tags) == 3  # size, layers, errors
    assert "Counted are only the 25 converted tensors" in page.text and "nvfp4" in page.text
    total = next(line for line in done.stdout.splitlines() if line.startswith("total of 25 "))
    sqnr = total.removeprefix("total of 25 converted tensors").split()[0]
    assert f"<td>{sqnr}</td>" in output.read_text()  # the same total
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
    assert_fails(done, 5, output, "cannot be run", "'.[report]'", "BLOCKSCALE_PYTHON")


def test_python_without_the_package(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = compare(checkpoints, output, BLOCKSCALE_PYTHON=str(bare))
    assert_fails(done, 5, output, str(bare), "blockscale", "pip install '.[report]'")


def test_python_without_matplotlib(checkpoints: Path, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "matplotlib.py").write_text("raise ModuleNotFoundError(\"No module named 'x'\")\n")
    done = compare(checkpoints, output, PYTHONPATH=f"{stub}:{PACKAGE}")
    assert_fails(done, 5, output, "matplotlib", "pip install matplotlib")


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
