"""Calibrator.run: batches, progress, and that a calibration in pieces is that of one run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blockscale
import numpy as np
import pytest
from blockscale import _calibration_run
from blockscale._calibration_file import write
from safetensors.numpy import load_file, save_file

LAYERS = ("first", "second")


class Loader:
    """Batches that are the same each time, and how many were taken."""

    def __init__(self, length: int = 7) -> None:
        self._length, self.taken = length, 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[np.ndarray]:
        for i in range(self._length):
            self.taken += 1
            yield np.random.default_rng(i).standard_normal((3, 16)).astype(np.float32)


class Model:
    """Two layers, the second of which ends in `error` in its call number `fails_at`."""

    def __init__(
        self, calibrator: blockscale.Calibrator, fails_at: int = 0, error: Any = None
    ) -> None:
        weight = np.random.default_rng(99).standard_normal((16, 16)).astype(np.float32)
        self._layers = [calibrator.wrap(name, lambda x: x @ weight) for name in LAYERS]
        self._fails_at, self._error = fails_at, error
        self.calls = 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.calls += 1
        x = self._layers[0](x)
        if self.calls == self._fails_at:
            raise self._error
        return self._layers[1](x)


def saved(calibrator: blockscale.Calibrator, path: Path) -> bytes:
    calibrator.save(path)
    return path.read_bytes()


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    """What one run collects."""
    calibrator = blockscale.Calibrator()
    assert calibrator.run(Model(calibrator), Loader(), progress=False) == 7
    return saved(calibrator, tmp_path / "whole.safetensors")


def test_a_run_is_what_calls_are(tmp_path: Path, whole: bytes) -> None:
    calibrator = blockscale.Calibrator()
    model = Model(calibrator)
    for x in Loader():
        model(x)
    assert saved(calibrator, tmp_path / "c.safetensors") == whole


@pytest.mark.parametrize("fails_at", [1, 4, 7])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ValueError("batch")])
@pytest.mark.parametrize("where", ["here", "in another process"])
def test_what_is_interrupted_goes_on(
    tmp_path: Path, whole: bytes, fails_at: int, error: BaseException, where: str
) -> None:
    state = tmp_path / "state"
    calibrator = blockscale.Calibrator(resume=state)
    with pytest.raises(type(error)):
        calibrator.run(Model(calibrator, fails_at, error), Loader(), progress=False)
    assert calibrator.rows == dict.fromkeys(LAYERS if fails_at > 1 else (), 3 * (fails_at - 1))
    if where != "here":
        calibrator = blockscale.Calibrator(resume=state)
    model = Model(calibrator)
    assert calibrator.run(model, Loader(), progress=False) == 7
    assert model.calls == 8 - fails_at
    assert calibrator.names == list(LAYERS)
    assert saved(calibrator, tmp_path / "c.safetensors") == whole


def test_what_is_finished_is_finished(tmp_path: Path, whole: bytes) -> None:
    state = tmp_path / "state"
    calibrator = blockscale.Calibrator(resume=state)
    assert calibrator.run(Model(calibrator), Loader(), batches=3, progress=False) == 3
    again = blockscale.Calibrator(resume=state)
    assert again.run(Model(again), Loader(), batches=2, progress=False) == 3  # there are more
    again = blockscale.Calibrator(resume=state)
    loader = Loader()
    assert again.run(Model(again), loader, progress=False) == 7 and loader.taken == 7
    assert saved(again, tmp_path / "c.safetensors") == whole
    again = blockscale.Calibrator(resume=state)
    model = Model(again)
    assert again.run(model, Loader(), progress=False) == 7 and model.calls == 0
    assert saved(again, tmp_path / "c.safetensors") == whole
    again = blockscale.Calibrator(resume=state)
    with pytest.raises(ValueError, match="loader: has 5 batches, and 7 are done"):
        again.run(Model(again), Loader(5), progress=False)


def test_with_a_state_there_is_one_loader(tmp_path: Path, whole: bytes) -> None:
    calibrator = blockscale.Calibrator(resume=tmp_path / "state")
    model = Model(calibrator)
    for batches in (3, 3, 5, None):
        calibrator.run(model, Loader(), batches=batches, progress=False)
    assert model.calls == 7 and saved(calibrator, tmp_path / "c.safetensors") == whole


def test_another_loader_is_begun_at_its_start() -> None:
    calibrator = blockscale.Calibrator()
    for loader in (Loader(4), iter(Loader(7))):
        calibrator.run(Model(calibrator), loader, batches=5, progress=False)
    assert calibrator.rows == {"first": 27, "second": 27}
    loader = Loader()
    assert calibrator.run(Model(calibrator), loader, batches=2, progress=False) == 2
    assert loader.taken == 2  # and not one more


def test_a_state_of_its_own(tmp_path: Path, whole: bytes) -> None:
    calibrator = blockscale.Calibrator()
    for x in Loader(4):
        Model(calibrator)(x)
    calibrator.save_state(tmp_path / "state")
    again = blockscale.Calibrator(resume=tmp_path / "state")
    for x in list(Loader())[4:]:
        Model(again)(x)
    assert saved(again, tmp_path / "c.safetensors") == whole


def test_a_state_is_written_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_calibration_run, "STATE_SECONDS", 0.0)
    monkeypatch.setattr(_calibration_run.time, "monotonic", lambda: 0.0)
    state, seen = tmp_path / "state", []
    calibrator = blockscale.Calibrator(resume=state)
    model = Model(calibrator)

    def step(x: np.ndarray) -> None:
        seen.append(blockscale.Calibrator(resume=state).rows if state.exists() else {})
        model(x)

    calibrator.run(step, Loader(3), progress=False)
    assert seen == [{}, {"first": 3, "second": 3}, {"first": 6, "second": 6}]


def test_batches_of_every_form() -> None:
    given: list[Any] = []

    def model(*arguments: Any, **named: Any) -> None:
        given.append((arguments, named))

    loader = [{"x": 1, "mask": 2}, (3, 4), [5], "text", 6]
    assert blockscale.Calibrator().run(model, loader, progress=False) == 5
    assert given == [
        ((), {"x": 1, "mask": 2}), ((3, 4), {}), ((5,), {}), (("text",), {}), ((6,), {})
    ]  # fmt: skip


# --- progress -------------------------------------------------------------------------------------


def test_progress_that_is_called() -> None:
    calls: list[tuple[int, int | None]] = []
    calibrator = blockscale.Calibrator()

    def told(done: int, total: int | None) -> None:
        calls.append((done, total))

    calibrator.run(Model(calibrator), Loader(3), progress=told)
    calibrator.run(Model(calibrator), Loader(5), batches=2, progress=told)
    calibrator.run(Model(calibrator), iter(Loader(1)), progress=told)
    assert calls == [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2), (1, None)]


def test_progress_without_tqdm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    blockscale.Calibrator().run(print, Loader(3))
    assert capsys.readouterr().err == "calibrate: 3 of 3 batches\n"
    monkeypatch.setattr(_calibration_run, "LINE_SECONDS", 0.0)
    blockscale.Calibrator().run(print, iter(Loader(2)))
    assert capsys.readouterr().err == "calibrate: 1 batches\ncalibrate: 2 batches\n"
    blockscale.Calibrator().run(print, Loader(3), progress=False)
    assert capsys.readouterr().err == ""


def test_progress_with_tqdm(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    blockscale.Calibrator().run(print, Loader(3))
    assert "calibrate: 100%" in capsys.readouterr().err


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"model": 3}, TypeError, "model: is a int, must be callable"),
        ({"loader": 3}, TypeError, "loader: is a int, must be iterable"),
        ({"batches": -1}, ValueError, "batches: is -1, must be from 0"),
        ({"batches": 1.5}, TypeError, "batches: is 1.5, must be an integer"),
        ({"progress": "bar"}, TypeError, "progress: is a str, must be a bool or callable"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    loader = Loader()
    with pytest.raises(kind, match=message):
        blockscale.Calibrator().run(**{"model": print, "loader": loader} | arguments)
    assert loader.taken == 0


def test_a_state_that_can_go_nowhere(tmp_path: Path) -> None:
    loader, calibrator = Loader(), blockscale.Calibrator(resume=tmp_path / "no/state")
    with pytest.raises(FileNotFoundError, match="resume: .*no is no folder"):
        calibrator.run(Model(calibrator), loader, progress=False)
    assert loader.taken == 0


def test_files_that_are_no_state(tmp_path: Path, whole: bytes) -> None:
    calibrator = blockscale.Calibrator()
    calibrator.run(Model(calibrator), Loader(1), progress=False)
    state = tmp_path / "state"
    calibrator.save_state(state)
    good, tensors = state.read_bytes(), load_file(state)
    key = "blockscale_calibration_state"
    header = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])
    metadata = header["__metadata__"]
    assert blockscale.Calibrator(resume=state).rows == {"first": 3, "second": 3}
    for bad in (b"", b"text", good[:100], good[:-8], whole, b"\xff" * 16):
        state.write_bytes(bad)
        with pytest.raises(ValueError, match="resume: is .*state, must be what a Calibrator wrote"):
            blockscale.Calibrator(resume=state)
    for part, array in (
        ("0.histogram", tensors["0.histogram"] + 1),
        ("0.histogram", tensors["0.histogram"][1:]),
        ("0.sums", tensors["0.sums"][1:]),
        ("1.squares", tensors["1.squares"].astype(np.float32)),
        ("1.absmax", tensors["1.absmax"].reshape(4, 4)),
    ):
        write(state, tensors | {part: array}, metadata)
        with pytest.raises(ValueError, match="resume: is "):
            blockscale.Calibrator(resume=state)
    for said in ("[]", "{}", '{"batches": 1, "inputs": 3, "experts": []}'):
        save_file(tensors, state, metadata={key: said})
        with pytest.raises(ValueError, match="resume: is "):
            blockscale.Calibrator(resume=state)
