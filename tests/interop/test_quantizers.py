"""Our bytes against those of compressed-tensors' own quantizer, from the same f32 weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import cases
import example_model
import numpy as np
import pytest
import rules
import store
import torch
from cases import Case
from findings import Findings
from rules import E2M1, E4M3, Array
from test_written import shared_amax

SECTION = "Bytes of compressed-tensors' own quantizer"
NOTE = """\
Values, block scales and tensor scales that compressed-tensors {version} would have written
otherwise. For NVFP4 it takes 2688 times the rounded reciprocal of the tensor's amax, and divides
values by the rounded quotient of block scale and tensor scale, where we divide 2688 and multiply by
the quotient of tensor scale and block scale. The tests reproduce both: with these rules in place of
ours, every byte is equal."""
OTHER_RULES = ("nvfp4",)
WHAT = {
    "weight": "values",
    "weight_packed": "values",
    "weight_scale": "scales",
    "weight_global_scale": "tensor scales",
}
Tensors = dict[str, store.Stored]


def package_bytes(case: Case, weight: Array, amax: np.float32) -> dict[str, Array]:
    """The tensors that compressed-tensors makes of a weight: min-max scales, its compressor."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    arguments = QuantizationArgs(**case.weights)
    x = torch.from_numpy(weight)
    groups = grouped(case, x)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    bound = torch.tensor(amax)
    state = {"weight": x}
    global_scale = None
    if case.recipe == "nvfp4":
        global_scale = state["weight_global_scale"] = generate_gparam(-bound, bound)
    if case.recipe == "fp8_tensor":
        low, high = -bound.reshape(1), bound.reshape(1)
    state["weight_scale"], _ = calculate_qparams(low, high, arguments, global_scale)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=case.format)
    compressor = BaseCompressor.get_value_from_registry(case.format)
    packed = compressor.compress(state, scheme)
    return {name: store.as_array(tensor) for name, tensor in packed.items()}


def grouped(case: Case, x: torch.Tensor) -> torch.Tensor:
    """The values of each scale in the last dimension."""
    rows, k = x.shape
    if block := case.weights.get("block_structure"):
        r, c = block
        blocks = x.reshape(rows // r, r, k // c, c).transpose(1, 2)
        return blocks.reshape(rows // r, k // c, r * c)
    return x.reshape(rows, -1, case.weights.get("group_size", k))


def by_their_rule(case: Case, weight: Array, amax: np.float32) -> rules.Quantized:
    if case.recipe != "nvfp4":
        return case.quantize(weight, amax)
    tensor_scale = (np.float32(1) / amax) * np.float32(2688)
    block_amax = np.abs(weight.reshape(len(weight), -1, 16)).max(axis=-1)
    scales = E4M3.encode((block_amax / np.float32(6)) * tensor_scale)
    factors = E4M3.decode(scales) / tensor_scale
    codes = E2M1.encode(weight / rules.expand_scales(factors, weight.shape))
    return rules.Quantized(codes, scales, tensor_scale)


@pytest.mark.parametrize("case", cases.COMPRESSED_TENSORS, ids=cases.case_id)
def test_bytes_of_the_package(
    case: Case, converted: Callable[[Case], Path], source: Tensors, findings: Findings
) -> None:
    written = store.read(converted(case))
    different: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for name in source:
        if not example_model.QUANTIZED.fullmatch(name):
            continue
        weight, amax = source[name].array, shared_amax(source, name)
        theirs = package_bytes(case, weight, amax)
        explained = case.expected(by_their_rule(case, weight, amax))
        for part, array in explained.items():
            assert array.tobytes() == theirs[part].tobytes(), f"{name}: {part}"
        ours = store.parts(written, name)
        for part in explained:
            a, b = ours[part], theirs[part]
            if part == case.values_name:
                a, b = case.values(a), case.values(b)
            what = WHAT[part]
            different[what] += int((a != b).sum())
            total[what] += a.size
    if case.recipe not in OTHER_RULES:
        assert different.total() == 0
    findings.record(
        SECTION,
        f"`{case.recipe}`",
        **{what: f"{different[what]} of {total[what]}" for what in total},
    )
    version = findings.versions["compressed-tensors"]
    findings.note(SECTION, NOTE.format(version=version))
