"""Checkpoint, inspect, convert and compare on a small generated model."""

from __future__ import annotations

import doctest
import inspect
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import blockscale
import numpy as np
import pytest
from safetensors.numpy import save_file

MODULES = ["", "._ops", "._tensor", "._transform", "._checkpoint", "._calibrator", "._describe"]
MODULES += ["._gemm_quantize", "._grouped", "._moe"]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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


def test_inputs_are_what_the_configuration_says(model: Path, tmp_path: Path) -> None:
    name, scales = "layers.0.q_proj.weight", tmp_path / "scales.json"
    scales.write_text('{"layers.0.q_proj": 4.0, "layers.0.o_proj": 4.0}')
    said = {
        ("nvfp4", "none"): ("WeightInputs(none)", "f32", []),
        ("mxfp4", "dynamic"): ("WeightInputs(dynamic, mxfp4)", "mxfp4", []),
        ("nvfp4", "static"): ("WeightInputs(static, nvfp4)", "nvfp4", [672.0]),
        ("fp8_row", "static"): ("WeightInputs(static, fp8_row)", "fp8_row", [4 / 448]),
    }
    for (recipe, activations), (text, kind, numbers) in said.items():
        options = {"activation_scales": scales} if activations == "static" else {}
        blockscale.convert(
            model, tmp_path / "out", recipe, activations=activations, overwrite=True, **options
        )
        inputs = blockscale.Checkpoint(tmp_path / "out").inputs(name)
        assert repr(inputs) == text and inputs.recipe.name == kind
        assert inputs.scales == pytest.approx(numbers)
        assert inputs.activations.name == activations.replace("static", "calibrated")
    checkpoint = blockscale.Checkpoint(tmp_path / "out")
    assert checkpoint.inputs("layers.0.q_proj.bias").activations.name == "none"
    with pytest.raises(KeyError):
        checkpoint.inputs("nothing")
    file = tmp_path / "out/config.json"
    file.write_text(file.read_text().replace('"type": "float"', '"type": "int"'))
    config = json.loads(file.read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["weights"]["type"] = "float"
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"q_proj\.weight: has inputs in .*no recipe says"):
        blockscale.Checkpoint(tmp_path / "out").inputs(name)


def test_what_has_no_view_is_in_a_checkpoint(tmp_path: Path) -> None:
    described = np.frombuffer(b'{"format": "int8_tensorwise"}', np.uint8)
    tensors = {"a.weight": np.ones((4, 32), np.int8), "a.weight_scale": np.ones(1, np.float32)}
    save_file({**tensors, "a.comfy_quant": described}, tmp_path / "model.safetensors")
    checkpoint = blockscale.Checkpoint(tmp_path / "model.safetensors")
    assert "a.weight" in checkpoint and "a.bias" not in checkpoint
    with pytest.raises(ValueError, match="int8, which a view cannot say"):
        checkpoint["a.weight"]


