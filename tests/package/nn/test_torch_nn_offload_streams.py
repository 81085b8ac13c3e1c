"""That copies and work of blockscale.nn.Offload wait for each other: on streams that know what is
behind what, so that a wait that is missing shows without a GPU; `./dev test --torch`."""

from __future__ import annotations

import copy
import random
import threading
from collections import defaultdict
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

import blockscale._torch_offload as module  # noqa: E402
from blockscale._torch_offload_file import FileBlocks  # noqa: E402
from blockscale.nn import Offload  # noqa: E402
from nn_model import same  # noqa: E402
from offload_blocks import COUNT, Block, blocks_of, in_turn, inputs  # noqa: E402

READER = "blockscale-offload"  # the thread's name


class RaceError(AssertionError):
    """Two uses of memory, one of them a write, of which neither is behind the other."""


class Clocks:
    """Streams of a device, each with how far it is behind every other one.

    Streams and threads are names. What they do is numbered; `known[a][b]` is how many deeds of `b`
    are over before the next one of `a`. Copies happen at once, which is as early as any device may
    do them; what they may not rely on is in `known`.
    """

    def __init__(self, without: str = "") -> None:
        self.without = without  # "wait copies": these calls do nothing
        self.work, self.copies = "work", "copies"
        self.known: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.used: dict[int, list[tuple[str, int, bool]]] = defaultdict(list)
        self.events: list[dict[str, int]] = []
        self.kept: list[tuple[int, str]] = []
        self.lock = threading.RLock()

    def event(self, blocking: bool = False) -> int:
        del blocking
        self.events.append({})
        return len(self.events) - 1

    def behind(self, who: str, clock: dict[str, int]) -> None:
        """What `who` does next is behind all of `clock`."""
        with self.lock:
            for other, count in clock.items():
                self.known[who][other] = max(self.known[who][other], count)

    def record(self, event: int, stream: str) -> None:
        if self.without != f"record {stream}":
            self.behind(stream, self.known[threading.current_thread().name])
            self.events[event] = dict(self.known[stream])

    def wait(self, stream: str, event: int) -> None:
        if self.without != f"wait {stream}":
            self.behind(stream, self.events[event])

    def finish(self, event: int) -> None:
        if self.without != "finish":
            self.behind(threading.current_thread().name, self.events[event])

    def keep(self, memory: Any, stream: str) -> None:
        self.kept.append((memory.data_ptr(), stream))

    def copy(self, destination: Any, source: Any) -> None:
        self.use(self.copies, source, writes=False)
        self.use(self.copies, destination, writes=True)
        destination.copy_(source)

    def use(self, who: str, memory: Any, writes: bool) -> None:
        """Raises where this is not behind another use, of which one writes."""
        with self.lock:
            self.behind(who, self.known[threading.current_thread().name])
            known = self.known[who]
            before = self.used[memory.untyped_storage().data_ptr()]
            for other, number, wrote in before:
                if (writes or wrote) and other != who and known[other] < number:
                    raise RaceError(f"{who} does not wait for deed {number} of {other}")
            known[who] += 1
            before.append((who, known[who], writes))


class Reads(Block):
    """A block that says which memory it works on."""

    clocks: Any = None

    def forward(self, x: Any) -> Any:
        self.clocks.use(self.clocks.work, self.gate, writes=False)
        return super().forward(x)


def offloaded(monkeypatch: pytest.MonkeyPatch, clocks: Clocks, **options: Any) -> Any:
    monkeypatch.setattr(module, "streams_of", lambda _: clocks)
    monkeypatch.setattr(Reads, "clocks", clocks)
    read, send = FileBlocks._read, FileBlocks.send

    def reads(self: Any, block: int, buffer: Any) -> None:
        clocks.use(READER, buffer, writes=True)
        read(self, block, buffer)

    def sends(self: Any, block: int, memory: Any) -> None:
        clocks.behind(threading.current_thread().name, clocks.known[READER])  # by its lock
        send(self, block, memory)

    monkeypatch.setattr(FileBlocks, "_read", reads)
    monkeypatch.setattr(FileBlocks, "send", sends)
    return Offload(blocks_of("fp8_row", kind=Reads), device="cpu", **options)


