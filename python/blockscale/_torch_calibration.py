"""What `Calibrator` does with torch: sums on a CUDA device, and the inputs of each expert."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ._calibration_file import Names
from ._calibration_inputs import BINS, FIRST_BIN_F32, FRACTION_BITS, Inputs
from ._torch_experts import Experts
from ._torch_layer import PLAIN
from ._torch_stacks import BIASES, STACKS, gated, is_experts, is_gated, is_transposed

#: Rows are reduced in pieces of so many numbers: their squares in f64 are 32 MiB, and counts of
#: them in f32 are exact.
_PIECE = 1 << 22


class DeviceInputs:
    """`Inputs` on a CUDA device, for which nothing waits; what is not finite is in `absmax`."""

    def __init__(
        self,
        rows: int,
        absmax: torch.Tensor,
        squares: torch.Tensor,
        sums: torch.Tensor,
        histogram: torch.Tensor,
    ) -> None:
        self.rows = rows
        self.absmax, self.squares, self.sums, self.histogram = absmax, squares, sums, histogram

    @classmethod
    def of(cls, rows: torch.Tensor) -> DeviceInputs:
        """Those of some rows: floats [rows, channels], one at least."""
        length = max(1, _PIECE // rows.shape[1])
        inputs = None
        for piece in rows.split(length):
            more = cls._of_piece(piece.float())
            inputs = more if inputs is None else inputs.plus(more)
        assert inputs is not None
        return inputs

    @classmethod
    def _of_piece(cls, rows: torch.Tensor) -> DeviceInputs:
        magnitudes, wide = rows.abs(), rows.double()
        bins = (magnitudes.view(torch.int32) >> (23 - FRACTION_BITS)) - FIRST_BIN_F32
        return cls(
            len(rows),
            magnitudes.amax(dim=0).double(),
            wide.square().sum(dim=0),
            wide.sum(dim=0),
            _counted(bins.clamp_(0, BINS - 1).reshape(-1)),
        )

    @property
    def channels(self) -> int:
        return len(self.absmax)

    def plus(self, more: DeviceInputs) -> DeviceInputs:
        """Of these rows and more; both stay."""
        return DeviceInputs(
            self.rows + more.rows,
            torch.maximum(self.absmax, more.absmax),
            self.squares + more.squares,
            self.sums + more.sums,
            self.histogram + more.histogram,
        )

    def beside(self, other: Any) -> Any:
        """The same sums where those of `other` are."""
        if isinstance(other, DeviceInputs) and other.absmax.device == self.absmax.device:
            return self
        return self.on_host().beside(other)

    def taken(self, inputs: Inputs) -> DeviceInputs:
        """Sums of host memory, beside these."""
        parts = (inputs.absmax, inputs.squares, inputs.sums, inputs.histogram)
        device = self.absmax.device
        return DeviceInputs(inputs.rows, *(torch.tensor(part, device=device) for part in parts))

    def on_host(self) -> Inputs:
        """In one copy, which waits."""
        counts = self.histogram.view(torch.float64)  # for their bits alone
        numbers = torch.cat([self.absmax, self.squares, self.sums, counts]).cpu().numpy()
        k = self.channels
        absmax, squares, sums, counts = np.split(numbers, [k, 2 * k, 3 * k])
        return Inputs(self.rows, absmax, squares, sums, counts.view(np.int64))


def nonfinite(inputs: list[tuple[str, DeviceInputs]]) -> str | None:
    """The name of one that has seen NaN or infinity, if any has. Waits once for each device."""
    largest: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for name, each in inputs:
        largest.setdefault(each.absmax.device, []).append((name, each.absmax.amax()))
    for members in largest.values():
        finite = torch.isfinite(torch.stack([number for _, number in members])).tolist()
        if not all(finite):
            return members[finite.index(False)][0]
    return None


def _counted(bins: torch.Tensor) -> torch.Tensor:
    """How often each number below BINS is there, int64 [BINS]."""
    if torch.are_deterministic_algorithms_enabled():  # which refuse histc, though counts are exact
        return torch.bincount(bins, minlength=BINS)  # waits
    return torch.histc(bins.float(), BINS, 0, BINS).long()


class ExpertsObserver:
    """A hook for modules that take hidden states, experts and weights of each token: the rows that
    go to each expert, and, where the module has its weights in plain, what lies between them.

    Args:
        path: what the experts' numbers stand behind, with a dot at its end.
        module: that `experts_of` found.
        add: takes names and rows [rows, channels].
    """

    def __init__(
        self, path: str, module: torch.nn.Module, add: Callable[[Names, torch.Tensor], None]
    ) -> None:
        self._module, self._add = module, add
        self._signature = inspect.signature(module.forward)
        if isinstance(module, Experts):
            ids, has_second = _ids_of(module), False
            has_gates = module.activation == "swiglu"
        else:
            ids, has_second, has_gates = list(range(len(module.down_proj))), _computes(module), True
        first = ("gate_proj", "up_proj") if has_gates else ("up_proj",)
        #: By the number that a router has for an expert: names of what has its tokens as inputs.
        self._first = {e: tuple(f"{path}{e}.{part}" for part in first) for e in ids}
        self._second = {e: (f"{path}{e}.down_proj",) for e in ids if has_second}

    @property
    def names(self) -> list[Names]:
        """Of all that is observed where every expert has a token."""
        of_each = ((self._first[e], self._second.get(e)) for e in self._first)
        return [names for pair in of_each for names in pair if names is not None]

    def __call__(
        self, _module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        hidden, chosen, *_ = self._signature.bind(*arguments, **named).arguments.values()
        top_k = chosen.shape[-1]
        rows = hidden.detach().reshape(-1, hidden.shape[-1])
        chosen, order = chosen.detach().long().reshape(-1).sort(stable=True)
        numbers = torch.arange(max(self._first, default=-1) + 2, device=chosen.device)
        starts = torch.searchsorted(chosen, numbers).tolist()  # the one wait
        for e, names in self._first.items():
            if starts[e] == starts[e + 1]:
                continue
            mine = rows[order[starts[e] : starts[e + 1]] // top_k]
            self._add(names, mine)
            if e in self._second:
                with torch.no_grad():
                    self._add(self._second[e], _between(self._module, mine, e))


def experts_of(
    model: torch.nn.Module, prefix: str, add: Callable[[Names, torch.Tensor], None]
) -> Iterator[tuple[str, torch.nn.Module, ExpertsObserver]]:
    """The experts of a model, by what their names begin with."""
    for name, module in model.named_modules():
        if isinstance(module, Experts) or (is_experts(module) and _takes_choices(module)):
            path = prefix + (name + "." if name else "")
            yield path, module, ExpertsObserver(path, module, add)


def moved(batch: Any, model: Any) -> Any:
    """`batch` with its tensors where the first parameter of `model` is."""
    if not isinstance(model, torch.nn.Module):
        return batch
    parameter = next(model.parameters(), None)
    if parameter is None or parameter.is_meta:
        return batch
    return _on(batch, parameter.device)


def _on(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: _on(part, device) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_on(part, device) for part in batch]
    return batch


def _takes_choices(module: torch.nn.Module) -> bool:
    return len(inspect.signature(module.forward).parameters) == 3


def _ids_of(module: Experts) -> list[int]:
    """The numbers of experts that are here."""
    first = module.local_expert_offset
    here = range(first, first + module.num_experts)
    if module.expert_map is None:
        return list(here)
    return [i for i, e in enumerate(module.expert_map.tolist()) if e in here]


def _computes(module: torch.nn.Module) -> bool:
    """Whether `_between` can be computed: of plain numbers that are there, by the module's code."""
    up = getattr(module, STACKS[0])
    return up.dtype in PLAIN and not up.is_meta and is_gated(module)


def _between(module: torch.nn.Module, rows: torch.Tensor, e: int) -> torch.Tensor:
    """The input of an expert's second product: [rows, I] in the dtype of the weights."""
    up, down = (getattr(module, name) for name in STACKS)
    matrix = up[e].T if is_transposed(up, down) else up[e]
    bias = getattr(module, BIASES[0], None)
    return gated(
        module,
        torch.nn.functional.linear(
            rows.to(matrix.dtype), matrix, None if bias is None else bias[e]
        ),
    )
