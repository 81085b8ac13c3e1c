"""Patterns in the examples of docs/, README and --help match weights of the model they speak of."""

from __future__ import annotations

import pathlib
import re
import shlex

import numpy
import pytest
from cli_testing import Program
from safetensors.numpy import save_file

LAYER = "encoder.layer.{}.{}.weight"
MINILM = [  # the names of all-MiniLM-L6-v2's matrices, two layers of them
    *("embeddings.word_embeddings.weight", "pooler.dense.weight"),
    *(
        LAYER.format(i, part)
        for i in range(2)
        for part in (
            *(f"attention.self.{name}" for name in ("query", "key", "value")),
            *("attention.output.dense", "intermediate.dense", "output.dense"),
        )
    ),
]
MIXTURE = [  # of Mixtral
    "model.embed_tokens.weight",
    *(f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"),
    *(
        f"model.layers.0.block_sparse_moe.experts.{i}.w{j}.weight"
        for i in (0, 1)
        for j in (1, 2, 3)
    ),
    *("model.layers.0.block_sparse_moe.gate.weight", "lm_head.weight"),
]
PATTERN_OPTIONS = ("--include", "--exclude", "--map", "--tensor")


def commands(text: str) -> list[list[str]]:
    """Lines `blockscale convert ...` and `blockscale gemm --weights ...`, as words."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(r"^\s*blockscale ((?:convert|gemm) .*)$", joined, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.fixture(name="folder")
def folder_fixture(tmp_path: pathlib.Path) -> pathlib.Path:
    random = numpy.random.default_rng(0)
    for names, folders in ((MINILM, ("model", "all-MiniLM-L6-v2")), (MIXTURE, ("moe",))):
        for name in folders:
            (tmp_path / name).mkdir()
            tensors = {key: random.standard_normal((128, 128), numpy.float32) for key in names}
            save_file(tensors, tmp_path / name / "model.safetensors")
    return tmp_path


def test_documented_patterns_match(program: Program, root: pathlib.Path, folder: pathlib.Path):
    texts = [path.read_text() for path in [*root.glob("docs/*.md"), root / "README.md"]]
    texts += [program.ok(name, "--help") for name in ("convert", "gemm")]
    found = [words for text in texts for words in commands(text)]
    tried = 0
    for words in found:
        patterns = [words[i + 1] for i, word in enumerate(words) if word in PATTERN_OPTIONS]
        if not patterns:
            continue
        arguments = [str(folder / word) if word.startswith("./") else word for word in words]
        if words[0] == "gemm":  # of a model that an example before it wrote
            at = arguments.index("--weights") + 1
            arguments[at] = arguments[arguments.index("--reference") + 1]
            arguments += ["-m", "2", "--repeats", "1"]
        else:
            arguments[2] += str(tried)
            arguments.append("--quiet")
        assert program(*arguments).code == 0, (words, program(*arguments).err)
        tried += 1
    assert tried >= 6, found


def test_near_names_and_regular_expressions(program: Program, folder: pathlib.Path):
    arguments = ["convert", folder / "model", folder / "out", "--recipe", "nvfp4"]
    message = program.fails("invalid_argument", *arguments, "--exclude", "*.attn.self.*")
    assert 'exclude: "*.attn.self.*" matches no tensor; near: "encoder' in message
    assert not (folder / "out").exists()
    message = program.fails("invalid_argument", *arguments, "--include", "re:*")
    assert 'include: "re:*" is no regular expression' in message
    kept = ["--exclude", "re:.*attention\\.self\\.(query|key|value)$", "--exclude", "re:pooler"]
    report = program.json(*arguments, *kept)
    excluded = [t["name"] for t in report["tensors"] if t["reason"] == "excluded"]
    assert len(excluded) == 7 and report["warnings"] == []


def test_warnings_go_to_standard_error_and_json(program: Program, folder: pathlib.Path):
    arguments = ["convert", folder / "model", folder / "out", "--recipe", "nvfp4", "--overwrite"]
    arguments += ["--exclude", "*.query"]
    warning = 'key nvfp4, query f32, value nvfp4 in "encoder.layer.0.attention.self" and 1 more'
    shown = program(*arguments)
    assert shown.code == 0 and f"blockscale: warning: {warning}" in shown.err
    assert program.json(*arguments)["warnings"][0].startswith(warning)
    assert program.ok(*arguments, "--quiet") == ""


def test_layouts_of_experts(program: Program, tmp_path: pathlib.Path):
    tensors = {"m.experts.up": (2, 32, 64), "m.q_proj.weight": (32, 64)}
    stored = {name: numpy.ones(shape, numpy.float32) for name, shape in tensors.items()}
    save_file(stored, tmp_path / "moe.safetensors")
    arguments = ["convert", tmp_path / "moe.safetensors", tmp_path / "out.safetensors"]
    arguments += ["--recipe", "mxfp4"]
    message = program.fails("invalid_argument", *arguments)
    assert 'experts_layout: is not given, and must be for "m.experts.up" [2, 32, 64]' in message
    assert "choose one of out-in, in-out" in program.fails(
        "usage", *arguments, "--experts-layout", "up"
    )
    for layout, converted in (("out-in", 2), ("in-out", 1)):
        report = program.json(*arguments, "--experts-layout", layout, "--overwrite")
        assert sum(t["converted"] for t in report["tensors"]) == converted


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ("--recipe nvfp4 --scale-mode ceil", "mx_scale_mode: given for nvfp4"),
        ("--recipe mxfp4 --amax-floor 1", "fp8_amax_floor: given for mxfp4"),
        ("--recipe mxfp4 --activation-scales a.json", "activation_scales: given for mxfp4"),
        ("--recipe mxfp4 --share-tensor-scales", "share_tensor_scales: given for mxfp4"),
        ("--recipe fp8_row --scales mse", "scales: given for fp8_row"),
        ("--recipe mxfp4 --scales mse --scale-mode ceil", "mx_scale_mode: is given, but scales"),
        ("--recipe mxfp4 --scales mse --calibration c.safetensors", "calibration: is given, but"),
        ("--recipe mxfp4 --scales weighted", "calibration: is not given, but scales is weighted"),
        ("--recipe mxfp4 --experts-layout in-out", "experts_layout: is given"),
    ],
)
def test_options_that_mean_nothing(
    program: Program, folder: pathlib.Path, options: str, argument: str
):
    arguments = ["convert", folder / "model", folder / "out", *options.split()]
    assert argument in program.fails("invalid_argument", *arguments)
    assert not (folder / "out").exists()
