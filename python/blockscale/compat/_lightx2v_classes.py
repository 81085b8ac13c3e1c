"""LightX2V's weight classes, by recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from .. import torch as _operators  # noqa: F401 (registers torch.ops.blockscale)
from .._ops import gemm, quantize
from .._tensor import ScaledTensor, traits_of
from .._torch_layer import PLAIN, is_seen
from ._lightx2v_gemm import scaled_mxfp4_quant, scaled_mxfp8_quant, scaled_nvfp4_quant
from ._lightx2v_kernels import Quantized, Renamed, product, scalar
from ._lightx2v_lora import place_of_weights
from ._lightx2v_weights import MMWeightTemplate, Tensors


class _Weight(MMWeightTemplate):
    """A weight of a recipe, whose values are stored as `dtype`."""

    recipe: str
    layout = "row_major"
    dtype = torch.float8_e4m3fn

    def _recipe_of(self, weight_scale: torch.Tensor) -> str:  # noqa: ARG002
        """The recipe of a weight with these scales."""
        return self.recipe

    def _recipe_to_be(self) -> str:
        """The recipe that a plain weight is quantized to."""
        return self.recipe

    def _derive(self, found: Tensors, names: Mapping[str, str]) -> None:
        """Makes parts as they are multiplied of those that are stored."""

    def _columns(self, weight: torch.Tensor) -> int:
        return weight.shape[1] * 8 // traits_of(self.recipe, "recipe").element_bits

    def _parts_of(self, found: Tensors, names: Mapping[str, str]) -> Tensors:
        if self.config.get("weight_auto_quant", False) and found["weight"].dtype in PLAIN:
            with Renamed(x=names["weight"], values=names["weight"]):
                self._quantize_weight(found)
        weight = found["weight"]
        if weight.dtype != self.dtype:
            raise TypeError(
                f"{names['weight']}: has dtype {weight.dtype}, must be {self.dtype}, or float32, "
                "float16 or bfloat16 with weight_auto_quant"
            )
        self._derive(found, names)
        parts = [part for part in self.parts if part in names]
        missing = [names[part] for part in parts if part not in found]
        if missing:
            raise ValueError(f"{', '.join(missing)}: is missing beside {names['weight']}")
        with Renamed(values=names["weight"], scales=names["weight_scale"]):
            recipe = self._recipe_of(found["weight_scale"])
            ScaledTensor(weight, found["weight_scale"], recipe, layout=self.layout)
        if "bias" in parts and found["bias"].shape != weight.shape[:1]:
            shape = tuple(found["bias"].shape)
            raise ValueError(f"{names['bias']}: shape is {shape}, must be {(weight.shape[0],)}")
        return {part: found[part] for part in parts}

    def _quantize_weight(self, found: Tensors) -> None:
        """On the device; results go where the weight was."""
        given = found["weight"]
        weight = given.to(place_of_weights()).contiguous()
        result = quantize(weight, self._recipe_to_be(), layout=self.layout)
        found["weight"] = result.values.view(self.dtype).to(given.device)
        found["weight_scale"] = result.scales.to(given.device)
        if result.tensor_scale is not None:
            found["weight_global_scale"] = result.tensor_scale.to(given.device)


# ---- FP4 and MX: scales of blocks in tiles ------------------------------------------------------


class _Blocks(_Weight):
    """Weights of bytes, as the functions of `lightx2v_kernel.gemm` take them."""

    layout = "swizzled_128x4"
    dtype = torch.uint8
    inputs: str

    def act_quant_func(self, x: torch.Tensor) -> Quantized:
        """x as the product takes it."""
        raise NotImplementedError

    def _alpha(self) -> torch.Tensor | None:
        """The factor of the product; None: 1."""
        return None

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        values, scales = self.act_quant_func(rows)
        operands = (values, self.weight, scales, self.weight_scale)
        recipes = (self.inputs, self.recipe)
        bias = self._get_actual_bias()
        return product(recipes, *operands, self._alpha(), bias, dtype=rows.dtype)


class _Mx(_Blocks):
    """`alpha` is 1, for those who multiply by themselves; products here need none."""

    alpha = torch.tensor(1.0, dtype=torch.float32)


class MMWeightWmxfp4Amxfp4dynamic(_Mx):
    """MXFP4 weights and inputs."""

    recipe = inputs = "mxfp4"
    act_quant_func = staticmethod(scaled_mxfp4_quant)


class MMWeightWmxfp6Amxfp8dynamic(_Mx):
    """MXFP6 (e3m2) weights, MXFP8 inputs."""

    recipe, inputs = "mxfp6_e3m2", "mxfp8_e4m3"
    act_quant_func = staticmethod(scaled_mxfp8_quant)


class MMWeightWmxfp8Amxfp8dynamic(_Mx):
    """MXFP8 weights and inputs."""

    recipe = inputs = "mxfp8_e4m3"
    act_quant_func = staticmethod(scaled_mxfp8_quant)


class MMWeightWnvfp4Anvfp4dynamic(_Blocks):
    """NVFP4 weights and inputs, of a global scale that is stored: `input_global_scale`, or 2688 /
    `input_absmax`. `alpha` is 1 / (input_global_scale * weight_global_scale), or is stored beside
    `input_global_scale`. Weights that are quantized as they are loaded have their own
    `weight_global_scale`, 2688 / their amax. Where `lightx2v_bytes` is true, of the class or of a
    weight, inputs get LightX2V's bytes."""

    recipe = inputs = "nvfp4"
    parts = (*_Blocks.parts, "input_global_scale", "alpha")
    stored = (*_Blocks.stored, "weight_global_scale", "input_absmax")
    lightx2v_bytes = False

    input_global_scale: torch.Tensor | None
    alpha: torch.Tensor | None

    def act_quant_func(self, x: torch.Tensor) -> Quantized:
        """x in NVFP4, of `input_global_scale`."""
        return scaled_nvfp4_quant(x, self.input_global_scale, lightx2v_bytes=self.lightx2v_bytes)

    def _alpha(self) -> torch.Tensor | None:
        return self.alpha

    def _quantize_weight(self, found: Tensors) -> None:
        super()._quantize_weight(found)
        found.pop("alpha", None)  # of a weight that was quantized otherwise

    def _derive(self, found: Tensors, names: Mapping[str, str]) -> None:
        absmax = found.get("input_absmax")
        if absmax is not None:
            absmax = scalar(absmax.to(torch.float32), names["input_absmax"])
            if not absmax.is_cuda and not absmax > 0:
                raise ValueError(f"{names['input_absmax']}: is {absmax.item()}, must be above 0")
            found["input_global_scale"] = 2688.0 / absmax
            found.pop("alpha", None)
        scales = {}
        for part in ("input_global_scale", "weight_global_scale", "alpha"):
            if part in found:
                scales[part] = scalar(found[part].to(torch.float32), names[part])
        if "alpha" not in scales and len(scales) == 2:
            of_inputs = scales["input_global_scale"]
            of_weight = scales["weight_global_scale"].to(of_inputs.device)
            scales["alpha"] = 1.0 / (of_inputs * of_weight)
        found |= scales


