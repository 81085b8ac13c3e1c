"""blockscale.nn.Offload on the CPU: bits, states, errors; `./dev test --torch` runs these."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale._torch_offload_layout import HostBlocks, pieces, power_of_two  # noqa: E402
from blockscale.nn import Offload  # noqa: E402
from nn_model import same, same_state  # noqa: E402
from offload_blocks import (  # noqa: E402
    COUNT,
    RECIPES,
    WIDTH,
    Block,
    blocks_of,
    gives_the_same,
    in_turn,
    inputs,
    mixture,
    offloaded,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("resident", [2, 3, COUNT + 1])
def test_results_have_the_bits_of_resident_blocks(recipe: str | None, resident: int) -> None:
    blocks = blocks_of(recipe)
    assert gives_the_same(offloaded(blocks, resident=resident), blocks)


def test_a_loop_of_ones_own() -> None:
    blocks, x = blocks_of(), inputs()
    mine = copy.deepcopy(blocks)
    offload = Offload(mine, device="cpu")
    want = in_turn(blocks, x, 0.5)
    for calls in (offload, mine, [offload[i] for i in range(len(offload))]):
        assert same(in_turn(calls, x, 0.5), want)
    with torch.no_grad():
        assert same(offload(x, 0.5), want) and same(offload(x, scale=0.5), want)
    del offload
    gc.collect()
    assert same(in_turn(mine, x, 0.5), want)  # without who made them so
    assert same(in_turn(Offload(list(blocks), device="cpu"), x, 0.5), want)


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8_128x128"])
def test_experts(recipe: str) -> None:
    blocks = blocks_of(recipe, count=3, kind=mixture)
    assert type(blocks[0].experts).__name__ == "Experts"
    assert gives_the_same(offloaded(blocks), blocks)


@pytest.mark.parametrize("resident", [2, 3])
def test_any_order(resident: int) -> None:
    blocks, x = blocks_of(), inputs()
    offload, chance = offloaded(blocks, resident=resident), random.Random(0)
    want = [in_turn([block], x) for block in blocks]
    for i in [4, 3, 2, 1, 0, 0, 0, *chance.choices(range(COUNT), k=40)]:
        assert same(in_turn([offload[i]], x), want[i])


def test_tuples_pass_their_first_on() -> None:
    class Pair(Block):
        def forward(self, x: Any) -> Any:
            return super().forward(x), "cache"

    pairs = blocks_of(None, kind=Pair)
    x = inputs(torch.bfloat16)
    with torch.no_grad():
        want = x
        for block in pairs:
            want, _ = block(want)
        assert same(offloaded(pairs)(x), want)


def test_a_step_copies_each_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    send = HostBlocks.send

    def recorded(self: Any, block: int, memory: Any) -> None:
        copied.append(block)
        send(self, block, memory)

    monkeypatch.setattr(HostBlocks, "send", recorded)
    blocks, x = blocks_of(), inputs()
    offload = offloaded(blocks, resident=3)
    assert copied == [0, 1, 2]  # before any call
    in_turn(offload, x)
    assert copied[3:] == [3, 4, 0, 1, 2]
    in_turn(offload, x)
    assert copied[8:] == [3, 4, 0, 1, 2]
    del copied[:]
    offload = offloaded(blocks, resident=COUNT)
    in_turn(offload, x)
    in_turn(offload, x)
    assert copied == [0, 1, 2, 3, 4]


class Seen(TorchDispatchMode):
    """Which operators of torch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_calls_copy_and_do_nothing_else() -> None:
    class Nothing(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return x

    offload = Offload([Nothing(8, 8) for _ in range(4)], device="cpu")
    with Seen() as seen:
        offload(1)
    assert seen.names == ["aten.copy_.default"] * 4


# --- what modules hold ----------------------------------------------------------------------------


def test_states_are_those_of_the_blocks() -> None:
    blocks = blocks_of("nvfp4")
    model = torch.nn.ModuleDict({"layers": copy.deepcopy(blocks)})
    want = copy.deepcopy(model)
    model["layers"] = Offload(model["layers"], device="cpu")
    in_turn(model["layers"], inputs())
    assert same_state(model, want)
    assert all(not x.requires_grad for x in model.parameters())
    named = [f"{kind}.{name}" for kind in ("parameters", "buffers") for name in _names(model, kind)]
    assert named == [f"{k}.{name}" for k in ("parameters", "buffers") for name in _names(want, k)]


def _names(model: Any, kind: str) -> list[str]:
    return [name for name, _ in getattr(model, f"named_{kind}")()]


def test_names_are_those_of_the_container() -> None:
    blocks = blocks_of(None, count=2)
    named = torch.nn.Sequential()
    named.add_module("first", blocks[0])
    named.add_module("last", blocks[1])
    assert next(iter(Offload(named, device="cpu").state_dict())) == "first.gate"


def test_changes_in_place_are_seen() -> None:
    blocks = blocks_of("fp8_row")
    offload = offloaded(blocks, resident=COUNT)
    assert gives_the_same(offload, blocks)
    other = copy.deepcopy(blocks)
    with torch.no_grad():
        for block in other:
            block.norm.weight.mul_(1.5)
            block.up_proj.scales.mul_(2)
    torch.nn.ModuleDict({"blocks": offload}).load_state_dict(
        torch.nn.ModuleDict({"blocks": other}).state_dict()
    )
    assert gives_the_same(offload, other) and not gives_the_same(offload, blocks)
    with torch.no_grad():
        offload[2].gate.zero_()
        other[2].gate.zero_()
    assert gives_the_same(offload, other)


def test_tensors_that_are_one() -> None:
    class Shared(Block):
        def __init__(self) -> None:
            super().__init__()
            self.again_proj = torch.nn.Linear(16, WIDTH)
            self.again_proj.bias = self.norm.bias

    blocks = blocks_of(None, kind=Shared)
    blocks[1].norm.weight = blocks[0].norm.weight
    table = torch.nn.Embedding(4, WIDTH).bfloat16()
    for block in blocks:
        block.table = table
    device = offloaded(blocks_of(None, kind=Shared)).memory().device
    mine = copy.deepcopy(blocks)
    kept = mine[0].table.weight
    offload = Offload(mine, device="cpu")
    assert offload[0].norm.bias is offload[0].again_proj.bias  # of one block
    assert offload[0].norm.weight is not offload[1].norm.weight  # of two blocks: of each its own
    assert same(offload[0].norm.weight, offload[1].norm.weight)
    assert offload[3].table.weight is kept  # of all blocks: once, and left alone
    assert offload.memory().device == device + kept.nbytes
    assert gives_the_same(offload, blocks) and same_state(offload, blocks)


def test_the_order_of_names_does_not_matter() -> None:
    blocks = blocks_of("fp8_row")
    gate = blocks[2].gate
    del blocks[2].gate
    blocks[2].register_buffer("gate", gate)
    names = [_names(block, "buffers") for block in blocks]
    assert names[2] != names[0] and sorted(names[2]) == sorted(names[0])
    assert gives_the_same(offloaded(blocks), blocks)


def test_strides_stay() -> None:
    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, WIDTH, WIDTH).transpose(1, 2))
            self.wide = torch.nn.Parameter(torch.randn(WIDTH, 2 * WIDTH)[:, ::2])

        def forward(self, x: Any) -> Any:
            assert self.weight.stride() == (WIDTH * WIDTH, 1, WIDTH)
            assert self.wide.is_contiguous()  # it had gaps
            return x @ self.weight.sum(0) @ self.wide

    torch.manual_seed(0)
    blocks = [Turned() for _ in range(3)]
    numbers = [(block.weight.detach().clone(), block.wide.detach().clone()) for block in blocks]
    offload = Offload(blocks, device="cpu")
    for block, (weight, wide) in zip(offload, numbers, strict=True):
        assert torch.equal(block.weight, weight) and torch.equal(block.wide, wide)
    x = want = inputs()
    for weight, wide in numbers:
        want = want @ weight.sum(0) @ wide
    torch.testing.assert_close(in_turn(offload, x), want)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64, torch.complex64])
