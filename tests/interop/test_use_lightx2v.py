"""LightX2V's own code on a CPU: what its converter writes, read by us; its bytes against ours; and
what its weight classes load. Without a checkout, test_read_others.py has its layout by its rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rules
import store
import torch
from command import Blockscale
from findings import Findings
from lightx2v_checkout import LightX2V
from rules import Quantized
from safetensors.torch import load_file
from test_read import assert_equal_tensors
from test_read_others import assert_values, dequantized, in_other_dialects, record, write

BYTES = "Bytes of LightX2V's own quantizers"
LOADED = "What LightX2V's weight classes load"
NOTE = """\
Bytes of values, scales and tensor scales that LightX2V ({version}) would have
written otherwise, of random weights in bf16. Of NVFP4 it computes the tensor scale in bf16, and,
given that one, takes a sixth of a block's amax by a product and multiplies by a reciprocal, where
we divide. The tests reproduce that: with these rules in place of ours, every byte is equal.
Its `tools/convert/converter.py` ran, and the source of its CUDA kernels, compiled as C++ for a CPU:
NVIDIA's headers convert to the float formats there, inline PTX is interpreted, and `rcp.approx` is
a division. The two are equal for powers of two, as MX scales are, and for all scales of NVFP4's
blocks on an H200 (`tools/record_rcp.py`).
`tests/interop/use_lightx2v.py` says what else stands in."""
LOADED_NOTE = """\
Every tensor that a class of `lightx2v/common/ops/mm/mm_weight.py` has after loading is the stored
one, and what they mean by its products is what we read: of NVFP4, `alpha` times
`input_global_scale` is the factor of the weight. Its products need a GPU and are not computed.
Alpha is by its `tools/convert/add_scale_to_models.py` (the second commit, if two are named)."""
SHAPES = {  # more than one round of its 256 threads, tiles of scales with padding
    "blocks.0.self_attn.q": (256, 256),
    "blocks.0.cross_attn.k": (130, 2144),
    "blocks.0.ffn.0": (200, 512),
    "blocks.0.ffn.2": (256, 384),
}
WEIGHTS = [module + ".weight" for module in SHAPES]
MX = {
    "mxfp4": (rules.E2M1, rules.pack4),
    "mxfp6": (rules.E3M2, rules.pack6),
    "mxfp8": (rules.E4M3, lambda codes: codes),
}
FORMATS = {  # its name of a format, ours, its class that loads it
    "fp8": ("fp8_row", "fp8-vllm"),
    "nvfp4": ("nvfp4", "nvfp4"),
    "mxfp4": ("mxfp4", "mxfp4"),
    "mxfp6": ("mxfp6_e3m2", "mxfp6-mxfp8"),
    "mxfp8": ("mxfp8_e4m3", "mxfp8"),
}
Tensors = dict[str, store.Stored]


@pytest.fixture(scope="module")
def plain(work: Path) -> Path:
    """A checkpoint in bf16 with the names of Wan's transformer."""
    generator = torch.Generator().manual_seed(10)
    tensors = {"blocks.0.norm3.weight": torch.ones(256, dtype=torch.bfloat16)}
    for module, shape in SHAPES.items():
        tensors[module + ".weight"] = (0.05 * torch.randn(shape, generator=generator)).bfloat16()
        tensors[module + ".bias"] = torch.zeros(shape[0], dtype=torch.bfloat16)
    folder = work / "lightx2v-source"
    write(folder, tensors, {})
    return folder


