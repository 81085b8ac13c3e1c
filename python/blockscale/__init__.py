"""Block-scaled low-precision matrices: quantize, multiply, and convert checkpoints.

>>> import numpy as np, blockscale
>>> x = np.random.default_rng(0).standard_normal((4, 64), np.float32)
>>> w = blockscale.quantize(x, "nvfp4")
>>> blockscale.gemm(x, w).shape
(4, 4)
"""

from ._calibrator import Calibrator
from ._checkpoint import Checkpoint, compare, convert, inspect
from ._describe import describe, describe_gemm, describe_grouped_gemm, describe_moe
from ._gemm_quantize import gemm_quantize, grouped_gemm_quantize
from ._grouped import check_groups, grouped_gemm, k_grouped_gemm, masked_grouped_gemm
from ._moe import SortedEntries, moe, moe_sort, route
from ._native import (
    Activations,
    CompareReport,
    ConvertedTensor,
    ConvertReport,
    Dialect,
    Format,
    MxScaleMode,
    NotCopied,
    Recipe,
    ScaleChoice,
    ScaleLayout,
    TensorComparison,
    TensorInfo,
    TensorScaleSense,
    WeightInputs,
)
from ._native import version as __version__
from ._ops import (
    dequantize,
    gemm,
    quantize,
    quantize_rows_and_columns,
)
from ._tensor import ScaledTensor
from ._transform import Modulate, RmsNorm, Swiglu

__all__ = [
    "Activations",
    "Calibrator",
    "Checkpoint",
    "CompareReport",
    "ConvertReport",
    "ConvertedTensor",
    "Dialect",
    "Format",
    "ScaleLayout",
    "Modulate",
    "NotCopied",
    "Recipe",
    "RmsNorm",
    "ScaleChoice",
    "MxScaleMode",
    "ScaledTensor",
    "SortedEntries",
    "TensorScaleSense",
    "Swiglu",
    "TensorComparison",
    "TensorInfo",
    "WeightInputs",
    "__version__",
    "check_groups",
    "compare",
    "convert",
    "dequantize",
    "describe",
    "describe_gemm",
    "describe_grouped_gemm",
    "describe_moe",
    "gemm",
    "gemm_quantize",
    "grouped_gemm",
    "grouped_gemm_quantize",
    "inspect",
    "k_grouped_gemm",
    "masked_grouped_gemm",
    "moe",
    "moe_sort",
    "quantize",
    "quantize_rows_and_columns",
    "route",
]
