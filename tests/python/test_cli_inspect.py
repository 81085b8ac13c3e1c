"""`blockscale inspect`: checkpoints, and scale layouts in CuTe notation."""

import json
import os
import pathlib
import struct

import numpy
import pytest
from cli_testing import LINEAR, Program
from safetensors.numpy import save_file


# Issue 4, section 1: what the layouts of the seeds print as.
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        # seed 004: sfa_tensor of its four examples
        (
            "swizzled_128x4 --shape 128x64 --group 16",
            "(((32,4),1),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,512))",
        ),
        (
            "swizzled_128x4 --shape 128x128 --group 16",
            "(((32,4),1),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,1024))",
        ),
        (
            "swizzled_128x4 --shape 256x64 --group 16",
            "(((32,4),2),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,1024))",
        ),
        (
            "swizzled_128x4 --shape 256x128 --group 16",
            "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))",
        ),
        # seed 000: layout_SFA and layout_SFB at (256,512,1024), blockwise and groupwise
        (
            "mn_major --shape 256x1024 --group 128 --rows-per-scale 128",
            "((128,2),(128,8),1):((0,1),(0,2),16)",
        ),
        (
            "mn_major --shape 512x1024 --group 128 --rows-per-scale 128",
            "((128,4),(128,8),1):((0,1),(0,4),32)",
        ),
        (
            "mn_major --shape 256x1024 --group 128 --rows-per-scale 1",
            "((1,256),(128,8),1):((0,1),(0,256),2048)",
        ),
        # recipes stand for group and rows
        (
            "swizzled_128x4 --shape 256x128 --recipe nvfp4",
            "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))",
        ),
        (
            "row_major --shape 256x1024 --recipe fp8_128x128",
            "((128,2),(128,8),1):((0,8),(0,1),16)",
        ),
        ("row_major --shape 30x40 --recipe fp8_tensor", "((30,1),(40,1),1):((0,1),(0,1),1)"),
        (
            "swizzled_8x4 --shape 256x128 --recipe nvfp4",
            "((8,32),((16,4),2),(1,1)):((4,64),((0,1),32),(0,2048))",
        ),
        # seed 004's MN-major atom, ((16,4),(32,4)):((0,1),(16,4)), tiled
        (
            "swizzled_128x4 --shape 128x64 --group 16 --major mn",
            "(((16,4),1),((32,4),1),(1,1)):(((0,1),512),((16,4),512),(0,512))",
        ),
        (
            "swizzled_128x4 --shape 256x128 --recipe nvfp4 --major mn",
            "(((16,4),2),((32,4),2),(1,1)):(((0,1),512),((16,4),1024),(0,2048))",
        ),
        (
            "mn_major --shape 100x300 --group 128 --rows-per-scale 64 --leading-stride 16 "
            "--batch 5",
            "((64,2),(128,3),5):((0,1),(0,16),48)",
        ),
    ],
)
def test_layouts(program: Program, arguments: str, line: str):
    words = ["inspect", "--layout", *arguments.split()]
    assert program.ok(*words) == line + "\n"
    assert program.json(*words)["cute"] == line


def test_layout_as_json(program: Program):
    words = "inspect --layout mn_major --shape 256x1024 --recipe fp8_1x128 --leading-stride 300"
    assert program.json(*words.split()) == {
        "layout": "mn_major",
        "rows": 256,
        "k": 1024,
        "rows_per_scale": 1,
        "group": 128,
        "leading_stride": 300,
        "batch": 1,
        "major": "k",
        "cute": "((1,256),(128,8),1):((0,1),(0,300),2400)",
    }


