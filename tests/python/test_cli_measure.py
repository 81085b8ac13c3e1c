"""`blockscale gemm`, `bench` and `doctor` from end to end."""

import json
import os
import pathlib
import re

import numpy as np
import pytest
from cli_testing import EXIT_CODES, LINEAR, Program
from safetensors.numpy import save_file

WEIGHTS = [module + ".weight" for module in LINEAR]


@pytest.mark.parametrize(
    ("recipe_a", "recipe_b"),
    [
        ("nvfp4", "nvfp4"),
        ("mxfp8_e4m3", "mxfp4"),
        ("fp8_1x128", "fp8_128x128"),
        ("bf16", "mxfp6_e3m2"),
        ("f32", "f32"),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_gemm(program: Program, recipe_a: str, recipe_b: str, dtype: str):
    arguments = ["gemm", "-m", 33, "-n", 70, "-k", 256, "--recipe-a", recipe_a]
    arguments += ["--recipe-b", recipe_b, "--dtype", dtype, "--threads", 2]
    report = program.json(*arguments, "--repeats", 2, "--samples", 100)
    settings = {"m": 33, "n": 70, "k": 256, "recipe_a": recipe_a, "recipe_b": recipe_b}
    settings |= {"dtype": dtype, "threads": 2}
    assert {key: report[key] for key in settings} == settings
    assert 0 < report["seconds"] <= report["median_seconds"]
    assert report["gflops"] == pytest.approx(2e-9 * 33 * 70 * 256 / report["seconds"])
    check = report["check"]
    assert check["elements"] == 100
    assert check["passed"]
    assert 0 <= check["largest_error"] <= check["proven_error"] and 0 <= check["of_usual"] <= 1


def test_gemm_text(program: Program):
    arguments = "gemm -m 3 -n 5 -k 32 --recipe-a mxfp8_e4m3 --recipe-b mxfp4"
    first, second, third = program.ok(*arguments.split()).splitlines()
    assert first == "D [3, 5] f32 = A [3, 32] mxfp8_e4m3 x B [5, 32]^T mxfp4"
    assert re.match(
        r"time   \S+ (us|ms|s) \(fastest of 5; median .*GFLOP/s, \d+ threads?, ", second
    )
    assert re.match(r"check  15 elements against float64: .*: passed$", third)


@pytest.mark.parametrize("transform", ["identity", "gelu_tanh", "gelu_erf", "silu", "swiglu"])
@pytest.mark.parametrize(
    ("to", "bytes_of_128", "bytes_of_row"),
    [
        ("fp8_1x128", 132, 0),
        ("fp8_1x128_ue8m0", 129, 0),
        ("fp8_row", 128, 4),
        ("mxfp8_e4m3", 132, 0),
        ("nvfp4", 72, 0),
    ],
)
def test_gemm_quantizes(
    program: Program, to: str, bytes_of_128: int, bytes_of_row: int, transform: str
):
    arguments = ["gemm", "-m", 5, "-n", 256, "-k", 256, "--repeats", 1, "--transform", transform]
    arguments += ["--recipe-a", "fp8_1x128", "--recipe-b", "fp8_128x128", "--to", to]
    report = program.json(*arguments)
    assert (report["to"], report["transform"]) == (to, transform) and "dtype" not in report
    blocks = 1 if transform == "swiglu" else 2
    check = report["check"]
    bytes_of_all = 5 * (blocks * bytes_of_128 + bytes_of_row)
    assert (check["bytes"], check["different_bytes"]) == (bytes_of_all, 0)
    assert check["passed"] and 0 <= check["largest_error"] <= check["proven_error"]
    first, *_, last = program.ok(*arguments).splitlines()
    product = "A [5, 256] fp8_1x128 x B [256, 256]^T fp8_128x128"
    result = product if transform == "identity" else f"{transform}({product})"
    assert first == f"D [5, {128 * blocks}] {to} = {result}"
    bytes_text = f"{check['bytes']:,} differ from what quantize makes of D in f32: passed"
    assert last == f"bytes  0 of {bytes_text}"


@pytest.mark.parametrize("transform", ["gelu_tanh", "gelu_erf", "silu", "swiglu"])
def test_gemm_transforms_a_plain_result(program: Program, transform: str):
    arguments = ["gemm", "-m", 5, "-n", 64, "-k", 32, "--repeats", 1, "--transform", transform]
    arguments += ["--recipe-a", "bf16", "--recipe-b", "mxfp4", "--dtype", "bf16"]
    report = program.json(*arguments)
    assert (report["dtype"], report["transform"]) == ("bf16", transform) and "to" not in report
    assert report["check"]["passed"] and report["check"]["elements"] == 5 * 64
    columns = 32 if transform == "swiglu" else 64
    product = "A [5, 32] bf16 x B [64, 32]^T mxfp4"
    assert program.ok(*arguments).startswith(f"D [5, {columns}] bf16 = {transform}({product})\n")
    bench = program.json(
        *("bench", "gemm", "-m", 5, "-n", 64, "-k", 32, "--pair", "bf16:mxfp4", "--repeats", 1),
        *("--transform", transform),
    )
    assert bench["transform"] == transform


@pytest.mark.parametrize(
    ("arguments", "name", "message"),
    [
        ("-m 4 -n 4", "usage", "give -m, -n, -k, --recipe-a and --recipe-b, or --weights PATH"),
        ("-m 0 -n 4 -k 4", "usage", "-m: '0' is out of range"),
        ("-m 4 -n 4 -k 4 --recipe-a f32 --recipe-b f32 --dtype e4m3", "usage", "f32, f16, bf16"),
        ("-m 4 -n 4 -k 4 --recipe-a f32 --recipe-b f32 --baselines", "usage", "go with --weights"),
        ("-m 4 -n 4 -k 4 --recipe-a f32 --recipe-b f32 --samples 0", "usage", "--samples"),
        ("--weights model -n 4", "usage", "-n and -k come from --weights"),
        ("--weights missing", "not_found", "missing"),
        ("--weights model --to nvfp4", "usage", "--transform go with random operands"),
        ("--weights model --transform swiglu", "usage", "--transform go with random operands"),
        ("--to nvfp4 --dtype f32", "usage", "--dtype excludes --to"),
        (
            "-m 4 -n 65 -k 32 --recipe-a f32 --recipe-b f32 --transform swiglu",
            "invalid_argument",
            "b.rows: is 65, must be 64",
        ),
        ("--to nvfp4 --transform modulate", "usage", "of identity, gelu_tanh, gelu_erf, silu"),
        (
            "-m 4 -n 4 -k 32 --recipe-a f32 --recipe-b f32 --to fp8_tensor",
            "unsupported",
            "quantized.out.recipe: is fp8_tensor, must be fp8_1x128",
        ),
        (
            "-m 4 -n 65 -k 32 --recipe-a f32 --recipe-b f32 --to fp8_1x128 --transform swiglu",
            "invalid_argument",
            "quantized.x.columns: is 65, must be 64",
        ),
        (
            "-m 16777216 -n 16777216 -k 16777216 --recipe-a f32 --recipe-b f32",
            "invalid_argument",
            "m, n, k: need 5.0 PiB of memory, of which",
        ),
        ("-m 4 -n 4 -k 40 --recipe-a nvfp4 --recipe-b nvfp4", "invalid_argument", "40"),
        ("-m 4 -n 4 -k 128 --recipe-a nvfp4 --recipe-b fp8_row", "unsupported", "nvfp4"),
    ],
)
def test_gemm_refuses(program: Program, arguments: str, name: str, message: str):
    assert message in program.fails(name, "gemm", *arguments.split())


def test_gemm_of_a_model(program: Program, model: pathlib.Path):
    arguments = ["gemm", "--weights", model, "--recipe-a", "nvfp4", "--recipe-b", "nvfp4"]
    report = program.json(*arguments, "-m", 16, "--repeats", 1, "--baselines")
    assert report["m"] == 16
    assert sorted(layer["name"] for layer in report["layers"]) == sorted(WEIGHTS)
    for layer in report["layers"]:
        n, k = LINEAR[layer["name"].removesuffix(".weight")]
        assert (layer["n"], layer["k"], layer["recipe_b"]) == (n, k, "nvfp4")
        # Rounding of normal values to NVFP4 costs about a tenth on each side.
        assert 0.08 < layer["error"] < 0.2
        assert layer["seconds"] > 0
        assert 1e-3 < layer["baselines"]["bf16"]["error"] < 5e-3
        assert layer["baselines"]["f32"]["error"] < 1e-6
    quantized, f32, bf16 = report["totals"]
    pairs = [(total["recipe_a"], total["recipe_b"]) for total in (quantized, f32, bf16)]
    assert pairs == [("nvfp4", "nvfp4"), ("f32", "f32"), ("bf16", "bf16")]
    assert quantized["seconds"] == pytest.approx(sum(x["seconds"] for x in report["layers"]))
    text = program.ok(*arguments, "-m", 16, "--repeats", 1)
    assert "nvfp4 x nvfp4" in text
    assert all(name in text for name in WEIGHTS)


def test_gemm_of_a_converted_model(program: Program, model: pathlib.Path):
    converted = model.parent / "converted"
    program.json("convert", model, converted, "--recipe", "mxfp8_e4m3")
    arguments = ["gemm", "--weights", converted, "--repeats", 1]
    own = program.json(*arguments)
    true = program.json(*arguments, "--reference", model)
    assert own["m"] == 128
    assert [layer["name"] for layer in own["layers"]] == [layer["name"] for layer in true["layers"]]
    for own_layer, true_layer in zip(own["layers"], true["layers"], strict=True):
        assert own_layer["recipe_b"] == "mxfp8_e4m3"
        assert own_layer["error"] < 1e-6  # B is what it is compared with
        assert 0.01 < true_layer["error"] < 0.05


def test_gemm_of_a_ruined_layer(program: Program, tmp_path: pathlib.Path):
    """A product with NaN is no product without error, whichever side has it."""
    values = np.ones((64, 64), np.float32)
    for name, first in (("whole", 1), ("broken", np.nan), ("zeros", 1)):
        values[0, 0] = first
        tensors = {"layer.weight": values * (name != "zeros")}
        save_file(tensors, tmp_path / f"{name}.safetensors")
    for weights, reference, error in (
        ("whole", "broken", "NaN"),
        ("broken", "whole", "NaN"),
        ("whole", "zeros", "inf"),
    ):
        arguments = ["gemm", "--weights", tmp_path / f"{weights}.safetensors", "--repeats", 1]
        arguments += ["--reference", tmp_path / f"{reference}.safetensors", "-m", 4]
        report = program.json(*arguments)
        assert report["layers"][0]["error"] is None
        assert report["totals"][0]["error"] is None
        assert program.ok(*arguments).count(f" {error} %") == 2
    same = ["gemm", "--weights", tmp_path / "zeros.safetensors", "--repeats", 1]
    assert program.json(*same)["layers"][0]["error"] == 0


def test_gemm_of_chosen_layers(program: Program, model: pathlib.Path):
    arguments = ["gemm", "--weights", model, "--repeats", 1, "-m", 2]
    layers = program.json(*arguments, "--tensor", "*.query.weight", "--tensor", "*.key*")["layers"]
    assert sorted(layer["name"].split(".")[-2] for layer in layers) == ["key", "query"]
    assert "matches no tensor" in program.fails("invalid_argument", *arguments, "--tensor", "none*")
    both = ["--tensor", "*.query.weight", "--tensor", "re:.*\\.kye$"]
    assert '"re:.*\\\\.kye$" matches no tensor' in program.fails(
        "invalid_argument", *arguments, *both
    )
    chosen = program.json(*arguments, "--tensor", "re:.*\\.(query|key)$")["layers"]
    assert [layer["name"] for layer in chosen] == [layer["name"] for layer in layers]
    bad = program.fails("invalid_argument", *arguments, "--tensor", "re:(")
    assert 'is no regular expression: "missing ): ("' in bad


def test_gemm_refuses_a_reference_of_another_shape(program: Program, model: pathlib.Path):
    file = model / "config.json"
    message = program.fails(
        "not_found", "gemm", "--weights", model, "--reference", file.parent / "x"
    )
    assert str(file.parent / "x") in message


def test_bench_quantize(program: Program):
    arguments = ["bench", "quantize", "--rows", 64, "--k", 256, "--repeats", 1]
    report = program.json(*arguments, "--recipe", "nvfp4", "--recipe", "fp8_128x128")
    assert [case["recipe"] for case in report["cases"]] == ["nvfp4", "fp8_128x128"]
    for case in report["cases"]:
        assert case["dtype"] == "bf16"
        assert case["seconds"] > 0
        assert case["input_gb_per_second"] == pytest.approx(64 * 256 * 2e-9 / case["seconds"])
        assert case["memcpy_share"] > 0
    text = program.ok(*arguments, "--dtype", "f32", "--layout", "row_major")
    assert text.splitlines()[0].startswith("Recipe ")
    assert re.search(r"^nvfp4 +f32 +row_major +identity +1 ", text, re.MULTILINE)
    fused = program.json(
        *arguments, "--recipe", "mxfp4", "--transform", "swiglu", "--transform", "rms_norm"
    )
    assert [case["transform"] for case in fused["cases"]] == ["swiglu", "rms_norm"]
    for case, columns in zip(fused["cases"], (512, 256), strict=True):
        assert case["input_gb_per_second"] == pytest.approx(64 * columns * 2e-9 / case["seconds"])
    assert "'relu' is no transform; choose one of identity, gelu_tanh" in program.fails(
        "usage", "bench", "quantize", "--transform", "relu"
    )
    assert "is 250" in program.fails(
        "invalid_argument", "bench", "quantize", "--k", 250, "--rows", 4, "--recipe", "nvfp4"
    )


def test_bench_dequantize(program: Program):
    arguments = ["bench", "dequantize", "--rows", 64, "--k", 256, "--repeats", 1]
    report = program.json(*arguments, "--recipe", "nvfp4", "--recipe", "fp8_128x128")
    assert [case["recipe"] for case in report["cases"]] == ["nvfp4", "fp8_128x128"]
    for case in report["cases"]:
        assert case["result_gb_per_second"] == pytest.approx(64 * 256 * 2e-9 / case["seconds"])
        assert case["memcpy_share"] > 0
    text = program.ok(*arguments, "--recipe", "nvfp4", "--dtype", "f32")
    assert text.splitlines()[0].startswith("Recipe  To ")
    assert re.search(r"^nvfp4 +f32 +swizzled_128x4 +1 ", text, re.MULTILINE)
    assert "is 250" in program.fails(
        "invalid_argument", *arguments[:4], "--k", 250, "--recipe", "nvfp4"
    )


SIZES = ["-m", "8", "-n", "128", "-k", "256"]
PAIR = ["--recipe-a", "fp8_1x128", "--recipe-b", "fp8_128x128"]
GEMM = ["gemm", *SIZES, *PAIR]
GROUPS = ["gemm", "--groups", "4x5", *SIZES[2:], *PAIR]


@pytest.mark.parametrize(
    "command",
    [
        ["bench", "quantize"], ["bench", "gemm"], GEMM, ["bench", "grouped_gemm"], GROUPS,
        ["bench", "moe"], ["moe"],
    ],
    ids=[
        "bench quantize", "bench gemm", "gemm", "bench grouped_gemm", "gemm of groups", "bench moe",
        "moe",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("driver", "failure", "exit_code", "text"),
    [
        ("none", "", "not_found", "no GPU: the NVIDIA driver is not installed here: "),
        ("fake", "cuInit=100", "not_found", "no GPU: cuInit failed with error 100 "),
        ("fake", "cuDeviceGetCount=100", "not_found", "no GPU: cuDeviceGetCount failed with"),
        ("fake", "cuInit=999", "device", "driver: cuInit failed with error 999 "),
    ],
)
def test_measuring_without_a_gpu(
    program: Program,
    fake_driver: str,
    command: list[str],
    driver: str,
    failure: str,
    exit_code: str,
    text: str,
):
    result = program(
        *[*command, "--device", "cuda"],
        BLOCKSCALE_LIBCUDA=fake_driver if driver == "fake" else "/none/libcuda.so.1",
        BLOCKSCALE_FAKE_CUDA_FAILURE=failure,
    )
    assert (result.code, result.out) == (EXIT_CODES[exit_code], ""), result
    name = " ".join(command[:2] if command[0] == "bench" else command[:1])
    assert result.err.startswith(f"blockscale {name}: error: {text}"), result


def test_plans_are_for_a_named_chip(program: Program):
    product = ("bench", "gemm", "--device", "cuda", "--plan", "-m", "4096")
    small = program.ok(*product, "--chip", "H20")
    assert small != program.ok(*product, "--chip", "H200")
    assert " 78 x 384 threads" in small
    quantizer = ("bench", "quantize", "--device", "cuda", "--plan", "--recipe", "nvfp4")
    assert "quantize_blocks_nvfp4_" in program.ok(*quantizer, "--chip", "RTX PRO 6000")
    text = program.fails("invalid_argument", *product, "--chip", "H2")
    assert "chip: is 'H2', must be of one of NVIDIA H200, NVIDIA H100" in text
    assert "--chip goes with --plan" in program.fails("usage", "bench", "gemm", "--chip", "H200")


def test_gemm_on_a_gpu_refuses(program: Program, fake_driver: str):
    def error(*arguments: str, capability: str = "90") -> tuple[int, str]:
        result = program(
            *[*arguments, "--device", "cuda"],
            BLOCKSCALE_LIBCUDA=fake_driver,
            BLOCKSCALE_FAKE_CUDA_CAPABILITY=capability,
        )
        assert result.out == "", result
        return result.code, result.err

    code, text = error(*GEMM, capability="80")
    assert code == EXIT_CODES["unsupported"]
    assert "device: is on Fake H200 number 0 (compute capability 8.0); kernels are for 9.0" in text
    code, text = error(*GEMM[:-3], "mxfp4", "--recipe-b", "nvfp4")
    assert code == EXIT_CODES["unsupported"]
    assert "b.recipe: is nvfp4 with a.recipe mxfp4: no such pair" in text
    code, text = error("gemm", "--weights", "model")
    assert (
        code == EXIT_CODES["usage"] and "--device cuda, --to and --transform go with random" in text
    )


@pytest.mark.parametrize(
    "to",
    [[], ["--transform", "swiglu"], ["--to", "fp8_1x128", "--transform", "gelu_erf"]],
    ids=str,
)
def test_what_no_gpu_has_computed_fails_its_check(
    program: Program, fake_driver: str, to: list[str]
):
    arguments = [*GEMM, *to, "--device", "cuda", "--json"]
    result = program(*arguments, BLOCKSCALE_LIBCUDA=fake_driver)
    assert result.code == EXIT_CODES["check_failed"], result
    assert "the result is outside its error bound; please report it" in result.err
    report = json.loads(result.out)
    assert not report["check"]["passed"] and report["device"] == "Fake H200 number 0"
    assert report["check"]["of_usual"] > 1
    launches = 2 if "--to" not in to and to else 1  # a transform of a plain result follows
    assert report["seconds"] == launches * 1e-3  # of a launch in the fake
    if "--to" in to:
        assert 0 < report["check"]["different_bytes"] <= report["check"]["bytes"] == 8 * 132


def test_bench_gemm(program: Program):
    arguments = ["bench", "gemm", "-m", 8, "-n", 16, "-k", 256, "--repeats", 1]
    report = program.json(*arguments, "--pair", "bf16:nvfp4", "--pair", "mxfp4")
    pairs = [(case["recipe_a"], case["recipe_b"]) for case in report["cases"]]
    assert pairs == [("bf16", "nvfp4"), ("mxfp4", "mxfp4")]
    assert all(case["seconds"] > 0 and case["gflops"] > 0 for case in report["cases"])
    quantized = program.json(*arguments, "--pair", "mxfp4", "--to", "nvfp4")
    assert (quantized["to"], quantized["transform"]) == ("nvfp4", "identity")
    assert quantized["cases"][0]["seconds"] > 0 and "dtype" not in quantized
    lines = program.ok(*arguments).splitlines()
    assert lines[0].split() == ["A", "B", "Time", "Median", "GFLOP/s", "Of", "the", "bound"]
    assert len(lines) >= 10


def test_bench_gemm_says_what_bounds_a_product(program: Program, tmp_path: pathlib.Path):
    file = tmp_path / "gemm.json"
    arguments = ["bench", "gemm", "-m", 256, "-n", 64, "-k", 256, "--pair", "f32", "--repeats", 4]
    report = program.json(*arguments, "--output", file)
    assert json.loads(file.read_text()) == report
    (peaks,), (case,) = report["peaks"], report["cases"]
    assert case["bytes"] == 4 * (256 * 256 + 64 * 256) + 2 * 256 * 64
    assert (case["operations"], case["multiplier"]) == (2 * 256 * 64 * 256, "f32")
    bound = max(case["bytes"] / peaks["read_bytes_per_second"], case["operations"] / peaks["f32"])
    assert case["bound_share"] == pytest.approx(bound / case["median_seconds"])
    low, high = case["quartile_seconds"]
    assert case["seconds"] <= low <= case["median_seconds"] <= high
    (plan,) = program.json(*arguments, "--plan")["cases"]
    assert all(plan[key] == case[key] for key in ("bytes", "operations", "multiplier"))


def test_bench_peaks(program: Program):
    report = program.json("bench", "peaks", "--repeats", 1, "--threads", 2)
    assert report["threads"] == 2 and report["read_bytes_per_second"] > 1e8
    assert report["f32"] > 1e8 and {"bf16", "int8", "simd_target"} <= set(report)
    text = program.ok("bench", "peaks", "--repeats", 1)
    assert re.match(r"1 thread, \S+: reads [0-9.]+ GB/s; multiplies f32 at \d+ Gop/s", text)


def test_a_result_that_cannot_be_written_is_an_error(program: Program, tmp_path: pathlib.Path):
    arguments = ["bench", "copy", "--size", "1MiB", "--output"]
    result = program(*arguments, tmp_path / "none" / "x.json")
    assert result.code == EXIT_CODES["not_found"] and "x.json: cannot create" in result.err
    assert result.out.startswith("memcpy"), "what was measured is not lost"
    assert "must not be empty" in program.fails("usage", *arguments, "")


def test_plans_of_gemm_on_a_gpu_need_none(program: Program):
    arguments = ["bench", "gemm", "--device", "cuda", "--plan", "-m", 64]
    report = program.json(*arguments, "--pair", "fp8_1x128:fp8_128x128", "-n", 576, "-k", 7168)
    assert [report[size] for size in ("m", "n", "k")] == [64, 576, 7168]
    (case,) = report["cases"]
    assert (case["recipe_a"], case["recipe_b"]) == ("fp8_1x128", "fp8_128x128")
    assert case["plan"].startswith("gemm_fp8_") and "56 blocks of K" in case["plan"]
    quantized = ["--pair", "fp8_1x128:fp8_128x128", "--to", "mxfp8_e4m3", "--transform", "swiglu"]
    (case,) = program.json(*arguments, *quantized)["cases"]
    assert "_quantized: " in case["plan"] and ", then swiglu and mxfp8_e4m3; " in case["plan"]
    lines = program.ok(*arguments).splitlines()
    assert lines[0] == "fp8_tensor x fp8_tensor" and lines[1].startswith("gemm_fp8_")
    (case,) = program.json(*arguments, "--pair", "f32:mxfp4")["cases"]
    assert case["plan"].startswith("plain: gemm_plain_")
    (case,) = program.json(*arguments, "--pair", "bf16:mxfp4")["cases"]
    assert case["plan"].startswith("gemm_tiles_mxfp4_64x128: ")
    arguments[-1] = 4
    (case,) = program.json(*arguments, "--pair", "bf16:mxfp4")["cases"]
    assert case["plan"].startswith("gemm_few_rows_mxfp4_8: ")


def test_tuning_gemm_asks_for_a_gpu(program: Program, tmp_path: pathlib.Path):
    for arguments in ([], ["--device", "cuda", "--plan"]):
        message = program.fails("usage", "bench", "gemm", "--tune", *arguments)
        assert "--tune goes with --device cuda, and without --plan" in message
    nowhere = {"BLOCKSCALE_LIBCUDA": str(tmp_path / "none.so")}
    result = program("bench", "gemm", "--device", "cuda", "--tune", **nowhere)
    assert result.code == EXIT_CODES["not_found"] and "no GPU" in result.err, result


def test_a_damaged_tuning_file_is_said_and_not_used(program: Program, tmp_path: pathlib.Path):
    file = tmp_path / "tuning.json"
    file.write_text("{")
    arguments = ["bench", "gemm", "--device", "cuda", "--plan", "-m", 64]
    result = program(*arguments, BLOCKSCALE_TUNING=str(file))
    assert (result.code, result.out) == (0, program.ok(*arguments))
    assert f"products are not tuned: {file}: is no JSON" in result.err, result
    silent = program(*arguments, BLOCKSCALE_TUNING=str(file), BLOCKSCALE_LOG="off")
    assert (silent.code, silent.err) == (0, "")


def test_bench_copy(program: Program):
    report = program.json("bench", "copy", "--size", "1MiB", "--repeats", 1, "--threads", 2)
    assert (report["bytes"], report["threads"]) == (1 << 20, 2)
    assert report["bytes_per_second"] > 1e6
    assert "memcpy of 1.0 MiB on 1 thread: " in program.ok("bench", "copy", "--size", "1MiB")


def test_doctor(program: Program):
    report = program.json("doctor")
    assert report["cpu"]["threads"] >= 1
    assert report["cpu"]["logical_cpus"] == os.cpu_count()
    assert report["cpu"]["simd_target"] in report["cpu"]["simd_targets_compiled"]
    has_tiles = report["cpu"]["simd_has_tiles"]
    assert isinstance(has_tiles, bool)
    assert "amx_bf16" in report["cpu"]["features"] or not has_tiles
    assert {"blockscale", "oneTBB", "Highway", "CLI11", "compiler"} <= set(report["versions"])
    assert report["versions"]["blockscale"] == report["version"]
    assert report["log_level"] == "warning"
    memory = pathlib.Path("/proc/meminfo").read_text()
    total = int(re.search(r"MemTotal: +(\d+) kB", memory)[1]) * 1024
    assert report["memory"]["total_bytes"] == total
    assert report["used"].startswith("the CPU, with " + report["cpu"]["simd_target"])
    nodes = sorted(str(node) for node in pathlib.Path("/dev").glob("nvidia*"))
    assert report["gpu"]["device_nodes"] == nodes
    text = program.ok("doctor")
    for label in (
        "Uses",
        "CPU",
        "Features",
        "SIMD",
        "Memory",
        "GPU",
        "NVRTC",
        "Kernels",
        "Versions",
        "Log",
    ):
        assert re.search(rf"^{label} +\S", text, re.MULTILINE), label
    if not report["gpu"]["devices"]:
        assert "no usable GPU" in report["used"]
    kernels = report["kernels"]
    states = ("packed", "cached", "outdated", "missing")
    assert sum(kernels[state] for state in states) > 0
    names = [pack["architecture"] for pack in kernels["packs"]]
    assert names == ["sm_90a", "sm_100f", "sm_120f"]
    compiler = kernels["compiler"]
    assert bool(compiler["version"]) != bool(compiler["problem"])


def test_doctor_with_a_driver_that_is_too_old(program: Program, old_driver: str):
    environment = {"BLOCKSCALE_LIBCUDA": old_driver}
    report = program("doctor", "--json", **environment).json()
    problem = "the driver has no cuLibraryLoadData, which kernels need: install one for CUDA 13"
    assert report["gpu"]["problem"] == problem
    assert len(report["gpu"]["devices"]) == 2
    assert report["used"].endswith(f"; not the GPU, as {problem}")
    text = " ".join(program("doctor", **environment).out.split())
    assert f"; not the GPU, as {problem}" in text


def test_doctor_with_a_driver_that_works(program: Program, fake_driver: str):
    report = program("doctor", "--json", BLOCKSCALE_LIBCUDA=fake_driver).json()
    assert report["gpu"]["problem"] == ""
    assert report["used"].endswith("; the GPU for data that is in its memory (Fake H200 number 0)")


def test_json_is_one_object(program: Program, model: pathlib.Path):
    for arguments in (["doctor"], ["inspect", model], ["compare", model, model]):
        assert isinstance(json.loads(program.ok(*arguments, "--json")), dict)