class MMWeightWnvfp4Anvfp4dynamicSplitNStrideWorkaround(MMWeightWnvfp4Anvfp4dynamic):
    """The same; `split_n_parts` is of LightX2V's kernel and changes nothing."""

    def __init__(
        self,
        weight_name: str,
        bias_name: str | None,
        create_cuda_buffer: bool = False,
        create_cpu_buffer: bool = False,
        lazy_load: bool = False,
        lazy_load_file: str | Path | None = None,
        is_post_adapter: bool = False,
        lora_prefix: str | None = "diffusion_model.blocks",
        lora_path: str | Path = "",
        split_n_parts: int = 2,
    ) -> None:
        super().__init__(
            *(weight_name, bias_name, create_cuda_buffer, create_cpu_buffer, lazy_load),
            *(lazy_load_file, is_post_adapter, lora_prefix, lora_path),
        )
        self.split_n_parts = split_n_parts


# ---- FP8 ----------------------------------------------------------------------------------------


class _Fp8(_Weight):
    """Weights of float8_e4m3fn with scales in float32."""

    inputs: str

    def _inputs(self) -> tuple[str, torch.Tensor | None]:
        """The recipe of inputs, and their scale if it is given."""
        return self.inputs, None

    def act_quant_func(self, x: torch.Tensor) -> Quantized:
        """x as float8_e4m3fn, and its scales in float32."""
        recipe, scale = self._inputs()
        if is_seen(x):
            return torch.ops.blockscale.quantize(x, recipe, scales=scale)[:2]
        result = quantize(x, recipe, scales=scale)
        return result.values, result.scales

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        recipes = (self._inputs()[0], self._recipe_of(self.weight_scale))
        values, scales = self.act_quant_func(rows)
        options = {"bias": self._get_actual_bias(), "out_dtype": rows.dtype}
        if is_seen(rows):
            options |= {"a_scales": scales, "b_scales": self.weight_scale}
            return torch.ops.blockscale.gemm(values, self.weight, *recipes, **options)
        left = ScaledTensor(values, scales, recipes[0])
        return gemm(left, ScaledTensor(self.weight, self.weight_scale, recipes[1]), **options)

    def _derive(self, found: Tensors, names: Mapping[str, str]) -> None:  # noqa: ARG002
        if "weight_scale" in found:
            found["weight_scale"] = found["weight_scale"].to(torch.float32)


