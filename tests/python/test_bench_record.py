"""tools/bench/record.py: what it keeps of a measurement, and which benchmarks it knows."""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/bench"))

import programs  # noqa: E402
import record  # noqa: E402
from record import Machine, Measurement  # noqa: E402


def recorder(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "tools/bench/record.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_record_says_where_it_was_measured(tmp_path: pathlib.Path) -> None:
    machine = Machine("NVIDIA H200", {"driver": "580.1"})
    found = Measurement("gemm-baseline", "./dev gpu-bench gemm", {"shapes": []}, machine)
    file = record.write(tmp_path / "new", "abc", found)
    document = json.loads(file.read_text())
    assert file.name == f"{document['date']}-h200-gemm-baseline.json"
    assert list(document) == ["date", "chip", "driver", "commit", "command", "results"]
    assert (document["chip"], document["driver"]) == ("NVIDIA H200", "580.1")


def test_a_case_stands_on_a_line() -> None:
    results = {"cases": [{"m": 1, "quartiles": [1.5, 2]}, {"m": 2, "of": {"x": []}}], "no": {}}
    text = record.text_of(results)
    assert json.loads(text) == results
    assert '  {"m": 1, "quartiles": [1.5, 2]},' in text.splitlines()


@pytest.mark.parametrize("name", record.NAMES)
def test_each_benchmark_has_options_and_measures(name: str) -> None:
    benchmark = importlib.import_module(name)
    benchmark.add_options(argparse.ArgumentParser())
    assert callable(benchmark.measure) and benchmark.__doc__


def test_every_module_is_a_benchmark_or_a_part() -> None:
    files = {file.stem for file in (ROOT / "tools/bench").glob("*.py")}
    assert files == {*record.NAMES, "record", "readers", "tables"}


def test_unknown_benchmarks_are_refused() -> None:
    done = recorder("gemms")
    assert done.returncode == 2 and "NAME is one of programs, command, gemm," in done.stderr


def test_the_command_line_is_recorded(cli: pathlib.Path, tmp_path: pathlib.Path) -> None:
    options = ["--output", tmp_path, "--commit", "abc", "--cli", cli, "quantize"]
    sizes = ["--rows", "16", "--k", "128", "--repeats", "1", "--recipe", "mxfp4"]
    done = recorder("command", *options, *sizes)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    assert done.stdout.splitlines()[-1] == str(file)
    assert document["command"] == f"./dev bench quantize {' '.join(sizes)}"
    assert document["results"]["cases"] and document["logical_cpus"] > 0


def program(folder: pathlib.Path, name: str, code: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{code}\n")
    file.chmod(0o755)


def test_programs_that_fail_do_not_stop_the_others(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(record, "gpu", lambda: Machine("NVIDIA H100", {"driver": "1"}))
    program(tmp_path, "a_gpu_bench", "exit 77")
    program(tmp_path, "b_x_gpu_bench", """echo '{"cases": []}'""")
    program(tmp_path, "c_gpu_bench", "echo no")
    program(tmp_path, "d_tune_gpu_bench", "echo is not asked for; exit 1")
    found = []
    with pytest.raises(SystemExit):
        found.extend(programs.measure(argparse.Namespace(build=tmp_path, only="")))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a_gpu_bench: no GPU"
    assert lines[1].startswith("c_gpu_bench: what it printed is no JSON") and len(lines) == 2
    (measured,) = programs.measure(argparse.Namespace(build=tmp_path, only="b_x"))
    assert measured.name == "b-x" and measured.results == {"cases": []}
    assert measured.command == "./dev gpu-bench --only b_x_gpu_bench"
