"""blockscale.compat.lightx2v: weight classes; `./dev test --torch` runs these."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import blockscale
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale.compat import lightx2v  # noqa: E402
from lightx2v_cases import DEVICES, FP8_ON_HOPPER, USUAL, exact, normal, off_by  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

REGISTER = lightx2v.MM_WEIGHT_REGISTER
#: One name for each class, and the recipes of its weights and inputs.
KINDS = {
    "nvfp4": ("nvfp4", "nvfp4"),
    "nvfp4-split-n-stride-workaround": ("nvfp4", "nvfp4"),
    "mxfp4": ("mxfp4", "mxfp4"),
    "mxfp6-mxfp8": ("mxfp6_e3m2", "mxfp8_e4m3"),
    "mxfp8": ("mxfp8_e4m3", "mxfp8_e4m3"),
    "fp8-vllm": ("fp8_row", "fp8_row"),
    "fp8-b128-deepgemm": ("fp8_128x128", "fp8_1x128"),
    "fp8-pertensor": ("fp8_tensor", "fp8_tensor"),
}
N, K, ABSMAX = 48, 160, 4.5
PLACE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
NAMES = ("blocks.0.ffn.0.weight", "blocks.0.ffn.0.bias")


def plain(block: int = 0) -> dict[str, Any]:
    """A block's weight and bias as they were, and what was measured of its inputs."""
    module = f"blocks.{block}.ffn.0"
    return {
        f"{module}.weight": normal(N, K, seed=block) * (block + 1),
        f"{module}.bias": normal(N, seed=block + 10),
        f"{module}.input_absmax": torch.tensor(ABSMAX + block),
        f"{module}.input_scale": torch.tensor((ABSMAX + block) / 448),
    }


def stored(kind: str, block: int = 0) -> dict[str, Any]:
    """The same, quantized, as LightX2V's converter leaves it."""
    found, module = plain(block), f"blocks.{block}.ffn.0"
    weight, recipe = found[f"{module}.weight"], KINDS[kind][0]
    if recipe == "nvfp4":
        found[f"{module}.weight_global_scale"] = torch.tensor(2688.0) / weight.abs().amax()
        parts = lightx2v.scaled_nvfp4_quant(weight, found[f"{module}.weight_global_scale"])
    elif recipe.startswith("mx"):
        parts = getattr(lightx2v, f"scaled_{recipe.split('_')[0]}_quant")(weight)
    else:
        t = blockscale.quantize(weight, recipe)
        parts = (t.values, t.scales)
    found[f"{module}.weight"], found[f"{module}.weight_scale"] = parts
    return found


def loaded(kind: str, source: dict[str, Any], **options: Any) -> Any:
    weight = REGISTER[kind](*NAMES, **options)
    weight.load(source)
    return weight


def inputs(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return normal(*(shape or (5, K)), seed=77, dtype=dtype).to(PLACE)


def in_double(kind: str, x: Any, block: int = 0) -> tuple[Any, Any, Any]:
    """Inputs, weight and bias of a block in float64, as they are multiplied."""
    recipe, of_inputs = KINDS[kind]
    found, module = stored(kind, block), f"blocks.{block}.ffn.0"
    divisor = found.get(f"{module}.weight_global_scale")
    w = exact(found[f"{module}.weight"], found[f"{module}.weight_scale"], recipe, divisor)
    given: dict[str, Any] = {}
    if of_inputs == "nvfp4":
        given["tensor_scale"] = (2688 / found[f"{module}.input_absmax"]).item()
    elif kind == "fp8-pertensor":
        given["scales"] = found[f"{module}.input_scale"].item()
    rows = blockscale.quantize(x.cpu().reshape(-1, K), of_inputs, **given)
    return blockscale.dequantize(rows).double(), w, found[f"{module}.bias"]


def usual(kind: str) -> tuple[int, int]:
    return FP8_ON_HOPPER if PLACE.type == "cuda" and kind.startswith("fp8") else USUAL


def fits(kind: str, weight: Any, block: int = 0) -> bool:
    x = inputs()
    y = weight.apply(x).cpu()
    return off_by(y, *in_double(kind, x, block), usual=usual(kind)) <= 1


def states_equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    def same(a: Any, b: Any) -> bool:
        a, b = a.cpu().contiguous(), b.cpu().contiguous()
        return a.dtype == b.dtype and a.view(torch.uint8).equal(b.view(torch.uint8))

    return first.keys() == second.keys() and all(same(first[n], second[n]) for n in first)


def test_the_constructors_are_lightx2vs() -> None:
    arguments = (
        "weight_name, bias_name, create_cuda_buffer=False, create_cpu_buffer=False, "
        "lazy_load=False, lazy_load_file=None, is_post_adapter=False, "
        "lora_prefix='diffusion_model.blocks', lora_path=''"
    )
    for kind, cls in REGISTER.items():
        parameters = inspect.signature(cls).parameters.values()
        text = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)
        assert text == (arguments + ", split_n_parts=2" if "split" in kind else arguments)
    assert REGISTER.keys() >= KINDS.keys()
    assert {REGISTER[f"fp8-{name}"] for name in ("sgl", "triton", "torchao", "q8f", "vllm")} == {
        lightx2v.MMWeightWfp8channelAfp8channeldynamic
    }


