"""quantize, dequantize, products and layers for torch: `import blockscale.torch` registers
`torch.ops.blockscale.quantize`, `dequantize`, `gemm`, `gemm_out`, `gemm_quantize`, `grouped_gemm`,
`masked_grouped_gemm`, `k_grouped_gemm`, `_out` of these three, `grouped_gemm_quantize`, `route`,
`moe_sort`, `moe` and `moe_out`, for the CPU and CUDA.

They take and give plain tensors: `torch.compile(fullgraph=True)` and CUDA graphs take them, with
values and scales as torch has them (float8_e4m3fn, float8_e8m0fnu, float4_e2m1fn_x2, ...) or as
uint8. Recipes, layouts and the rest are as for the functions of `blockscale` of these names, and so
are errors. No gradient flows through them.

- quantize(x, recipe, *, layout="row_major", scale_mode=None, tensor_scale=None, sense="divisor",
  scales=None, amax_floor=0.0, transform="identity") -> (values, scales, tensor_scale).
  `transform` is one of those without operands. The tensor scale is empty where the recipe has none
  or it was given.
- dequantize(values, scales, recipe, *, layout="row_major", tensor_scale=None, sense="divisor",
  out_dtype=torch.float32) -> Tensor
- gemm(a, b, a_recipe, b_recipe, *, a_scales=None, b_scales=None, a_layout="row_major",
  b_layout="row_major", a_tensor_scale=None, b_tensor_scale=None, sense="divisor", alpha=1.0,
  alpha_factor=None, beta=0.0, c=None, bias=None, batch_invariant=False, gate=None,
  fast_accumulation=False, transform="identity", out_dtype=torch.bfloat16) -> Tensor. An operand of
  recipe "bf16", "f16" or "f32" has no scales; `alpha_factor` is a tensor in place of `alpha`.
  `transform` is gelu_tanh, gelu_erf, silu or swiglu too.
- gemm_out(..., *, ..., out): gemm into `out`.
- gemm_quantize(a, b, a_recipe, b_recipe, recipe, *, ..., layout="row_major", scale_mode=None,
  tensor_scale=None, amax_floor=0.0, transform="identity") -> (values, scales): gemm's result in
  `recipe`, behind gelu_tanh, gelu_erf, silu or swiglu, for the next product. Its options are
  gemm's but for out_dtype, then quantize's; `sense` is that of all tensor scales. nvfp4 is given
  its own.
- grouped_gemm(a, b, a_recipe, b_recipe, offsets, *, ..., bias=None, expected_rows=0,
  batch_invariant=False, lengths=None, index=None, destinations=None, weights=None, add=False,
  out_rows=None, transform="identity", out_dtype=torch.bfloat16) -> Tensor. Its options are gemm's
  from a_scales to alpha_factor, which has a number for each group, then these. `add` asks for
  out_dtype=torch.float32.
- masked_grouped_gemm(a, b, a_recipe, b_recipe, counts, *, ..., bias=None, expected_rows=0,
  batch_invariant=False, transform="identity", out_dtype=torch.bfloat16) -> Tensor
- grouped_gemm_quantize(a, b, a_recipe, b_recipe, offsets, recipe, *, ..., bias=None,
  expected_rows=0, batch_invariant=False, lengths=None, index=None, layout="row_major",
  scale_mode=None, tensor_scale=None, amax_floor=0.0, transform="identity") -> (values, scales): as
  gemm_quantize. Rows that no group has are zero.
- k_grouped_gemm(a, b, a_recipe, b_recipe, offsets, *, ...) -> Tensor; its options end with alpha.
- grouped_gemm_out, masked_grouped_gemm_out, k_grouped_gemm_out(..., *, ..., out): into `out`;
  k_grouped_gemm_out takes `add`.
- route(logits, top_k, *, score="softmax", correction_bias=None, groups=1, top_groups=1,
  best_of_group=2, renormalize=True, scale=1.0, shared_experts=0) -> (ids, weights)
- moe_sort(ids, experts, *, local_expert_offset=0, expert_map=None, tile=1) -> the eight of
  `SortedEntries`; the last four are empty without tiles.
- moe(x, w13, w2, ids, weights, x_recipe, w13_recipe, w2_recipe, *, x_scales=None, w13_scales=None,
  w2_scales=None, x_layout="row_major", ..., x_tensor_scale=None, ..., sense="divisor",
  activation="swiglu", gate_first=True, interleave=0, limit=None, alpha=1.0, up_shift=0.0,
  activations=None, w13_alphas=None, w2_alphas=None, w13_bias=None, w2_bias=None,
  local_expert_offset=0, expert_map=None, all_experts=0, weights_on_input=False, shared_w13=None,
  shared_w2=None, shared_w13_scales=None, ..., shared_w13_tensor_scale=None, ..., residual=None,
  batch_invariant=False, deterministic=True, workspace_limit=2**31) -> Tensor of x's dtype, or bf16
  where x has scales.
  The pairs of `blockscale.moe` are apart, and its other options the same; shared experts are of the
  recipes and layouts of w13 and w2.
- moe_out(..., *, ..., out): moe into `out`, which may be `residual`.

On the CPU they, and all that the package does once this module is imported, run on torch's OpenMP
threads where it has them, on at most as many as `torch.set_num_threads` says: beside these, which
spin for a while behind each operator, threads of another pool would share their cores.

    import torch, blockscale.torch
    a, a_scales, _ = torch.ops.blockscale.quantize(x, "fp8_1x128")
    y = torch.ops.blockscale.gemm(
        a, weight, "fp8_1x128", "fp8_128x128", a_scales=a_scales, b_scales=weight_scales
    )
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from . import _native, _ops, _torch_moe
from ._arrays import format_of, type_name
from ._gemm_quantize import gemm_quantize, grouped_gemm_quantize
from ._grouped import grouped_gemm, k_grouped_gemm, masked_grouped_gemm
from ._moe import route
from ._native import Format, ScaleLayout
from ._tensor import RecipeTraits, ScaledTensor, enum_member, scale_shape, traits_of
from ._torch_operand import operand_of

__all__: list[str] = []  # what this module has is in torch.ops.blockscale

_OPERANDS = "Tensor a, Tensor b, str a_recipe, str b_recipe"
_PARTS = """Tensor? a_scales=None, Tensor? b_scales=None, str a_layout="row_major",
    str b_layout="row_major", Tensor? a_tensor_scale=None, Tensor? b_tensor_scale=None,
    str sense="divisor", float alpha=1.0"""
_OPTIONS = f"""{_PARTS}, Tensor? alpha_factor=None, float beta=0.0,
    Tensor? c=None, Tensor? bias=None, bool batch_invariant=False"""
_OF_GEMM = "Tensor? gate=None, bool fast_accumulation=False"
_OF_GROUPS = f"""{_PARTS}, Tensor? alpha_factor=None, Tensor? bias=None,
    SymInt expected_rows=0, bool batch_invariant=False"""
_OF_OFFSETS = f"{_OF_GROUPS}, Tensor? lengths=None, Tensor? index=None"
_OF_ROWS = f"""{_OF_OFFSETS}, Tensor? destinations=None,
    Tensor? weights=None, bool add=False"""
_QUANTIZED = """str layout="row_major", str? scale_mode=None, Tensor? tensor_scale=None,
    float amax_floor=0.0, str transform="identity") -> (Tensor values, Tensor scales)"""

_SCHEMAS = (
    """quantize(Tensor x, str recipe, *, str layout="row_major", str? scale_mode=None,
    Tensor? tensor_scale=None, str sense="divisor", Tensor? scales=None, float amax_floor=0.0,
    str transform="identity") -> (Tensor values, Tensor scales, Tensor tensor_scale)""",
    """dequantize(Tensor values, Tensor scales, str recipe, *, str layout="row_major",
    Tensor? tensor_scale=None, str sense="divisor", ScalarType out_dtype=float) -> Tensor""",
    f"""gemm({_OPERANDS}, *, {_OPTIONS}, {_OF_GEMM}, str transform="identity",
    ScalarType out_dtype=bfloat16) -> Tensor""",
    f"""gemm_out({_OPERANDS}, *, {_OPTIONS}, {_OF_GEMM}, str transform="identity",
    Tensor(a!) out) -> ()""",
    f"gemm_quantize({_OPERANDS}, str recipe, *, {_OPTIONS}, {_QUANTIZED}",
    f"""grouped_gemm({_OPERANDS}, Tensor offsets, *, {_OF_ROWS}, SymInt? out_rows=None,
    str transform="identity", ScalarType out_dtype=bfloat16) -> Tensor""",
    f"""grouped_gemm_out({_OPERANDS}, Tensor offsets, *, {_OF_ROWS}, str transform="identity",
    Tensor(a!) out) -> ()""",
    f"""masked_grouped_gemm({_OPERANDS}, Tensor counts, *, {_OF_GROUPS}, str transform="identity",
    ScalarType out_dtype=bfloat16) -> Tensor""",
    f"""masked_grouped_gemm_out({_OPERANDS}, Tensor counts, *, {_OF_GROUPS},
    str transform="identity", Tensor(a!) out) -> ()""",
    f"""grouped_gemm_quantize({_OPERANDS}, Tensor offsets, str recipe, *, {_OF_OFFSETS},
    {_QUANTIZED}""",
    f"k_grouped_gemm({_OPERANDS}, Tensor offsets, *, {_PARTS}) -> Tensor",
    f"k_grouped_gemm_out({_OPERANDS}, Tensor offsets, *, {_PARTS}, bool add=False, "
    "Tensor(a!) out) -> ()",
    *_torch_moe.SCHEMAS,
)

_library = torch.library.Library("blockscale", "DEF")  # registers for as long as it lives


def _quantize(
    x: torch.Tensor, recipe: str, *, tensor_scale: torch.Tensor | None = None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    t = _ops.quantize(x, recipe, tensor_scale=tensor_scale, **options)
    found = t.tensor_scale if tensor_scale is None else None
    if found is None:
        found = torch.empty(0, dtype=torch.float32, device=x.device)
    return t.values, t.scales, found


def _quantize_shapes(
    x: torch.Tensor,
    recipe: str,
    *,
    layout: str = "row_major",
    tensor_scale: torch.Tensor | None = None,
    transform: str = "identity",
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    traits = traits_of(recipe, "recipe")
    has_factors = traits.tensor_scale and tensor_scale is None
    factors = (x.shape[0] if len(x.shape) == 3 else 1) if has_factors else 0
    return (
        *results_like(x, x.shape, traits, layout, transform),
        x.new_empty((factors,), dtype=torch.float32),
    )


def results_like(
    x: torch.Tensor, shape: Sequence[Any], traits: RecipeTraits, layout: str, transform: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales of `shape`, transformed and quantized, where `x` is."""
    *batch, rows, k = shape
    k = _transformed_columns(k, transform)
    grid = scale_shape(traits, enum_member(layout, ScaleLayout, "layout"), rows, k)
    return (
        x.new_empty((*batch, rows, k * traits.element_bits // 8), dtype=_dtype(traits.element)),
        x.new_empty((*batch, *grid), dtype=_dtype(traits.scale)),
    )


def _transformed_columns(columns: Any, transform: str) -> Any:
    return columns // 2 if transform == "swiglu" else columns


def _dtype(fmt: Format) -> torch.dtype:
    """The type of the tensors that the package gives."""
    if fmt == Format.f32:
        return torch.float32
    return getattr(torch, type_name(fmt) or "uint8", torch.uint8)


def _dequantize(
    values: torch.Tensor,
    scales: torch.Tensor,
    recipe: str,
    *,
    out_dtype: torch.dtype = torch.float32,
    **parts: Any,
) -> torch.Tensor:
    return _ops.dequantize(ScaledTensor(values, scales, recipe, **parts), out_dtype=out_dtype)


def _dequantize_shape(
    values: torch.Tensor,
    scales: torch.Tensor,  # noqa: ARG001
    recipe: str,
    *,
    out_dtype: torch.dtype = torch.float32,
    **_: Any,
) -> torch.Tensor:
    format_of(out_dtype, "out_dtype")
    k = values.shape[-1] * 8 // traits_of(recipe, "recipe").element_bits
    return values.new_empty((*values.shape[:-1], k), dtype=out_dtype)


def _product(
    product: Callable[..., Any],
    a: torch.Tensor,
    b: torch.Tensor,
    a_recipe: str,
    b_recipe: str,
    *more: Any,
    a_scales: torch.Tensor | None = None,
    b_scales: torch.Tensor | None = None,
    a_layout: str = "row_major",
    b_layout: str = "row_major",
    a_tensor_scale: torch.Tensor | None = None,
    b_tensor_scale: torch.Tensor | None = None,
    sense: str = "divisor",
    alpha: float = 1.0,
    alpha_factor: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    """product(left, right, *more, ...), of the package, with what the operators are given."""
    if alpha_factor is not None and alpha != 1.0:
        raise ValueError(f"alpha: is {alpha}, must be 1 with alpha_factor, which is in its place")
    left = operand_of("a", a, a_scales, a_recipe, a_layout, a_tensor_scale, sense)
    right = operand_of("b", b, b_scales, b_recipe, b_layout, b_tensor_scale, sense)
    factor = alpha if alpha_factor is None else alpha_factor
    return product(left, right, *more, alpha=factor, **options)


def _gemm(
    *operands: Any, out_dtype: torch.dtype | None = torch.bfloat16, **options: Any
) -> torch.Tensor:
    return _product(_ops.gemm, *operands, out_dtype=out_dtype, **options)


def _grouped_gemm(
    *operands: Any, out_dtype: torch.dtype | None = torch.bfloat16, **options: Any
) -> torch.Tensor:
    return _product(grouped_gemm, *operands, out_dtype=out_dtype, **options)


def _masked_grouped_gemm(
    *operands: Any, out_dtype: torch.dtype | None = torch.bfloat16, **options: Any
) -> torch.Tensor:
    return _product(masked_grouped_gemm, *operands, out_dtype=out_dtype, **options)


def _k_grouped_gemm(*operands: Any, **options: Any) -> torch.Tensor:
    return _product(k_grouped_gemm, *operands, **options)


def _into(function: Callable[..., Any], **more: Any) -> Callable[..., None]:
    """`function` of operators that write into `out`, which has a type."""

    def call(*operands: Any, **options: Any) -> None:
        function(*operands, **options, **more)

    return call


def _quantized(product: Callable[..., ScaledTensor]) -> Callable[..., Any]:
    """`product` as operators have it, whose `sense` is of operands and result."""

    def call(
        *operands: Any, sense: str = "divisor", **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def into(*args: Any, **its_options: Any) -> ScaledTensor:
            return product(*args, sense=sense, **its_options)

        t = _product(into, *operands, sense=sense, **options)
        return t.values, t.scales

    return call


def _grouped_gemm_shape(
    a: torch.Tensor,
    b: torch.Tensor,
    *_: Any,
    index: torch.Tensor | None = None,
    destinations: torch.Tensor | None = None,
    out_rows: Any = None,
    transform: str = "identity",
    out_dtype: torch.dtype = torch.bfloat16,
    **_options: Any,
) -> torch.Tensor:
    rows = _rows_of_product(a, index) if destinations is None else out_rows
    return _product_like(a, (rows,), b.shape[-2], transform, out_dtype)


def _rows_of_product(a: torch.Tensor, index: torch.Tensor | None) -> Any:
    return a.shape[-2] if index is None else index.shape[0]


def _grouped_gemm_quantize_shapes(
    a: torch.Tensor,
    b: torch.Tensor,
    _a_recipe: str,
    _b_recipe: str,
    _offsets: torch.Tensor,
    recipe: str,
    *,
    index: torch.Tensor | None = None,
    layout: str = "row_major",
    transform: str = "identity",
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (_rows_of_product(a, index), b.shape[-2])
    return results_like(a, shape, traits_of(recipe, "recipe"), layout, transform)


def _masked_grouped_gemm_shape(
    a: torch.Tensor,
    b: torch.Tensor,
    *_: Any,
    transform: str = "identity",
    out_dtype: torch.dtype = torch.bfloat16,
    **_options: Any,
) -> torch.Tensor:
    return _product_like(a, a.shape[:-1], b.shape[-2], transform, out_dtype)


def _k_grouped_gemm_shape(
    a: torch.Tensor, b: torch.Tensor, _a: str, _b: str, offsets: torch.Tensor, **_: Any
) -> torch.Tensor:
    shape = (offsets.shape[0] - 1, a.shape[0], b.shape[0])
    return a.new_empty(shape, dtype=torch.float32)


def _no_shape(*_: Any, **__: Any) -> None:
    """Of operators that write into `out`."""


def _gemm_shape(
    a: torch.Tensor,
    b: torch.Tensor,
    *_recipes: str,
    transform: str = "identity",
    out_dtype: torch.dtype = torch.bfloat16,
    **_: Any,
) -> torch.Tensor:
    *rows, columns = _ops.product_shape(a.shape, b.shape)
    return _product_like(a, rows, columns, transform, out_dtype)


def _product_like(
    a: torch.Tensor, rows: Any, columns: int, transform: str, out_dtype: torch.dtype
) -> torch.Tensor:
    """A product's result of so many columns before its transform."""
    format_of(out_dtype, "out_dtype")
    return a.new_empty((*rows, _transformed_columns(columns, transform)), dtype=out_dtype)


def _gemm_quantize_shapes(
    a: torch.Tensor,
    b: torch.Tensor,
    _a_recipe: str,
    _b_recipe: str,
    recipe: str,
    *,
    layout: str = "row_major",
    transform: str = "identity",
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    traits = traits_of(recipe, "recipe")
    return results_like(a, _ops.product_shape(a.shape, b.shape), traits, layout, transform)


def _rehearsed(
    name: str, function: Callable[..., Any], shapes: Callable[..., Any]
) -> Callable[..., Any]:
    """`shapes`, where `function` would not refuse the call: it is called with tensors of the same
    sizes in CPU memory that nobody reads or writes, as long as all sizes are numbers."""

    def fake(*arguments: Any, **options: Any) -> Any:
        tensors = [x for x in (*arguments, *options.values()) if isinstance(x, torch.Tensor)]
        sizes = [n for x in tensors for n in (*x.shape, *x.stride())]
        sizes += [x for x in options.values() if isinstance(x, torch.SymInt)]
        if all(type(n) is int for n in sizes):
            _require_one_device(name, arguments, options)
            with unset_fake_temporarily():
                _native.set_rehearsal(True)
                try:
                    function(
                        *map(_stand_in, arguments),
                        **{name: _stand_in(x) for name, x in options.items()},
                    )
                finally:
                    _native.set_rehearsal(False)
        return shapes(*arguments, **options)

    return fake


def _stand_in(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


def _require_one_device(name: str, arguments: Sequence[Any], options: dict[str, Any]) -> None:
    schema = getattr(torch.ops.blockscale, name).default._schema
    named = [(argument.name, x) for argument, x in zip(schema.arguments, arguments, strict=False)]
    (first, place), *_ = named
    for argument, x in (*named, *options.items()):
        if isinstance(x, torch.Tensor) and x.device != place.device:
            raise ValueError(
                f"{argument}: is on {x.device}, must be on {place.device} like {first}"
            )


def _register() -> None:
    for schema in _SCHEMAS:
        _library.define(schema)
    operators = (
        ("quantize", _quantize, _quantize_shapes),
        ("dequantize", _dequantize, _dequantize_shape),
        ("gemm", _gemm, _gemm_shape),
        ("gemm_out", _into(_gemm, out_dtype=None), _no_shape),
        ("gemm_quantize", _quantized(gemm_quantize), _gemm_quantize_shapes),
        ("grouped_gemm", _grouped_gemm, _grouped_gemm_shape),
        ("grouped_gemm_out", _into(_grouped_gemm, out_dtype=None), _no_shape),
        ("masked_grouped_gemm", _masked_grouped_gemm, _masked_grouped_gemm_shape),
        ("masked_grouped_gemm_out", _into(_masked_grouped_gemm, out_dtype=None), _no_shape),
        ("grouped_gemm_quantize", _quantized(grouped_gemm_quantize), _grouped_gemm_quantize_shapes),
        ("k_grouped_gemm", _k_grouped_gemm, _k_grouped_gemm_shape),
        ("k_grouped_gemm_out", _into(_k_grouped_gemm), _no_shape),
        ("route", route, _torch_moe.route_shapes),
        ("moe_sort", _torch_moe.moe_sort, _torch_moe.moe_sort_shapes),
        ("moe", _torch_moe.moe, _torch_moe.moe_shape),
        ("moe_out", _into(_torch_moe.moe), _no_shape),
    )
    for name, function, shapes in operators:
        for kind in ("CPU", "CUDA"):
            _library.impl(name, function, kind)
        fake = _rehearsed(name, function, shapes)
        torch.library.register_fake(f"blockscale::{name}", fake, lib=_library)


_register()
_native.share_openmp_threads()