def test_experts_of_gpt_oss(tmp_path: Path) -> None:
    tensors = {
        "experts.up_blocks": np.full((2, 4, 3, 16), 0x22, np.uint8),
        "experts.up_scales": np.full((2, 4, 3), 128, np.uint8),
    }
    model = tmp_path / "model.safetensors"
    save_file(tensors, model)
    checkpoint = blockscale.Checkpoint(model)
    assert checkpoint.dialect.name == "gpt_oss"
    up = checkpoint["experts.up"]
    assert up.shape == (2, 4, 96) and (blockscale.dequantize(up) == 2).all()
    with pytest.raises(ValueError, match="gpt-oss"):
        blockscale.convert(model, tmp_path / "copy.safetensors", "mxfp4", dialect="gpt_oss")


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_row", "fp8_tensor"])
def test_convert_stores_what_quantize_gives(model: Path, tmp_path: Path, recipe: str) -> None:
    seen: list[tuple[int, int, str]] = []
    mode = "ceil" if recipe.startswith("mx") else None  # quantize's; others have none
    report = blockscale.convert(
        model, tmp_path / "out", recipe, scale_mode=mode, progress=lambda *step: seen.append(step)
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


def test_files_with_other_weights(model: Path, tmp_path: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"1234")
    (left,) = blockscale.convert(model, tmp_path / "out", "mxfp4").not_copied
    assert isinstance(left, blockscale.NotCopied)
    assert (left.path, left.bytes) == ("pytorch_model.bin", 4) and left.reason
    report = blockscale.convert(model, tmp_path / "out", "mxfp4", overwrite=True, copy_all=True)
    assert report.not_copied == [] and not report.partial_discarded
    assert (tmp_path / "out" / "pytorch_model.bin").read_bytes() == b"1234"


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


def ctrl_c() -> None:
    """Sends SIGINT to this process."""
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_stops_a_conversion_that_can_be_resumed(tmp_path: Path) -> None:
    big = {f"layer.{i}.weight": np.full((1024, 2048), i, np.float32) for i in range(48)}
    source, destination = tmp_path / "big", tmp_path / "out"
    source.mkdir()
    save_file(big, source / "model.safetensors")
    before = set(tmp_path.iterdir())

    kept = rf"convert: was stopped at .*; 0 of 1 file is finished and kept in {tmp_path}/\.out.*; "
    with pytest.raises(KeyboardInterrupt, match=kept + "resume continues it$"):
        blockscale.convert(source, destination, "nvfp4", threads=1, progress=lambda *_: ctrl_c())
    assert not destination.exists()
    blockscale.convert(source, destination, "nvfp4", resume=True)
    assert set(tmp_path.iterdir()) == before | {destination}
    blockscale.convert(source, tmp_path / "straight", "nvfp4")
    written = (destination / "model.safetensors").read_bytes()
    assert written == (tmp_path / "straight" / "model.safetensors").read_bytes()


def test_ctrl_c_without_a_callback(tmp_path: Path) -> None:
    save_file({"layer.weight": np.ones((4096, 4096), np.float32)}, tmp_path / "big.safetensors")
    timer = threading.Timer(0.05, ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        for _ in range(100):  # until the signal arrives
            blockscale.convert(
                tmp_path / "big.safetensors",
                tmp_path / "out.safetensors",
                "nvfp4",
                threads=1,
                overwrite=True,
            )
    blockscale.convert(
        tmp_path / "big.safetensors", tmp_path / "out.safetensors", "nvfp4", overwrite=True
    )
    assert len(blockscale.Checkpoint(tmp_path / "out.safetensors")) == 1


BAD_OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"include": "*.weight"}, TypeError, "include: is '.*', must be a list of patterns"),
    ({"exclude": [1]}, TypeError, "exclude: is"),
    ({"exclude": ["*.k_porj"]}, ValueError, 'exclude: "\\*.k_porj" matches no tensor'),
    ({"include": ["re:("]}, ValueError, 'include: "re:\\(" is no regular expression'),
    ({"experts_layout": "up"}, ValueError, "experts_layout: is 'up', must be one of"),
    ({"experts_layout": "in-out"}, ValueError, "experts_layout: is given, but the source has no"),
    ({"amax_floor": 1.0}, ValueError, "amax_floor: given for mxfp4"),
    ({"unused_inputs": "zero"}, ValueError, "unused_inputs: is 'zero', must be one of"),
    ({"unused_inputs": "one"}, ValueError, "unused_inputs: is one, but no input scale"),
    ({"share_tensor_scales": True}, ValueError, "share_tensor_scales: given for mxfp4"),
    ({"map": ["*"]}, TypeError, "map: is"),
    ({"map": "recipes.txt"}, FileNotFoundError, "recipes.txt"),
    ({"scales": "best"}, ValueError, "scales: is 'best', must be one of"),
    ({"scales": "weighted"}, ValueError, "calibration: is not given, but scales is weighted"),
    ({"calibration": 3}, TypeError, "calibration: is a int, must be a path"),
    ({"map": [("*", "int4")]}, ValueError, "map: is 'int4', must be one of"),
    ({"progress": 3}, TypeError, "progress: is a int, must be callable"),
    ({"threads": 1.5}, TypeError, "threads: is 1.5, must be an integer"),
    ({"threads": -1}, ValueError, "threads: is -1"),
    ({"shard_bytes": -1}, ValueError, "shard_bytes: is -1"),
    ({"amax_floor": "x"}, TypeError, "amax_floor: is 'x', must be a number"),
    ({"scale_mode": "up"}, ValueError, "scale_mode: is 'up', must be one of"),
    ({"activation_scales": 3}, TypeError, "activation_scales: is a int, must be a path"),
]