def test_every_dtype_and_none_of_a_tensor(dtype: Any) -> None:
    blocks = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))
    for i, block in enumerate(blocks):
        block.register_buffer("odd", torch.arange(3).add(i).to(dtype))
        block.register_buffer("empty", torch.empty(0, 3, dtype=dtype))
        block.register_buffer("none", None)
    assert same_state(offloaded(blocks), blocks)


def test_memory_and_what_is_printed() -> None:
    blocks = blocks_of("fp8_row")
    offload = offloaded(blocks, resident=3)
    weights = sum(x.nbytes for x in (*blocks[0].parameters(), *blocks[0].buffers()))
    size = offload.memory().host // COUNT
    assert weights <= size < weights + 9 * 256 + 4096
    tensors = [*offload[1].parameters(), *offload[1].buffers()]  # begin as allocations do
    assert len(tensors) == 9
    assert all(x.storage_offset() * x.element_size() % 256 == 0 for x in tensors)
    assert offload.memory() == (3 * size, COUNT * size, 0)
    assert repr(offload) == f"Offload({COUNT} blocks of {size} bytes, 3 resident on cpu)"
    offload.close()
    assert offload.memory() == (0, COUNT * size, 0) and ", 0 resident on cpu" in repr(offload)


@pytest.mark.parametrize(
    ("size", "count", "want"),
    [
        (330 << 20, 40, [3] * 13 + [1]),
        (245 << 20, 5, [1] * 5),
        (1 << 20, 9, [1] * 9),
        (5 << 12, 7, [3, 3, 1]),
        (5 << 12, 1, [1]),
    ],
)
def test_pinned_memory_is_asked_for_in_good_sizes(size: int, count: int, want: list[int]) -> None:
    assert pieces(size, count) == want
    assert [power_of_two(n) for n in (1, 2, 3, 4, 4097)] == [1, 2, 4, 4, 8192]


