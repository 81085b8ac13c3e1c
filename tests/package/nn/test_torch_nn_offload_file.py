"""blockscale.nn.Offload from a file: what is written, what is read ahead, and what goes wrong;
`./dev test --torch`."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale._torch_offload_file import DEPTH, FileBlocks  # noqa: E402
from blockscale.nn import Offload  # noqa: E402
from nn_model import same, same_state  # noqa: E402
from offload_blocks import (  # noqa: E402
    COUNT,
    RECIPES,
    blocks_of,
    gives_the_same,
    in_turn,
    inputs,
    mixture,
)
from safetensors import safe_open  # noqa: E402


def on_meta(blocks: Any) -> Any:
    return copy.deepcopy(blocks).to("meta")


@pytest.fixture(name="file")
def file_fixture(tmp_path: Path) -> Path:
    Offload.save(blocks_of("fp8_row"), tmp_path / "blocks.safetensors")
    return tmp_path / "blocks.safetensors"


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "blockscale-offload"]


@pytest.fixture(autouse=True)
def no_reader_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in readers():
        thread.join(10)
    assert not readers()


@pytest.mark.parametrize("resident", [2, 3, COUNT])
@pytest.mark.parametrize("recipe", RECIPES)
def test_results_have_the_bits_of_resident_blocks(
    tmp_path: Path, recipe: str | None, resident: int
) -> None:
    blocks = blocks_of(recipe)
    Offload.save(blocks, tmp_path / "blocks")
    offload = Offload(on_meta(blocks), device="cpu", resident=resident, file=tmp_path / "blocks")
    assert gives_the_same(offload, blocks) and same_state(offload, blocks)


def test_experts_and_any_order(tmp_path: Path) -> None:
    blocks, x = blocks_of("nvfp4", kind=mixture), inputs()
    Offload.save(blocks, tmp_path / "blocks")
    offload = Offload(on_meta(blocks), device="cpu", file=str(tmp_path / "blocks"))
    for i in (4, 3, 1, 1, 2, 0, 4, 2, 3):
        assert same(in_turn([offload[i]], x), in_turn([blocks[i]], x))


def test_the_file_is_safetensors_with_one_tensor(file: Path) -> None:
    blocks = blocks_of("fp8_row")
    offload = Offload(on_meta(blocks), device="cpu", file=file)
    size = offload.memory().file // COUNT
    assert offload.memory() == (2 * size, DEPTH * size, COUNT * size)
    with safe_open(file, "pt") as stored:
        assert list(stored.keys()) == ["blocks"]
        memory = stored.get_tensor("blocks")
    assert memory.shape == (COUNT, size) and memory.dtype == torch.uint8
    assert (file.stat().st_size - memory.nbytes) % 4096 == 0
    for i, block in enumerate(blocks):
        held = memory[i].numpy().tobytes()
        for name in ("values", "scales"):
            assert getattr(block.up_proj, name).numpy().tobytes() in held


def test_one_block_after_the_other_is_saved(tmp_path: Path) -> None:
    blocks, alive = blocks_of("fp8_row"), []

    def one_by_one() -> Iterator[Any]:
        for block in blocks:
            gc.collect()
            assert sum(ref() is not None for ref in alive) <= 1  # the one before, at most
            one = copy.deepcopy(block)
            alive.append(weakref.ref(one))
            yield one
            del one

    Offload.save(one_by_one(), tmp_path / "blocks")
    assert len(alive) == COUNT
    assert gives_the_same(Offload(on_meta(blocks), device="cpu", file=tmp_path / "blocks"), blocks)


class StopError(Exception):
    """Of who gives blocks."""


def _stops() -> Iterator[Any]:
    yield from blocks_of(None, count=3)
    raise StopError("stop")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (_stops, StopError, "stop"),
        (lambda: blocks_of(None, count=1), ValueError, "blocks: are 1, must be 2 or more"),
        (lambda: [], ValueError, "blocks: are 0, must be 2 or more"),
        (lambda: [*blocks_of(None), *blocks_of("mxfp4")], ValueError, r"blocks\[5\].gate: is a Te"),
        (lambda: blocks_of().to("meta"), ValueError, r"blocks\[0\].gate: is on the meta device"),
        (lambda: [3], TypeError, r"blocks\[0\]: is a int, must be a torch.nn.Module"),
    ],
)
def test_what_cannot_be_saved_leaves_the_old_file(
    file: Path, make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    before = file.read_bytes()
    with pytest.raises(kind, match=text):
        Offload.save(make(), file)
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]
    with pytest.raises(FileNotFoundError):
        Offload.save(blocks_of(), file.parent / "no folder" / "blocks")


def test_a_file_that_is_saved_anew_is_another_one(file: Path) -> None:
    blocks = blocks_of("fp8_row")
    offload = Offload(on_meta(blocks), device="cpu", file=file)
    other = copy.deepcopy(blocks)
    with torch.no_grad():
        other[4].gate.neg_()
    Offload.save(other, file)
    assert gives_the_same(offload, blocks) and same_state(offload, blocks)
    assert gives_the_same(Offload(on_meta(blocks), device="cpu", file=file), other)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "make", "text"),
    [
        (_cut, lambda: blocks_of("fp8_row"), r"has \d+ bytes, must have \d+"),
        (lambda file: file.write_bytes(b""), blocks_of, "is none that Offload.save wrote"),
        (lambda file: file.write_bytes(b"\xff" * 4096), blocks_of, "is none that Offload.save wr"),
        (lambda file: file.write_bytes(b"\2" + bytes(7) + b"{}"), blocks_of, "is none that Offlo"),
        (lambda _: None, lambda: blocks_of("fp8_row", count=4), r"has blocks and bytes \[5, \d+\]"),
        (lambda _: None, lambda: blocks_of("mxfp4"), r"has blocks of \[\['.*as in blocks\[0\]"),
        (lambda _: None, lambda: blocks_of(None), r"has blocks of \[\['gate'\], 'torch.float32'"),
    ],
)
def test_files_of_something_else_are_refused(
    file: Path, change: Callable[[Path], Any], make: Callable[[], Any], text: str
) -> None:
    change(file)
    blocks = make()
    with pytest.raises(ValueError, match=text):
        Offload(blocks, device="cpu", file=file)
    assert not any("forward" in block.__dict__ for block in blocks)


def test_modules_of_several_blocks_are_refused(file: Path) -> None:
    blocks = blocks_of("fp8_row")
    for block in blocks:
        block.norm = blocks[0].norm
    with pytest.raises(ValueError, match=r"blocks\[1\].norm.weight: is in a module that blocks\[0"):
        Offload(blocks, device="cpu", file=file)


def test_changes_in_place_are_refused(file: Path) -> None:
    blocks = blocks_of("fp8_row")
    offload = Offload(on_meta(blocks), device="cpu", file=file)
    with torch.no_grad():
        offload[3].gate.zero_()
    with pytest.raises(RuntimeError, match=r"blocks\[3\]: was changed, must stay as it is in the"):
        in_turn(offload, inputs())
    assert same(in_turn(list(offload)[:3], inputs()), in_turn(blocks[:3], inputs()))


def test_an_error_of_reading_is_one_of_the_call(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, read = blocks_of("fp8_row"), FileBlocks._read
    offload = Offload(on_meta(blocks), device="cpu", file=file)
    assert gives_the_same(offload, blocks)

    def fails(*_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(FileBlocks, "_read", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        in_turn([*offload, *offload], inputs())
    monkeypatch.setattr(FileBlocks, "_read", read)
    assert gives_the_same(offload, blocks)


def test_a_file_that_shrinks_is_an_error(file: Path) -> None:
    blocks = blocks_of("fp8_row")
    offload = Offload(on_meta(blocks), device="cpu", file=file)
    with file.open("r+b") as out:
        out.truncate(8192)
    with pytest.raises(OSError, match=r"file: .* ends within blocks\[\d\]"):
        in_turn([*offload, *offload], inputs())


def test_reading_is_ahead_of_calls(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    changed = threading.Condition()
    read = FileBlocks._read

    def recorded(self: Any, block: int, buffer: Any) -> None:
        read(self, block, buffer)
        with changed:
            done.append(block)
            changed.notify_all()

    monkeypatch.setattr(FileBlocks, "_read", recorded)
    offload = Offload(on_meta(blocks_of("fp8_row")), device="cpu", file=file)
    with changed:  # before any call
        assert changed.wait_for(lambda: len(done) >= DEPTH, timeout=10)
        assert done == list(range(DEPTH))
    in_turn(offload, inputs())
    with changed:
        assert changed.wait_for(lambda: len(done) >= COUNT + DEPTH, timeout=10)
    assert done[: COUNT + DEPTH] == [i % COUNT for i in range(COUNT + DEPTH)]


def test_the_thread_ends(file: Path) -> None:
    first, second = (
        Offload(on_meta(blocks_of("fp8_row")), device="cpu", file=file) for _ in range(2)
    )
    threads = readers()
    assert len(threads) == 2
    first.close()
    state = same_state(first, blocks_of("fp8_row"))
    del second
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert state and not any(thread.is_alive() for thread in threads)
