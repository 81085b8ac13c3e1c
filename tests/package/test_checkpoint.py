"""Checkpoint, inspect, convert and compare on a small generated model."""

from __future__ import annotations

import doctest
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import blockscale
import numpy as np
import pytest
from safetensors.numpy import save_file

MODULES = ["_ops", "_tensor", "_checkpoint"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    rng = np.random.default_rng(0)
    tensors = {
        "layers.0.q_proj.weight": rng.standard_normal((64, 128)).astype(np.float32),
        "layers.0.q_proj.bias": rng.standard_normal(64).astype(np.float32),
        "layers.0.o_proj.weight": rng.standard_normal((128, 64)).astype(np.float16),
        "position_ids": np.arange(8),
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "test"}\n')
    return folder


def test_plain_tensors_are_read_lazily_and_typed(model: Path) -> None:
    checkpoint = blockscale.Checkpoint(model)
    assert len(checkpoint) == 4 and "position_ids" in checkpoint
    assert checkpoint.dialect.name == "plain"
    assert checkpoint["position_ids"].tolist() == list(range(8))
    weight = checkpoint["layers.0.o_proj.weight"]
    assert weight.dtype == np.float16 and weight.shape == (128, 64)
    assert not weight.flags.writeable
    del checkpoint
    assert np.isfinite(weight).all()
    with pytest.raises(KeyError):
        blockscale.Checkpoint(model)["nothing"]


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_row", "fp8_tensor"])
def test_convert_stores_what_quantize_gives(model: Path, tmp_path: Path, recipe: str) -> None:
    seen: list[tuple[int, int, str]] = []
    report = blockscale.convert(
        model, tmp_path / "out", recipe, scale_mode="ceil", progress=lambda *step: seen.append(step)
    )
    assert seen and seen[-1][0] == seen[-1][1]
    assert {t.name for t in report.tensors if t.converted} == {
        "layers.0.q_proj.weight",
        "layers.0.o_proj.weight",
    }
    stored = blockscale.Checkpoint(tmp_path / "out")["layers.0.o_proj.weight"]
    source = blockscale.Checkpoint(model)["layers.0.o_proj.weight"]
    direct = blockscale.quantize(np.asarray(source), recipe, sense=stored.sense)
    assert np.array_equal(np.asarray(stored.values).view(np.uint8), direct.values.view(np.uint8))
    assert np.array_equal(stored.scales.view(np.uint8), direct.scales.view(np.uint8))
    comparison = blockscale.compare(model, tmp_path / "out")
    assert 10 < comparison.total.sqnr_db < 60
    infos = {t.name: t for t in blockscale.inspect(tmp_path / "out")}
    assert infos["layers.0.o_proj.weight"].recipe.name == recipe


def test_errors_are_pythons(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        blockscale.Checkpoint(tmp_path / "missing")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match=r"bad\.safetensors"):
        blockscale.inspect(tmp_path / "bad.safetensors")
    blockscale.convert(model, tmp_path / "out", "mxfp4")
    with pytest.raises(FileExistsError):
        blockscale.convert(model, tmp_path / "out", "mxfp4")
    with pytest.raises(ValueError, match="dialect: is 'gguf'"):
        blockscale.convert(model, tmp_path / "new", "mxfp4", dialect="gguf")
    assert not (tmp_path / "new").exists()


def test_an_exception_in_progress_stops_the_conversion(model: Path, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        blockscale.convert(model, tmp_path / "out", "mxfp4", progress=fail)


def test_keyboard_interrupt(tmp_path: Path) -> None:
    big = {f"layer.{i}.weight": np.ones((2048, 4096), np.float32) for i in range(8)}
    save_file(big, tmp_path / "model.safetensors")
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            while True:  # until the signal arrives during a conversion
                blockscale.convert(
                    tmp_path / "model.safetensors",
                    tmp_path / "out.safetensors",
                    "nvfp4",
                    threads=1,
                    overwrite=True,
                )
    finally:
        timer.cancel()


def test_module_is_the_command_line() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "blockscale", "--version"], capture_output=True, text=True
    )
    assert run.returncode == 0 and blockscale.__version__ in run.stdout


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    module = sys.modules[f"blockscale.{name}"]
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0 and result.failed == 0
