"""blockscale.nn.Offload on a GPU: bits where copies or work are late, memory, and that no call
waits or allocates. `./dev gpu-test` runs these where there is a GPU."""

from __future__ import annotations

import copy
import gc
import random
from pathlib import Path
from typing import Any

import blockscale.nn
import pytest
from blockscale.nn import Offload
from gpu_torch import normal, torch

WIDTH, INNER, ROWS, COUNT = 512, 1024, 64, 5
#: Of weights and inputs that have products on every GPU that runs this; None: plain bf16.
RECIPES = [
    ("fp8_row", "fp8_row"),
    ("fp8_128x128", "fp8_1x128"),
    ("nvfp4", None),
    ("mxfp4", None),
    ("mxfp8_e4m3", None),
    (None, None),
]
#: Cycles of a clock, together a millisecond or so: longer than any copy or block here takes.
LATE = 2_000_000


class Block(torch.nn.Module):
    """Two layers; before it works it may sleep, so that what does not wait for it is too early."""

    sleeps = 0

    def __init__(self, recipe: str | None, activations: str | None) -> None:
        super().__init__()
        layers = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH, bias=False)
        if recipe is not None:
            layers = tuple(
                blockscale.nn.Linear.from_float(layer, recipe, activations=activations)
                for layer in layers
            )
        self.up, self.down = layers

    def forward(self, x: Any) -> Any:
        if self.sleeps:
            torch.cuda._sleep(self.sleeps)
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def blocks_of(recipe: str | None = "fp8_row", activations: str | None = "fp8_row") -> Any:
    torch.manual_seed(0)
    return [Block(recipe, activations).bfloat16() for _ in range(COUNT)]


def on_gpu(blocks: Any) -> Any:
    return [copy.deepcopy(block).cuda() for block in blocks]


def in_turn(blocks: Any, x: Any) -> Any:
    with torch.no_grad():
        for block in blocks:
            x = block(x)
    return x


@pytest.mark.parametrize("late", ["", "copies", "work"])
@pytest.mark.parametrize("resident", [2, 3])
@pytest.mark.parametrize(("recipe", "activations"), RECIPES)
def test_results_have_the_bits_of_resident_blocks(
    recipe: str | None, activations: str | None, resident: int, late: str
) -> None:
    blocks = blocks_of(recipe, activations)
    x = normal(ROWS, WIDTH).cuda()
    want = in_turn(on_gpu(blocks), x)
    offload = Offload(blocks, resident=resident)
    if late == "copies":
        delayed(offload)
    for block in blocks:
        block.sleeps = LATE if late == "work" else 0
    results = [in_turn(offload, x) for _ in range(3)]
    assert all(torch.equal(y, want) for y in results)


def delayed(offload: Any) -> None:
    """Copies begin late, so that work that does not wait for them has the numbers of before."""
    streams = offload._ring._streams
    copies = streams.copy

    def copy_late(destination: Any, source: Any) -> None:
        with torch.cuda.stream(streams.copies):
            torch.cuda._sleep(LATE)
        copies(destination, source)

    streams.copy = copy_late


@pytest.mark.parametrize("without", ["wait", "record"])
def test_late_copies_show_a_wait_that_is_missing(without: str) -> None:
    blocks = blocks_of()
    x = normal(ROWS, WIDTH).cuda()
    want = in_turn(on_gpu(blocks), x)
    offload = Offload(blocks)
    delayed(offload)
    in_turn(offload, x)
    torch.cuda.synchronize()
    setattr(offload._ring._streams, without, lambda *_: None)
    assert not torch.equal(in_turn(offload, x), want)
    torch.cuda.synchronize()


def test_any_order_and_streams() -> None:
    blocks = blocks_of()
    x = normal(ROWS, WIDTH).cuda()
    want = [in_turn([block], x) for block in on_gpu(blocks)]
    offload, chance = Offload(blocks), random.Random(0)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for k, i in enumerate(chance.choices(range(COUNT), k=40)):
        with torch.cuda.stream(streams[k % 2]):
            results.append((i, in_turn([offload[i]], x)))
    torch.cuda.synchronize()
    assert all(torch.equal(y, want[i]) for i, y in results)


@pytest.mark.parametrize("late", [False, True])
def test_from_a_file(tmp_path: Path, late: bool) -> None:
    blocks = blocks_of()
    x = normal(ROWS, WIDTH).cuda()
    want = in_turn(on_gpu(blocks), x)
    Offload.save(on_gpu(blocks), tmp_path / "blocks")
    offload = Offload([b.to("meta") for b in blocks], file=tmp_path / "blocks")
    if late:
        delayed(offload)
    assert all(torch.equal(in_turn(offload, x), want) for _ in range(4))
    offload.close()


def test_no_call_waits_or_allocates() -> None:
    class Nothing(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return x

    blocks = [Nothing(1024, 1024) for _ in range(COUNT)]
    offload, x = Offload(blocks), torch.ones(1, device="cuda")
    offload(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    torch.cuda._sleep(100 * LATE)
    done = torch.cuda.Event()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            offload(x)
        done.record()
        assert not done.query()  # the host is ahead of the device
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    for name in ("allocation.all.allocated", "allocated_bytes.all.peak"):
        assert after[name] == before[name], name


def test_memory_of_the_device_and_of_the_cpu() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    blocks = blocks_of()
    offload = Offload(on_gpu(blocks), resident=3)
    gc.collect()
    memory = offload.memory()
    assert torch.cuda.memory_allocated() - before == memory.device > 0
    in_turn(offload, normal(ROWS, WIDTH).cuda())
    gc.collect()
    assert torch.cuda.memory_allocated() - before == memory.device
    assert all(x.is_pinned() for x in (*offload.parameters(), *offload.buffers()))
    offload.close()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    assert torch.equal(offload[2].up.values, blocks[2].up.values)


def test_memory_in_flight_is_nobody_elses() -> None:
    blocks = blocks_of()
    offload = Offload(blocks)
    x = normal(ROWS, WIDTH).cuda()
    in_turn(offload, x)
    delayed(offload)
    size = offload.memory().device // 2
    in_turn([offload[3]], x)  # has two copies behind it that are late
    offload.close()
    del offload
    gc.collect()
    others = [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert all(bool((other == 7).all()) for other in others)


def test_memory_that_is_not_pinned() -> None:
    blocks = blocks_of()
    x = normal(ROWS, WIDTH).cuda()
    want = in_turn(on_gpu(blocks), x)
    offload = Offload(blocks, pinned=False, device="cuda:0")
    assert not any(x.is_pinned() for x in offload.parameters())
    assert all(torch.equal(in_turn(offload, x), want) for _ in range(2))
