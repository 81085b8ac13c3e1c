"""What the inputs of linear layers look like: the calibration that conversions read."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ._arrays import count, describe, number
from ._calibration_file import (
    Names,
    State,
    last_of,
    of_layers,
    read_state,
    write_numbers,
    write_state,
)
from ._calibration_inputs import Inputs
from ._calibration_run import Keeper, call, shown, total_of, without_grad
from ._checkpoint import _path


class Calibrator:
    """Collects the largest magnitude, mean square and mean of each input channel of linear layers,
    and percentiles of the magnitudes of each input.

    Hooks every `torch.nn.Linear` of a model and every module of experts, or wraps any callable,
    while the user's own batches run, alone or by `run`; `save` writes the file that `convert` reads
    as `activation_scales` and `calibration`.

    Experts are a `blockscale.nn.Experts`, or a module with stacks `gate_up_proj` and `down_proj`
    (transformers'), which take hidden states, experts and weights of each token. Tokens of expert 3
    are the inputs of `experts.3.gate_proj` and `experts.3.up_proj`; what lies between its products,
    `experts.3.down_proj`'s, is computed once more by the module's own code, unless its weights are
    quantized.

    Numbers of f32, f16 and bf16 tensors on a CUDA device are reduced there; nothing waits, but for
    how many tokens each expert has, and `run` once a batch: NaN and infinity are noticed there, or
    by `save`. Sums have another order than those of the CPU, all else is equal.

    Args:
        model: a torch module whose linear layers and experts are hooked until `close`, or the end
            of a `with` block; their names are those of `named_modules()`. None: only what `wrap`
            wraps.
        prefix: comes before every hooked name, where a checkpoint's names have more in front
            ("model." for what AutoModel makes of a causal language model).
        resume: a file that keeps the state of one loader: where it exists it is read, and `run`
            goes on behind the batches that it has; `run` writes it now and then and at its end,
            however it ends.

    Raises:
        TypeError: `model` is no torch module.
        ValueError: it has no linear layer and no experts; `resume` is another file.

    >>> import numpy as np, blockscale
    >>> calibrator = blockscale.Calibrator()
    >>> layer = calibrator.wrap("layers.0.q_proj", lambda x: x @ np.ones((128, 64), np.float32))
    >>> layer(np.ones((4, 128), np.float32)).shape
    (4, 64)
    >>> calibrator.names
    ['layers.0.q_proj']
    >>> calibrator.percentile("layers.0.q_proj", 99.9)
    1.0
    >>> calibrator.save("calibration.safetensors")
    """

    def __init__(
        self,
        model: Any = None,
        *,
        prefix: str = "",
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(prefix, str):
            raise TypeError(f"prefix: is a {type(prefix).__name__}, must be a str")
        self._hooks: list[Any] = []
        self._state = State({}, {}, 0)
        #: Of the batch that runs, which counts as a whole or not at all.
        self._pending: dict[Names, list[Any]] | None = None
        self._is_done = True  # with the loader that `run` had last
        self._resume = None if resume is None else Path(_path(resume, "resume"))
        if self._resume is not None and self._resume.exists():
            self._state = read_state(self._resume)
        if model is not None:
            self._hook(model, prefix)

    def _hook(self, model: Any, prefix: str) -> None:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: is a {type(model).__name__}, must be a torch.nn.Module")
        from ._torch_calibration import experts_of

        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear):
                hook = functools.partial(self._observe_call, prefix + name)
                self._hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        for path, module, observer in experts_of(model, prefix, self._add):
            self._hooks.append(module.register_forward_pre_hook(observer, with_kwargs=True))
            self._state.experts.update(dict.fromkeys(observer.names, path))
        if not self._hooks:
            raise ValueError("model: has no torch.nn.Linear and no experts")

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
        unused = f", {len(self.unused)} unused" if self.unused else ""
        return f"Calibrator({len(self.names)} layers{unused})"

    @property
    def names(self) -> list[str]:
        """Layers that have seen an input, in the order in which they first did."""
        return list(itertools.chain.from_iterable(self._state.inputs))

    @property
    def unused(self) -> list[str]:
        """Layers of hooked experts that have seen none."""
        names = (names for names in self._state.experts if names not in self._state.inputs)
        return list(itertools.chain.from_iterable(names))

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each layer has seen; 0 for those of unused experts."""
        seen = {name: x.rows for names, x in self._state.inputs.items() for name in names}
        return seen | dict.fromkeys(self.unused, 0)

    @property
    def shares(self) -> dict[str, float]:
        """Which part of the rows of all experts of its layer each hooked expert's layers have."""
        rows, totals = self.rows, dict[tuple[str, str], int]()
        kinds = {names: (path, last_of(names)) for names, path in self._state.experts.items()}
        for names, kind in kinds.items():
            totals[kind] = totals.get(kind, 0) + rows[names[0]]
        return {
            name: rows[name] / max(1, totals[kinds[names]]) for names in kinds for name in names
        }

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
        self._add((name,), x)

    def _add(self, names: Names, x: Any) -> None:
        """`observe` of what is the input of several layers."""
        rows, name = _rows(x, names[0]), names[0]
        total = self._state.inputs.get(names)
        waiting = None if self._pending is None else self._pending.get(names)
        known = waiting[0] if waiting else total
        if known is not None and rows.shape[1] != known.channels:
            raise ValueError(
                f"{name}: input has {rows.shape[1]} channels, had {known.channels} before"
            )
        if isinstance(rows, np.ndarray):
            if not np.isfinite(rows).all():
                raise ValueError(f"{name}: input holds NaN or infinity")
            if not len(rows):
                return
            more: Any = Inputs.of(rows)
        else:
            if not len(rows):
                return
            from ._torch_calibration import DeviceInputs

            more = DeviceInputs.of(rows)
        if self._pending is None:
            self._state.inputs[names] = _sum(total, [more])
        else:
            self._pending.setdefault(names, []).append(more)

    def _observe_call(
        self, name: str, _module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self.observe(name, arguments[0] if arguments else named["input"])

    def run(
        self,
        model: Callable[..., Any],
        loader: Iterable[Any],
        *,
        batches: int | None = None,
        progress: bool | Callable[[int, int | None], object] = True,
    ) -> int:
        """Call `model` with each batch of `loader`, without gradients.

        A batch counts as a whole: where one ends in an exception (Ctrl-C, no memory), nothing of it
        does. The next `run` then skips the batches that are done; with `resume` each one does, also
        behind a run that came to its end. `loader` must give the same ones in the same order. What
        is collected in pieces is what one run collects, bit by bit.

        Args:
            model: the module that is hooked, as it is (call its `eval()` before), or a callable,
                say of layers that `wrap` gave.
            loader: any iterable. A mapping is given to `model` by name, a list or a tuple as
                positional arguments, all else as one. Tensors in them are brought to where the
                first parameter of a torch module is.
            batches: at most so many, those included that are done.
            progress: a bar (tqdm's where it is installed, else a line on standard error every five
                seconds); False: nothing; or called as progress(done, total or None) behind each.

        Returns:
            How many of the loader's batches are done.

        Raises:
            ValueError: as `observe`; also where `loader` ends before the batches that are done.
        """
        if not callable(model):
            raise TypeError(f"model: is a {type(model).__name__}, must be callable")
        if not isinstance(progress, bool) and not callable(progress):
            raise TypeError(f"progress: is a {type(progress).__name__}, must be a bool or callable")
        limit = None if batches is None else count(batches, "batches")
        if self._resume is not None and not self._resume.parent.is_dir():
            raise FileNotFoundError(f"resume: {self._resume.parent} is no folder")
        try:
            loaded = itertools.islice(loader, limit)
        except TypeError:
            raise TypeError(f"loader: is a {type(loader).__name__}, must be iterable") from None
        if self._is_done and self._resume is None:
            self._state = self._state._replace(batches=0)
        self._is_done = False
        skipped, total = self._state.batches, total_of(loader, limit)
        keeper = Keeper(self._keep)
        try:
            with without_grad(), shown(progress, skipped, total) as show:
                i = 0
                for i, batch in enumerate(loaded, 1):
                    if i <= skipped:
                        continue
                    self._run_batch(model, batch, i)
                    show(i)
                    keeper.keep_now_and_then()
            if i < skipped and i != limit:
                raise ValueError(f"loader: has {i} batches, and {skipped} are done")
            self._is_done = True
        finally:
            keeper.keep()
        return self._state.batches

    def _keep(self) -> None:
        if self._resume is not None:
            self.save_state(self._resume)

    def _run_batch(self, model: Callable[..., Any], batch: Any, number: int) -> None:
        """A batch, whose inputs and number come into the state at once."""
        self._pending = {}
        try:
            call(model, batch)
            _require_finite((names, x) for names, more in self._pending.items() for x in more)
            inputs = dict(self._state.inputs)
            for names, more in self._pending.items():
                inputs[names] = _sum(inputs.get(names), more)
            self._state = self._state._replace(inputs=inputs, batches=number)
        finally:
            self._pending = None

    def percentile(self, name: str, percent: float) -> float:
        """A number that at least `percent` of the magnitudes in a layer's input are not above.

        It is the least such magnitude, or up to 1/64 more but no more than the largest, where it is
        from 2^-32 to 2^32: magnitudes are counted in 64 bins an octave, so that memory does not
        grow. Smaller ones count as 65/64 2^-32, larger ones as the largest.

        Raises:
            ValueError: `percent` is not above 0 and at most 100.
            KeyError: the layer has seen no input.
        """
        percent = _percent(percent, "percent")
        for names, inputs in self._state.inputs.items():
            if name in names:
                return float(inputs.on_host().percentile(percent))
        raise KeyError(f"name: is {name!r}, which has seen no input")

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        percents: Sequence[float] = (99, 99.9, 99.99),
        percentile: float | None = None,
        unused: str = "omit",
        rename: Callable[[str], str] | None = None,
    ) -> None:
        """Write a safetensors file: NAME.input_absmax, NAME.input_mean_square and NAME.input_mean.

        Each is F32 [channels]. The metadata have JSON of what is one number a layer:
        `input_percentiles` ({"percents": [...], "of": {NAME: [...]}}, as `percentile`),
        `input_rows` ({NAME: rows}, 0 for unused experts) and `expert_shares` (`shares`).

        Args:
            path: of the file, which appears whole or not at all.
            percents: of the percentiles.
            percentile: of the magnitudes, which NAME.input_absmax does not exceed: static scales of
                inputs then come from it, and what is above is clipped. None: nothing is.
            unused: what becomes of layers of experts that have seen no token: "omit" them, which
                `convert` refuses where it needs them, or give them what all experts of their
                "layer" have seen together, where any has.
            rename: gives what the checkpoint calls a layer, where that is something else.

        Raises:
            ValueError: no layer has seen an input, or one NaN or infinity on a device; a percent is
                not above 0 and at most 100.
        """
        target = Path(_path(path, "path"))
        wanted = _percents(percents)
        clip = None if percentile is None else _percent(percentile, "percentile")
        if unused not in ("omit", "layer"):
            raise ValueError(f'unused: is {unused!r}, must be "omit" or "layer"')
        if rename is not None and not callable(rename):
            raise TypeError(f"rename: is a {type(rename).__name__}, must be callable")
        if not self._state.inputs:
            raise ValueError("no layer has seen an input: run batches before save")
        _require_finite(self._state.inputs.items())
        host = {names: inputs.on_host() for names, inputs in self._state.inputs.items()}
        if unused == "layer":
            host |= of_layers(host, self._state.experts)
        said: dict[str, dict[str, Any]] = {"input_rows": self.rows, "expert_shares": self.shares}
        write_numbers(target, host, wanted, clip, said, rename or str)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write what `Calibrator(resume=path)` goes on from: sums, counts, and batches done.

        Raises:
            ValueError: an input held NaN or infinity on a device.
        """
        target = Path(_path(path, "path"))
        _require_finite(self._state.inputs.items())
        write_state(target, self._state)


def _rows(x: Any, name: str) -> Any:
    """Rows [rows, channels]: of a tensor on a CUDA device such a tensor, of all else numpy's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if not x.is_floating_point():
            raise TypeError(f"x: has dtype {x.dtype}, must be a floating-point one")
        x = x.detach()
        rows = x if x.is_cuda else x.float().cpu().numpy()
    else:
        array, dtype, _ = describe(x, "x")
        if dtype not in ("float32", "float16", "bfloat16", "float64"):
            raise TypeError(f"x: has dtype {dtype}, must be a floating-point one")
        if dtype == "bfloat16":
            array = (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
        rows = np.asarray(array)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise ValueError(f"{name}: input has no channel")
    return rows.reshape(-1, rows.shape[-1])


def _sum(total: Any, more: list[Any]) -> Any:
    """Of sums one behind the other, where the last ones are."""
    for each in more:
        total = each if total is None else total.beside(each).plus(each)
    return total


def _require_finite(inputs: Iterable[tuple[Names, Any]]) -> None:
    """Raises ValueError where a device was given NaN or infinity; of host memory it is known."""
    on_device = [(names[0], x) for names, x in inputs if not isinstance(x, Inputs)]
    if not on_device:
        return
    from ._torch_calibration import nonfinite

    if (name := nonfinite(on_device)) is not None:
        raise ValueError(f"{name}: input holds NaN or infinity")


def _percent(value: Any, argument: str) -> float:
    percent = number(value, argument)
    if not 0 < percent <= 100:
        raise ValueError(f"{argument}: is {percent:g}, must be above 0 and at most 100")
    return percent


def _percents(values: Any) -> list[float]:
    try:
        each = list(values)
    except TypeError:
        raise TypeError(
            f"percents: is a {type(values).__name__}, must be a sequence of numbers"
        ) from None
    return [_percent(value, "percents") for value in each]
