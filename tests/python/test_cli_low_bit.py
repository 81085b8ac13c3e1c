"""Weights of few bits whose description is not a quantization_config, on the command line."""

import json
import pathlib

import numpy
import pytest
from cli_testing import Program
from safetensors.numpy import save_file


def test_mlx_is_named_before_anything_is_written(program: Program, tmp_path: pathlib.Path):
    source = tmp_path / "model"
    source.mkdir()
    tensors = {
        "q_proj.weight": numpy.zeros((8, 8), numpy.uint32),
        "q_proj.scales": numpy.ones((8, 1), numpy.float16),
        "q_proj.biases": numpy.ones((8, 1), numpy.float16),
    }
    save_file(tensors, source / "model.safetensors")
    words = {"group_size": 64, "bits": 4}
    for config in ({}, {"quantization": words}, {"quantization_config": words}):
        (source / "config.json").write_text(json.dumps(config))
        for recipe in ("bf16", "nvfp4"):
            arguments = ("convert", source, tmp_path / "out", "--recipe", recipe)
            assert "MLX" in program.fails("unsupported", *arguments)
        assert "MLX" in program.fails("unsupported", "inspect", source)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_floats_that_stay_are_said(program: Program, tmp_path: pathlib.Path):
    source = tmp_path / "model.safetensors"
    tensors = {"a.weight": numpy.ones((4, 32), numpy.float32), "b.weight": numpy.ones((4, 32))}
    save_file(tensors, source)
    result = program("convert", source, tmp_path / "out.safetensors", "--recipe", "bf16")
    assert result.code == 0
    assert '1 tensor stays in F64 ("b.weight"): neither rounded nor quantized' in result.err


@pytest.mark.parametrize("form", ["int5_tensorwise", "nvfp5"])
def test_formats_of_comfyui_that_are_not_known_are_named(
    program: Program, tmp_path: pathlib.Path, form: str
):
    source = tmp_path / "model.safetensors"
    tensors = {
        "a.weight": numpy.ones((4, 32), numpy.int8),
        "a.weight_scale": numpy.ones((), numpy.float32),
    }
    said = {"format_version": "1.0", "layers": {"a": {"format": form}}}
    save_file(tensors, source, {"_quantization_metadata": json.dumps(said)})
    message = program.fails(
        "unsupported", "convert", source, tmp_path / "out.safetensors", "--recipe", "bf16"
    )
    assert f'has the format "{form}", readable are' in message
    assert not (tmp_path / "out.safetensors").exists()