@pytest.mark.parametrize(("options", "kind", "text"), BAD_OPTIONS)
def test_bad_options(
    model: Path, tmp_path: Path, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(kind, match=text):
        blockscale.convert(model, tmp_path / "out", "mxfp4", **options)
    assert set(tmp_path.iterdir()) == before


def test_scales_that_mean_nothing(model: Path, tmp_path: Path) -> None:
    blockscale.convert(model, tmp_path / "q", "nvfp4", dialect="modelopt")
    file = tmp_path / "q" / "model.safetensors"
    name = "layers.0.q_proj.weight"
    assert blockscale.Checkpoint(file).problem(name) is None
    scale = np.float32(blockscale.Checkpoint(file)[name].tensor_scale)
    assert file.read_bytes().count(scale.tobytes()) == 1
    file.write_bytes(file.read_bytes().replace(scale.tobytes(), np.float32(np.nan).tobytes()))
    problem = blockscale.Checkpoint(file).problem(name)
    assert problem == "layers.0.q_proj.weight_scale_2 is nan, must be finite and above 0"
    with pytest.raises(ValueError, match="must be finite and above 0"):
        blockscale.convert(tmp_path / "q", tmp_path / "plain", "f32")


def test_fused_weights_of_different_recipes_are_warned_of(tmp_path: Path) -> None:
    tensors = {f"l.0.{name}_proj.weight": np.ones((4, 64), np.float32) for name in "qkv"}
    (tmp_path / "qkv").mkdir()
    save_file(tensors, tmp_path / "qkv" / "model.safetensors")
    kept = ["re:.*\\.k_proj$"]
    report = blockscale.convert(tmp_path / "qkv", tmp_path / "out", "nvfp4", exclude=kept)
    assert len(report.warnings) == 1
    assert report.warnings[0].startswith('k_proj f32, q_proj nvfp4, v_proj nvfp4 in "l.0"')
    shared = blockscale.convert(
        tmp_path / "qkv", tmp_path / "shared", "nvfp4", share_tensor_scales=True
    )
    assert shared.warnings == []


def test_checkpoint_is_a_mapping(model: Path) -> None:
    checkpoint = blockscale.Checkpoint(model)
    assert isinstance(checkpoint, Mapping)
    assert list(checkpoint) == sorted(checkpoint.keys()) and "nothing" not in checkpoint
    assert checkpoint.get("nothing") is None
    assert {name: value.shape for name, value in checkpoint.items()} == {
        name: tuple(checkpoint.info(name).shape) for name in checkpoint
    }
    with pytest.raises(TypeError):
        blockscale.Checkpoint(3)  # type: ignore[arg-type]


def test_stored_tensors_outlive_the_file_and_pickle(model: Path, tmp_path: Path) -> None:
    blockscale.convert(model, tmp_path / "out", "nvfp4")
    weight = blockscale.Checkpoint(tmp_path / "out")["layers.0.q_proj.weight"]
    before = blockscale.dequantize(weight)
    shutil.rmtree(tmp_path / "out")
    assert np.array_equal(blockscale.dequantize(weight), before)
    assert np.array_equal(blockscale.dequantize(pickle.loads(pickle.dumps(weight))), before)
    with pytest.raises(ValueError, match=r"out\.values: is read-only"):
        blockscale.quantize(before, "nvfp4", out=weight)


def test_module_is_the_command_line() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "blockscale", "--version"], capture_output=True, text=True
    )
    assert run.returncode == 0 and blockscale.__version__ in run.stdout


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blockscale.convert(model, tmp_path / "model-nvfp4", "nvfp4")
    monkeypatch.chdir(tmp_path)  # where the examples find "model" and "model-nvfp4"
    module = sys.modules[f"blockscale{name}"]
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0 and result.failed == 0


def test_everything_public_is_documented() -> None:
    for name in set(blockscale.__all__) - {"__version__"}:
        public = getattr(blockscale, name)
        assert inspect.getdoc(public), name
        if public.__module__ != "blockscale._native":  # enums and reports
            is_result = isinstance(public, type) and issubclass(public, tuple)  # raises nothing
            assert ">>>" in public.__doc__ and ("Raises:" in public.__doc__ or is_result), name
