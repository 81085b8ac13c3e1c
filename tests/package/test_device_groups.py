"""Products of groups and layers on CUDA devices without a device, as test_device.py has the other
calls."""

from __future__ import annotations

import shutil
from pathlib import Path

import blockscale
import pytest
from on_device import FP8, last_line, needs_driver, run, runs_to_its_end

GROUPS = (
    FP8
    + """
rows, experts = fp8(64, 256, device=1), fp8(96, 256, 'fp8_128x128', 1, (4,))
offsets, counts = Array((5,), 'int32', 1), Array((4,), 'int32', 1)
to, weights = Array((64,), 'int32', 1), Array((64,), 'float32', 1)
asked.clear()
"""
)


@needs_driver
def test_products_of_groups_run_on_the_stream_of_their_library(tmp_path: Path) -> None:
    code = """
d = blockscale.grouped_gemm(rows, experts, offsets, alpha=Array((4,), 'float32', 1))
assert d.shape == (64, 96) and d.dtype == np.float32 and d.device == 1
assert set(asked) == {STREAM + 1}, asked
out = Array((64, 96), 'float16', 1)
extras = {'lengths': counts, 'bias': Array((4, 96), 'float16', 1), 'index': to}
assert blockscale.grouped_gemm(rows, experts, counts, out=out, **extras) is out
moved = {'destinations': to, 'weights': weights, 'add': True}
assert blockscale.grouped_gemm(rows, experts, offsets, out_rows=30, **moved).shape == (30, 96)
h = blockscale.grouped_gemm(rows, experts, offsets, transform='swiglu', out_dtype='float16')
assert h.shape == (64, 48) and h.dtype == np.float16  # D in f32 takes a workspace
quantized = {'transform': 'swiglu', 'index': to, 'layout': 'mn_major'}
h = blockscale.grouped_gemm_quantize(rows, experts, offsets, 'fp8_1x128', **quantized)
assert h.shape == (64, 48) and str(h._place) == 'cuda:1' and h.scales.shape == (1, 64)
quantized = {'tensor_scale': Array((1,), 'float32', 1), 'lengths': counts}
h = blockscale.grouped_gemm_quantize(rows, experts, counts, 'nvfp4', **quantized)
assert blockscale.grouped_gemm_quantize(rows, experts, counts, 'nvfp4', out=h, **quantized) is h
masked = fp8(16, 256, device=1, batch=(4,))
assert blockscale.masked_grouped_gemm(masked, experts, counts).shape == (4, 16, 96)
assert blockscale.k_grouped_gemm(rows, fp8(32, 256, device=1), offsets).shape == (4, 64, 32)
assert set(asked) == {STREAM + 1}, asked
print('done')
"""
    runs_to_its_end(GROUPS + code, tmp_path)


@needs_driver
def test_hints_choose_kernels(tmp_path: Path) -> None:
    """Tiles of few rows, which divide K, are a kernel of their own."""
    cache, package = tmp_path / "cache", tmp_path / "package"
    ignored = shutil.ignore_patterns("*.pack", "bin", "__pycache__")  # each kernel is compiled
    shutil.copytree(Path(blockscale.__file__).parent, package / "blockscale", ignore=ignored)
    code = f"""
from pathlib import Path
x, cache = Array((64, 256), 'float32', 1), Path({str(cache)!r})
def compiled(**options):
    before = set(cache.rglob('*'))
    blockscale.grouped_gemm(x, experts, offsets, **options)
    return len(set(cache.rglob('*')) - before) > 0
few = {{'expected_rows': 3}}
assert compiled(expected_rows=64) and not compiled(expected_rows=64), 'tiles of many rows'
assert compiled(**few) and not compiled(), 'tiles of few rows, as of 16 that groups have'
assert not compiled(batch_invariant=True, **few), 'tiles of many rows'
print('done')
"""
    runs_to_its_end(GROUPS + code, cache, PYTHONPATH=str(package))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "grouped_gemm(rows, experts, np.zeros(5, np.int32))",
            "ValueError: offsets: is on the CPU, must be on cuda:1 like a",
        ),
        (
            "grouped_gemm(rows, experts, Array((5,), 'int64', 1))",
            'TypeError: offsets: has dtype int64, must be int32; convert it with .astype("int32")',
        ),
        (
            "grouped_gemm(rows, experts, Array((6,), 'int32', 1))",
            "ValueError: offsets: has 6 elements, must have 5, one more than there are groups",
        ),
        (
            "grouped_gemm(rows, experts, offsets, alpha=Array((), 'float32', 1))",
            "ValueError: alpha: must have one dimension, and elements of 4 bytes",
        ),
        (
            "grouped_gemm(rows, fp8(96, 256, 'fp8_128x128', 0, (4,)), offsets)",
            "ValueError: b: is on cuda:0, must be on cuda:1 like a",
        ),
        (
            "grouped_gemm(rows, experts, offsets, destinations=to, weights=np.ones(64))",
            "TypeError: weights: has dtype float64, must be float32",
        ),
        (
            "grouped_gemm(rows, experts, offsets, bias=np.ones((4, 96), np.float32))",
            "ValueError: bias: is on the CPU, must be on cuda:1 like a",
        ),
        (
            "grouped_gemm_quantize(rows, experts, np.zeros(5, np.int32), 'fp8_1x128')",
            "ValueError: offsets: is on the CPU, must be on cuda:1 like a",
        ),
        (
            "grouped_gemm_quantize(rows, experts, offsets, 'fp8_1x128', out=fp8(64, 96))",
            "ValueError: out: is on cuda:0, must be on cuda:1 like x",
        ),
        (
            "k_grouped_gemm(rows, rows, offsets, alpha=Array((1,), 'float32', 1))",
            "TypeError: alpha: is an array on a device, must be a number",
        ),
        (
            "masked_grouped_gemm(fp8(16, 256, device=1, batch=(4,)), experts, "
            "Array((4,), 'int32'))",
            "ValueError: counts: is on cuda:0, must be on cuda:1 like a",
        ),
    ],
)
def test_products_of_groups_refuse(call: str, message: str) -> None:
    assert last_line(run(GROUPS + f"blockscale.{call}").stderr).startswith(message)