# ---- Results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(K,), (1, K), (5, K), (2, 3, K)])
@pytest.mark.parametrize("kind", KINDS)
def test_apply(kind: str, shape: tuple[int, ...], dtype: Any) -> None:
    weight, x = loaded(kind, stored(kind)), inputs(*shape, dtype=dtype)
    y = weight.apply(x)
    assert (y.shape, y.dtype, y.device) == ((*shape[:-1], N), dtype, PLACE)
    assert off_by(y.cpu().reshape(-1, N), *in_double(kind, x), usual=usual(kind)) <= 1
    without = REGISTER[kind](NAMES[0], None)
    without.load(stored(kind))
    rows, w, _ = in_double(kind, x)
    y = without.apply(x).cpu().reshape(-1, N)
    assert off_by(y, rows, w, usual=usual(kind)) <= 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_quantized_as_they_are_loaded(kind: str, device: str) -> None:
    """LightX2V's `load` calls no function that would, and its converter of the document quantized
    NVFP4 with the scale of the inputs."""
    weight = REGISTER[kind](*NAMES)
    weight.set_config({"weight_auto_quant": True})
    weight.load({name: tensor.to(device) for name, tensor in plain().items()})
    assert states_equal(weight.state_dict(), loaded(kind, stored(kind)).state_dict())
    assert fits(kind, weight)
    assert (weight.pin_weight is None) == (device == "cuda")


def test_a_scale_a_row_beside_inputs_of_one() -> None:
    weight, x = REGISTER["fp8-pertensor"](*NAMES), inputs()
    weight.set_config({"weight_auto_quant": True, "weight_scale_granularity": "channel"})
    weight.load(plain())
    t = blockscale.quantize(plain()[NAMES[0]], "fp8_row")
    rows, _, bias = in_double("fp8-pertensor", x)
    w, y = blockscale.dequantize(t).double(), weight.apply(x).cpu()
    assert off_by(y, rows, w, bias, usual=usual("fp8-pertensor")) <= 1
    again = plain() | {NAMES[0]: t.values, f"{NAMES[0]}_scale": t.scales.reshape(1, -1)}
    assert loaded("fp8-pertensor", again).apply(x).equal(weight.apply(x))


def test_alpha_is_read_or_derived() -> None:
    source, module = stored("nvfp4"), NAMES[0].removesuffix(".weight")
    absmax = source.pop(f"{module}.input_absmax")
    source[f"{module}.input_global_scale"] = 2688 / absmax.reshape(1)
    derived = loaded("nvfp4", source)
    assert fits("nvfp4", derived)
    alpha = 1 / (2688 / absmax * source.pop(f"{module}.weight_global_scale"))
    read = loaded("nvfp4", source | {f"{module}.alpha": alpha})
    assert states_equal(read.state_dict(), derived.state_dict())
    measured = stored("nvfp4") | {f"{module}.alpha": alpha * 2}  # absmax comes first
    assert fits("nvfp4", loaded("nvfp4", measured))
    of_inputs = {f"{module}.input_global_scale": source[f"{module}.input_global_scale"]}
    fresh = REGISTER["nvfp4"](*NAMES)
    fresh.set_config({"weight_auto_quant": True})
    unmeasured = {name: x for name, x in plain().items() if not name.endswith("absmax")}
    fresh.load(unmeasured | of_inputs | {f"{module}.alpha": alpha * 2})  # of other bytes
    assert states_equal(fresh.state_dict(), derived.state_dict())
    with pytest.raises(ValueError, match=r"0.alpha: is missing beside blocks.0.ffn.0.weight"):
        loaded("nvfp4", source)
    with pytest.raises(ValueError, match=r"input_absmax: is 0.0, must be above 0"):
        loaded("nvfp4", stored("nvfp4") | {f"{module}.input_absmax": torch.tensor(0.0)})


