"""blockscale.compat.lightx2v: functions and operators; `./dev test --torch` runs these. The cases
are those of LightX2V's own tests (lightx2v_kernel/test at 59c485ea), and shapes that it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale.compat import _lightx2v_kernels as kernels  # noqa: E402
from blockscale.compat import lightx2v  # noqa: E402
from lightx2v_cases import DEVICES, exact, normal, off_by  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

ops = torch.ops.lightx2v_kernel
GLOBAL = torch.tensor(2688 / 4.5)
QUANTIZERS = {
    "scaled_nvfp4_quant": ("nvfp4", 16),
    "scaled_mxfp4_quant": ("mxfp4", 32),
    "scaled_mxfp6_quant": ("mxfp6_e3m2", 32),
    "scaled_mxfp8_quant": ("mxfp8_e4m3", 32),
}
#: A product, the quantizers of its operands and their recipes.
PRODUCTS = {
    "cutlass_scaled_nvfp4_mm": ("nvfp4", "nvfp4"),
    "cutlass_scaled_mxfp4_mm": ("mxfp4", "mxfp4"),
    "cutlass_scaled_mxfp6_mxfp8_mm": ("mxfp8", "mxfp6"),
    "cutlass_scaled_mxfp8_mm": ("mxfp8", "mxfp8"),
}
RECIPES = {name.split("_")[1]: recipe for name, (recipe, _) in QUANTIZERS.items()}


def quantized(kind: str, x: Any) -> tuple[Any, Any]:
    function = getattr(lightx2v, f"scaled_{kind}_quant")
    return function(x, GLOBAL.to(x.device)) if kind == "nvfp4" else function(x)


def operands(name: str, m: int, n: int, k: int, device: str = "cpu") -> tuple[list[Any], Any, Any]:
    """What a product takes up to alpha, and both operands in float64, global scales included."""
    (a, b), parts, doubles = PRODUCTS[name], [], []
    for kind, rows in ((a, m), (b, n)):
        values, scales = quantized(kind, normal(rows, k, seed=rows + k, device=device))
        parts.append((values, scales))
        doubles.append(exact(values, scales, RECIPES[kind], GLOBAL.to(device)))
    alpha = 1 / (GLOBAL * GLOBAL) if a == "nvfp4" else torch.tensor(1.0)
    (values, scales), (its_values, its_scales) = parts
    return [values, its_values, scales, its_scales, alpha.to(device)], *doubles


# ---- Quantizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("m", [0, 1, 128, 130])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizers(name: str, m: int, dtype: Any, device: str) -> None:
    recipe, block = QUANTIZERS[name]
    n = 5 * block
    x = normal(m, n, dtype=dtype)
    values, scales = quantized(name.split("_")[1], x.to(device))
    given = {"tensor_scale": GLOBAL.item()} if recipe == "nvfp4" else {}
    expected = blockscale.quantize(x, recipe, **given)
    assert values.dtype == torch.uint8
    assert values.cpu().equal(expected.values.view(torch.uint8))
    assert scales.shape == (-(-m // 128) * 128, 8)
    assert scales.dtype == expected.scales.dtype
    # Where the scale of row r and block c is, by LightX2V's formula.
    stored, plain = scales.cpu().view(torch.uint8).flatten(), expected.scales.view(torch.uint8)
    found = torch.zeros_like(stored)
    for r in range(m):
        for c in range(5):
            tile = 512 * (r // 128 * 2 + c // 4)
            at = tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
            found[at] = plain[r, c]
    assert stored.equal(found)  # and the rest is 0


def rounding(x: Any, limits: Any) -> Any:
    """What MXFP8 may be off from x: half a unit in the last place, or half the least number, of
    blocks of 32 whose scale is at most 2 * amax / 448."""
    blocks = limits.reshape(*limits.shape[:-1], -1, 32).abs().amax(-1, keepdim=True)
    least = (2 * blocks / 448 * 2.0**-10).expand(*blocks.shape[:-1], 32).reshape(x.shape)
    return torch.maximum(x.abs() * 2.0**-4, least) * (1 + 2.0**-10) + 1e-30


@pytest.mark.parametrize("device", DEVICES)
def test_gelu(device: str) -> None:
    x = normal(130, 160)
    values, scales = lightx2v.scaled_mxfp8_gelu_quant(x.to(device))
    gelu = torch.nn.functional.gelu(x.double(), approximate="tanh")
    error = (exact(values, scales, "mxfp8_e4m3").cpu() - gelu).abs()
    assert (error <= rounding(gelu, gelu)).all()
    if device == "cpu":
        t = blockscale.quantize(x, "mxfp8_e4m3", transform="gelu_tanh", layout="swizzled_128x4")
        assert values.equal(t.values.view(torch.uint8))
        assert scales.view(torch.uint8).equal(t.scales.view(torch.uint8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("of_shift", [(96,), (1, 1, 96), (10, 96), (10, 1, 96)])
@pytest.mark.parametrize("of_scale", [(96,), (10, 96), (2, 96)])
def test_modulation(of_scale: tuple[int, ...], of_shift: tuple[int, ...], device: str) -> None:
    if of_scale[0] == 2:
        of_shift = (2, 1, 96) if len(of_shift) == 3 else of_scale
    x, scale, shift = normal(10, 96), normal(*of_scale, seed=1) / 8, normal(*of_shift, seed=2)
    values, scales = lightx2v.scaled_mxfp8_modulate_quant(
        *(t.to(device) for t in (x, scale, shift))
    )
    of_rows = [
        t.double().reshape(-1, 96).repeat_interleave(960 // t.numel(), 0) for t in (scale, shift)
    ]
    modulated = x.double() * (1 + of_rows[0]) + of_rows[1]
    error = (exact(values, scales, "mxfp8_e4m3").cpu() - modulated).abs()
    assert (error <= rounding(modulated, modulated) + 2.0**-22).all()
    assert values.shape == x.shape and scales.shape == (128, 4)


# ---- Products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("m", "n", "k"), [(0, 16, 64), (1, 8, 32), (5, 24, 160), (130, 136, 96)])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, m: int, n: int, k: int, device: str) -> None:
    given, a, b = operands(name, m, n, k, device)
    given[-1] = given[-1] * 3
    for bias in (None, normal(n, seed=9, device=device), normal(1, n, seed=9, device=device)):
        y = getattr(lightx2v, name)(*given, bias)
        assert (y.shape, y.dtype, y.device) == ((m, n), torch.bfloat16, a.device)
        assert m == 0 or off_by(y, 3 * a, b, bias) <= 1


def test_products_are_the_packages() -> None:
    given, _, _ = operands("cutlass_scaled_mxfp6_mxfp8_mm", 5, 24, 160)
    a, b = (
        blockscale.ScaledTensor(values, scales, recipe, layout="swizzled_128x4")
        for values, scales, recipe in (
            (given[0], given[2], "mxfp8_e4m3"),
            (given[1], given[3], "mxfp6_e3m2"),
        )
    )
    y = lightx2v.cutlass_scaled_mxfp6_mxfp8_mm(*given)
    assert y.equal(blockscale.gemm(a, b, out_dtype="bfloat16"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gate_shape", [(24,), (1, 24), (5, 24)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["mxfp8_mm", "nvfp4_mm_split_n_stride"])
def test_residual_and_gate(kind: str, dtype: Any, gate_shape: Any, device: str) -> None:
    name = f"cutlass_scaled_{kind}"
    given, a, b = operands(name.removesuffix("_split_n_stride"), 5, 24, 160, device)
    residual = normal(5, 24, seed=3, dtype=dtype, device=device)
    before = residual.clone()
    gate = normal(*gate_shape, seed=4, device=device)
    bias = normal(24, seed=5, device=device)
    y = getattr(lightx2v, name + "_residual_gate")(*given, residual, gate, bias)
    assert y is residual
    assert off_by(y, a, b, bias, gate.double(), before.double()) <= 1


@pytest.mark.parametrize("device", DEVICES)
def test_split_of_columns_changes_nothing(device: str) -> None:
    given, a, b = operands("cutlass_scaled_nvfp4_mm", 5, 24, 160, device)
    bias = normal(24, seed=5, device=device)
    y = lightx2v.cutlass_scaled_nvfp4_mm_split_n_stride(*given, bias, split_n_parts=4)
    assert y.equal(lightx2v.cutlass_scaled_nvfp4_mm(*given, bias))
    gelu = lightx2v.cutlass_scaled_nvfp4_mm_split_n_stride_gelu(*given, bias)
    expected = torch.nn.functional.gelu(a @ b.T + bias.double(), approximate="tanh")
    assert (gelu.double() - expected).abs().max() <= 2.0**-8 * expected.abs().max()


# ---- Operators ----------------------------------------------------------------------------------

_QUANTIZED = "Tensor! output, Tensor! input, Tensor! output_scale"
_OPERANDS = (
    "Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, Tensor alpha, Tensor? bias"
)
SCHEMAS = {
    "scaled_nvfp4_quant_sm120": _QUANTIZED + ", Tensor! input_scale",
    "scaled_mxfp4_quant_sm120": _QUANTIZED,
    "scaled_mxfp6_quant_sm120": _QUANTIZED,
    "scaled_mxfp8_quant_sm120": _QUANTIZED,
    "scaled_mxfp8_gelu_quant_sm120": _QUANTIZED,
    "scaled_mxfp8_modulate_quant_sm120": (
        "Tensor! output, Tensor! input, Tensor scale, Tensor shift, Tensor! output_scale"
    ),
    "cutlass_scaled_nvfp4_mm_sm120": f"Tensor! out, {_OPERANDS}",
    "cutlass_scaled_mxfp4_mm_sm120": f"Tensor! out, {_OPERANDS}",
    "cutlass_scaled_mxfp6_mxfp8_mm_sm120": f"Tensor! out, {_OPERANDS}",
    "cutlass_scaled_mxfp8_mm_sm120": f"Tensor! out, {_OPERANDS}",
    "cutlass_scaled_mxfp8_mm_residual_gate_sm120": f"Tensor! residual, {_OPERANDS}, Tensor gate",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_lightx2vs(name: str) -> None:
    schema = re.sub(r"\(\$\d+! -> \)", "!", str(getattr(ops, name).default._schema))
    assert schema == f"lightx2v_kernel::{name}({SCHEMAS[name]}) -> ()"


def poisoned(x: Any, dtype: Any = None) -> Any:
    """Memory of x's size whose bytes are 0xa5."""
    bytes_of_it = torch.full_like(x.view(torch.uint8), 0xA5)
    return bytes_of_it.view(dtype or x.dtype)


