"""Batches of a loader for `Calibrator.run`, and what it shows of its way through them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

#: Seconds between two lines, where there is no bar; and between two states, at least.
LINE_SECONDS, STATE_SECONDS = 5.0, 60.0

#: What is told how many batches are done.
Shown: TypeAlias = Callable[[int], object]


def without_grad() -> contextlib.AbstractContextManager[Any]:
    """torch.no_grad(), where there is a torch."""
    torch = sys.modules.get("torch")
    return contextlib.nullcontext() if torch is None else torch.no_grad()


def call(model: Callable[..., Any], batch: Any) -> None:
    """`model` of a batch: of its entries by name, its members in order, or of itself."""
    if "torch" in sys.modules:
        from ._torch_calibration import moved

        batch = moved(batch, model)
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, (list, tuple)):
        model(*batch)
    else:
        model(batch)


def total_of(loader: Iterable[Any], batches: int | None) -> int | None:
    """How many batches there will be; None where nobody knows."""
    try:
        length = len(loader)  # type: ignore[arg-type]
    except TypeError:  # a generator, or torch's loader of one
        return batches
    return length if batches is None else min(length, batches)


@contextlib.contextmanager
def shown(
    progress: bool | Callable[[int, int | None], object], done: int, total: int | None
) -> Iterator[Shown]:
    """What `progress` asks for: nothing, a call, tqdm's bar, or, without tqdm, lines on stderr."""
    if not isinstance(progress, bool):
        yield lambda done: progress(done, total)
        return
    if not progress:
        yield lambda _: None
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield _Lines(total)
        return
    seconds = 0.1 if sys.stderr.isatty() else LINE_SECONDS
    with tqdm(
        total=total, initial=done, desc="calibrate", unit="batch", mininterval=seconds
    ) as bar:
        yield lambda done: bar.update(done - bar.n)


class _Lines:
    """A line every few seconds, and for the last batch."""

    def __init__(self, total: int | None) -> None:
        self._total, self._next = total, time.monotonic() + LINE_SECONDS

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next and done != self._total:
            return
        self._next = now + LINE_SECONDS
        of = "" if self._total is None else f" of {self._total}"
        print(f"calibrate: {done}{of} batches", file=sys.stderr, flush=True)


class Keeper:
    """Keeps the state of a run by `keep`: so seldom that this takes a tenth of the time at most."""

    def __init__(self, keep: Callable[[], object]) -> None:
        self.keep, self._next = keep, time.monotonic() + STATE_SECONDS

    def keep_now_and_then(self) -> None:
        start = time.monotonic()
        if start < self._next:
            return
        self.keep()
        end = time.monotonic()
        self._next = end + max(STATE_SECONDS, 10 * (end - start))
