"""`blockscale convert` and `compare` from end to end."""

import fcntl
import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import termios

import numpy
import pytest
from cli_testing import (
    EXIT_CODES,
    LINEAR,
    WEIGHTS,
    Program,
    files_below,
    open_terminal,
    read_tensors,
    small_model,
)
from safetensors.numpy import save_file

# recipe, dialect by default, least SQNR of normally distributed weights in dB
RECIPES = [
    ("nvfp4", "compressed-tensors", 18),
    ("mxfp4", "compressed-tensors", 16),
    ("mxfp6_e2m3", "compressed-tensors", 28),
    ("mxfp8_e4m3", "compressed-tensors", 28),
    ("fp8_row", "compressed-tensors", 30),
    ("fp8_128x128", None, 30),
]


@pytest.mark.parametrize(("recipe", "dialect", "sqnr"), RECIPES)
def test_convert_and_compare(
    program: Program, model: pathlib.Path, recipe: str, dialect: str | None, sqnr: float
):
    result = model.parent / "result"
    report = program.json("convert", model, result, "--recipe", recipe)
    assert (report["source"], report["destination"]) == (str(model), str(result))
    assert (report["source_dialect"], report["recipe"]) == ("plain", recipe)
    assert dialect in (None, report["dialect"])
    converted = [tensor for tensor in report["tensors"] if tensor["converted"]]
    assert sorted(tensor["name"] for tensor in converted) == sorted(WEIGHTS)
    assert all(tensor["recipe"] == recipe for tensor in converted)
    assert all(tensor["reason"] for tensor in report["tensors"] if not tensor["converted"])
    assert report["bytes"] < report["source_bytes"]

    inspected = program.json("inspect", result)
    assert inspected["dialect"] == report["dialect"]
    recipes = {tensor["name"]: tensor["recipe"] for tensor in inspected["tensors"]}
    for name in WEIGHTS:
        assert recipes[name] == recipe
    assert inspected["recipes"][recipe]["tensors"] == len(WEIGHTS)
    assert inspected["total"]["bytes"] == report["bytes"]

    compared = program.json("compare", model, result)
    assert (compared["only_a"], compared["only_b"], compared["different_shape"]) == ([], [], [])
    for tensor in compared["tensors"]:
        if tensor["name"] in WEIGHTS:
            assert sqnr < tensor["sqnr_db"] < 60
            assert 0 < tensor["mean_error"] < tensor["max_error"] < 1
            assert tensor["bytes_b"] < tensor["bytes_a"]
        else:
            assert tensor["sqnr_db"] is None  # equal
            assert tensor["max_error"] == tensor["mean_error"] == 0
    assert sum(tensor["bytes_b"] for tensor in compared["tensors"]) == report["bytes"]