def quantizer_calls(device: str = "cpu") -> dict[str, list[Any]]:
    """Arguments of the functions, by their names."""
    x, row = normal(5, 160, device=device), normal(160, seed=1, device=device)
    return {
        "scaled_nvfp4_quant": [x, GLOBAL.to(device)],
        "scaled_mxfp4_quant": [x],
        "scaled_mxfp6_quant": [x],
        "scaled_mxfp8_quant": [x],
        "scaled_mxfp8_gelu_quant": [x],
        "scaled_mxfp8_modulate_quant": [x, row, row],
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", quantizer_calls())
def test_operators_that_quantize(name: str, device: str) -> None:
    given = quantizer_calls(device)[name]
    values, scales = getattr(lightx2v, name)(*given)
    output, output_scale = poisoned(values), poisoned(scales, torch.int32)
    after = [output_scale, *given[1:]] if "nvfp4" in name else [*given[1:], output_scale]
    assert getattr(ops, f"{name}_sm120").default(output, given[0], *after) is None
    assert output.equal(values)
    assert output_scale.view(torch.uint8).equal(scales.view(torch.uint8))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*PRODUCTS, "cutlass_scaled_nvfp4_mm_split_n_stride"])
def test_operators_that_multiply(name: str, device: str) -> None:
    given, _, _ = operands(name.removesuffix("_split_n_stride"), 5, 24, 160, device)
    given.append(normal(1, 24, seed=5, device=device))
    y = getattr(lightx2v, name)(*given)
    out = poisoned(y)
    more = [2] if "split" in name else []
    getattr(ops, f"{name}_sm120").default(out, *given, *more)
    assert out.equal(y)
    if name != "cutlass_scaled_mxfp8_mm" and not more:
        return
    gate, residual = normal(24, seed=7, device=device), normal(5, 24, seed=8, device=device)
    expected = getattr(lightx2v, f"{name}_residual_gate")(
        *given[:5], residual.clone(), gate, given[5]
    )
    getattr(ops, f"{name}_residual_gate_sm120").default(residual, *given, gate, *more)
    assert residual.equal(expected)


