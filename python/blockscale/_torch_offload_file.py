"""Blocks in a file: written whole or not at all, and read ahead by a thread. For `Offload`."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import threading
from collections.abc import Iterable
from io import FileIO
from itertools import zip_longest
from pathlib import Path

import torch

from ._checkpoint import Path as AnyPath
from ._torch_offload_layout import PAGE, Alike, Layout, power_of_two, require_numbers, tensors_of
from ._torch_offload_streams import Streams

#: Buffers in the memory of the CPU that a file is read into ahead of the device.
DEPTH = 3
_KEY = "blockscale.nn.Offload"
_MOST = 10**9  # blocks, for which a header leaves room
_MOST_HEADER = 100_000_000  # bytes, as safetensors has it


def save(blocks: Iterable[torch.nn.Module], file: AnyPath) -> None:
    """`Offload.save`."""
    path = Path(file)
    alike, count, memory = Alike(), 0, torch.empty(0)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        part = Path(folder) / "part"
        with part.open("wb") as out, torch.no_grad():
            for module in blocks:
                groups = tensors_of(count, module)
                block = alike.add(groups)
                require_numbers(count, groups)
                if count == 0:
                    memory = torch.zeros(alike.layout.nbytes, dtype=torch.uint8, device="cpu")
                    out.write(bytes(_header_bytes(alike.layout)))  # the real one comes last
                for mine, tensor in zip(alike.layout.views(memory), block.tensors, strict=True):
                    mine.copy_(tensor)
                out.write(memory.numpy())
                count += 1
            if count < 2:
                raise ValueError(f"blocks: are {count}, must be 2 or more")
            out.seek(0)
            out.write(_header(alike.layout, count))
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)


def _text(layout: Layout, count: int) -> bytes:
    size = count * layout.nbytes
    tensor = {"dtype": "U8", "shape": [count, layout.nbytes], "data_offsets": [0, size]}
    metadata = {_KEY: json.dumps(layout.described())}
    return json.dumps({"__metadata__": metadata, "blocks": tensor}).encode()


def _header_bytes(layout: Layout) -> int:
    """Of a file with any number of blocks, in whole pages."""
    return -(-(8 + len(_text(layout, _MOST))) // PAGE) * PAGE


def _header(layout: Layout, count: int) -> bytes:
    """What stands in front of the blocks."""
    size = _header_bytes(layout) - 8
    return struct.pack("<Q", size) + _text(layout, count).ljust(size)


class FileBlocks:
    """Bytes of blocks in a file of `save`, as `HostBlocks`. A thread reads those that come next
    into DEPTH buffers.

    Raises:
        FileNotFoundError: there is no file.
        ValueError: it is none of `save`, or of other blocks.
    """

    def __init__(
        self, file: AnyPath, layout: Layout, count: int, pinned: bool, streams: Streams
    ) -> None:
        path = Path(file)
        self._layout, self._count, self._streams = layout, count, streams
        self.file_bytes = count * layout.nbytes
        self._file = path.open("rb", buffering=0)
        try:
            self._begin = _begin_of(self._file, path, layout, count)
            size = self._begin + count * layout.nbytes
            mapped = torch.from_file(
                str(path), shared=False, size=size, dtype=torch.uint8, device="cpu"
            )
        except BaseException:
            self._file.close()
            raise
        # each counts its changes by itself
        self._memory = [part.data for part in mapped[self._begin :].split(layout.nbytes)]
        self._buffers = [
            torch.empty(layout.nbytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)
            for _ in range(DEPTH)
        ]
        self.nbytes = DEPTH * (power_of_two(layout.nbytes) if pinned else layout.nbytes)
        self._copied = [streams.event(blocking=True) for _ in range(DEPTH)]
        self._state = threading.Condition()  # of all below
        self._planned: list[int] = []
        self._free = list(range(DEPTH))
        self._full: dict[int, int] = {}  # blocks, and in which buffers they are
        self._failed: dict[int, Exception] = {}
        self._closed = False
        threading.Thread(target=self._read_ahead, name="blockscale-offload", daemon=True).start()

    def memory(self, block: int) -> torch.Tensor:
        """uint8 [nbytes] of the mapped file, for the block's module between its calls."""
        return self._memory[block]

    def changes(self, block: int) -> int:
        """How often torch has changed the block's mapped bytes in place."""
        return self._memory[block]._version

    def ready(self, block: int, wait: bool) -> bool:
        """Whether the block can be sent; with `wait` True, or an error.

        Raises:
            OSError: reading has failed, ahead and once more.
            RuntimeError: the mapped bytes were changed, which the file's are not.
        """
        if wait and self.changes(block):
            raise RuntimeError(f"blocks[{block}]: was changed, must stay as it is in the file")
        with self._state:
            if wait:
                self._failed.pop(block, None)  # once more, now that it is needed
            self._plan(block)
            if wait:
                self._state.wait_for(lambda: block in self._full or block in self._failed)
                if block in self._failed:
                    raise self._failed.pop(block)
            return block in self._full and not self.changes(block)

    def send(self, block: int, memory: torch.Tensor) -> None:
        """Puts the copy of a block that is ready on the stream of copies."""
        with self._state:
            buffer = self._full.pop(block)
            self._plan(block + 1)
        try:
            self._streams.copy(memory, self._buffers[buffer])
        finally:
            self._streams.record(self._copied[buffer], self._streams.copies)
            with self._state:
                self._free.append(buffer)
                self._state.notify_all()

    def close(self) -> None:
        """Ends the thread; mapped bytes stay."""
        with self._state:
            self._closed = True
            self._state.notify_all()

    def _plan(self, block: int) -> None:
        """From this one on blocks are read; what was read of others is dropped."""
        self._planned = [(block + i) % self._count for i in range(min(DEPTH, self._count))]
        for other in self._full.keys() - self._planned:
            self._free.append(self._full.pop(other))
        self._state.notify_all()

    def _next(self) -> int | None:
        """The block to read now, if there is one."""
        if not self._free:
            return None
        done = self._full.keys() | self._failed.keys()
        return next((block for block in self._planned if block not in done), None)

    def _read_ahead(self) -> None:
        with self._file:
            while True:
                with self._state:
                    self._state.wait_for(lambda: self._closed or self._next() is not None)
                    block = self._next()
                    if self._closed or block is None:
                        return
                    buffer = self._free.pop(0)  # whose copy was sent longest ago
                try:
                    self._streams.finish(self._copied[buffer])
                    self._read(block, self._buffers[buffer])
                except Exception as error:  # for who asks for the block
                    self._done(block, buffer, error)
                else:
                    self._done(block, buffer, None)

    def _done(self, block: int, buffer: int, error: Exception | None) -> None:
        with self._state:
            if error is not None:
                self._failed[block] = error
            if error is None and block in self._planned:
                self._full[block] = buffer
            else:
                self._free.append(buffer)
            self._state.notify_all()

    def _read(self, block: int, buffer: torch.Tensor) -> None:
        rest = memoryview(buffer.numpy())
        self._file.seek(self._begin + block * self._layout.nbytes)
        while rest:
            count = self._file.readinto(rest)
            if not count:
                raise OSError(f"file: {self._file.name} ends within blocks[{block}]")
            rest = rest[count:]


def _begin_of(file: FileIO, path: Path, layout: Layout, count: int) -> int:
    """Where the first block begins.

    Raises:
        ValueError: it is no file of `save`, of other blocks, or cut short.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(length, _MOST_HEADER)))
        parts, found = json.loads(header["__metadata__"][_KEY]), header["blocks"]["shape"]
    except (struct.error, ValueError, KeyError, TypeError):
        raise ValueError(f"file: {path} is none that Offload.save wrote") from None
    for part, wanted in zip_longest(parts, layout.described()):
        if part != wanted:
            raise ValueError(
                f"file: {path} has blocks of {part}, must be {wanted}, as in blocks[0]"
            )
    if found != (wanted := [count, layout.nbytes]):
        raise ValueError(f"file: {path} has blocks and bytes {found}, must be {wanted}")
    if size != (wanted := 8 + length + count * layout.nbytes):
        raise ValueError(f"file: {path} has {size} bytes, must have {wanted}")
    return int(8 + length)