@pytest.mark.parametrize(
    ("arguments", "name", "message"),
    [
        ("", "usage", "give either PATH, or --layout and --shape"),
        ("model --layout row_major", "usage", "give either PATH, or --layout and --shape"),
        ("model --group 16", "usage", "go with --layout"),
        ("--layout row_major --shape 4x4 --group 4 --top 1", "usage", "--top go with PATH"),
        ("--layout row_major", "usage", "--layout needs --shape"),
        ("model --major mn", "usage", "go with --layout"),
        ("--layout row_major --shape 4x4 --group 4 --major n", "usage", "'n' is no order of"),
        ("--layout row_major --shape 4x4", "usage", "--layout needs --recipe or --group"),
        ("--layout row_major --shape 4x4 --recipe bf16", "usage", "--recipe bf16 has no scales"),
        ("--layout columns --shape 4x4", "usage", "choose one of row_major, mn_major,"),
        ("--layout row_major --shape 4by4 --group 4", "usage", "'4by4' is no shape"),
        ("--layout row_major --shape 0x4 --group 4", "usage", "'0' is out of range"),
        ("--layout row_major --shape 4x4 --group 0", "usage", "--group: '0' is out of range"),
        ("--layout row_major --shape 4x4 --group 4 --batch 0", "usage", "--batch: '0'"),
        (
            "--layout swizzled_128x4 --shape 256x128 --group 16 --leading-stride 5",
            "invalid_argument",
            "leading_stride: is 5, must be 0 or 2",
        ),
        (
            "--layout swizzled_128x4 --shape 256x128 --group 16 --rows-per-scale 2",
            "invalid_argument",
            "rows_per_scale",
        ),
        (
            "--layout mn_major --shape 256x128 --group 16 --leading-stride 255",
            "invalid_argument",
            "leading_stride: is 255, must be 0 (packed) or at least 256",
        ),
    ],
)
def test_refuses(program: Program, arguments: str, name: str, message: str):
    assert message in program.fails(name, "inspect", *arguments.split())


def test_checkpoint_as_text(program: Program, model: pathlib.Path):
    text = program.ok("inspect", model)
    lines = text.splitlines()
    assert lines[0].split() == ["Tensor", "Shape", "Recipe", "Scale", "layout", "Bytes"]
    for module, shape in LINEAR.items():
        assert any(
            line.startswith(f"{module}.weight ") and f"[{shape[0]}, {shape[1]}]" in line
            for line in lines
        ), module
    assert "plain dialect, 1 file of " in lines[-1]
    assert text.isascii()


def test_checkpoint_as_json(program: Program, model: pathlib.Path):
    report = program.json("inspect", model)
    assert report["dialect"] == "plain"
    size = (model / "model.safetensors").stat().st_size
    assert report["files"] == [{"path": str(model / "model.safetensors"), "bytes": size}]
    tensors = {tensor["name"]: tensor for tensor in report["tensors"]}
    assert len(tensors) == len(report["tensors"]) == 2 + 2 * len(LINEAR)
    assert tensors["encoder.layer.0.output.dense.weight"] == {
        "name": "encoder.layer.0.output.dense.weight",
        "shape": [128, 256],
        "recipe": "f32",
        "quantized": False,
        "dtype": "F32",
        "layout": None,
        "cute": None,
        "bytes": 128 * 256 * 4,
        "column_factors": False,
    }
    elements = sum(numpy.prod(tensor["shape"]) for tensor in tensors.values())
    total = {
        "tensors": len(tensors),
        "elements": elements,
        "bytes": 4 * elements,
        "bits_per_element": 32.0,
    }
    assert report["total"] == total
    assert report["recipes"] == {"f32": total}


def test_chosen_sorted_and_cut(program: Program, model: pathlib.Path):
    whole = program.json("inspect", model)["tensors"]
    largest = sorted(whole, key=lambda tensor: -tensor["bytes"])
    report = program.json("inspect", model, "--sort", "bytes", "--top", 3)
    assert report["tensors"] == largest[:3] and report["total"]["tensors"] == len(whole)
    assert program.json("inspect", model, "--sort", "shape")["tensors"] == largest  # all in f32
    chosen = ["--tensor", "*.bias", "--tensor", "re:embeddings"]
    report = program.json("inspect", model, *chosen, "--sort", "name")
    names = [t["name"] for t in whole if t["name"].endswith("bias") or "embeddings" in t["name"]]
    assert [tensor["name"] for tensor in report["tensors"]] == sorted(names)
    assert report["total"]["tensors"] == len(names)
    assert report["total"]["bytes"] == sum(tensor["bytes"] for tensor in report["tensors"])
    text = program.ok("inspect", model, *chosen, "--top", 1)
    assert f"1 of {len(names)} tensors shown\n" in text
    missing = program.fails("invalid_argument", "inspect", model, "--tensor", "*.LayerNrm.*")
    assert 'tensors: "*.LayerNrm.*" matches no tensor; near: ' in missing