@pytest.mark.parametrize("kind", KINDS)
def test_apply_compiles(kind: str) -> None:
    torch._dynamo.reset()
    weight, x = loaded(kind, stored(kind)), inputs()
    weight.register_lora(lora())
    expected = weight.apply(x)
    compiled = torch.compile(weight.apply, fullgraph=True, backend="aot_eager")
    assert compiled(x).equal(expected)


# ---- Where weights are --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_are_refilled_in_place(kind: str) -> None:
    blocks = [loaded(kind, stored(kind, 0)).state_dict()]
    for block in (1, 2):
        other = REGISTER[kind](*(name.replace("0", str(block), 1) for name in NAMES))
        other.load(stored(kind, block))
        other.state_dict(blocks[0])
    states = blocks[0]
    before = {name: tensor.clone() for name, tensor in states.items()}
    weight = loaded(kind, stored(kind), create_cuda_buffer=True)
    with pytest.raises(ValueError, match="blocks.0.ffn.0.weight: is not loaded"):
        weight.apply(inputs())
    places = {p: getattr(weight, f"{p}_cuda_buffer").data_ptr() for p in weight.parts}
    for block in (1, 2, 0):
        weight.load_state_dict(states, block)
        assert fits(kind, weight, block)
        assert {part: getattr(weight, part).data_ptr() for part in weight.parts} == places
    assert states_equal(states, before)
    weight.load_state_dict(stored(kind, 1), 1)  # a checkpoint does as well
    assert fits(kind, weight, 1)
    weight.load_state_dict(states, 7)
    assert weight.weight is None
    with pytest.raises(ValueError, match="blocks.0.ffn.0.weight: is not loaded"):
        weight.apply(inputs())


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_lazy_files(kind: str, is_folder: bool, tmp_path: Path) -> None:
    tensors = [stored(kind, block) for block in (0, 1)]
    for block, found in enumerate(tensors):
        save_file(found, tmp_path / f"block_{block}.safetensors")
    save_file(tensors[0] | tensors[1], tmp_path / "all.safetensors")
    lazy = {"lazy_load": True, "lazy_load_file": tmp_path}
    if not is_folder:
        lazy["lazy_load_file"] = str(tmp_path / "all.safetensors")
    at_first_use = loaded(kind, {}, **lazy)
    assert at_first_use.state_dict() == {}
    assert fits(kind, at_first_use)
    on_device = loaded(kind, {}, **lazy, create_cuda_buffer=True)
    with pytest.raises(ValueError, match="blocks.0.ffn.0.weight: is not loaded"):
        on_device.apply(inputs())
    on_device.load_state_dict(tensors[1], 1)
    assert fits(kind, on_device, 1)
    weight = loaded(kind, {}, **lazy, create_cpu_buffer=True)
    assert weight.weight is None
    assert fits(kind, weight, 0)
    places = {part: getattr(weight, f"pin_{part}").data_ptr() for part in weight.parts}
    weight.load_state_dict_from_disk(1)  # LightX2V's forgets bias, alpha and the inputs' scale
    assert weight.weight_name == "blocks.1.ffn.0.weight"
    assert weight.weight is None  # until it is used
    assert fits(kind, weight, 1)
    assert {part: getattr(weight, f"pin_{part}").data_ptr() for part in weight.parts} == places
    other = REGISTER[kind](*(name.replace("0", "1", 1) for name in NAMES))
    other.load(tensors[1])
    assert states_equal(weight.state_dict(), other.state_dict())


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_moves(kind: str, non_blocking: bool, tmp_path: Path) -> None:
    weight, x = loaded(kind, stored(kind)), inputs()
    expected = weight.apply(x)
    state = weight.state_dict()
    save_file({name: tensor.clone() for name, tensor in state.items()}, tmp_path / "state")
    assert weight.pin_weight.is_pinned() == torch.cuda.is_available()
    weight.to_cpu(non_blocking)
    if PLACE.type == "cuda":
        torch.cuda.synchronize()
    assert all(getattr(weight, part).device.type == "cpu" for part in weight.parts)
    assert weight.weight is weight.pin_weight
    weight.to_cuda(non_blocking)
    assert weight.apply(x).equal(expected)
    again = loaded(kind, {}, lazy_load=True, lazy_load_file=tmp_path / "state")
    assert again.apply(x).equal(expected)
    assert states_equal(again.state_dict(), state)
    assert states_equal(loaded(kind, state).state_dict(), state)