def test_compare_measures_what_it_says(program: Program, tmp_path: pathlib.Path):
    random = numpy.random.default_rng(1)
    a = random.standard_normal((8, 16)).astype(numpy.float32)
    b = a + numpy.float32(0.01) * random.standard_normal((8, 16)).astype(numpy.float32)
    small = numpy.zeros(3, numpy.float32)
    save_file({"w": a, "gone": small, "shape": small}, tmp_path / "a.safetensors")
    save_file({"w": b, "new": small, "shape": small[:2]}, tmp_path / "b.safetensors")
    report = program.json("compare", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    (tensor,) = report["tensors"]
    difference = numpy.abs(a.astype(numpy.float64) - b.astype(numpy.float64))
    sqnr = 10 * math.log10((a.astype(numpy.float64) ** 2).sum() / (difference**2).sum())
    assert tensor["name"] == "w"
    assert tensor["sqnr_db"] == pytest.approx(sqnr, rel=1e-6)
    assert tensor["max_error"] == pytest.approx(difference.max(), rel=1e-6)
    assert tensor["mean_error"] == pytest.approx(difference.mean(), rel=1e-6)
    assert (report["only_a"], report["only_b"]) == (["gone"], ["new"])
    assert report["different_shape"] == ["shape"]
    text = program.ok("compare", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert f"{sqnr:.2f}" in text
    assert "Only in A:\n  gone\nOnly in B:\n  new\n" in text
    assert "of different shapes:\n  shape\n" in text


def test_compare_with_itself_is_equal(program: Program, model: pathlib.Path):
    text = program.ok("compare", model, model)
    assert re.search(r"^total of 0 converted tensors +equal ", text, re.MULTILINE)
    assert program.json("compare", model, model)["total"]["status"] == "equal"


def test_compare_missing(program: Program, model: pathlib.Path):
    assert "missing" in program.fails("not_found", "compare", model, model.parent / "missing")


def test_text_report(program: Program, model: pathlib.Path):
    result = model.parent / "result"
    run = program("convert", model, result, "--recipe", "nvfp4")
    assert run.code == 0, run
    rows = [line.split() for line in run.out.splitlines() if line]
    assert rows[0] == ["Tensors", "Count", "Before", "After", "Ratio"]
    assert rows[1][:3] == ["to", "nvfp4", str(len(WEIGHTS))]
    assert f"{result}: compressed-tensors dialect (from plain)" in run.out
    assert "\x1b" not in run.err


def test_log_tells_what_became_of_each_tensor(program: Program, model: pathlib.Path):
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4", "--quiet"]
    run = program(*arguments, BLOCKSCALE_LOG="debug")
    assert run.code == 0
    for name in WEIGHTS:
        assert f"blockscale: debug: {name}: to nvfp4" in run.err
    assert "blockscale: debug: embeddings.word_embeddings.weight: kept, embedding\n" in run.err


def test_quiet_prints_nothing(program: Program, model: pathlib.Path):
    arguments = ["convert", model, model.parent / "result", "--recipe", "mxfp4", "--quiet"]
    assert program.ok(*arguments, "--dry-run") == ""
    assert program.ok(*arguments) == ""


def test_selection_options(program: Program, model: pathlib.Path):
    def converted(name: str, *options: str) -> dict[str, str]:
        report = program.json("convert", model, model.parent / name, "--recipe", "nvfp4", *options)
        return {t["name"]: t["recipe"] for t in report["tensors"] if t["converted"]}

    attention = [name for name in WEIGHTS if ".attention." in name]
    assert sorted(converted("i", "--include", "*.attention.*.weight")) == sorted(attention)
    assert sorted(converted("e", "--exclude", "*.output.*", "--exclude", "*.intermediate.*")) == (
        sorted(attention)
    )
    recipes = ["--map", "*.attention.*=mxfp8_e4m3", "--map", "*=mxfp4"]
    mapped = converted("m", *recipes, "--exclude", "*_embeddings")
    for name in WEIGHTS:
        assert mapped[name] == ("mxfp8_e4m3" if name in attention else "mxfp4")


def test_round_trip_to_bf16_keeps_the_values(program: Program, model: pathlib.Path):
    folder = model.parent
    program.json("convert", model, folder / "fp4", "--recipe", "mxfp4")
    program.json("convert", folder / "fp4", folder / "plain", "--recipe", "bf16")
    report = program.json("compare", folder / "fp4", folder / "plain")
    by_name = {tensor["name"]: tensor for tensor in report["tensors"]}
    for name in WEIGHTS:
        assert by_name[name]["sqnr_db"] is None, name


def test_a_file_becomes_a_file(program: Program, model: pathlib.Path):
    result = model.parent / "result.safetensors"
    program.json("convert", model / "model.safetensors", result, "--recipe", "nvfp4")
    assert result.is_file()
    dtype, shape, _ = read_tensors(result)["encoder.layer.0.output.dense.weight_packed"]
    assert (dtype, shape) == ("U8", [128, 128])


def test_shards_threads_and_memory_change_no_value(program: Program, model: pathlib.Path):
    folder = model.parent
    whole = ["convert", model, folder / "whole", "--recipe", "nvfp4", "--threads", 1]
    program.json(*whole)
    sharded = ["convert", model, folder / "sharded", "--recipe", "nvfp4", "--threads", 3]
    program.json(*sharded, "--shard-size", "60kB", "--memory", "256MiB")
    assert len(list((folder / "sharded").glob("*.safetensors"))) > 1
    assert (folder / "sharded" / "model.safetensors.index.json").is_file()
    report = program.json("compare", folder / "whole", folder / "sharded")
    assert report["total"]["sqnr_db"] is None
    assert report["total"]["bytes_a"] == report["total"]["bytes_b"]


def test_scale_modes_and_amax_floor_are_used(program: Program, model: pathlib.Path):
    def sqnr(recipe: str, *options: str) -> float:
        result = model.parent / "-".join(["result", recipe, *options])
        program.json("convert", model, result, "--recipe", recipe, *options)
        return program.json("compare", model, result)["total"]["sqnr_db"]

    modes = {mode: sqnr("mxfp4", "--scale-mode", mode) for mode in ("floor", "ceil", "even")}
    assert len(set(modes.values())) == 3, modes
    assert sqnr("mxfp4") == modes["even"]  # compressed-tensors' default
    # A floor far above every weight leaves few of them anything but zero.
    assert sqnr("fp8_128x128", "--amax-floor", "1e6") < sqnr("fp8_128x128") - 10


def test_activation_scales(program: Program, model: pathlib.Path):
    scales = model.parent / "scales.json"
    scales.write_text(json.dumps(dict.fromkeys(WEIGHTS, 4.0)))
    result = model.parent / "w4a4"
    options = ["--recipe", "nvfp4", "--activation-scales", scales]
    program.json("convert", model, result, *options)
    tensors = read_tensors(result / "model.safetensors")
    divisor = ("F32", [1], numpy.float32(2688 / 4.0).tobytes())
    assert tensors["encoder.layer.0.output.dense.input_global_scale"] == divisor


def test_activations(program: Program, model: pathlib.Path):
    result = model.parent / "result"
    arguments = ["convert", model, result, "--recipe", "fp8_row", "--overwrite"]

    def group(*options: object) -> dict:
        program.ok(*arguments, *options)
        config = json.loads((result / "config.json").read_text())
        return config["quantization_config"]["config_groups"]["group_0"]

    assert group()["input_activations"]["strategy"] == "token"
    assert group("--activations", "none")["input_activations"] is None
    text = program.ok(*arguments)
    assert "activations of fp8_row: dynamic, by default" in text
    report = program.json(*arguments, "--activations", "none")
    assert report["activations"] == ["fp8_row: none, as asked for"]
    scales = model.parent / "scales.json"
    scales.write_text(json.dumps(dict.fromkeys(WEIGHTS, 4.0)))
    static = group("--activations", "static", "--activation-scales", scales)
    assert static["input_activations"]["dynamic"] is False
    tensors = read_tensors(result / "model.safetensors")
    expected = ("F32", [1], (numpy.float32(4.0) / numpy.float32(448)).tobytes())
    assert tensors["encoder.layer.0.output.dense.input_scale"] == expected
    message = program.fails("invalid_argument", *arguments, "--activations", "static")
    assert "activations: is static, but" in message


def test_scales_of_least_error(program: Program, model: pathlib.Path):
    calibration = model.parent / "calibration.safetensors"
    rng = numpy.random.default_rng(0)
    tensors = read_tensors(model / "model.safetensors")
    squares = {}
    for name in WEIGHTS:
        k = tensors[name][1][1]
        squares[name.removesuffix(".weight") + ".input_mean_square"] = (
            rng.uniform(0, 1, k).astype(numpy.float32) ** 8
        )
    save_file(squares, calibration)
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4", "--overwrite"]
    amax = program.json(*arguments)
    assert all(tensor["error_ratio"] is None for tensor in amax["tensors"])
    ratios = {}
    for scales in (["mse"], ["weighted", "--calibration", calibration]):
        report = program.json(*arguments, "--scales", *scales)
        assert report["bytes"] == amax["bytes"] and report["scales"] == scales[0]
        ratios[scales[0]] = [t["error_ratio"] for t in report["tensors"] if t["converted"]]
        assert len(ratios[scales[0]]) == len(WEIGHTS)
        assert all(0.5 < ratio < 0.9 for ratio in ratios["mse"])
    assert max(ratios["weighted"]) < min(ratios["mse"])
    text = program.ok(*arguments, "--scales", "mse")
    assert re.search(r"squared errors, of those with min-max scales: 0\.[5-8]\d+ \(geometric", text)


def test_existing_destination(program: Program, model: pathlib.Path):
    result = model.parent / "result"
    arguments = ["convert", model, result, "--recipe", "mxfp4"]
    program.json(*arguments)
    before = files_below(result)
    message = program.fails("already_exists", *arguments)
    assert message.endswith(f"{result}: exists; --overwrite replaces it")
    assert files_below(result) == before
    program.json("convert", model, result, "--recipe", "nvfp4", "--overwrite")
    assert program.json("inspect", result)["recipes"]["nvfp4"]["tensors"] == len(WEIGHTS)


def test_what_is_left_behind_is_listed(program: Program, model: pathlib.Path):
    (model / "original").mkdir()
    (model / "original" / "consolidated.00.pth").write_bytes(b"12345")
    (model / "model.gguf").write_bytes(b"123")
    result = model.parent / "result"
    arguments = ["convert", model, result, "--recipe", "mxfp4"]
    left = {file["path"]: file for file in program.json(*arguments)["not_copied"]}
    assert {path: file["bytes"] for path, file in left.items()} == {"original/": 5, "model.gguf": 3}
    assert "another format" in left["model.gguf"]["reason"]
    assert not (result / "original").exists()
    run = program(*arguments, "--overwrite")
    assert "Not copied (see --copy-all)" in run.out
    assert "original/" in run.out
    assert program.json(*arguments, "--overwrite", "--copy-all")["not_copied"] == []
    assert (result / "original" / "consolidated.00.pth").read_bytes() == b"12345"
    assert program.json("inspect", result)["recipes"]["mxfp4"]["tensors"] == len(WEIGHTS)


def test_what_is_no_regular_file_is_never_replaced(program: Program, model: pathlib.Path):
    fifo = model.parent / "fifo"
    os.mkfifo(fifo)
    link = model.parent / "link"
    link.symlink_to(fifo)
    for destination in (fifo, link):
        for source in (model, model / "model.safetensors"):
            arguments = ["convert", source, destination, "--recipe", "mxfp4", "--overwrite"]
            message = program.fails("invalid_argument", *arguments)
            assert "is a FIFO, only regular files and folders are replaced" in message
            assert "--overwrite" not in message
        html = ["compare", model, model, "--html", destination, "--overwrite"]
        assert "a FIFO, only a regular file is replaced" in program.fails("invalid_argument", *html)
    assert fifo.is_fifo() and link.is_symlink()


def test_a_strangers_staging_folder_is_left_alone(program: Program, model: pathlib.Path):
    staging = model.parent / ".result.blockscale-partial"
    staging.mkdir()
    (staging / "letter.txt").write_text("dear")
    arguments = ["convert", model, model.parent / "result", "--recipe", "mxfp4"]
    for options in ([], ["--resume"], ["--overwrite"]):
        message = program.fails("already_exists", *arguments, *options)
        assert 'holds "letter.txt", which no conversion to this destination made' in message
        assert "--overwrite replaces it" not in message
    assert (staging / "letter.txt").read_text() == "dear"


def test_a_model_of_a_hugging_face_cache(program: Program, model: pathlib.Path):
    cache = model.parent / "models--org--name"
    (cache / "snapshots").mkdir(parents=True)
    (cache / "blobs").mkdir()
    snapshot = cache / "snapshots" / "0123"
    snapshot.mkdir()
    for path in model.iterdir():
        blob = cache / "blobs" / f"of-{path.name}"
        path.rename(blob)
        (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    report = program.json("convert", cache, model.parent / "result", "--recipe", "mxfp4")
    assert report["source"] == str(cache)
    assert program.json("inspect", cache) | {"path": ""} == (
        program.json("inspect", snapshot) | {"path": ""}
    )


def broken_model(folder: pathlib.Path, value: float) -> pathlib.Path:
    name = "encoder.layer.0.output.dense.weight"
    weight = numpy.ones(LINEAR[name.removesuffix(".weight")], numpy.float32)
    weight[3, 5] = value
    return small_model(folder, **{name: weight})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_weights(program: Program, tmp_path: pathlib.Path, value: float):
    model = broken_model(tmp_path / "model", value)
    arguments = ["convert", model, tmp_path / "result", "--recipe", "nvfp4"]
    message = program.fails("nonfinite", *arguments, "--quiet")
    assert "encoder.layer.0.output.dense.weight" in message
    assert "--allow-nonfinite converts it" in message
    assert not (tmp_path / "result").exists()
    program.json(*arguments, "--allow-nonfinite", "--overwrite")
    assert (tmp_path / "result" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("not_found", ["missing", "result", "--recipe", "nvfp4"], "missing"),
        ("invalid_argument", ["model", "result", "--recipe", "nvfp4", "--include", "x*"], "x*"),
        (
            "not_found",
            ["model", "result", "--recipe", "nvfp4", "--activation-scales", "missing.json"],
            "missing.json",
        ),
    ],
)
def test_bad_input_leaves_nothing(
    program: Program, model: pathlib.Path, name: str, arguments: list[str], message: str
):
    source, destination, *options = arguments
    folder = model.parent
    before = files_below(folder)
    paths = [folder / source, folder / destination]
    options = [folder / text if text.endswith(".json") else text for text in options]
    assert message in program.fails(name, "convert", *paths, *options, "--quiet")
    assert files_below(folder) == before


def test_a_dialect_that_cannot_say_the_recipe(program: Program, model: pathlib.Path):
    result = model.parent / "result"
    arguments = ["convert", model, result, "--recipe", "mxfp4", "--dialect", "deepseek", "--quiet"]
    run = program(*arguments)
    assert run.code in (EXIT_CODES["invalid_argument"], EXIT_CODES["unsupported"]), run
    assert "mxfp4" in run.err and "deepseek" in run.err
    assert not result.exists()


def test_corrupt_source(program: Program, model: pathlib.Path):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4", "--quiet"]
    assert str(file) in program.fails("corrupt_file", *arguments)


def test_unwritable_destination(program: Program, model: pathlib.Path):
    result = "/proc/blockscale/result"
    run = program("convert", model, result, "--recipe", "nvfp4", "--quiet")
    assert run.code in (EXIT_CODES["io"], EXIT_CODES["not_found"]), run
    assert "/proc" in run.err


def large_model(folder: pathlib.Path) -> pathlib.Path:
    """96 layers of 1024 x 1024 in f32, 384 MiB: takes the program a second or so."""
    block = numpy.random.default_rng(2).standard_normal((1024, 1024)).astype(numpy.float32)
    folder.mkdir()
    save_file(
        {f"layers.{i}.mlp.up_proj.weight": block for i in range(96)}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text("{}")
    return folder


def test_interrupt_and_resume(cli: pathlib.Path, program: Program, tmp_path: pathlib.Path):
    model = large_model(tmp_path / "model")
    result = tmp_path / "result"
    arguments = ["--recipe", "nvfp4", "--shard-size", "8MB", "--threads", "1"]
    command = [cli, "convert", model, result, *arguments]
    expected = tmp_path / "expected"
    program.json("convert", model, expected, *arguments)

    primary, secondary = open_terminal()  # so that the bar tells when the conversion runs
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=secondary) as process:
        shown = b""
        while b"%" not in shown:
            shown += os.read(primary, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    os.close(secondary)
    shown += os.read(primary, 65536)
    os.close(primary)
    assert process.returncode == EXIT_CODES["interrupted"]
    assert out == b""
    text = shown.decode().replace("\r\n", "\n").strip().split("\x1b[K")[-1]
    said = re.search(
        r'error: convert: was stopped at "layers\.\d+\.mlp\.up_proj\.weight"; (\d+) of (\d+) files '
        r"are finished and kept in (\S+); the same command with --resume continues it$",
        text,
    )
    assert said, text
    kept = pathlib.Path(said[3])
    assert kept == tmp_path / ".result.blockscale-partial"
    shards = list((kept / "result").glob("*.safetensors"))
    assert int(said[1]) == len(shards) <= int(said[2]) == len(list(expected.glob("*.safetensors")))
    assert not result.exists()

    program.json("convert", model, result, *arguments, "--resume")
    assert files_below(result) == files_below(expected)


def test_progress_on_a_terminal_is_a_bar(cli: pathlib.Path, model: pathlib.Path):
    primary, secondary = open_terminal()
    command = [cli, "convert", model, model.parent / "result", "--recipe", "nvfp4"]
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=secondary, check=True, timeout=60)
    os.close(secondary)
    shown = os.read(primary, 65536)
    os.close(primary)
    assert b"% [" in shown
    assert shown.endswith(b"\r\x1b[K")
    drawn = [part.split(b"\x1b[K")[0] for part in shown.split(b"\r")]
    assert max(map(len, drawn)) < 40
