"""The tensors of blocks that are alike, each block's in one piece of memory: for `Offload`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import torch

from ._torch_load import places_of, tied
from ._torch_offload_streams import Streams
from ._torch_stored import Place

#: Bytes at whose multiples a tensor begins; what CUDA's allocations have.
_ALIGNMENT = 256
#: Bytes of which a block has a multiple; of a page, so that blocks of a file begin with one.
PAGE = 4096

#: For each tensor its places.
Groups: TypeAlias = list[list[Place]]


class Part(NamedTuple):
    """A tensor of each block, where it lies in the block's bytes, and all its names there."""

    names: tuple[str, ...]
    is_parameter: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """It, in the bytes of a block."""
        count = math.prod(self.shape) * self.dtype.itemsize
        numbers = memory[self.offset : self.offset + count].view(self.dtype)
        tensor = numbers.as_strided(self.shape, self.stride)
        return torch.nn.Parameter(tensor, requires_grad=False) if self.is_parameter else tensor


class Layout(NamedTuple):
    """What the bytes of each block hold."""

    parts: tuple[Part, ...]
    nbytes: int

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Its tensors in uint8 [nbytes], one a part."""
        return [part.view(memory) for part in self.parts]

    def described(self) -> list[list[Any]]:
        """The parts as a file says them."""
        return [
            [list(part.names), str(part.dtype), list(part.shape), list(part.stride), part.offset]
            for part in self.parts
        ]


class Holder(NamedTuple):
    """A dictionary of a module that holds part `index` of its block, and the tensor's name."""

    tensors: dict[str, Any]
    attribute: str
    name: str
    index: int


class Block:
    """The tensors of a module, in the order of the layout's parts, and who holds them."""

    def __init__(self, groups: Groups, layout: Layout) -> None:
        by_name = {place.name: group for group in groups for place in group}
        groups = [by_name[part.names[0]] for part in layout.parts]
        self.tensors = [group[0].tensor for group in groups]
        self._holders = [
            Holder(_dictionary(place), place.attribute, place.name, index)
            for index, group in enumerate(groups)
            for place in group
        ]

    def put(self, tensors: list[torch.Tensor]) -> None:
        """One a part, in all its places."""
        for holder, attribute, _, index in self._holders:
            holder[attribute] = tensors[index]

    def strangers(self, tensors: list[torch.Tensor], pointers: list[int]) -> list[str]:
        """Names of what is not the tensor of these that was put there, or has other memory."""
        return [
            name
            for holder, attribute, name, index in self._holders
            if holder.get(attribute) is not tensors[index]
            or tensors[index].data_ptr() != pointers[index]
        ]


def _dictionary(place: Place) -> dict[str, Any]:
    parameters: dict[str, Any] = place.module._parameters
    buffers: dict[str, Any] = place.module._buffers
    return parameters if place.attribute in parameters else buffers


class Alike:
    """Blocks one after the other, each compared with the first."""

    def __init__(self) -> None:
        self._count = 0
        self._first: dict[str, str] = {}
        self.layout = Layout((), 0)

    def add(self, groups: Groups) -> Block:
        """The next block, of these tensors.

        Raises:
            TypeError: a tensor of a class or in a layout of its own.
            ValueError: tensors that are not those of the first block; none at all.
        """
        i = self._count
        for place, *_ in groups:
            _require_plain(i, place)
        said = {place.name: _said(place, group) for group in groups for place in group}
        if i == 0:
            self._first, self.layout = said, _layout(groups)
        for name in {**self._first, **said}:
            mine, wanted = (names.get(name, "missing") for names in (said, self._first))
            if mine != wanted:
                raise ValueError(
                    f"blocks[{i}].{name}: is {mine}, must be {wanted}, as in blocks[0]"
                )
        if not groups:
            raise ValueError("blocks: have no tensors of their own, must have some")
        self._count += 1
        return Block(groups, self.layout)


def _require_plain(i: int, place: Place) -> None:
    kind, layout = type(place.tensor), place.tensor.layout
    if kind not in (torch.Tensor, torch.nn.Parameter) or layout != torch.strided:
        raise TypeError(
            f"blocks[{i}].{place.name}: is a {kind.__name__} in {layout}, must be a Tensor or a "
            "Parameter in torch.strided"
        )


def _said(place: Place, group: list[Place]) -> str:
    tensor = place.tensor
    names = ", ".join(other.name for other in group if other.name != place.name)
    return (
        f"a {type(tensor).__name__} of {tensor.dtype} {tuple(tensor.shape)}"
        f"{f', the same as {names}' if names else ''}"
    )


