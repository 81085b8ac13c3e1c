"""blockscale.Calibrator: what it collects, and that convert reads what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blockscale
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

NAME = "layers.0.q_proj"


def batches() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    channels = np.linspace(0.1, 3, 64, dtype=np.float32)
    return [
        rng.standard_normal(shape).astype(np.float32) * channels
        for shape in ((5, 64), (2, 3, 64), (64,))
    ]


def test_what_is_collected(tmp_path: Path) -> None:
    calibrator = blockscale.Calibrator()
    layer = calibrator.wrap(NAME, lambda x, scale=1.0: x * scale)
    for x in batches():
        assert np.array_equal(layer(x, scale=2.0), x * 2)
    assert calibrator.names == [NAME] and repr(calibrator) == "Calibrator(1 layers)"
    calibrator.save(tmp_path / "c.safetensors")
    rows = np.concatenate([x.reshape(-1, 64) for x in batches()]).astype(np.float64)
    tensors = load_file(tmp_path / "c.safetensors")
    kinds = ["input_absmax", "input_mean", "input_mean_square"]
    assert sorted(tensors) == [f"{NAME}.{kind}" for kind in kinds]
    assert tensors[f"{NAME}.input_mean"] == pytest.approx(rows.mean(axis=0), rel=1e-6)
    assert np.array_equal(tensors[f"{NAME}.input_absmax"], np.abs(rows).max(axis=0))
    expected = np.square(rows).mean(axis=0)
    assert tensors[f"{NAME}.input_mean_square"] == pytest.approx(expected, rel=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("name", [NAME, f"{NAME}.weight"])
def test_convert_reads_it(tmp_path: Path, name: str) -> None:
    weight = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    save_file({f"{NAME}.weight": weight}, tmp_path / "model.safetensors")
    calibrator = blockscale.Calibrator()
    for x in batches():
        calibrator.observe(name, x)
    path = tmp_path / "c.safetensors"
    calibrator.save(path)
    squares = load_file(path)[f"{name}.input_mean_square"]
    report = blockscale.convert(
        tmp_path / "model.safetensors", tmp_path / "out.safetensors", "nvfp4",
        scales="weighted", calibration=path, activation_scales=path,
    )  # fmt: skip
    (tensor,) = report.tensors
    assert tensor.error_ratio < 0.9
    got = blockscale.Checkpoint(tmp_path / "out.safetensors")[f"{NAME}.weight"]
    wanted = blockscale.quantize(weight, "nvfp4", scale_choice="weighted", channel_weights=squares)
    assert np.array_equal(got.scales.view(np.uint8), wanted.scales.view(np.uint8))
    with safe_open(tmp_path / "out.safetensors", "numpy") as file:
        stored = file.get_tensor(f"{NAME}.input_global_scale")
    absmax = max(np.abs(x).max() for x in batches())
    assert stored.item() == np.float32(2688) / absmax
    (dry,) = blockscale.convert(
        tmp_path / "model.safetensors", tmp_path / "none.safetensors", "nvfp4", dry_run=True
    ).tensors
    assert dry.converted and dry.error_ratio is None
    assert not (tmp_path / "none.safetensors").exists()


def test_convert_reads_means_for_mx(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    save_file({f"{NAME}.weight": weight}, tmp_path / "model.safetensors")
    calibrator = blockscale.Calibrator()
    for x in batches():
        calibrator.observe(NAME, x + np.float32(0.5))
    calibrator.save(tmp_path / "c.safetensors")
    inputs = load_file(tmp_path / "c.safetensors")
    options = {"scale_choice": "weighted", "channel_weights": inputs[f"{NAME}.input_mean_square"]}
    blind = blockscale.quantize(weight, "mxfp4", **options)
    wanted = blockscale.quantize(
        weight, "mxfp4", **options, channel_means=inputs[f"{NAME}.input_mean"]
    )
    assert not np.array_equal(blind.scales.view(np.uint8), wanted.scales.view(np.uint8))
    older = {name: x for name, x in inputs.items() if not name.endswith(".input_mean")}
    save_file(older, tmp_path / "older.safetensors")
    for file, scales in (("c", wanted), ("older", blind)):
        report = blockscale.convert(
            tmp_path / "model.safetensors", tmp_path / f"{file}-out.safetensors", "mxfp4",
            scales="weighted", calibration=tmp_path / f"{file}.safetensors",
        )  # fmt: skip
        assert 0 < report.tensors[0].error_ratio < 1
        got = blockscale.Checkpoint(tmp_path / f"{file}-out.safetensors")[f"{NAME}.weight"]
        assert np.array_equal(got.scales.view(np.uint8), scales.scales.view(np.uint8))
        assert np.array_equal(got.values, scales.values)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"other.input_mean_square": np.ones(64, np.float32)}, "has no .*input_mean_square"),
        ({f"{NAME}.input_mean_square": np.ones(32, np.float32)}, "32 channels .* must have 64"),
        ({f"{NAME}.input_mean_square": -np.ones(64, np.float32)}, "must be finite and at least 0"),
        ({f"{NAME}.input_mean_square": np.ones((1, 64), np.float32)}, "F32 of one dimension"),
        ({f"{NAME}.input_mean": np.full(64, np.nan, np.float32)}, "must be finite"),
        ({f"{NAME}.input_mean_square": np.ones(64, np.float16)}, "F32 of one dimension"),
    ],
)
def test_bad_calibrations(tmp_path: Path, entries: dict[str, np.ndarray], message: str) -> None:
    save_file({f"{NAME}.weight": np.ones((32, 64), np.float32)}, tmp_path / "model.safetensors")
    save_file(entries, tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=message):
        blockscale.convert(
            tmp_path / "model.safetensors", tmp_path / "out.safetensors", "mxfp4",
            scales="weighted", calibration=tmp_path / "c.safetensors",
        )  # fmt: skip
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
@pytest.mark.parametrize("channel", [0, 63])
def test_bad_magnitudes(tmp_path: Path, bad: float, channel: int) -> None:
    absmax = np.ones(64, np.float32)
    absmax[channel] = bad
    save_file({f"{NAME}.weight": np.ones((32, 64), np.float32)}, tmp_path / "model.safetensors")
    save_file({f"{NAME}.input_absmax": absmax}, tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match="input_absmax.* must be finite and above 0"):
        blockscale.convert(
            tmp_path / "model.safetensors", tmp_path / "out.safetensors", "nvfp4",
            activation_scales=tmp_path / "c.safetensors",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("x", "kind", "message"),
    [
        (np.ones((2, 32), np.float32), ValueError, "has 32 channels, had 64 before"),
        (np.ones((2, 0), np.float32), ValueError, "has no channel"),
        (np.full((2, 64), np.nan, np.float32), ValueError, "NaN or infinity"),
        (np.ones((2, 64), np.int32), TypeError, "must be a floating-point one"),
        ("text", TypeError, "must be an array"),
    ],
)
def test_bad_inputs(x: Any, kind: type[Exception], message: str) -> None:
    calibrator = blockscale.Calibrator()
    calibrator.observe(NAME, batches()[0])
    with pytest.raises(kind, match=message):
        calibrator.observe(NAME, x)


def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model: is a int, must be a torch.nn.Module"):
        blockscale.Calibrator(3)
    with pytest.raises(TypeError, match="layer: is a int, must be callable"):
        blockscale.Calibrator().wrap(NAME, 3)
    with pytest.raises(ValueError, match="no layer has seen an input"):
        blockscale.Calibrator().save(tmp_path / "c.safetensors")
    assert not list(tmp_path.iterdir())


def test_torch_modules_are_hooked(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    x = torch.from_numpy(batches()[0])
    with blockscale.Calibrator(model, prefix="body.") as calibrator:
        model(x)
        rounded = x.bfloat16().float()
        model(rounded)
        model[0](input=x)
        with pytest.raises(TypeError, match="must be a floating-point one"):
            calibrator.observe("body.0", torch.ones(2, 64, dtype=torch.int32))
    model(100 * x)  # no longer observed
    assert calibrator.names == ["body.0", "body.2"]
    calibrator.save(tmp_path / "c.safetensors")
    tensors = load_file(tmp_path / "c.safetensors")
    absmax = torch.maximum(x.abs().amax(dim=0), rounded.abs().amax(dim=0))
    assert np.array_equal(tensors["body.0.input_absmax"], absmax.numpy())
    assert tensors["body.2.input_mean_square"].shape == (32,)
    with pytest.raises(ValueError, match="has no torch.nn.Linear"):
        blockscale.Calibrator(torch.nn.ReLU())


def test_scales_of_amax_by_name_and_by_member() -> None:
    x = batches()[0]
    for choice in ("amax", blockscale.ScaleChoice.amax):
        t = blockscale.quantize(x, "fp8_row", amax_floor=448.0, scale_choice=choice)
        assert np.array_equal(t.scales, np.ones_like(t.scales))


def test_searched_scales_in_python() -> None:
    x = batches()[0]
    errors = {}
    weights = np.square(np.linspace(0, 2, 64, dtype=np.float32))
    for choice in ("amax", "mse", "weighted"):
        given = weights if choice == "weighted" else None
        t = blockscale.quantize(x, "nvfp4", scale_choice=choice, channel_weights=given)
        errors[choice] = (np.square(blockscale.dequantize(t) - x) * weights).sum()
    assert errors["weighted"] < errors["mse"] < errors["amax"]
    for options, message in (
        ({"scale_choice": "best"}, "scale_choice: is 'best', must be one of"),
        ({"scale_choice": "weighted"}, "channel_weights: is null"),
        ({"channel_weights": weights}, "channel_weights: is given, but"),
        ({"scale_choice": "weighted", "channel_weights": weights[1:]}, "channel_weights: shape is"),
        ({"scale_choice": "weighted", "channel_weights": -weights}, "must be finite and at least"),
    ):
        with pytest.raises(ValueError, match=message):
            blockscale.quantize(x, "nvfp4", **options)
    weighted = {"scale_choice": "weighted", "channel_weights": weights}
    for recipe, means, message in (
        ("nvfp4", weights * 0, "channel_means: is given, but nvfp4 takes weights alone"),
        ("mxfp4", weights[1:], "channel_means: shape is"),
        ("mxfp4", 2 * np.sqrt(weights) + 1, "channel_means: is .* must have a square of at most"),
    ):
        with pytest.raises(ValueError, match=message):
            blockscale.quantize(x, recipe, **weighted, channel_means=means)
    with pytest.raises(TypeError, match="channel_weights: has dtype float64"):
        blockscale.quantize(x, "nvfp4", scale_choice="weighted", channel_weights=np.ones(64))
    with pytest.raises(ValueError, match="scale_choice: is given, but fp8_row"):
        blockscale.quantize(x, "fp8_row", scale_choice="mse")
