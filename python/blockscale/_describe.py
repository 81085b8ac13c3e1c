"""What quantize, gemm, grouped_gemm and moe would launch on a GPU, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _native
from ._arrays import count, format_of
from ._moe import WORKSPACE_LIMIT, lower_activation
from ._native import Format, Recipe, ScaleLayout
from ._ops import _quantized
from ._tensor import enum_member, traits_of
from ._transform import Lowered, Swiglu, lower


def describe(
    shape: tuple[int, int],
    recipe: Recipe | str,
    *,
    dtype: Format | str = Format.bf16,
    layout: ScaleLayout | str = ScaleLayout.row_major,
    transform: str = "identity",
    chip: str | None = None,
) -> str:
    """What `quantize` would launch on a GPU, and why: one line a kernel. Needs none.

    Args:
        shape: (rows, k) of the result.
        recipe, layout: as for `quantize`.
        dtype: of x: "bf16", "f16" or "f32".
        transform: "identity", "gelu_tanh", "gelu_erf", "silu", "swiglu", "modulate" or "rms_norm".
        chip: "H200", "H100", "H20", "B200", "B300", "RTX PRO 6000", "RTX 5090" or "GB10"; that of
            the current GPU if it is None, an H200 where there is none.

    Raises:
        ValueError: a name or a size that is not allowed, a layout that the recipe has not, a chip
            that there are no kernels for.

    >>> import blockscale
    >>> print(blockscale.describe((1, 4096), "mxfp4").split(":")[0])
    quantize_blocks_mx_e2m1_32_bf16
    """
    if not isinstance(shape, Sequence) or len(shape) != 2:
        raise ValueError(f"shape: is {shape!r}, must be (rows, k)")
    rows, k = (count(n, f"shape[{i}]", 2**30) for i, n in enumerate(shape))
    if not 0 < rows * k <= 2**33:
        raise ValueError(f"shape: is {shape!r}, must have from 1 to 2^33 elements")
    transforms = list(_native.input_transforms)
    if transform not in transforms:
        raise ValueError(f"transform: is {transform!r}, must be one of {', '.join(transforms)}")
    wanted = _quantized(recipe).recipe
    placed = enum_member(layout, ScaleLayout, "layout")
    fmt = enum_member(dtype, Format, "dtype")
    if fmt not in (Format.bf16, Format.f16, Format.f32):
        raise ValueError(f"dtype: is {fmt.name}, must be bf16, f16 or f32")
    kind = transforms.index(transform)
    return _native.cuda_describe_quantize(rows, k, fmt, wanted, placed, kind, chip)


def describe_gemm(
    m: int,
    n: int,
    k: int,
    a: Recipe | str = Recipe.fp8_1x128,
    b: Recipe | str = Recipe.fp8_128x128,
    *,
    batch: int = 1,
    out_dtype: Any = "bfloat16",
    to: Recipe | str | None = None,
    transform: str | Swiglu = "identity",
    chip: str | None = None,
) -> str:
    """What `gemm` or `gemm_quantize` would launch on a GPU, and how long it is expected to take.

    Needs no GPU.

    Args:
        m, n, k: a is [m, k], b is [n, k].
        a, b: their recipes.
        batch: of both.
        out_dtype: float32, float16 or bfloat16.
        to: the recipe of `gemm_quantize`; then `out_dtype` does not count.
        transform: of either.
        chip: as for `describe`.

    Raises:
        TypeError: a dtype or a transform that is not allowed.
        ValueError: a name, a size, a pair of recipes, a transform or a chip that is not allowed.

    >>> import blockscale
    >>> print(blockscale.describe_gemm(128, 4096, 7168).split("_")[0])
    gemm
    """
    m, n, k = (count(v, name, 2**31) for v, name in ((m, "m"), (n, "n"), (k, "k")))
    batch = count(batch, "batch", 2**31)
    if max(m * k, n * k, 4 * m * n) * batch > 2**40:
        raise ValueError(f"m, n, k: are {m}, {n} and {k}, matrices must have at most 2^40 bytes")
    recipes = (enum_member(r, Recipe, name) for r, name in ((a, "a"), (b, "b")))
    result = None if to is None else traits_of(to, "to").recipe
    fused = _transform_of_product(transform)
    dtype = format_of(out_dtype, "out_dtype")
    return _native.cuda_describe_gemm(m, n, k, batch, *recipes, dtype, result, fused, chip)


def describe_grouped_gemm(
    groups: int,
    rows: int,
    n: int,
    k: int,
    a: Recipe | str = Recipe.fp8_1x128,
    b: Recipe | str = Recipe.fp8_128x128,
    *,
    out_dtype: Any = "bfloat16",
    transform: str | Swiglu = "identity",
    chip: str | None = None,
) -> str:
    """What `grouped_gemm` would launch on a GPU, of `rows` rows that all groups share. Needs none.

    Args:
        groups, rows, n, k: a is [rows, k], b is [groups, n, k].
        a, b, out_dtype, transform, chip: as for `describe_gemm`.

    Raises:
        TypeError, ValueError: as `describe_gemm` does.

    >>> import blockscale
    >>> print(blockscale.describe_grouped_gemm(8, 128, 4096, 7168).split("_")[0])
    grouped
    """
    sizes = {"groups": groups, "rows": rows, "n": n, "k": k}
    groups, rows, n, k = (count(value, name, 2**31) for name, value in sizes.items())
    if max(rows * k, groups * n * k, 4 * rows * n) > 2**40:
        raise ValueError(f"{', '.join(sizes)}: matrices must have at most 2^40 bytes")
    recipes = (enum_member(r, Recipe, name) for r, name in ((a, "a"), (b, "b")))
    fused, dtype = _transform_of_product(transform), format_of(out_dtype, "out_dtype")
    return _native.cuda_describe_grouped_gemm(groups, rows, n, k, *recipes, dtype, fused, chip)


def describe_moe(
    tokens: int,
    hidden: int,
    inner: int,
    experts: int,
    top_k: int,
    x: Recipe | str = Recipe.bf16,
    w13: Recipe | str = Recipe.fp8_128x128,
    w2: Recipe | str = Recipe.fp8_128x128,
    *,
    activation: str | None = "swiglu",
    gate_first: bool = True,
    interleave: int = 0,
    activations: Recipe | str | None = None,
    workspace_limit: int = WORKSPACE_LIMIT,
    chip: str | None = None,
) -> str:
    """What `moe` would launch on a GPU, in lines for each step. Needs none.

    Args:
        tokens, hidden, inner, experts, top_k: x is [tokens, hidden], w2 is [experts, hidden,
            inner], ids are [tokens, top_k].
        x, w13, w2: their recipes; the result is bf16.
        activation, gate_first, interleave, activations, workspace_limit: as for `moe`.
        chip: as for `describe`.

    Raises:
        TypeError, ValueError: as `moe` and `describe_gemm` do.

    >>> import blockscale
    >>> print(blockscale.describe_moe(64, 7168, 2048, 32, 8).split(":")[0])
    moe_sort
    """
    sizes = {"tokens": tokens, "hidden": hidden, "inner": inner, "experts": experts}
    sizes = {name: count(value, name, 2**31) for name, value in sizes.items()}
    tokens, hidden, inner, experts = sizes.values()
    if max(tokens * hidden, 2 * experts * inner * hidden) > 2**38:
        raise ValueError(f"{', '.join(sizes)}: matrices must have at most 2^38 elements")
    recipes = [enum_member(r, Recipe, name) for r, name in ((x, "x"), (w13, "w13"), (w2, "w2"))]
    fused = lower_activation(activation, gate_first, interleave)
    between = None if activations is None else traits_of(activations, "activations").recipe
    limit = count(workspace_limit, "workspace_limit", 2**57)
    shape = (*sizes.values(), count(top_k, "top_k"))
    return _native.cuda_describe_moe(shape, *recipes, fused, between, limit, chip)


def _transform_of_product(transform: Any) -> Lowered | None:
    if not isinstance(transform, (str, Swiglu)):
        raise TypeError(f"transform: is a {type(transform).__name__}, must be a name or Swiglu")
    return lower(transform, "numpy")