def _layout(groups: Groups) -> Layout:
    parts, offset = [], 0
    for group in groups:
        tensor = group[0].tensor
        part = Part(
            names=tuple(place.name for place in group),
            is_parameter=isinstance(tensor, torch.nn.Parameter),
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            stride=torch.empty_like(tensor, device="meta").stride(),
            offset=offset,
        )
        parts.append(part)
        offset = _up(offset + tensor.numel() * tensor.element_size(), _ALIGNMENT)
    return Layout(tuple(parts), _up(offset, PAGE))


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def require_numbers(i: int, groups: Groups) -> None:
    """Raises ValueError where a tensor of block `i` is on the meta device."""
    for place, *_ in groups:
        if place.tensor.is_meta:
            raise ValueError(f"blocks[{i}].{place.name}: is on the meta device, must have numbers")


def tensors_of(i: int, module: Any) -> Groups:
    """Those of block `i`.

    Raises:
        TypeError: it is no module.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"blocks[{i}]: is a {type(module).__name__}, must be a torch.nn.Module")
    return tied(places_of(module))


def divided(modules: Iterable[torch.nn.Module]) -> tuple[list[Groups], Groups]:
    """The tensors of each block, without those that all blocks have under one name; and these.

    Raises:
        TypeError: a block is no module.
        ValueError: a module stands in two blocks, and its tensors not in all.
    """
    modules = list(modules)
    found = [tensors_of(i, module) for i, module in enumerate(modules)]
    named = [{(place.name, id(place.tensor)) for g in groups for place in g} for groups in found]
    common = {tensor for _, tensor in set.intersection(*named)} if len(found) > 1 else set()
    own = [[group for group in groups if id(group[0].tensor) not in common] for groups in found]
    require_apart(modules, own)
    shared = [place for groups in found for g in groups if id(g[0].tensor) in common for place in g]
    return own, tied(shared)


def require_apart(modules: list[torch.nn.Module], found: list[Groups]) -> None:
    """Raises ValueError where a module is, or has tensors of these, in two blocks."""
    blocks: dict[int, int] = {}
    for i, module in enumerate(modules):
        if (first := blocks.setdefault(id(module), i)) != i:
            raise ValueError(f"blocks[{i}]: is blocks[{first}], must be a module of its own")
    owners: dict[int, int] = {}
    for i, groups in enumerate(found):
        for place in (place for group in groups for place in group):
            if (first := owners.setdefault(id(place.module), i)) != i:
                raise ValueError(
                    f"blocks[{i}].{place.name}: is in a module that blocks[{first}] has too, must "
                    "be in one of its own"
                )


class HostBlocks:
    """Bytes of all blocks in the memory of the CPU, pinned in pieces of several blocks."""

    file_bytes = 0

    def __init__(self, layout: Layout, count: int, pinned: bool, streams: Streams) -> None:
        self._layout, self._pinned, self._streams = layout, pinned, streams
        self._pieces = pieces(layout.nbytes, count) if pinned else [1] * count
        self._memory: list[torch.Tensor] = []
        self.nbytes = 0

    def memory(self, block: int) -> torch.Tensor:
        """uint8 [nbytes], whose tensors the block's module has between its calls. It is asked for
        with that of the blocks before: those that are there already may have let go of theirs."""
        while block >= len(self._memory):
            size = self._pieces.pop(0) * self._layout.nbytes
            piece = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
            self.nbytes += power_of_two(size) if self._pinned else size
            # each counts its changes by itself
            self._memory += [part.data for part in piece.split(self._layout.nbytes)]
        return self._memory[block]

    def changes(self, block: int) -> int:
        """How often torch has changed the block's bytes in place."""
        return self._memory[block]._version

    def ready(self, block: int, wait: bool) -> bool:  # noqa: ARG002
        """Whether the block can be sent."""
        return True

    def send(self, block: int, memory: torch.Tensor) -> None:
        """Puts the copy of a block to a device on the stream of copies."""
        self._streams.copy(memory, self._memory[block])

    def close(self) -> None:
        """Nothing runs in the background."""


def pieces(nbytes: int, count: int) -> list[int]:
    """How to ask for the memory of `count` blocks, so many in each piece: torch rounds pinned
    memory up to powers of two, and these numbers fill one best, of equals the smallest."""
    found = []
    while count:

        def filled(blocks: int) -> tuple[float, int]:
            return blocks * nbytes / power_of_two(blocks * nbytes), -blocks

        found.append(max(range(1, count + 1), key=filled))
        count -= found[-1]
    return found


def power_of_two(count: int) -> int:
    """The first one from `count` on."""
    return 1 << (count - 1).bit_length()
