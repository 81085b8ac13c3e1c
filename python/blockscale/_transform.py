"""What quantize can compute on the way: GELU, SiLU, SwiGLU, modulation, RMSNorm.

In f32. GELU, SiLU and SwiGLU's gate * sigmoid(gate) err by at most 2^-12 of their result, or 2^-22
of |x| or |gate| where that is more; the rest is rounded as docs/numerics.md says.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import _native
from ._arrays import number, plain
from ._device import Place, require_place
from ._native import Format

_Operand: TypeAlias = tuple[Any, Format] | None
#: What the native module takes: kind, order, group, scale, shift, weight, epsilon, and Swiglu's
#: limit, alpha and shift if they are not the usual ones.
_Numbers: TypeAlias = tuple[float, float, float] | None
Lowered: TypeAlias = tuple[int, int, int, _Operand, _Operand, _Operand, float, _Numbers]

_KINDS = {name: kind for kind, name in enumerate(_native.input_transforms)}
_ORDERS = ("gate_first", "up_first")
_EPSILON = 1e-6


@dataclass(frozen=True)
class Swiglu:
    """g * sigmoid(alpha * g) * (u + up_shift), where g is min(gate, limit) and u is up within
    -limit to limit, from x that holds gate and up: [..., 2 k] gives [..., k]. As it is by default:
    gate * sigmoid(gate) * up. gpt-oss has Swiglu(group=1, limit=7, alpha=1.702, up_shift=1).

    Args:
        order: "gate_first" or "up_first".
        group: None if x is two halves; 1 or 64 if so many columns of gate and of up alternate.
        limit: above 0; None: there is none. This and the next two can be other than usual on the
            CPU, and behind products on CUDA devices too, whose quantizers take the usual ones.
        alpha: not 0.
        up_shift: finite.

    Raises:
        TypeError: a limit, alpha or shift that is no number.
        ValueError: another order or group.

    >>> import numpy as np, blockscale
    >>> x = np.ones((2, 128), np.float32)
    >>> blockscale.quantize(x, "mxfp4", transform=blockscale.Swiglu(group=1)).shape
    (2, 64)
    """

    order: str = "gate_first"
    group: int | None = None
    limit: float | None = None
    alpha: float = 1.0
    up_shift: float = 0.0

    def __post_init__(self) -> None:
        lower_swiglu(self.order, self.group, self.limit, self.alpha, self.up_shift)


@dataclass(frozen=True)
class Modulate:
    """x * (1 + scale) + shift, as diffusion transformers modulate what they have normalised.

    Args:
        scale, shift: [k], [groups, k] or [groups, 1, k] of f32, f16 or bf16. The rows of x, of all
            its matrices one after the other, are cut into that many equal runs.

    Raises:
        TypeError: an operand that is no array of f32, f16 or bf16.
        ValueError: an operand of another number of dimensions.

    >>> import numpy as np, blockscale
    >>> scale, shift = np.full(32, 2, np.float32), np.full(32, -3, np.float32)
    >>> x = np.ones((2, 32), np.float32)
    >>> t = blockscale.quantize(x, "mxfp4", transform=blockscale.Modulate(scale, shift))
    >>> float(np.abs(blockscale.dequantize(t)).max())
    0.0
    """

    scale: Any
    shift: Any

    def __post_init__(self) -> None:
        _rows(self.scale, "transform.scale")
        _rows(self.shift, "transform.shift")


@dataclass(frozen=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + epsilon) * weight, the mean being that of a row.

    Args:
        weight: [k] of f32, f16 or bf16.
        epsilon: above 0.

    Raises:
        TypeError: a weight that is no array of f32, f16 or bf16; an epsilon that is no number.
        ValueError: a weight of another number of dimensions.

    >>> import numpy as np, blockscale
    >>> norm = blockscale.RmsNorm(np.full(32, 3, np.float32), epsilon=1e-5)
    >>> t = blockscale.quantize(np.full((1, 32), 7, np.float32), "mxfp4", transform=norm)
    >>> float(blockscale.dequantize(t)[0, 0])
    3.0
    """

    weight: Any
    epsilon: float = _EPSILON

    def __post_init__(self) -> None:
        _rows(self.weight, "transform.weight")
        number(self.epsilon, "transform.epsilon")


