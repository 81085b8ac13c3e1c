"""`blockscale.nn.Offload`: blocks of a model whose weights come to the device as they run."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

import torch

from . import _torch_offload_file
from ._arrays import count
from ._checkpoint import Path
from ._torch_layer import Layer
from ._torch_offload_file import FileBlocks
from ._torch_offload_layout import (
    Alike,
    Block,
    Groups,
    HostBlocks,
    Layout,
    divided,
    require_apart,
    require_numbers,
    tensors_of,
)
from ._torch_offload_streams import Streams, streams_of


class OffloadMemory(NamedTuple):
    """Bytes that an `Offload` holds: on the device, in the memory of the CPU, and in a file."""

    device: int
    host: int
    file: int


class Offload(torch.nn.Module):
    """Blocks of a model that are called one after the other, step after step, for inference: their
    weights lie in pinned memory of the CPU, or in a file, and are on the device as they are needed.

    Results have the bits of the same blocks on the device. While one block runs, a stream of its
    own copies the next ones, in one copy each, behind the last block the first one again. Between
    calls a block's parameters and buffers are those in the memory of the CPU (or of the mapped
    file), so `state_dict`, under the names of `blocks`, and `load_state_dict` are as before; what
    torch changes there in place is seen. Nothing is allocated and no thread waits for the device
    in a call; with `file` it waits until the block was read.

    The blocks are changed to be called so, whoever calls them: `offload(x)`, or a loop over
    `offload` or over the list itself. In another order they are as correct, and wait for a copy.
    A tensor that all blocks have under one name is moved to the device and stays there; every other
    tensor each block has for itself, also where two were one.

    Args:
        blocks: 2 or more modules with the same names, shapes and dtypes of parameters and buffers,
            on any device; a torch.nn.ModuleList or Sequential, or an iterable.
        resident: how many blocks the device holds, 2 or more: the one that runs and the next ones.
        pinned: whether memory of the CPU is pinned; copies from other memory take longer, and wait.
        device: of CUDA or the CPU; default: the current CUDA device, where there is one.
        file: of `save`, whose numbers count: those of `blocks` are not read, so that they may be on
            the meta device. A thread reads ahead.

    Raises:
        TypeError: an argument of the wrong kind; a tensor of a class of its own; on `.to()` and its
            kind, and where it is copied or pickled.
        ValueError: blocks that are not alike, without numbers, or twice there; a file that is not
            of these blocks.
        FileNotFoundError: there is no file.
        RuntimeError: in a call, where a block's tensors were put elsewhere since, or its call
            changes them.

    >>> import torch, blockscale.nn
    >>> blocks = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(6))
    >>> blocks = blockscale.nn.quantize(blocks, "mxfp8_e4m3", include=["*"])
    >>> offload = blockscale.nn.Offload(blocks, device="cpu")
    >>> offload
    Offload(6 blocks of 69632 bytes, 2 resident on cpu)
    >>> with torch.no_grad():
    ...     y = offload(torch.randn(4, 256))
    >>> offload.memory()
    OffloadMemory(device=139264, host=417792, file=0)
    """

    def __init__(
        self,
        blocks: Iterable[torch.nn.Module],
        *,
        resident: int = 2,
        pinned: bool = True,
        device: torch.device | str | None = None,
        file: Path | None = None,
    ) -> None:
        super().__init__()
        place = _place(device)
        if (size := count(resident, "resident")) < 2:
            raise ValueError(f"resident: is {size}, must be 2 or more")
        named = _named(blocks)
        modules = list(named.values())
        found, layout, shared = _compared(modules, with_numbers=file is None)
        for name, module in named.items():
            self.add_module(name, module)
        streams, is_pinned = streams_of(place), pinned and place.type == "cuda"
        # Tensors of inference mode do not count their changes.
        with torch.inference_mode(False), torch.no_grad():
            if file is None:
                memory: HostBlocks | FileBlocks = HostBlocks(
                    layout, len(modules), is_pinned, streams
                )
            else:
                memory = FileBlocks(file, layout, len(modules), is_pinned, streams)
            self._ring = _Ring(found, layout, memory, min(size, len(modules)), place, streams)
            self._ring.take(with_numbers=file is None)
            self._shared_bytes = _moved(shared, place)
        for i, module in enumerate(modules):
            module.forward = _Call(self._ring, i, module)

    @staticmethod
    def save(blocks: Iterable[torch.nn.Module], file: Path) -> None:
        """Write a file for `file`: safetensors with one tensor, `blocks`, uint8 [blocks, bytes of
        each]. It is there whole or not at all, in place of what was there.

        Args:
            blocks: 2 or more that are alike. One after the other is asked for, and none is kept: a
                generator need not have all of them in memory.
            file: its path.

        Raises:
            TypeError, ValueError: as `Offload`.
            OSError: it cannot be written.
        """
        _torch_offload_file.save(blocks, file)

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """All blocks, each called with the result of the one before, of a tuple with the first, and
        with the other arguments; the last one's result, of a tuple the first."""
        for block in self:
            x = block(x, *args, **kwargs)
            x = x[0] if isinstance(x, tuple) else x
        return x

    def __iter__(self) -> Iterator[torch.nn.Module]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> torch.nn.Module:
        return list(self._modules.values())[index]

    def memory(self) -> OffloadMemory:
        """Bytes of blocks on the device (with what all share), in the memory of the CPU (as torch
        asks for it: pinned memory in powers of two) and in the file."""
        device, host, file = self._ring.memory()
        return OffloadMemory(device + self._shared_bytes, host, file)

    def close(self) -> None:
        """Lets go of the device's memory. Blocks are called as before they were here, with tensors
        in the memory of the CPU or of the mapped file; what all share stays on the device."""
        for block in self:
            if isinstance(call := block.__dict__.get("forward"), _Call):
                call.restore(block)
            for module in block.modules():
                if isinstance(module, Layer):
                    module.forget_views()  # of the device's memory
        self._ring.close()

    def __repr__(self) -> str:
        return f"Offload({len(self)} blocks of {self._ring})"

    def _apply(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "Offload: cannot be moved or cast; move or cast its blocks before, and a model's other "
            "parts one by one"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("Offload: cannot be copied or pickled; its state_dict can")


class _Call:
    """The forward of a block: with its tensors on the device."""

    def __init__(self, ring: _Ring, index: int, module: torch.nn.Module) -> None:
        self._ring, self._index = ring, index
        self._forward, self._is_own = module.forward, "forward" in module.__dict__
        functools.update_wrapper(self, self._forward, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # who traces this runs it as it is
            raise RuntimeError("Offload: is in no graph; what its blocks call can be compiled")
        slot = self._ring.enter(self._index)
        try:
            result = self._forward(*args, **kwargs)
            self._ring.require_unchanged(self._index, slot)
            return result
        finally:
            self._ring.leave(self._index, slot)

    def restore(self, module: torch.nn.Module) -> None:
        """The block's forward as it was."""
        if self._is_own:
            module.forward = self._forward
        else:
            del module.forward

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("block: is in an Offload, cannot be copied or pickled; its state_dict can")


class _Slot:
    """Memory of the device for one block at a time."""

    def __init__(self, layout: Layout, place: torch.device, streams: Streams) -> None:
        self.memory = torch.empty(layout.nbytes, dtype=torch.uint8, device=place)
        self.tensors = layout.views(self.memory)
        self.pointers = [tensor.data_ptr() for tensor in self.tensors]
        self.copied, self.ran = streams.event(), streams.event()
        streams.record(self.ran, streams.work)  # behind who had this memory before
        streams.keep(self.memory, streams.copies)
        self.block: int | None = None
        self.changes = 0  # of the block's bytes in the CPU's memory, as they were copied
        self.version = 0  # of `memory` since
        self.is_open = False
        self.last_use = 0


class _Ring:
    """The slots, and what is in them.

    A slot is copied to behind the work of its last block, and works behind its copy: `ran` and
    `copied` are these two events. A slot of a block that is being called is open, and stays.
    """

    def __init__(
        self,
        blocks: list[Block],
        layout: Layout,
        memory: HostBlocks | FileBlocks,
        resident: int,
        place: torch.device,
        streams: Streams,
    ) -> None:
        weakref.finalize(self, memory.close)
        self._blocks, self._layout, self._memory = blocks, layout, memory
        self._place, self._streams = place, streams
        self._slots = [_Slot(layout, place, streams) for _ in range(resident)]
        self._idle: list[tuple[list[torch.Tensor], list[int]]] = []
        self._uses = itertools.count(1)

    def take(self, with_numbers: bool) -> None:
        """Puts tensors of the CPU's memory into the blocks; with the numbers that they have, or
        with those that are there. The first blocks go to the device."""
        for i, block in enumerate(self._blocks):
            tensors = self._layout.views(self._memory.memory(i))
            if with_numbers:
                for mine, tensor in zip(tensors, block.tensors, strict=True):
                    mine.copy_(tensor)
            block.put(tensors)
            block.tensors = []  # which others may have, or nobody
            self._idle.append((tensors, [tensor.data_ptr() for tensor in tensors]))
        self._load(0, wait=False)

    def enter(self, index: int) -> _Slot:
        """The block's tensors are on the device, and in its module.

        Raises:
            RuntimeError: its tensors are not those that were put there; it is being called, or as
                many others as there are slots.
            OSError: of its file.
        """
        block = self._blocks[index]
        if any(slot.is_open and slot.block == index for slot in self._slots):
            raise RuntimeError(f"blocks[{index}]: is called within its own call")
        if names := block.strangers(*self._idle[index]):
            raise RuntimeError(
                f"blocks[{index}].{names[0]}: is another tensor than Offload put there, or was "
                "moved; make a new Offload"
            )
        slot = self._load(index, wait=True)
        assert slot is not None
        work = self._streams.work
        self._streams.wait(work, slot.copied)
        self._streams.wait(work, slot.ran)  # perhaps on another stream: the next `ran` is of both
        self._streams.keep(slot.memory, work)
        block.put(slot.tensors)
        slot.is_open = True
        return slot

    def require_unchanged(self, index: int, slot: _Slot) -> None:
        """Raises RuntimeError where the block's call has changed its tensors, which are lost."""
        names = self._blocks[index].strangers(slot.tensors, slot.pointers)
        if names or slot.memory._version != slot.version:
            name = f".{names[0]}" if names else ""
            raise RuntimeError(
                f"blocks[{index}]{name}: was changed by its call, must stay as it is: parameters "
                "and buffers do not come back from the device"
            )

    def leave(self, index: int, slot: _Slot) -> None:
        """As before `enter`; the slot is for the next block that is not on the device."""
        self._blocks[index].put(self._idle[index][0])
        self._streams.record(slot.ran, self._streams.work)
        slot.is_open, slot.last_use = False, next(self._uses)
        if slot.memory._version != slot.version:
            slot.block = None
        self._load(index + 1, wait=False)

    def memory(self) -> tuple[int, int, int]:
        """Bytes on the device, in the CPU's memory and in the file."""
        device = len(self._slots) * self._layout.nbytes
        return device, self._memory.nbytes, self._memory.file_bytes

    def close(self) -> None:
        """Without slots; nothing is entered any more."""
        self._slots = []
        self._memory.close()

    def __str__(self) -> str:
        return f"{self._layout.nbytes} bytes, {len(self._slots)} resident on {self._place}"

    def _load(self, first: int, wait: bool) -> _Slot | None:
        """Puts copies on their stream: of block `first` and the next ones, as many as there are
        slots. The slot of the first one, which with `wait` it has in the end, or raises."""
        there = self._current()
        wanted = [(first + i) % len(self._blocks) for i in range(len(self._slots))]
        for block in wanted:
            if block in there:
                continue
            must = wait and block == first
            slot = self._slot_without(wanted)
            if slot is None and must:
                raise RuntimeError(
                    f"blocks[{block}]: is called within {len(self._slots)} blocks, as many as are "
                    "resident"
                )
            if slot is None or not self._memory.ready(block, wait=must):
                break
            slot.block = None
            self._streams.wait(self._streams.copies, slot.ran)
            self._memory.send(block, slot.memory)
            self._streams.record(slot.copied, self._streams.copies)
            slot.block, slot.version = block, slot.memory._version
            slot.changes = self._memory.changes(block)
            there[block] = slot
        return there.get(first)

    def _current(self) -> dict[int, _Slot]:
        """Blocks that are in a slot as they are now, of slots that are not open; a slot forgets a
        block that was changed since."""
        there = {}
        for slot in self._slots:
            if slot.block is None or slot.is_open:
                continue
            if slot.changes == self._memory.changes(slot.block):
                there[slot.block] = slot
            else:
                slot.block = None
        return there

    def _slot_without(self, wanted: list[int]) -> _Slot | None:
        """The one to copy to: used longest ago, of those that are not open and have no such
        block."""
        free = [slot for slot in self._slots if not slot.is_open and slot.block not in wanted]
        return min(free, key=lambda slot: (slot.block is not None, slot.last_use), default=None)


def _place(device: torch.device | str | None) -> torch.device:
    """Where blocks run.

    Raises:
        ValueError: neither the CPU nor a GPU that torch sees.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = torch.device(device)
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"device: is {place}, must be of CUDA or the CPU")
    if place.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(f"device: is {place}, and torch sees no GPU")
    return torch.device("cuda", torch.cuda.current_device() if place.index is None else place.index)


def _named(blocks: Iterable[torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """The blocks by the names that they have in a state_dict."""
    if isinstance(blocks, (torch.nn.ModuleList, torch.nn.Sequential, Offload)):
        return dict(blocks._modules)
    if isinstance(blocks, torch.nn.Module) or not isinstance(blocks, Iterable):
        raise TypeError(
            f"blocks: is a {type(blocks).__name__}, must be a torch.nn.ModuleList or Sequential, "
            "or an iterable of modules"
        )
    return {str(i): block for i, block in enumerate(blocks)}


def _compared(
    modules: list[torch.nn.Module], with_numbers: bool
) -> tuple[list[Block], Layout, Groups]:
    """The blocks, their layout, and the tensors that are one in all of them, unless numbers are in
    a file, where each block has all of its own.

    Raises:
        TypeError, ValueError: as for `Offload`.
    """
    if len(modules) < 2:
        raise ValueError(f"blocks: are {len(modules)}, must be 2 or more")
    if with_numbers:
        own, shared = divided(modules)
    else:
        own, shared = [tensors_of(i, module) for i, module in enumerate(modules)], []
        require_apart(modules, own)
    alike, found = Alike(), []
    for i, (module, groups) in enumerate(zip(modules, own, strict=True)):
        if isinstance(module.__dict__.get("forward"), _Call):
            raise ValueError(f"blocks[{i}]: is in an Offload already, must be in none")
        found.append(alike.add(groups))
        if with_numbers:
            require_numbers(i, groups)
    require_numbers(0, shared)
    return found, alike.layout, shared


def _moved(shared: Groups, place: torch.device) -> int:
    """Moves tensors to the device; their bytes."""
    nbytes = 0
    for group in shared:
        old = group[0].tensor
        nbytes += old.numel() * old.element_size()
        if old.device == place:
            continue
        tensor = old.detach().to(place)
        if isinstance(old, torch.nn.Parameter):
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        for where in group:
            where.put(tensor)
    return nbytes