def test_sorting_by_recipe_and_layout(program: Program, model: pathlib.Path):
    result = model.parent / "result"
    program("convert", model, result, "--recipe", "nvfp4")
    recipes = [t["recipe"] for t in program.json("inspect", result, "--sort", "recipe")["tensors"]]
    assert recipes == sorted(recipes) and len(set(recipes)) == 2
    tensors = program.json("inspect", result, "--sort", "layout")["tensors"]
    layouts = [tensor["layout"] or "" for tensor in tensors]
    assert layouts == sorted(layouts) and len(set(layouts)) == 2


def test_scales_that_mean_nothing_are_shown(program: Program, tmp_path: pathlib.Path):
    for scale in (0.0, -1.0, numpy.inf, numpy.nan, 0.5):
        header = {
            "a.weight_scale_2": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
            "a.weight": {"dtype": "U8", "shape": [4, 16], "data_offsets": [4, 68]},
            "a.weight_scale": {"dtype": "F8_E4M3", "shape": [4, 2], "data_offsets": [68, 76]},
        }
        text = json.dumps(header).encode()
        data = struct.pack("<f", scale) + bytes(64) + b"\x38" * 8
        file = tmp_path / "model.safetensors"
        file.write_bytes(struct.pack("<Q", len(text)) + text + data)
        problems = program.json("inspect", file)["problems"]
        if scale == 0.5:
            assert problems == []
            assert "damaged" not in program.ok("inspect", file)
            continue
        assert len(problems) == 1
        assert problems[0].startswith("a.weight_scale_2 is ")
        assert problems[0].endswith(", must be finite and above 0")
        assert f"damaged: {problems[0]}" in program.ok("inspect", file).splitlines()
        convert = ("convert", file, tmp_path / "out.safetensors", "--recipe", "bf16")
        assert problems[0] in program.fails("corrupt_file", *convert).replace(": is", " is")


def test_a_file_and_its_folder_hold_the_same(program: Program, model: pathlib.Path):
    folder = program.json("inspect", model)
    file = program.json("inspect", model / "model.safetensors")
    assert folder["tensors"] == file["tensors"]


def test_hostile_names_cannot_drive_the_terminal(program: Program, tmp_path: pathlib.Path):
    file = tmp_path / "hostile.safetensors"
    save_file({"evil\x1b[2J\nname": numpy.zeros(2, numpy.float32)}, file)
    assert "evil\\x1B[2J\\x0Aname" in program.fails("corrupt_file", "inspect", file)
    missing = program.fails("not_found", "inspect", tmp_path / "a\x1b[2J\nb")
    assert "\x1b" not in missing


def test_missing_file(program: Program, tmp_path: pathlib.Path):
    missing = tmp_path / "missing"
    assert str(missing) in program.fails("not_found", "inspect", missing)


def test_folder_without_tensors(program: Program, tmp_path: pathlib.Path):
    assert str(tmp_path) in program.fails("not_found", "inspect", tmp_path)


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_corrupt_file(program: Program, tmp_path: pathlib.Path, json_flag: list[str]):
    file = tmp_path / "broken.safetensors"
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    message = program.fails("corrupt_file", "inspect", file, *json_flag)
    assert str(file) in message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission(program: Program, model: pathlib.Path):
    (model / "model.safetensors").chmod(0)
    assert "ermission" in program.fails("io", "inspect", model)
