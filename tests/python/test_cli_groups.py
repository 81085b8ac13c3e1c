"""Products of groups from the command line: gemm --groups and bench grouped_gemm."""

from __future__ import annotations

import json
import re

import pytest
from cli_testing import EXIT_CODES, Program

SIZES = ["-n", "96", "-k", "256"]


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
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gemm_of_groups(program: Program, recipe_a: str, recipe_b: str, dtype: str):
    recipes = ["--recipe-a", recipe_a, "--recipe-b", recipe_b, "--dtype", dtype]
    arguments = ["gemm", "--groups", "6x7", *SIZES, *recipes, "--threads", 2, "--repeats", 2]
    report = program.json(*arguments, "--samples", 500)
    settings = {"groups": 6, "m": 42, "n": 96, "k": 256, "recipe_a": recipe_a}
    settings |= {"recipe_b": recipe_b, "dtype": dtype, "threads": 2}
    assert {key: report[key] for key in settings} == settings
    assert 0 <= report["least_rows"] <= 7 <= report["most_rows"] <= 42
    assert report["plan"].startswith("6 groups of up to 42 rows, ")
    assert 0 < report["seconds"] <= report["median_seconds"]
    assert report["gflops"] == pytest.approx(2e-9 * 42 * 96 * 256 / report["seconds"])
    check = report["check"]
    assert check["passed"] and check["elements"] == 500
    assert 0 <= check["largest_error"] <= check["proven_error"] and 0 <= check["of_usual"] <= 1


@pytest.mark.parametrize("transform", ["gelu_tanh", "silu", "swiglu"])
def test_what_is_printed(program: Program, transform: str):
    recipes = ["--recipe-a", "mxfp8_e4m3", "--recipe-b", "mxfp4", "--transform", transform]
    first, *plan, time, check = program.ok("gemm", "--groups", "3x4", *SIZES, *recipes).splitlines()
    columns = 48 if transform == "swiglu" else 96
    product = f"{transform}(A [12, 256] mxfp8_e4m3 x B [3, 96, 256]^T mxfp4)"
    assert re.fullmatch(
        rf"D \[12, {columns}\] f32 = {re.escape(product)}: 3 groups of \d to \d rows", first
    )
    assert plan[0].startswith("3 groups of up to 12 rows, ") and plan[0].endswith(transform)
    assert all(re.match(r"(from )?\d+", line) for line in plan[1:])
    assert re.match(r"time   \S+ (us|ms|s) \(fastest of 5; median ", time)
    assert re.match(r"check  1024 elements against float64: .*: passed$", check)


@pytest.mark.parametrize(
    ("arguments", "name", "message"),
    [
        ("--groups 3x4", "usage", "give -n, -k, --recipe-a and --recipe-b with --groups"),
        ("--groups 3", "usage", "--groups: '3' is no number of groups x rows, such as 32x20"),
        ("--groups 0x4", "usage", "--groups: '0' is out of range"),
        ("--groups 3x0", "usage", "--groups: '0' is out of range"),
        ("--groups 65536x4", "usage", "--groups: '65536' is out of range; allowed are 1..65535"),
        ("--groups 3x4 -m 4 -n 4 -k 4 --recipe-a f32 --recipe-b f32", "usage", "without -m"),
        ("--groups 3x4 -n 4 -k 4 --recipe-a f32 --recipe-b f32 --to nvfp4", "usage", "--to"),
        ("--groups 3x4 -n 4 -k 40 --recipe-a nvfp4 --recipe-b nvfp4", "invalid_argument", "40"),
        ("--groups 3x4 -n 4 -k 128 --recipe-a nvfp4 --recipe-b fp8_row", "unsupported", "nvfp4"),
        (
            "--groups 65535x4 -n 16777216 -k 16777216 --recipe-a f32 --recipe-b f32",
            "invalid_argument",
            "groups, n, k: need ",
        ),
    ],
)
def test_gemm_of_groups_refuses(program: Program, arguments: str, name: str, message: str):
    assert message in program.fails(name, "gemm", *arguments.split())


@pytest.mark.parametrize("transform", [[], ["--transform", "swiglu"]], ids=str)
def test_what_no_gpu_has_computed_fails_its_check(
    program: Program, fake_driver: str, transform: list[str]
):
    recipes = ["--recipe-a", "fp8_1x128", "--recipe-b", "fp8_128x128"]
    arguments = ["gemm", "--groups", "4x16", *SIZES, *recipes, *transform, "--device", "cuda"]
    result = program(*arguments, "--json", BLOCKSCALE_LIBCUDA=fake_driver)
    assert result.code == EXIT_CODES["check_failed"], result
    assert "the result is outside its error bound; please report it" in result.err
    report = json.loads(result.out)
    assert not report["check"]["passed"] and report["device"] == "Fake H200 number 0"
    assert report["check"]["of_usual"] > 1 and report["plan"].startswith("grouped_gemm_fp8_")
    assert report["seconds"] == (2e-3 if transform else 1e-3)  # of a launch in the fake


def test_bench_of_groups(program: Program):
    arguments = ["bench", "grouped_gemm", *SIZES, "--repeats", 1]
    pairs = ["--pair", "bf16:nvfp4", "--pair", "mxfp4"]
    report = program.json(*arguments, *pairs, "--groups", "3x2", "--groups", "2x40")
    cases = [(c["groups"], c["m"], c["recipe_a"], c["recipe_b"]) for c in report["cases"]]
    assert cases == [
        (groups, m, a, b)
        for groups, m in ((3, 6), (2, 80))
        for a, b in (("bf16", "nvfp4"), ("mxfp4", "mxfp4"))
    ]
    assert (report["n"], report["k"], report["dtype"]) == (96, 256, "bf16")
    for case in report["cases"]:
        assert 0 < case["seconds"] <= case["median_seconds"] and case["bound_share"] > 0
        assert case["gflops"] == pytest.approx(2e-9 * case["m"] * 96 * 256 / case["seconds"])
    lines = program.ok(*arguments).splitlines()
    assert lines[0].split() == [
        "Groups", "A", "B", "Time", "Median", "GFLOP/s", "Of", "the", "bound",
    ]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == ["16x32"] * 5


def test_plans_of_groups_need_no_gpu(program: Program):
    arguments = ["bench", "grouped_gemm", "--plan", "--groups", "32x20", "-n", 4096, "-k", 7168]
    pair = ["--pair", "fp8_1x128:fp8_128x128"]
    (case,) = program.json(*arguments, *pair, "--device", "cuda", "--chip", "H100")["cases"]
    assert (case["groups"], case["m"]) == (32, 640)
    assert case["plan"].startswith("grouped_gemm_fp8_") and "workspace 0 bytes" in case["plan"]
    text = program.ok(*arguments, *pair, "--device", "cuda", "--transform", "swiglu")
    assert text.startswith("32x20 fp8_1x128 x fp8_128x128\ngrouped_gemm_fp8_")
    assert "\ngrouped_gemm_transform: " in text and "workspace 10485760 bytes" in text
    (case,) = program.json(*arguments, *pair)["cases"]
    assert case["plan"].startswith("32 groups of up to 640 rows, ")
    assert "--chip goes with --plan" in program.fails(
        "usage", "bench", "grouped_gemm", "--chip", "H200"
    )