# --- calls that go wrong --------------------------------------------------------------------------


class Fails(Block):
    error: type[BaseException] | None = None

    def forward(self, x: Any) -> Any:
        if self.error is not None:
            raise self.error("stop")
        return super().forward(x)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_call_that_raises_changes_nothing(error: type[BaseException]) -> None:
    blocks = blocks_of("fp8_row", kind=Fails)
    offload = offloaded(blocks)
    for i in (0, 3, 3, 4):
        offload[i].error = error
        with pytest.raises(error, match="stop"):
            in_turn(offload, inputs())
        offload[i].error = None
        assert same_state(offload, blocks)
    assert gives_the_same(offload, blocks)


class Calls(Block):
    """One that calls another one before."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Any] = []

    def forward(self, x: Any) -> Any:
        for other in self.others:
            x = other(x)
        return super().forward(x)


def test_blocks_within_blocks() -> None:
    blocks = blocks_of("fp8_row", kind=Calls)
    mine = copy.deepcopy(blocks)
    for which in (blocks, mine):
        which[1].others = [which[4], which[3]]
    assert gives_the_same(Offload(mine, device="cpu"), blocks)
    mine[4].others = [mine[0]]
    with pytest.raises(RuntimeError, match=r"blocks\[0\]: is called within 2 blocks, as many as"):
        in_turn(mine, inputs())
    mine[4].others = [mine[4]]
    with pytest.raises(RuntimeError, match=r"blocks\[4\]: is called within its own call"):
        in_turn(mine, inputs())
    mine[4].others = []
    assert same(in_turn(mine, inputs()), in_turn(blocks, inputs()))


@pytest.mark.parametrize("resident", [2, COUNT])
def test_what_a_call_changes_is_an_error(resident: int) -> None:
    class Counts(Block):
        how = ""

        def forward(self, x: Any) -> Any:
            if self.how == "in place":
                self.gate += 1
            elif self.how == "another":
                self.gate = self.gate + 1
            return super().forward(x)

    blocks = blocks_of("fp8_row", kind=Counts)
    offload = offloaded(blocks, resident=resident)
    for how, named in (("in place", ""), ("another", ".gate")):
        offload[1].how = how
        text = rf"blocks\[1\]{named}: was changed by its call, must stay as it is"
        with pytest.raises(RuntimeError, match=text):
            in_turn(offload, inputs())
        offload[1].how = ""
        assert gives_the_same(offload, blocks) and same_state(offload, blocks)


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.double(),
        lambda block: block.norm.register_parameter(
            "weight", torch.nn.Parameter(torch.ones(WIDTH))
        ),
        lambda block: block.load_state_dict(block.state_dict(), assign=True),
        lambda block: delattr(block, "gate"),
        lambda block: setattr(block.norm.weight, "data", torch.ones(WIDTH)),
    ],
    ids=["cast", "parameter", "assign", "deleted", "data"],
)
def test_what_was_put_elsewhere_is_an_error(change: Callable[[Any], Any]) -> None:
    offload = offloaded(blocks_of("fp8_row"))
    change(offload[3])
    in_turn(list(offload)[:3], inputs())
    with pytest.raises(RuntimeError, match=r"blocks\[3\]\.\w+(\.\w+)?: is another tensor than Off"):
        in_turn(offload, inputs())


def test_moves_casts_and_copies_are_refused() -> None:
    blocks = blocks_of("fp8_row")
    offload = offloaded(blocks)
    model = torch.nn.Sequential(offload)
    calls: list[Callable[[], Any]] = [
        lambda: offload.to("cpu"), offload.half, offload.cuda, lambda: model.to(torch.float16),
        lambda: offload.to_empty(device="cpu"), offload.share_memory,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError, match="Offload: cannot be moved or cast; move or cast its"):
            call()
    for copied in (offload, model):
        for call in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="Offload: cannot be copied or pickled"):
                call(copied)
    with pytest.raises(TypeError, match="block: is in an Offload, cannot be copied or pickled"):
        copy.deepcopy(offload[0])
    assert gives_the_same(offload, blocks)


def test_blocks_after_close_are_as_before() -> None:
    blocks = blocks_of("fp8_row")
    mine = copy.deepcopy(blocks)
    mine[2].forward = own = Block.forward.__get__(mine[2])
    offload = Offload(mine, device="cpu")
    in_turn(mine, inputs())
    there = [weakref.ref(x) for slot in offload._ring._slots for x in (slot.memory, *slot.tensors)]
    offload.close()
    offload.close()
    gc.collect()
    assert not any(tensor() is not None for tensor in there)
    assert "forward" not in mine[0].__dict__ and mine[2].forward is own
    assert gives_the_same(offload, blocks) and same_state(mine, blocks)
    assert gives_the_same(Offload(mine, device="cpu"), blocks)  # and once more


def test_nothing_is_kept_of_what_is_gone() -> None:
    offload = offloaded(blocks_of("fp8_row"))
    slots = [weakref.ref(slot.memory) for slot in offload._ring._slots]
    in_turn(offload, inputs())
    del offload
    gc.collect()
    assert not any(memory() is not None for memory in slots)


def test_old_tensors_are_gone() -> None:
    blocks = blocks_of("fp8_row")
    old = [weakref.ref(x) for x in (*blocks.parameters(), *blocks.buffers())]
    offload = Offload(blocks, device="cpu")
    gc.collect()
    assert len(old) == 9 * COUNT and not any(x() is not None for x in old)
    assert len(offload) == COUNT