LAYER = (
    FP8
    + """
tokens = Array((20, 256), 'float16', 1)
w13, w2 = fp8(256, 256, 'fp8_128x128', 1, (4,)), fp8(256, 128, 'fp8_128x128', 1, (4,))
ids, weights = Array((20, 2), 'int32', 1), Array((20, 2), 'float32', 1)
asked.clear()
"""
)


@needs_driver
def test_layers_run_on_the_stream_of_their_library(tmp_path: Path) -> None:
    code = """
logits, bias = Array((20, 16), 'float32', 1), Array((16,), 'float32', 1)
chosen, factors = blockscale.route(logits, 2, correction_bias=bias, groups=4, top_groups=2)
assert chosen.shape == factors.shape == (20, 2) and chosen.device == factors.device == 1
assert chosen.dtype == np.int32 and factors.dtype == np.float32
entries = blockscale.moe_sort(ids, 4)
assert entries.offsets.shape == (5,) and entries.row_of_entry.shape == (20, 2)
entries = blockscale.moe_sort(ids, 4, local_expert_offset=4, tile=8)  # takes a workspace
assert entries.token_of_row.shape == (64,) and entries.expert_of_tile.shape == (8,)
assert {part.device for part in entries} == {1}
y = blockscale.moe(tokens, w13, w2, ids, weights)
assert y.shape == (20, 256) and y.dtype == np.float16 and y.device == 1
out = Array((20, 256), 'float32', 1)
extras = {'expert_alphas': (Array((4,), 'float32', 1), None), 'residual': out, 'out': out}
extras['biases'] = (Array((4, 256), 'float16', 1), Array((4, 256), 'float16', 1))
assert blockscale.moe(tokens, w13, w2, ids, weights, weights_on_input=True).device == 1
own = fp8(512, 256, 'fp8_128x128', 1, (2,)), fp8(256, 256, 'fp8_128x128', 1, (2,))
assert blockscale.moe(tokens, w13, w2, ids, weights, shared=own).device == 1
x = fp8(20, 256, device=1)
assert blockscale.moe(x, w13, w2, ids, None, activation='swiglu', **extras) is out
assert set(asked) == {STREAM + 1}, asked
print('done')
"""
    runs_to_its_end(LAYER + code, tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "moe(tokens, w13, w2, np.zeros((20, 2), np.int32), weights)",
            "ValueError: ids: is on the CPU, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, w13, w2, ids, np.ones((20, 2), np.float32))",
            "ValueError: weights: is on the CPU, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, fp8(256, 256, 'fp8_128x128', 0, (4,)), w2, ids, weights)",
            "ValueError: w13: is on cuda:0, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, w13, fp8(256, 128, 'fp8_128x128', 0, (4,)), ids, weights)",
            "ValueError: w2: is on cuda:0, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, w13, w2, ids, weights, shared=(w13, "
            "fp8(256, 128, 'fp8_128x128', 0, (4,))))",
            "ValueError: shared[1]: is on cuda:0, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, w13, w2, ids, weights, out=Array((20, 256), 'float16'))",
            "ValueError: out: is on cuda:0, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, w13, w2, ids, weights, residual=np.ones((20, 256), np.float16))",
            "ValueError: residual: is on the CPU, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, w13, w2, ids, weights, expert_alphas=(None, np.ones(4, np.float32)))",
            "ValueError: expert_alphas[1]: is on the CPU, must be on cuda:1 like x",
        ),
        (
            "moe(tokens, w13, w2, ids, weights, biases=(np.ones((4, 256), np.float32), None))",
            "ValueError: biases[0]: is on the CPU, must be on cuda:1 like x",
        ),
        (
            "moe(fp8(20, 256, device=1), w13, w2, ids, weights)",
            "TypeError: out: cupy has no bf16",
        ),
        (
            "route(Array((20, 16), 'float32'), 2, correction_bias=Array((16,), 'float32', 1))",
            "ValueError: correction_bias: is on cuda:1, must be on cuda:0 like logits",
        ),
        (
            "moe_sort(Array((20, 2), 'int64'), 4)",
            'TypeError: ids: has dtype int64, must be int32; convert it with .astype("int32")',
        ),
    ],
)
def test_layers_refuse(call: str, message: str) -> None:
    assert last_line(run(LAYER + f"blockscale.{call}").stderr).startswith(message)
