"""LightX2V's quantizers, products and weight classes by its names, on any GPU of the package and on
the CPU:

    import blockscale.compat.lightx2v as lightx2v

Functions are those of `lightx2v_kernel.gemm`, classes those of `MM_WEIGHT_REGISTER` for NVFP4, MX
and FP8 (`lightx2v/common/ops/mm/mm_weight.py`); names, arguments and their order are LightX2V's.
Values are uint8; scales of blocks lie in tiles of 128 rows by 4 (swizzled_128x4), [ceil128(m),
ceil4(n / block)], padding 0. Global scales are divisors, 2688 / amax, and stay with alpha where
they are: nothing waits for a GPU. Sizes are any that blocks divide: LightX2V's kernels ask for
multiples of 32 or 128 of n and k.

Results are within the bounds of docs/numerics.md of exact ones, and are not LightX2V's bytes
everywhere. MX values and scales are. NVFP4's are those of `blockscale.quantize`, which divides
where LightX2V multiplies by an approximate reciprocal (docs/interop.md has the counts). GELU,
modulation and gates work on float32, where LightX2V rounds to bfloat16 in between.

`scaled_nvfp4_quant(x, s, lightx2v_bytes=True)` gives LightX2V's bytes, on every device those of a
GPU: an H200's approximate reciprocal, recorded for every scale of a block, is the rounded one. A
class of NVFP4 weights, or one of them, whose attribute `lightx2v_bytes` is true gives its inputs
these. Not copied: where the scale is 0 LightX2V's codes of negative values are -0, here all are 0;
and it passes over NaN, which here is the scale of its block. The global scale is what is given:
that LightX2V's converter computes those of weights in bfloat16 is left to who calls.
`torch.ops.lightx2v_kernel` has no such option.

`torch.ops.lightx2v_kernel` gets the operators (results first, `_sm120` in their names, for the CPU
and CUDA, and for torch.compile) that nobody has defined there when this module is imported: import
`lightx2v_kernel` first, and its own stay as they are. The other way round torch refuses its second
definitions, and the import of `lightx2v_kernel` fails. The functions here never call LightX2V's.
Under torch.compile call the functions: its default backend takes operators that write into their
arguments only where no other argument is float8_e8m0fnu (a view as uint8 is taken).

Errors are TypeError and ValueError that name the argument, before anything is written.
"""

from __future__ import annotations

from ._lightx2v_classes import (
    MM_WEIGHT_REGISTER,
    MMWeightWfp8block128Afp8channelgroup128dynamic,
    MMWeightWfp8channelAfp8channeldynamic,
    MMWeightWfp8tensorAfp8tensordynamic,
    MMWeightWmxfp4Amxfp4dynamic,
    MMWeightWmxfp6Amxfp8dynamic,
    MMWeightWmxfp8Amxfp8dynamic,
    MMWeightWnvfp4Anvfp4dynamic,
    MMWeightWnvfp4Anvfp4dynamicSplitNStrideWorkaround,
)
from ._lightx2v_gemm import (
    cutlass_scaled_mxfp4_mm,
    cutlass_scaled_mxfp6_mxfp8_mm,
    cutlass_scaled_mxfp8_mm,
    cutlass_scaled_mxfp8_mm_residual_gate,
    cutlass_scaled_nvfp4_mm,
    cutlass_scaled_nvfp4_mm_split_n_stride,
    cutlass_scaled_nvfp4_mm_split_n_stride_gelu,
    cutlass_scaled_nvfp4_mm_split_n_stride_residual_gate,
    scaled_mxfp4_quant,
    scaled_mxfp6_quant,
    scaled_mxfp8_gelu_quant,
    scaled_mxfp8_modulate_quant,
    scaled_mxfp8_quant,
    scaled_nvfp4_quant,
)
from ._lightx2v_weights import MMWeightTemplate

__all__ = [
    "MMWeightTemplate",
    "MMWeightWfp8block128Afp8channelgroup128dynamic",
    "MMWeightWfp8channelAfp8channeldynamic",
    "MMWeightWfp8tensorAfp8tensordynamic",
    "MMWeightWmxfp4Amxfp4dynamic",
    "MMWeightWmxfp6Amxfp8dynamic",
    "MMWeightWmxfp8Amxfp8dynamic",
    "MMWeightWnvfp4Anvfp4dynamic",
    "MMWeightWnvfp4Anvfp4dynamicSplitNStrideWorkaround",
    "MM_WEIGHT_REGISTER",
    "cutlass_scaled_mxfp4_mm",
    "cutlass_scaled_mxfp6_mxfp8_mm",
    "cutlass_scaled_mxfp8_mm",
    "cutlass_scaled_mxfp8_mm_residual_gate",
    "cutlass_scaled_nvfp4_mm",
    "cutlass_scaled_nvfp4_mm_split_n_stride",
    "cutlass_scaled_nvfp4_mm_split_n_stride_gelu",
    "cutlass_scaled_nvfp4_mm_split_n_stride_residual_gate",
    "scaled_mxfp4_quant",
    "scaled_mxfp6_quant",
    "scaled_mxfp8_gelu_quant",
    "scaled_mxfp8_modulate_quant",
    "scaled_mxfp8_quant",
    "scaled_nvfp4_quant",
]
