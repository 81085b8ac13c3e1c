"""Calibrator on a GPU: the CPU's numbers, no wait, and runs that go on. `./dev gpu-test` runs
these where there is a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blockscale
import numpy as np
import pytest
from blockscale._torch_calibration import DeviceInputs
from gpu_torch import normal, torch


class Experts(torch.nn.Module):
    """As transformers has them; the result is of no interest."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = torch.nn.Parameter(normal(4, 2 * 64, 128, seed=1) / 11)
        self.down_proj = torch.nn.Parameter(normal(4, 128, 64, seed=2) / 8)
        self.act_fn = torch.nn.SiLU()

    def forward(self, hidden_states: Any, _index: Any, _weights: Any) -> Any:
        return hidden_states


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(128, 128).bfloat16()
        self.experts = Experts()

    def forward(self, x: Any, ids: Any) -> Any:
        return self.experts(self.q_proj(x), ids, torch.ones(*ids.shape, device=x.device))


def batches(count: int = 4) -> list[Any]:
    ids = [torch.randint(0, 4, (33, 2), generator=torch.Generator().manual_seed(i)) for i in (1, 2)]
    return [(normal(33, 128, seed=i), ids[i % 2]) for i in range(count)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("is_deterministic", [False, True])
def test_numbers_are_the_cpus(dtype: Any, is_deterministic: bool) -> None:
    x = normal(3000, 2048, dtype=torch.float32) * torch.logspace(-4, 4, 2048)  # two pieces
    x[0, :3] = torch.tensor([0.0, 1e-7, 1.0])
    x = x.to(dtype)
    host, device = blockscale.Calibrator(), blockscale.Calibrator()
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        for part in x.split(1700):
            host.observe("a", part)
            device.observe("a", part.cuda())
        on_device = device._state.inputs[("a",)]
        assert isinstance(on_device, DeviceInputs)
        want, got = host._state.inputs[("a",)], on_device.on_host()
    finally:
        torch.use_deterministic_algorithms(False)
    assert np.array_equal(got.absmax, want.absmax) and got.rows == want.rows == 3000
    assert np.array_equal(got.histogram, want.histogram)
    assert got.squares == pytest.approx(want.squares, rel=1e-12)
    assert got.sums == pytest.approx(want.sums, rel=1e-9, abs=1e-6)
    for percent in (50, 99, 99.99):
        assert host.percentile("a", percent) == device.percentile("a", percent)


def test_linear_layers_wait_for_nothing() -> None:
    layer, calibrator = torch.nn.Linear(256, 64).cuda(), blockscale.Calibrator()
    observed, x = calibrator.wrap("a", layer), normal(500, 256).float().cuda()
    with torch.no_grad():
        observed(x)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            observed(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert calibrator.rows == {"a": 1000}


def test_runs_go_on(tmp_path: Path) -> None:
    """Batches are brought to the device; what was collected on it comes back bit by bit."""
    model, files = Model().cuda(), []
    for pieces in (1, 4):
        state = tmp_path / f"state-{pieces}"
        for piece in range(1, pieces + 1):
            with blockscale.Calibrator(model, resume=state) as calibrator:
                done = calibrator.run(model, batches(), batches=4 * piece // pieces, progress=False)
            assert done == 4 * piece // pieces
        files.append(tmp_path / f"{pieces}.safetensors")
        calibrator.save(files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(calibrator.names) == 13 and not calibrator.unused
    with blockscale.Calibrator(model.cpu()) as on_host:
        on_host.run(model, batches(), progress=False)
    assert on_host.rows == calibrator.rows
    assert on_host.percentile("q_proj", 99) == calibrator.percentile("q_proj", 99)
    for name in calibrator.names:  # behind a product that another order of sums rounds otherwise
        want = on_host.percentile(name, 99)
        assert calibrator.percentile(name, 99) == pytest.approx(want, rel=0.05)


def test_nan_ends_the_batch() -> None:
    layer = torch.nn.Linear(128, 8).cuda()
    x = normal(9, 128).float().cuda()
    calibrator = blockscale.Calibrator(layer, prefix="a")
    with pytest.raises(ValueError, match="a: input holds NaN or infinity"):
        calibrator.run(layer, [x, x / 0], progress=False)
    assert calibrator.rows == {"a": 9}
