"""Calibrator with torch: sums on a device, run on modules; `./dev test --torch` runs these."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import blockscale
import numpy as np
import pytest
from safetensors.numpy import load_file

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale import _calibrator, _torch_calibration  # noqa: E402
from blockscale._calibration_inputs import Inputs  # noqa: E402
from blockscale._torch_calibration import DeviceInputs, nonfinite  # noqa: E402


def normal(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(a: Any, b: Any) -> bool:
    """Equal bits."""
    parts = ("absmax", "squares", "sums", "histogram")
    a, b = a.on_host(), b.on_host()
    return a.rows == b.rows and all(np.array_equal(getattr(a, p), getattr(b, p)) for p in parts)


# --- what a device computes, by its operators on the CPU ------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_a_device_counts_as_the_cpu_does(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, rows: int, is_deterministic: bool
) -> None:
    monkeypatch.setattr(_torch_calibration, "_PIECE", 7 * 48)  # several, the last one shorter
    x = normal(rows, 48, dtype=dtype) * torch.logspace(-4, 4, 48).to(dtype)
    x[0, :5] = torch.tensor([0.0, -0.0, 1e-7, 1.0, -1.984375]).to(dtype)
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        got = DeviceInputs.of(x).on_host()
    finally:
        torch.use_deterministic_algorithms(False)
    want = Inputs.of(x.float().numpy())
    assert got.rows == want.rows == rows
    assert np.array_equal(got.absmax, want.absmax)
    assert np.array_equal(got.histogram, want.histogram) and got.histogram.sum() == rows * 48
    assert got.squares == pytest.approx(want.squares, rel=1e-13)
    assert got.sums == pytest.approx(want.sums, rel=1e-13, abs=1e-13 * 1e4 * rows)


def test_sums_go_to_a_device_and_back_bit_by_bit() -> None:
    first, second = (DeviceInputs.of(normal(9, 32, seed=seed)) for seed in (1, 2))
    there = first.on_host().beside(second)
    assert isinstance(there, DeviceInputs) and same(there, first)
    assert same(there.plus(second), first.plus(second))
    assert same(first.on_host().plus(second.on_host()), first.plus(second))
    assert isinstance(first.beside(second.on_host()), Inputs)
    assert first.beside(second) is first


def test_what_is_not_finite_is_found() -> None:
    good, bad = DeviceInputs.of(normal(3, 8)), normal(3, 8)
    for number in (float("nan"), float("inf"), -float("inf")):
        bad[1, 2] = number
        named = [("a", good), ("b", DeviceInputs.of(bad)), ("c", good)]
        assert nonfinite(named) == "b" and nonfinite(named[::2]) is None
        assert nonfinite([("sum", named[1][1].plus(good))]) == "sum"


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibrator takes tensors of the CPU for a device's."""
    monkeypatch.setattr(_calibrator, "_rows", lambda x, _: x.detach().reshape(-1, x.shape[-1]))


@pytest.mark.usefixtures("on_device")
def test_a_run_on_a_device_goes_on(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    loader = [normal(5, 64, seed=seed) for seed in range(6)]
    state, files = tmp_path / "state", []
    for batches in ((6,), (2, 5, 6)):
        state.unlink(missing_ok=True)
        for until in batches:
            with blockscale.Calibrator(model, resume=state) as calibrator:
                assert calibrator.run(model, loader, batches=until, progress=False) == until
        assert isinstance(calibrator._state.inputs[("0",)], DeviceInputs)
        files.append(tmp_path / f"{len(batches)}.safetensors")
        calibrator.save(files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.usefixtures("on_device")
def test_nan_on_a_device_ends_the_batch(tmp_path: Path) -> None:
    layer = torch.nn.Linear(8, 8)
    with blockscale.Calibrator(layer) as calibrator:
        loader = [normal(3, 8), normal(3, 8) / 0, normal(3, 8)]
        with pytest.raises(ValueError, match=": input holds NaN or infinity"):
            calibrator.run(layer, loader, progress=False)
        assert calibrator.rows == {"": 3}
        calibrator.save(tmp_path / "c.safetensors")
        layer(loader[1])
        for save in (calibrator.save, calibrator.save_state):
            with pytest.raises(ValueError, match=": input holds NaN or infinity"):
                save(tmp_path / "bad.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


# --- run ------------------------------------------------------------------------------------------


class Batch(UserDict[str, Any]):
    """As tokenizers of transformers give them."""


class TwoInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)
        self.modes: list[bool] = []

    def forward(self, x: Any, shift: Any = None) -> Any:
        self.modes.append(torch.is_grad_enabled())
        return self.layer(x if shift is None else x + shift)


def test_batches_of_a_module() -> None:
    model, x = TwoInputs(), normal(3, 16)
    loader = [x, (x, x), [x], {"x": x, "shift": 1}, Batch(x=x, shift=2.0)]
    with blockscale.Calibrator(model) as calibrator:
        assert calibrator.run(model, loader, progress=False) == 5
    assert calibrator.rows == {"layer": 15} and model.modes == [False] * 5
    rows = torch.cat([x, x + x, x, x + 1, x + 2])
    assert calibrator.percentile("layer", 100) == float(rows.abs().max())


def test_batches_go_to_the_module() -> None:
    """As far as a machine without a GPU shows: to the meta device, which has no numbers."""
    nested = {"a": [torch.ones(2), "text"], "b": (torch.ones(3), 3)}
    moved = _torch_calibration.moved(nested, torch.nn.Linear(4, 4))
    assert moved["a"][0].device.type == "cpu" and moved["a"][1] == "text"
    moved = _torch_calibration._on(nested, torch.device("meta"))
    assert [moved["a"][0].is_meta, moved["b"][0].is_meta] == [True, True] and moved["b"][1] == 3
    assert _torch_calibration.moved(nested, print) is nested
    assert _torch_calibration.moved(nested, torch.nn.ReLU()) is nested


def test_a_loader_of_torch(tmp_path: Path) -> None:
    data = torch.utils.data.TensorDataset(normal(20, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=6)
    model = torch.nn.Linear(64, 8)
    seen: list[Any] = []
    with blockscale.Calibrator(model, prefix="a") as calibrator:
        done = calibrator.run(model, loader, progress=lambda *now: seen.append(now))
    assert done == 4 and seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    calibrator.save(tmp_path / "c.safetensors")
    absmax = load_file(tmp_path / "c.safetensors")["a.input_absmax"]
    assert np.array_equal(absmax, data.tensors[0].abs().amax(dim=0).numpy())