#: "identity", "gelu_tanh", "gelu_erf", "silu", "swiglu" (as Swiglu()), or an object with operands.
Transform: TypeAlias = str | Swiglu | Modulate | RmsNorm


def lower(transform: Transform, place: Place) -> Lowered | None:
    """`transform` of an array at `place` in the native module's form; None for the identity.

    Raises:
        TypeError: no transform, or operands that are no arrays of f32, f16 or bf16.
        ValueError: no such transform, an operand of another shape, or one that is elsewhere.
    """
    if isinstance(transform, str):
        return _lower_name(transform)
    if isinstance(transform, Swiglu):
        return lower_swiglu(
            transform.order, transform.group, transform.limit, transform.alpha, transform.up_shift
        )
    if isinstance(transform, Modulate):
        scale = _rows(transform.scale, "transform.scale", place)
        shift = _rows(transform.shift, "transform.shift", place)
        return (_KINDS["modulate"], 0, 0, scale, shift, None, _EPSILON, None)
    if isinstance(transform, RmsNorm):
        weight = _rows(transform.weight, "transform.weight", place)
        epsilon = number(transform.epsilon, "transform.epsilon")
        return (_KINDS["rms_norm"], 0, 0, None, None, weight, epsilon, None)
    raise TypeError(
        f"transform: is a {type(transform).__name__}, must be a name, Swiglu, Modulate or RmsNorm"
    )


def lower_swiglu(order: Any, group: Any, limit: Any, alpha: Any, up_shift: Any) -> Lowered:
    """`lower` of Swiglu(order, group, limit, alpha, up_shift).

    Raises:
        TypeError, ValueError: as Swiglu does.
    """
    kind = (_KINDS["swiglu"], _order(order), _group(group))
    numbers = (
        math.inf if limit is None else number(limit, "transform.limit"),
        number(alpha, "transform.alpha"),
        number(up_shift, "transform.up_shift"),
    )
    return kind + _NO_OPERANDS + (None if numbers == _USUAL_SWIGLU else numbers,)


def _lower_name(transform: str) -> Lowered | None:
    if transform == "identity":
        return None
    if transform in ("modulate", "rms_norm"):
        needed = "Modulate(scale, shift)" if transform == "modulate" else "RmsNorm(weight)"
        raise ValueError(f"transform: is {transform!r}, which has operands: pass {needed}")
    if transform not in _KINDS:
        raise ValueError(
            f"transform: is {transform!r}, must be identity, gelu_tanh, gelu_erf, silu or swiglu, "
            "or a Swiglu, Modulate or RmsNorm"
        )
    return (_KINDS[transform], 0, 0) + _NO_OPERANDS + (None,)


_USUAL_SWIGLU = (math.inf, 1.0, 0.0)
_NO_OPERANDS: tuple[None, None, None, float] = (None, None, None, _EPSILON)


def result_shape(shape: tuple[int, ...], lowered: Lowered | None) -> tuple[int, ...]:
    """Shape of a transform of an array of `shape`.

    Raises:
        ValueError: an odd number of columns for SwiGLU.
    """
    if lowered is None or lowered[0] != _KINDS["swiglu"]:
        return shape
    if shape[-1] % 2 != 0:
        raise ValueError(f"x: has {shape[-1]} columns, must be even: gate and up of each column")
    return (*shape[:-1], shape[-1] // 2)


def _order(order: Any) -> int:
    if order not in _ORDERS:
        raise ValueError(f"transform.order: is {order!r}, must be gate_first or up_first")
    return _ORDERS.index(order)


def _group(group: Any) -> int:
    if group is None:
        return 0
    try:
        value = operator.index(group)
    except TypeError:
        value = -1
    if value not in (1, 64):
        raise ValueError(f"transform.group: is {group!r}, must be None, 1 or 64")
    return value


def _rows(operand: Any, argument: str, place: Place | None = None) -> _Operand:
    """[k], [rows, k] or [rows, 1, k] as [rows, k]."""
    array, fmt, its_place = plain(operand, argument)
    if place is not None:
        require_place(its_place, place, argument)
    if array.ndim == 1:
        return array[None], fmt
    if array.ndim == 3 and array.shape[1] == 1:
        return array[:, 0], fmt
    if array.ndim == 2:
        return array, fmt
    raise ValueError(
        f"{argument}: shape is {tuple(array.shape)}, must be (k,), (groups, k) or (groups, 1, k)"
    )