def test_operators_of_others_stay() -> None:
    theirs = torch.library.Library("lightx2v_taken", "DEF")
    theirs.define("scaled_mxfp4_quant_sm120(Tensor! output, Tensor input) -> ()")
    ours = kernels.register("lightx2v_taken")
    taken = torch.ops.lightx2v_taken
    assert "Tensor input)" in str(taken.scaled_mxfp4_quant_sm120.default._schema)
    x = normal(5, 160)
    values, scales = lightx2v.scaled_mxfp8_quant(x)
    output = poisoned(values)
    taken.scaled_mxfp8_quant_sm120(output, x, poisoned(scales))
    assert output.equal(values)
    with pytest.raises(RuntimeError, match="scaled_mxfp8_quant_sm120"):  # theirs, after ours
        theirs.define("scaled_mxfp8_quant_sm120(Tensor! output, Tensor input) -> ()")
    del ours


# ---- Compilation --------------------------------------------------------------------------------


def chain(x: Any, w: Any, bias: Any, residual: Any, gate: Any, row: Any) -> list[Any]:
    """All functions."""
    results = []
    for name, (a, b) in PRODUCTS.items():
        (left, of_left), (right, of_right) = quantized(a, x), quantized(b, w)
        alpha = torch.ones(1, device=x.device)
        results.append(getattr(lightx2v, name)(left, right, of_left, of_right, alpha, bias))
    for left, of_left in (
        lightx2v.scaled_mxfp8_gelu_quant(x),
        lightx2v.scaled_mxfp8_modulate_quant(x, row, row),
    ):
        given = (left, right, of_left, of_right, alpha, residual.clone(), gate, bias)
        results += [left, lightx2v.cutlass_scaled_mxfp8_mm_residual_gate(*given)]
    return results


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_functions_compile(backend: str, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(chain, fullgraph=True, backend=backend)
    w, bias = normal(24, 160, seed=1, device=device), normal(24, seed=2, device=device)
    gate, row = normal(24, seed=3, device=device), normal(160, seed=4, device=device)
    for rows in (4, 9, 17):  # the second compiles for any number of rows, the third runs that
        x, residual = normal(rows, 160, device=device), normal(rows, 24, device=device)
        given = (x, w, bias, residual, gate, row)
        for y, expected in zip(compiled(*given), chain(*given), strict=True):
            assert y.equal(expected)


@pytest.mark.parametrize("device", DEVICES)
def test_operators_compile(device: str) -> None:
    def both(x: Any, w: Any, bytes_of_w: Any) -> Any:
        values = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
        scales = torch.empty((128, 2), dtype=torch.int32, device=x.device)
        out = torch.empty((x.shape[0], w.shape[0]), dtype=torch.bfloat16, device=x.device)
        one = torch.ones(1, device=x.device)
        ops.scaled_mxfp8_quant_sm120(values, x, scales)
        ops.cutlass_scaled_mxfp8_mm_sm120(
            *(out, values, w, scales.view(torch.uint8), bytes_of_w, one, None)
        )
        return out

    torch._dynamo.reset()
    x = normal(5, 160, device=device)
    w, scales = lightx2v.scaled_mxfp8_quant(normal(24, 160, seed=1, device=device))
    given = (x, w, scales.view(torch.uint8))
    assert torch.compile(both, fullgraph=True)(*given).equal(both(*given))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")
def test_tracers() -> None:
    with FakeTensorMode():
        x = torch.empty(130, 160, dtype=torch.bfloat16)
        for name, arguments in quantizer_calls().items():
            more = [torch.empty(t.shape, dtype=t.dtype) for t in arguments[1:]]
            values, scales = getattr(lightx2v, name)(x, *more)
            bits = int(re.findall(r"fp(\d)", name)[0])
            assert values.shape == (130, 160 * bits // 8)
            assert scales.shape == (256, 12 if "nvfp4" in name else 8)
    x, row = normal(5, 160), normal(160)
    traced = torch.jit.trace(lightx2v.scaled_mxfp8_modulate_quant, (x, row, row), check_trace=False)
    assert traced(x, row, row)[0].equal(lightx2v.scaled_mxfp8_modulate_quant(x, row, row)[0])
    torch.library.opcheck(
        torch.ops.blockscale_lightx2v.modulated.default,
        (normal(5, 160), normal(160), normal(160)),
        test_utils=("test_schema", "test_faketensor"),
    )


# ---- Errors -------------------------------------------------------------------------------------


def refused() -> dict[str, tuple[type, Any]]:
    """What is wrong with calls, by the message."""
    x, one = normal(5, 160), torch.ones(1)
    nvfp4, _, _ = operands("cutlass_scaled_nvfp4_mm", 5, 24, 160)
    mxfp8, _, _ = operands("cutlass_scaled_mxfp8_mm", 5, 24, 160)
    residual, gate = normal(5, 24), normal(24)

    def with_one(given: list[Any], at: int, value: Any) -> list[Any]:
        return [*given[:at], value, *given[at + 1 :]]

    def quant(name: str, *given: Any) -> Any:
        return lambda: getattr(lightx2v, f"scaled_{name}_quant")(*given)

    def nvfp4_mm(at: int, value: Any) -> Any:
        return lambda: lightx2v.cutlass_scaled_nvfp4_mm(*with_one([*nvfp4, None], at, value))

    def gated(residual: Any, gate: Any) -> Any:
        return lambda: lightx2v.cutlass_scaled_mxfp8_mm_residual_gate(*mxfp8, residual, gate)

    return {
        r"^input: shape is \(160,\), must be \(m, n\)": (ValueError, quant("mxfp8", x[0])),
        r"^input.k: is 150, must be a multiple of 16": (
            ValueError,
            quant("nvfp4", x[:, :150], one),
        ),
        r"^input: has dtype float64": (TypeError, quant("mxfp4", x.double())),
        r"^input_global_scale: shape is \(2,\)": (ValueError, quant("nvfp4", x, torch.ones(2))),
        r"^input_global_scale: has dtype .*64": (TypeError, quant("nvfp4", x, one.double())),
        r"^input_global_scale: is a float, must be": (TypeError, quant("nvfp4", x, 1.0)),
        r"^scale: shape is \(5,\), must be rows": (
            ValueError,
            quant("mxfp8_modulate", x, x[0, :5], x[0]),
        ),
        r"^scale.rows: is 3, must be a divisor": (
            ValueError,
            quant("mxfp8_modulate", x, x[0], x[:3]),
        ),
        r"^mat_b.k: is 144, must be 160": (ValueError, nvfp4_mm(1, nvfp4[1][:, :72])),
        r"^mat_a: has dtype float32": (TypeError, nvfp4_mm(0, nvfp4[0].float())),
        r"^scales_a: ": (ValueError, nvfp4_mm(2, nvfp4[2][:, :8])),
        r"^scales_b: has dtype float8_e8m0fnu": (
            TypeError,
            nvfp4_mm(3, nvfp4[3].view(torch.float8_e8m0fnu)),
        ),
        r"^alpha: shape is \(2,\), must have one": (ValueError, nvfp4_mm(4, torch.ones(2))),
        r"^alpha: has dtype torch.float64": (TypeError, nvfp4_mm(4, one.double())),
        r"^bias: has 23 elements, must have N = 24": (ValueError, nvfp4_mm(5, normal(23))),
        r"^residual: shape is \(5, 20\), must be": (ValueError, gated(residual[:, :20], gate)),
        r"^residual: has dtype torch.int32": (TypeError, gated(residual.int(), gate)),
        r"^gate: shape is \(23,\), must be \(24,\)": (ValueError, gated(residual, gate[:23])),
    }


@pytest.mark.parametrize("match", refused())
def test_errors_name_the_argument(match: str) -> None:
    kind, call = refused()[match]
    with pytest.raises(kind, match=match):
        call()


def test_errors_of_operators_leave_results_alone() -> None:
    x = normal(5, 160)
    values, scales = lightx2v.scaled_mxfp8_quant(x)
    output, output_scale = poisoned(values), poisoned(scales, torch.int32)
    for match, wrong in (
        (r"output: ", (output[:4], x, output_scale)),
        (r"output: has dtype float32", (output.float(), x, output_scale)),
        (r"output_scale: shape is", (output, x, output_scale[:, :1].contiguous())),
        (r"output_scale: is not contiguous", (output, x, output_scale.t())),
    ):
        with pytest.raises((TypeError, ValueError), match=match):
            ops.scaled_mxfp8_quant_sm120(*wrong)
    with pytest.raises(ValueError, match=r"input_scale: shape is \(2,\)"):
        ops.scaled_nvfp4_quant_sm120(output[:, :80], x, output_scale, torch.ones(2))
    given, _, _ = operands("cutlass_scaled_mxfp8_mm", 5, 24, 160)
    residual, gate = normal(5, 24), normal(24)
    before = residual.clone()
    with pytest.raises(ValueError, match="bias: has 23"):
        lightx2v.cutlass_scaled_mxfp8_mm_residual_gate(*given, residual, gate, normal(23))
    assert residual.equal(before)
    assert (output == 0xA5).all() and (output_scale.view(torch.uint8) == 0xA5).all()


def test_the_page_names_what_there_is() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/python.md").read_text()
    (part,) = re.findall(r"^- `lightx2v`: (.*?)^- ", page, re.M | re.S)
    for name in re.findall(r"`(\w+_\w+)`", part):
        assert hasattr(lightx2v, name) or hasattr(lightx2v.MMWeightTemplate, name), name
