"""blockscale.Calibrator: what it collects, and that convert reads what it writes."""

from __future__ import annotations

import json
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
    with pytest.raises(TypeError, match="prefix: is a int, must be a str"):
        blockscale.Calibrator(prefix=3)
    with pytest.raises(TypeError, match="resume: is a int, must be a path"):
        blockscale.Calibrator(resume=3)
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


# --- percentiles ----------------------------------------------------------------------------------


def families() -> dict[str, np.ndarray]:
    """Rows of numbers of many kinds, [rows, 64]."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal((300, 64))
    wide = np.exp2(rng.uniform(-31, 31, (300, 64)))
    edges = np.repeat(np.exp2(np.arange(-30, 30)), 64).reshape(60, 64)
    return {
        "normal": normal.astype(np.float32),
        "f64": normal,
        "f16": normal.astype(np.float16),
        "outliers": (normal * np.where(rng.random(normal.shape) < 0.01, 1000, 1)).astype("f4"),
        "wide": (wide * rng.choice([-1, 1], wide.shape)).astype(np.float32),
        "mostly zero": (normal * (rng.random(normal.shape) < 0.04)).astype(np.float32),
        "one number": np.full((3, 64), -0.7, np.float32),
        "edges": edges.astype(np.float32),
        "below edges": np.nextafter(edges, 0),
        "below edges in f32": np.nextafter(edges.astype(np.float32), np.float32(0)),
    }


@pytest.mark.parametrize("family", families())
def test_percentiles_are_within_their_bound(family: str) -> None:
    rows = families()[family]
    calibrator = blockscale.Calibrator()
    for part in np.array_split(rows, 3):
        calibrator.observe(NAME, part)
    magnitudes = np.abs(rows.astype(np.float64))
    rng = np.random.default_rng(6)
    for percent in (0.01, 50, 90, 99, 99.9, 99.99, 100, *rng.uniform(0.01, 100, 40)):
        exact = np.percentile(magnitudes, percent, method="inverted_cdf")
        got = calibrator.percentile(NAME, percent)
        assert max(exact, 2.0**-32) <= max(got, 2.0**-32)
        assert got <= max(exact * (1 + 1 / 64), 2.0**-32 * 65 / 64)
        assert (magnitudes <= got).mean() >= percent / 100 - 1e-12
    assert calibrator.percentile(NAME, 100) == magnitudes.max()


def test_percentiles_of_what_is_beyond_the_bins() -> None:
    calibrator = blockscale.Calibrator()
    calibrator.observe(NAME, np.float32([[0, 1e-30, 1e-40, 2.0**-33, 1e30, 3e38, 2.0**32, 1]]))
    assert calibrator.percentile(NAME, 50) == 2.0**-32 * 65 / 64
    assert calibrator.percentile(NAME, 60) == 65 / 64
    assert calibrator.percentile(NAME, 65) == np.float32(3e38)  # of 2^32
    calibrator.observe("zeros", np.zeros((2, 8), np.float32))
    assert calibrator.percentile("zeros", 99) == 0


def test_memory_does_not_grow() -> None:
    calibrator = blockscale.Calibrator()
    sizes = []
    for x in families().values():
        calibrator.observe(NAME, x)
        inputs = calibrator._state.inputs[(NAME,)]
        sizes.append(sum(x.nbytes for x in vars(inputs).values() if isinstance(x, np.ndarray)))
    assert len(set(sizes)) == 1 and sizes[0] == 3 * 64 * 8 + 4096 * 8


def test_metadata(tmp_path: Path) -> None:
    calibrator = blockscale.Calibrator()
    for x in batches():
        calibrator.observe(NAME, x)
    calibrator.observe("other", batches()[0])
    calibrator.save(tmp_path / "c.safetensors", percents=(50, 99.9))
    with safe_open(tmp_path / "c.safetensors", "numpy") as file:
        metadata = {key: json.loads(text) for key, text in file.metadata().items()}
    of = {
        name: [calibrator.percentile(name, percent) for percent in (50, 99.9)]
        for name in (NAME, "other")
    }
    assert metadata == {
        "input_percentiles": {"percents": [50, 99.9], "of": of},
        "input_rows": {NAME: 12, "other": 5},
        "expert_shares": {},
    }
    assert calibrator.rows == {NAME: 12, "other": 5} and calibrator.unused == []


@pytest.mark.parametrize(
    ("recipe", "scale", "largest"),
    [("nvfp4", "input_global_scale", 2688), ("fp8_tensor", "input_scale", 448)]
    + [("fp8_row", "input_scale", 448)],
)
def test_static_scales_come_from_a_percentile(
    tmp_path: Path, recipe: str, scale: str, largest: int
) -> None:
    weight = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    save_file({f"{NAME}.weight": weight}, tmp_path / "model.safetensors")
    calibrator = blockscale.Calibrator()
    for x in batches():
        calibrator.observe(NAME, x)
    calibrator.observe(NAME, np.eye(1, 64, dtype=np.float32) * np.float32(1e5))  # an outlier
    absmax = {}
    for percentile in (None, 99, 100):
        path = tmp_path / f"{percentile}.safetensors"
        calibrator.save(path, percentile=percentile)
        blockscale.convert(
            tmp_path / "model.safetensors", tmp_path / f"{percentile}-out.safetensors", recipe,
            activation_scales=path, activations="static", dialect="compressed-tensors",
        )  # fmt: skip
        with safe_open(tmp_path / f"{percentile}-out.safetensors", "numpy") as file:
            stored = file.get_tensor(f"{NAME}.{scale}").item()
        channels = load_file(path)[f"{NAME}.input_absmax"]
        absmax[percentile] = channels.max()
        wanted = (
            np.float32(largest) / channels.max()
            if recipe == "nvfp4"
            else channels.max() / np.float32(largest)
        )
        assert stored == wanted
        with safe_open(path, "numpy") as file:
            said = file.metadata().get("input_absmax_percentile")
        assert said == (None if percentile is None else json.dumps(float(percentile)))
    assert absmax[None] == absmax[100] == np.float32(1e5)
    assert absmax[99] == np.float32(calibrator.percentile(NAME, 99)) < 10
    clipped, whole = (
        load_file(tmp_path / f"{percentile}.safetensors")[f"{NAME}.input_absmax"]
        for percentile in (99, None)
    )
    assert np.array_equal(clipped, np.minimum(whole, absmax[99])) and len(set(clipped)) > 30


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"percents": (50, 0)}, ValueError, "percents: is 0, must be above 0 and at most 100"),
        ({"percents": 99}, TypeError, "percents: is a int, must be a sequence of numbers"),
        ({"percents": "99"}, TypeError, "percents: is '9', must be a number"),
        ({"percents": [None]}, TypeError, "percents: is None, must be a number"),
        ({"percentile": 101}, ValueError, "percentile: is 101, must be above 0 and at most 100"),
        ({"percentile": np.nan}, ValueError, "percentile: is nan, must be above 0"),
        ({"rename": 3}, TypeError, "rename: is a int, must be callable"),
        ({"rename": len}, TypeError, f"rename: gives a int for '{NAME}', must give a str"),
        ({"rename": lambda _: "a"}, ValueError, "rename: gives 'a' for several layers"),
        ({"unused": "drop"}, ValueError, 'unused: is \'drop\', must be "omit" or "layer"'),
    ],
)
def test_bad_options_of_save(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    calibrator = blockscale.Calibrator()
    for name in (NAME, "layers.0.o_proj"):
        calibrator.observe(name, batches()[0])
    with pytest.raises(kind, match=message):
        calibrator.save(tmp_path / "c.safetensors", **options)
    assert not list(tmp_path.iterdir())
    with pytest.raises(KeyError, match="'other', which has seen no input"):
        calibrator.percentile("other", 99)
    with pytest.raises(ValueError, match="percent: is -1"):
        calibrator.percentile(NAME, -1)


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
