"""What the inputs of linear layers look like: the calibration that conversions read."""

from __future__ import annotations

import functools
import json
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ._arrays import describe


class _Inputs:
    """Sums over all rows that a layer has seen, by input channel."""

    def __init__(self, channels: int) -> None:
        self.rows = 0
        self.absmax = np.zeros(channels, np.float64)
        self.squares = np.zeros(channels, np.float64)
        self.sums = np.zeros(channels, np.float64)


class Calibrator:
    """Collects the largest magnitude, mean square and mean of each input channel of linear layers.

    Hooks every `torch.nn.Linear` of a model, or wraps any callable, while the user's own batches
    run; `save` writes the file that `convert` reads as `activation_scales` and `calibration`.

    Args:
        model: a torch module whose linear layers are hooked until `close`, or the end of a `with`
            block; their names are those of `named_modules()`. None: only what `wrap` wraps.
        prefix: comes before every hooked name, where a checkpoint's names have more in front
            ("model." for what AutoModel makes of a causal language model).

    Raises:
        TypeError: `model` is no torch module.
        ValueError: it has no linear layer.

    >>> import numpy as np, blockscale
    >>> calibrator = blockscale.Calibrator()
    >>> layer = calibrator.wrap("layers.0.q_proj", lambda x: x @ np.ones((128, 64), np.float32))
    >>> layer(np.ones((4, 128), np.float32)).shape
    (4, 64)
    >>> calibrator.names
    ['layers.0.q_proj']
    >>> calibrator.save("calibration.safetensors")
    """

    def __init__(self, model: Any = None, *, prefix: str = "") -> None:
        self._inputs: dict[str, _Inputs] = {}
        self._hooks: list[Any] = []
        if model is None:
            return
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: is a {type(model).__name__}, must be a torch.nn.Module")
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                hook = functools.partial(self._observe_call, prefix + name)
                self._hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        if not self._hooks:
            raise ValueError("model: has no torch.nn.Linear")

    def __enter__(self) -> Calibrator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Calibrator({len(self._inputs)} layers)"

    @property
    def names(self) -> list[str]:
        """Layers that have seen an input, in the order in which they first did."""
        return list(self._inputs)

    def close(self) -> None:
        """Remove the hooks; what was collected stays."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def wrap(self, name: str, layer: Callable[..., Any]) -> Callable[..., Any]:
        """`layer`, whose first argument is observed on every call.

        Args:
            name: of the weight or its module in the checkpoint.
            layer: a callable of an array whose last axis is the input channels.
        """
        if not callable(layer):
            raise TypeError(f"layer: is a {type(layer).__name__}, must be callable")

        @functools.wraps(layer, updated=())
        def observed(x: Any, *arguments: Any, **named: Any) -> Any:
            self.observe(name, x)
            return layer(x, *arguments, **named)

        return observed

    def observe(self, name: str, x: Any) -> None:
        """Add the rows of `x` (f32, f16 or bf16; the last axis is the input channels).

        Raises:
            TypeError: `x` is no such array.
            ValueError: it has no channel, other ones than before, NaN or infinity.
        """
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            if not x.is_floating_point():
                raise TypeError(f"x: has dtype {x.dtype}, must be a floating-point one")
            rows = x.detach().float().cpu().numpy()
        else:
            array, dtype, _ = describe(x, "x")
            if dtype not in ("float32", "float16", "bfloat16", "float64"):
                raise TypeError(f"x: has dtype {dtype}, must be a floating-point one")
            if dtype == "bfloat16":
                array = (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
            rows = np.asarray(array)
        if rows.ndim == 0 or rows.shape[-1] == 0:
            raise ValueError(f"{name}: input has no channel")
        rows = rows.reshape(-1, rows.shape[-1])
        inputs = self._inputs.get(name) or _Inputs(rows.shape[1])
        if rows.shape[1] != len(inputs.absmax):
            raise ValueError(
                f"{name}: input has {rows.shape[1]} channels, had {len(inputs.absmax)} before"
            )
        if not np.isfinite(rows).all():
            raise ValueError(f"{name}: input holds NaN or infinity")
        if not len(rows):
            return
        self._inputs[name] = inputs
        inputs.rows += len(rows)
        np.maximum(inputs.absmax, np.abs(rows).max(axis=0), out=inputs.absmax)
        inputs.squares += np.square(rows, dtype=np.float64).sum(axis=0)
        inputs.sums += rows.sum(axis=0, dtype=np.float64)

    def _observe_call(
        self, name: str, _module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self.observe(name, arguments[0] if arguments else named["input"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file: NAME.input_absmax, NAME.input_mean_square and NAME.input_mean.

        Each is F32 [channels].

        Raises:
            ValueError: no layer has seen an input.
        """
        tensors: dict[str, np.ndarray] = {}
        for name, inputs in sorted(self._inputs.items()):
            tensors[f"{name}.input_absmax"] = inputs.absmax.astype(np.float32)
            tensors[f"{name}.input_mean_square"] = (inputs.squares / inputs.rows).astype(np.float32)
            tensors[f"{name}.input_mean"] = (inputs.sums / inputs.rows).astype(np.float32)
        if not tensors:
            raise ValueError("no layer has seen an input: run batches before save")
        _write(Path(path), tensors)


def _write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file of F32 tensors, which appears whole or not at all."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        offsets = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        part = Path(folder) / "part"
        with part.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                file.write(np.ascontiguousarray(tensor, "<f4").tobytes())
        part.replace(path)