def test_blocks_behind_an_adapter() -> None:
    weight = loaded("mxfp8", stored("mxfp8"), create_cuda_buffer=True, is_post_adapter=True)
    weight.load_state_dict(stored("mxfp8", 1), 5, 1)
    assert fits("mxfp8", weight, 1)
    with pytest.raises(ValueError, match="adapter_block_index: is missing"):
        weight.load_state_dict(stored("mxfp8", 1), 5)


# ---- LoRA ---------------------------------------------------------------------------------------


def lora(block: int = 0, rank: int = 4, alpha: float | None = 8.0) -> dict[str, Any]:
    module = f"diffusion_model.blocks.{block}.ffn.0"
    found = {
        f"{module}.lora_down.weight": normal(rank, K, seed=block + 20),
        f"{module}.lora_up.weight": normal(N, rank, seed=block + 30),
    }
    return found if alpha is None else found | {f"{module}.alpha": torch.tensor(alpha)}


def added(x: Any, found: dict[str, Any], factor: float) -> Any:
    down, up = list(found.values())[:2]
    return factor * (x.cpu().double() @ down.double().T) @ up.double().T


def adds(weight: Any, base: Any, exact_difference: Any) -> bool:
    """Whether `weight` gives base and that, to the rounding of bfloat16."""
    y = weight.apply(inputs()).cpu().double()
    error = (y - base.cpu().double() - exact_difference).abs()
    return bool(
        (error <= 2.0**-6 * (base.cpu().double().abs() + exact_difference.abs().max())).all()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_lora(kind: str) -> None:
    """LightX2V's NVFP4 takes one, and multiplies without."""
    weight, x = loaded(kind, stored(kind)), inputs()
    base = weight.apply(x)
    weight.register_lora(lora(1))  # of another block
    assert not weight.has_lora_branch
    weight.register_lora(lora(), 0.5)
    assert adds(weight, base, added(x, lora(), 0.5 * 8 / 4))
    places = [t.data_ptr() for t in (weight.lora_down, weight.lora_up, weight.lora_scale)]
    other = dict(zip(lora(alpha=None), lora(3).values(), strict=False))
    weight.update_lora(other, 2)
    assert adds(weight, base, added(x, other, 2))
    assert places == [t.data_ptr() for t in (weight.lora_down, weight.lora_up, weight.lora_scale)]
    weight.update_lora(lora(rank=8))
    assert adds(weight, base, added(x, lora(rank=8), 1))
    weight.remove_lora()
    assert weight.apply(x).equal(base)


@pytest.mark.parametrize("prefix", ["diffusion_model.blocks", None])
@pytest.mark.parametrize("kind", ["nvfp4", "fp8-vllm"])
def test_lora_of_blocks(kind: str, prefix: str | None) -> None:
    def of_prefix(found: dict[str, Any]) -> dict[str, Any]:
        drop = "" if prefix else "diffusion_model."
        return {name.removeprefix(drop): tensor for name, tensor in found.items()}

    states: dict[str, Any] = {}
    for block in (0, 1, 2):
        names = (name.replace("0", str(block), 1) for name in NAMES)
        other = REGISTER[kind](*names, lora_prefix=prefix)
        other.load(stored(kind, block))
        if block < 2:
            other.register_lora(of_prefix(lora(block)))
        other.state_dict(states)
    weight = loaded(kind, stored(kind), create_cuda_buffer=True, lora_prefix=prefix)
    for block in (1, 0, 2):
        weight.load_state_dict(states, block)
        plain_weight = loaded(kind, stored(kind), create_cuda_buffer=True)
        plain_weight.load_state_dict(stored(kind, block), block)
        base = plain_weight.apply(inputs())
        assert weight.has_lora_branch == (block < 2)
        assert adds(weight, base, added(inputs(), lora(block), 2 if block < 2 else 0))


def test_lora_and_differences_from_disk(tmp_path: Path) -> None:
    save_file(stored("nvfp4") | stored("nvfp4", 1), tmp_path / "weights.safetensors")
    module = "diffusion_model.blocks.1.ffn.0"
    differences = {f"{module}.diff": normal(N, K, seed=5), f"{module}.diff_b": normal(N, seed=6)}
    save_file(lora(1) | differences, tmp_path / "lora.safetensors")
    lazy = {"lazy_load": True, "lazy_load_file": tmp_path / "weights.safetensors"}
    lazy["lora_path"] = tmp_path / "lora.safetensors"
    weight = loaded("nvfp4", {}, **lazy, create_cpu_buffer=True)
    weight.load_state_dict_from_disk(1)
    bare = loaded("nvfp4", {}, create_cuda_buffer=True, **lazy)
    bare.load_state_dict(stored("nvfp4", 1), 1)
    x = inputs()
    diff, diff_b = (tensor.double() for tensor in differences.values())
    assert adds(weight, bare.apply(x), added(x, lora(1), 2) + x.cpu().double() @ diff.T + diff_b)
    assert weight.has_diff
    bare.register_diff({f"{module.replace('1', '0')}.diff_b": diff_b.bfloat16()})
    assert bare.has_diff
    of_block = bare.apply(x).cpu().double()
    rows, w, bias = in_double("nvfp4", x, 1)
    assert off_by(of_block.bfloat16(), rows, w, (bias + diff_b.bfloat16())) <= 1
    weight.load_state_dict_from_disk(0)
    assert not (weight.has_lora_branch or weight.has_diff)
    assert fits("nvfp4", weight, 0)


# ---- Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_do_not_fit(kind: str) -> None:
    good, module = stored(kind), NAMES[0].removesuffix(".weight")
    scales, weight = good[f"{module}.weight_scale"], good[NAMES[0]]
    for match, name, wrong in (
        (r"blocks.0.ffn.0.weight: is missing", NAMES[0], None),
        (r"ffn.0.weight_scale: is missing beside blocks.0.ffn.0.weight", ".weight_scale", None),
        (r"ffn.0.bias: is missing", ".bias", None),
        (r"ffn.0.bias: shape is \(47,\), must be \(48,\)", ".bias", normal(N - 1)),
        (r"ffn.0.weight: has dtype torch.int8", NAMES[0], weight.view(torch.int8)),
        (r"ffn.0.weight: has dtype torch.bfloat16", NAMES[0], normal(N, K)),
        (r"ffn.0.weight_scale: ", ".weight_scale", torch.cat([scales, scales])[:, :1]),
    ):
        source = dict(good)
        name = name if name.startswith("blocks") else module + name
        del source[name]
        if wrong is not None:
            source[name] = wrong
        with pytest.raises((TypeError, ValueError), match=match):
            loaded(kind, source)
    if not kind.startswith("fp8"):
        weight = REGISTER[kind](*NAMES)
        weight.set_config({"weight_auto_quant": True})
        with pytest.raises(ValueError, match=r"^blocks.0.ffn.0.weight.k: is 150, must be a mult"):
            weight.load(plain() | {NAMES[0]: normal(N, 150)})


def test_refills_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    weight = loaded("nvfp4", stored("nvfp4"), create_cuda_buffer=True)
    weight.load_state_dict(stored("nvfp4"), 0)
    smaller = stored("nvfp4", 1)
    smaller["blocks.1.ffn.0.weight"] = smaller["blocks.1.ffn.0.weight"][:40]
    smaller["blocks.1.ffn.0.bias"] = smaller["blocks.1.ffn.0.bias"][:40]
    with pytest.raises(
        ValueError, match=r"weight: is torch.uint8 \(40, 80\), must be .*\(48, 80\)"
    ):
        weight.load_state_dict(smaller, 1)
    up = "diffusion_model.blocks.1.ffn.0.lora_up.weight"
    for match, wrong in (
        (r"lora_up.weight: shape is \(48, 8\), must be \(48, 4\)", {up: normal(N, 8)}),
        (r"0.diff: shape is \(48, 80\)", {up.replace("lora_up.weight", "diff"): normal(N, 80)}),
    ):
        with pytest.raises(ValueError, match=match):
            weight.load_state_dict(stored("nvfp4", 1) | lora(1) | wrong, 1)
    assert fits("nvfp4", weight, 0)
    missing = lora()
    del missing["diffusion_model.blocks.0.ffn.0.lora_up.weight"]
    with pytest.raises(ValueError, match=r"lora_up.weight: is missing beside"):
        weight.register_lora(missing)
    with pytest.raises(
        ValueError, match=r"lora_down.weight: shape is \(4, 80\), must be \(4, 160\)"
    ):
        weight.update_lora(
            lora() | {"diffusion_model.blocks.0.ffn.0.lora_down.weight": normal(4, 80)}
        )
    assert not weight.has_lora_branch
    with pytest.raises(ValueError, match="input_tensor: shape is"):
        weight.apply(inputs(5, 80))
    with pytest.raises(ValueError, match="weight_name: is ffn.weight, must have a block's number"):
        REGISTER["mxfp8"]("ffn.weight", None, True, False, True, tmp_path).load(None)
    with pytest.raises(ValueError, match="lazy_load_file: is missing"):
        REGISTER["mxfp4"](*NAMES, lazy_load=True)