def steps(offload: Any) -> None:
    """Three in order, and calls in any."""
    chance = random.Random(0)
    for block in [*list(offload) * 3, *chance.choices(list(offload), k=30)]:
        in_turn([block], inputs())


@pytest.fixture(name="file", scope="module")
def file_fixture(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("offload") / "blocks.safetensors"
    Offload.save(blocks_of("fp8_row", kind=Reads), path)
    return path


@pytest.mark.parametrize("resident", [2, 3, COUNT])
@pytest.mark.parametrize("in_file", [False, True])
def test_every_use_is_behind_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, file: Any, resident: int, in_file: bool
) -> None:
    clocks = Clocks()
    options = {"file": file} if in_file else {}
    offload = offloaded(monkeypatch, clocks, resident=resident, **options)
    steps(offload)
    uses = [use for found in clocks.used.values() for use in found]
    assert sum(who == "work" for who, _, _ in uses) == 3 * COUNT + 30
    copies = sum(who == "copies" and writes for who, _, writes in uses)
    assert copies == COUNT if resident == COUNT else copies > 3 * COUNT
    offload.close()


@pytest.mark.parametrize(
    ("without", "text"),
    [
        ("wait copies", "copies does not wait for deed .* of work"),
        ("record work", "copies does not wait for deed .* of work"),
        ("wait work", "work does not wait for deed .* of copies"),
        ("record copies", "work does not wait for deed .* of copies"),
    ],
)
def test_a_wait_that_is_missing_shows(
    monkeypatch: pytest.MonkeyPatch, without: str, text: str
) -> None:
    with pytest.raises(RaceError, match=text):
        steps(offloaded(monkeypatch, Clocks(without)))


def test_reading_over_what_is_copied_shows(monkeypatch: pytest.MonkeyPatch, file: Any) -> None:
    offload = offloaded(monkeypatch, Clocks("finish"), file=file)
    with pytest.raises(RaceError, match=f"{READER} does not wait for deed .* of copies"):
        steps(offload)
    offload.close()


def test_the_next_copy_is_on_its_stream_before_a_block_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, order = Clocks(), []
    offload = offloaded(monkeypatch, clocks)
    use = clocks.use

    def recorded(who: str, memory: Any, writes: bool) -> None:
        if who == "work" or writes:
            order.append(who)
        use(who, memory, writes)

    monkeypatch.setattr(clocks, "use", recorded)
    in_turn(offload, inputs())  # both first blocks are there already
    assert order == ["work", "copies"] * COUNT


def test_streams_may_change_between_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, x = Clocks(), inputs()
    offload = offloaded(monkeypatch, clocks)
    want = in_turn(blocks_of("fp8_row"), x)
    memory = {slot.memory.data_ptr() for slot in offload._ring._slots}
    for _ in range(3):
        y = x
        for i, block in enumerate(offload):
            clocks.work = f"work {i % 2}"  # who changes streams has them wait for each other
            clocks.behind(clocks.work, clocks.known[f"work {1 - i % 2}"])
            y = in_turn([block], y)
        assert same(y, want)
    assert set(clocks.kept) >= {(m, s) for m in memory for s in ("copies", "work 0", "work 1")}


def test_a_block_may_run_on_two_streams_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks()
    offload = offloaded(monkeypatch, clocks, resident=COUNT)
    for i in range(6):
        clocks.work = f"work {i % 2}"
        in_turn([offload[0]], inputs())
        if i % 3 == 2:  # it is copied once more, behind both
            with torch.no_grad():
                offload[0].gate.neg_()
    copies = sum(who == "copies" and writes for x in clocks.used.values() for who, _, writes in x)
    assert copies == COUNT + 1


def test_errors_within_blocks_leave_events(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stops(Reads):
        stops = False

        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            if self.stops:
                raise ValueError("stop")
            return y

    clocks = Clocks()
    monkeypatch.setattr(module, "streams_of", lambda _: clocks)
    monkeypatch.setattr(Reads, "clocks", clocks)
    offload = Offload(blocks_of("fp8_row", kind=Stops), device="cpu")
    for i in (2, 0, 4):
        offload[i].stops = True
        with pytest.raises(ValueError, match="stop"):
            in_turn(offload, inputs())
        offload[i].stops = False
    steps(offload)
    assert same(in_turn(offload, inputs()), in_turn(copy.deepcopy(blocks_of("fp8_row")), inputs()))