@pytest.fixture(scope="module")
def converted(lightx2v: LightX2V, plain: Path, work: Path) -> Callable[[str], Path]:
    """What its converter makes of that, by its name of the format: a file and an index."""
    folders: dict[str, Path] = {}

    def convert(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = work / f"lightx2v-{kind}"
            convert_with_it(lightx2v, kind, plain, folders[kind])
        return folders[kind]

    return convert


def convert_with_it(
    lightx2v: LightX2V, kind: str, source: Path, destination: Path, *more: str
) -> None:
    options = ["--quantized", "--linear_type", kind, "--non_linear_dtype", "torch.bfloat16"]
    options += ["--source", source, "--output", destination, "--device", "cpu", *more]
    lightx2v.run("converter.py", *options)


def by_our_rules(kind: str, weight: np.ndarray, tensor_scale: np.float32 | None) -> Quantized:
    if kind == "nvfp4":
        return rules.quantize_nvfp4_scaled(weight, tensor_scale)
    return rules.quantize_mx(weight, MX[kind][0])


def by_its_rules(kind: str, weight: np.ndarray, tensor_scale: np.float32 | None) -> Quantized:
    if kind != "nvfp4":
        return by_our_rules(kind, weight, tensor_scale)
    amax = np.abs(weight.reshape(len(weight), -1, 16)).max(axis=-1)
    scales = rules.E4M3.encode(tensor_scale * (amax * (np.float32(1) / np.float32(6))))
    factors = tensor_scale * (np.float32(1) / rules.E4M3.decode(scales))  # none is 0 here
    codes = rules.E2M1.encode(weight * rules.expand_scales(factors, weight.shape))
    return Quantized(codes, scales, tensor_scale)


def stored_bytes(kind: str, quantized: Quantized) -> dict[str, np.ndarray]:
    """Without what pads the scales, which nobody sets in MXFP8's."""
    pack = rules.pack4 if kind == "nvfp4" else MX[kind][1]
    return {"values": pack(quantized.codes), "scales": quantized.scales}


def values_of(kind: str, stored: Tensors, module: str) -> np.ndarray:
    codes, scales = stored[module + ".weight"].array, stored[module + ".weight_scale"].array
    if kind == "fp8":
        return rules.E4M3.decode(codes) * scales
    (rows, k), block = SHAPES[module], block_of(kind)
    factors = unswizzle(scales, rows, k // block)
    if kind == "nvfp4":
        factors = rules.E4M3.decode(factors) / stored[module + ".weight_global_scale"].array
        return rules.E2M1.decode(rules.unpack4(codes)) * factors.repeat(block, axis=1)
    element = MX[kind][0]
    unpack = {4: rules.unpack4, 6: rules.unpack6, 8: lambda codes: codes}[element.bits]
    return element.decode(unpack(codes)) * rules.decode_exponents(factors).repeat(block, axis=1)


def block_of(kind: str) -> int:
    return 16 if kind == "nvfp4" else 32


def unswizzle(scales: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Found by where swizzle() puts the number of each scale."""
    places = rules.swizzle(np.arange(1, rows * columns + 1).reshape(rows, columns))
    return scales[places > 0][np.argsort(places[places > 0])].reshape(rows, columns)


@pytest.mark.parametrize("kind", FORMATS)
def test_we_read_what_its_converter_writes(
    kind: str,
    converted: Callable[[str], Path],
    lightx2v: LightX2V,
    plain: Path,
    blockscale: Blockscale,
    tmp_path: Path,
    findings: Findings,
) -> None:
    folder, recipe = converted(kind), FORMATS[kind][0]
    shown = json.loads(blockscale.run("inspect", folder, "--json"))
    assert shown["dialect"] == "lightx2v"
    stored, source = store.read(folder), store.read(plain)
    expected = {module + ".weight": values_of(kind, stored, module) for module in SHAPES}
    for name, values in expected.items():
        assert rules.sqnr_db(source[name].array, values) > 17, name
    assert_values(dequantized(blockscale, folder, tmp_path), expected)
    written = in_other_dialects(blockscale, folder, recipe, expected, tmp_path)
    row = f"LightX2V ({lightx2v.version}, its converter), `{recipe}`, random, bf16"
    record(findings, row, len(expected), written)


def in_bfloat16(x: np.float32) -> np.float32:
    return rules.round_to_bfloat16(np.array([x]))[0]


@pytest.mark.parametrize("kind", ["nvfp4", *MX])
def test_bytes_of_its_quantizers(
    kind: str,
    converted: Callable[[str], Path],
    lightx2v: LightX2V,
    plain: Path,
    findings: Findings,
) -> None:
    stored, source = store.read(converted(kind)), store.read(plain)
    different = dict.fromkeys(["values", "scales", "tensor scales"], 0)
    total = dict(different)
    for module, (rows, k) in SHAPES.items():
        weight, tensor_scale = source[module + ".weight"].array, None
        if kind == "nvfp4":
            tensor_scale, amax = stored[module + ".weight_global_scale"].array, np.abs(weight).max()
            assert tensor_scale == in_bfloat16(np.float32(2688) * in_bfloat16(1 / amax))
            different["tensor scales"] += int(tensor_scale != rules.nvfp4_tensor_scale(amax))
            total["tensor scales"] += 1
        codes, scales = stored[module + ".weight"].array, stored[module + ".weight_scale"].array
        assert scales.shape == rules.swizzle(np.ones((rows, k // block_of(kind)))).shape
        theirs = {"values": codes, "scales": unswizzle(scales, rows, k // block_of(kind))}
        explained = stored_bytes(kind, by_its_rules(kind, weight, tensor_scale))
        ours = stored_bytes(kind, by_our_rules(kind, weight, tensor_scale))
        for what, array in theirs.items():
            assert np.array_equal(explained[what], array), f"{module}: {what}"
            different[what] += int((ours[what] != array).sum())
            total[what] += array.size
    assert kind == "nvfp4" or not any(different.values())
    cells = {what: f"{different[what]} of {total[what]}" for what in total if total[what]}
    findings.record(BYTES, f"`{FORMATS[kind][0]}`", **cells)
    findings.note(BYTES, NOTE.format(version=lightx2v.version))


@pytest.mark.parametrize("kind", ["mxfp4", "mxfp8"])
def test_our_converter_writes_the_same(
    kind: str,
    converted: Callable[[str], Path],
    plain: Path,
    blockscale: Blockscale,
    tmp_path: Path,
) -> None:
    """Its checkpoint in another dialect is the plain one in that dialect, byte for byte."""
    recipe, options = FORMATS[kind][0], ("--dialect", "compressed-tensors")
    theirs = blockscale.convert(converted(kind), tmp_path / "theirs", recipe, *options)
    ours = blockscale.convert(plain, tmp_path / "ours", recipe, *options, "--scale-mode", "ceil")
    assert_equal_tensors(store.read(theirs), store.read(ours))


def file_of(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


def with_input_absmax(folder: Path, destination: Path) -> Path:
    absmax = {module + ".input_absmax": torch.tensor(3.25).bfloat16() for module in SHAPES}
    write(destination, load_file(file_of(folder)) | absmax, {})
    return destination


def with_alpha(lightx2v: LightX2V, folder: Path, destination: Path) -> Path:
    """What its add_scale_to_models.py makes of a calibration."""
    calibration = destination.with_suffix(".pt")
    absmax = {name: torch.tensor(3.25).bfloat16() for name in WEIGHTS}
    torch.save({"absmax": absmax}, calibration)
    destination.mkdir()
    options = ["--calib", calibration, "--state-dict", file_of(folder), "--device", "cpu"]
    output = destination / "model.safetensors"
    lightx2v.run("add_scale_to_models.py", *options, "--output", output)
    return destination


@pytest.mark.parametrize("kind", FORMATS)
def test_its_classes_load_it(
    kind: str,
    converted: Callable[[str], Path],
    lightx2v: LightX2V,
    blockscale: Blockscale,
    tmp_path: Path,
    findings: Findings,
) -> None:
    recipe, loader = FORMATS[kind]
    if kind == "nvfp4":
        folders = {
            "with input_absmax": with_input_absmax(converted(kind), tmp_path / "absmax"),
            "with alpha": with_alpha(lightx2v, converted(kind), tmp_path / "alpha"),
        }
    else:
        folders = {"its converter's": converted(kind)}
    for what, folder in folders.items():
        loaded, stored = lightx2v.load(loader, folder, WEIGHTS), store.read(folder)
        values = tmp_path / f"{folder.name}-values"
        values.mkdir()
        ours = dequantized(blockscale, folder, values)
        for module in SHAPES:
            assert_loaded(kind, loaded, stored, ours, module)
        findings.record(LOADED, f"`{recipe}`, {what}", layers=len(SHAPES), loaded_by=f"`{loader}`")
    findings.note(LOADED, LOADED_NOTE)


def assert_loaded(kind: str, loaded: Tensors, stored: Tensors, ours: Tensors, module: str) -> None:
    weight, scale = module + ".weight", module + ".weight_scale"
    codes = loaded[weight].array
    assert np.array_equal(codes.T if kind == "fp8" else codes, stored[weight].array)
    assert np.array_equal(loaded[scale].array, stored[scale].array)
    if kind != "nvfp4":
        meant = values_of(kind, stored, module)
        assert np.array_equal(ours[weight].array, meant)
        return
    inputs, alpha = loaded[module + ".input_global_scale"].array, loaded[module + ".alpha"].array
    without = stored | {module + ".weight_global_scale": store.Stored("F32", np.float32(1))}
    meant = values_of(kind, without, module) * (inputs * alpha)
    np.testing.assert_array_max_ulp(ours[weight].array, meant, maxulp=4)


@pytest.mark.parametrize(
    ("kind", "dialect"), [("fp8", "compressed-tensors"), *((kind, "lightx2v") for kind in FORMATS)]
)
def test_its_classes_load_what_we_write(
    kind: str,
    dialect: str,
    lightx2v: LightX2V,
    plain: Path,
    blockscale: Blockscale,
    tmp_path: Path,
    findings: Findings,
) -> None:
    recipe, loader = FORMATS[kind]
    options = ["--dialect", dialect]
    if kind == "nvfp4":
        scales = tmp_path / "scales.json"
        scales.write_text(json.dumps(dict.fromkeys(SHAPES, 3.25)))
        options += ["--activation-scales", scales]
    folder = blockscale.convert(plain, tmp_path / "ours", recipe, *options)
    loaded, stored = lightx2v.load(loader, folder, WEIGHTS), store.read(folder)
    ours = dequantized(blockscale, folder, tmp_path)
    for module in SHAPES:
        assert_loaded(kind, loaded, stored, ours, module)
    row = f"`{recipe}`, written by us for {dialect}"
    findings.record(LOADED, row, layers=len(SHAPES), loaded_by=f"`{loader}`")


@pytest.mark.parametrize("option", ["--chunk-size=3", "--save_by_block", "--single_file"])
@pytest.mark.parametrize("kind", FORMATS)
def test_its_other_files(
    kind: str,
    option: str,
    lightx2v: LightX2V,
    plain: Path,
    blockscale: Blockscale,
    tmp_path: Path,
) -> None:
    """--single_file has no index; its FP8 then has the names of others' and their values."""
    folder = tmp_path / "written"
    convert_with_it(lightx2v, kind, plain, folder, option)
    stored = store.read(folder)
    expected = {module + ".weight": values_of(kind, stored, module) for module in SHAPES}
    assert_values(dequantized(blockscale, folder, tmp_path), expected)