class _Fp8Rows(_Fp8):
    """Scales of rows, however they are stored, are [rows, 1] here; one scale is [1, 1]."""

    def _derive(self, found: Tensors, names: Mapping[str, str]) -> None:
        super()._derive(found, names)
        if "weight_scale" in found:
            scales, rows = found["weight_scale"], found["weight"].shape[0]
            found["weight_scale"] = scales.reshape(-1, 1) if scales.numel() in (1, rows) else scales


class MMWeightWfp8channelAfp8channeldynamic(_Fp8Rows):
    """FP8 weights with a scale a row; inputs get a scale a row as they come. It stands for
    LightX2V's classes of several libraries."""

    recipe = inputs = "fp8_row"


class MMWeightWfp8block128Afp8channelgroup128dynamic(_Fp8):
    """FP8 weights with a scale for 128 x 128; inputs get one for 128 of a row as they come."""

    recipe, inputs = "fp8_128x128", "fp8_1x128"


class MMWeightWfp8tensorAfp8tensordynamic(_Fp8Rows):
    """FP8 weights with one scale, or one a row; inputs have one that is stored, `input_scale`.
    Weights that are quantized as they are loaded get one a row if the configuration's
    `weight_scale_granularity` is "channel"."""

    recipe = "fp8_tensor"
    parts = (*_Fp8Rows.parts, "input_scale")

    input_scale: torch.Tensor | None

    def _recipe_of(self, weight_scale: torch.Tensor) -> str:
        return "fp8_tensor" if weight_scale.numel() == 1 else "fp8_row"

    def _recipe_to_be(self) -> str:
        by_row = self.config.get("weight_scale_granularity", "tensor") == "channel"
        return "fp8_row" if by_row else "fp8_tensor"

    def _inputs(self) -> tuple[str, torch.Tensor | None]:
        return self._recipe_of(self.weight_scale), self.input_scale

    def _derive(self, found: Tensors, names: Mapping[str, str]) -> None:
        super()._derive(found, names)
        if "input_scale" in found:
            scale = found["input_scale"].to(torch.float32)
            found["input_scale"] = scalar(scale, names["input_scale"]).reshape(1, 1)


#: The classes by LightX2V's names for them.
MM_WEIGHT_REGISTER: dict[str, Callable[..., MMWeightTemplate]] = {
    "nvfp4": MMWeightWnvfp4Anvfp4dynamic,
    "nvfp4-split-n-stride-workaround": MMWeightWnvfp4Anvfp4dynamicSplitNStrideWorkaround,
    "mxfp4": MMWeightWmxfp4Amxfp4dynamic,
    "mxfp6-mxfp8": MMWeightWmxfp6Amxfp8dynamic,
    "mxfp8": MMWeightWmxfp8Amxfp8dynamic,
    "fp8-vllm": MMWeightWfp8channelAfp8channeldynamic,
    "fp8-sgl": MMWeightWfp8channelAfp8channeldynamic,
    "fp8-triton": MMWeightWfp8channelAfp8channeldynamic,
    "fp8-torchao": MMWeightWfp8channelAfp8channeldynamic,
    "fp8-q8f": MMWeightWfp8channelAfp8channeldynamic,
    "fp8-b128-deepgemm": MMWeightWfp8block128Afp8channelgroup128dynamic,
    "fp8-pertensor": MMWeightWfp8tensorAfp8tensordynamic,
}
