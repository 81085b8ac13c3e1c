"""Mixture-of-experts layers from the command line: moe and bench moe."""

from __future__ import annotations

import json
import re

import pytest
from cli_testing import EXIT_CODES, Program

SMALL = ["moe", "--hidden", "256", "--inner", "128", "--experts", "8", "--top-k", "3"]


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "--recipe fp8_row --activations fp8_1x128_pow2",
        "--recipe mxfp4 --activations mxfp8_e4m3",
        "--recipe mxfp4 --activations fp8_row",
        "--recipe nvfp4 --activation gelu_tanh",
        "--recipe mxfp4 --activation gelu_erf --dtype f32",
        "--recipe bf16 --activation identity --dtype f16",
        "--activation silu",
    ],
)
@pytest.mark.parametrize("routing", ["uniform", "zipf", "one-hot"])
def test_layers_are_right(program: Program, kind: str, routing: str):
    arguments = [*SMALL, "-t", 40, *kind.split(), "--routing", routing, "--repeats", 1]
    report = program.json(*arguments, "--threads", 2, "--check", "--samples", 30)
    settings = {"tokens": 40, "hidden": 256, "inner": 128, "experts": 8, "of": 8, "top_k": 3}
    settings |= {"routing": routing, "threads": 2, "rows": 120}
    assert {key: report[key] for key in settings} == settings
    check = report["check"]
    assert check["passed"] and check["tokens"] == 30 and 0 < check["error"] < check["allowed"]
    if routing == "one-hot":
        assert (report["experts_hit"], report["most_rows"]) == (3, 40)
    assert report["most_rows"] >= 120 / report["experts_hit"]


def test_the_least_that_a_layer_takes(program: Program):
    report = program.json(*SMALL, "-t", 6, "--routing", "one-hot")
    expert = 256 * 256 + 4 * 4 + 256 * 128 + 2 * 4  # values and scales of w13 and of w2
    assert report["bytes"] == 3 * expert + 2 * 6 * 256 * 2
    assert report["operations"] == 2 * 18 * 256 * 3 * 128
    assert report["gflops"] == pytest.approx(report["operations"] * 1e-9 / report["seconds"])
    assert 0 < report["seconds"] <= report["median_seconds"] and "check" not in report
    gelu = program.json(*SMALL, "-t", 6, "--routing", "one-hot", "--activation", "gelu_erf")
    assert gelu["operations"] == 2 * 18 * 256 * 2 * 128 and gelu["bytes"] < report["bytes"]


def test_some_of_the_experts_are_here(program: Program):
    arguments = [*SMALL, "--of", 24, "--repeats", 1, "--check"]
    for tokens in (1, 5):
        report = program.json(*arguments, "-t", tokens)
        assert report["rows"] == tokens and report["check"]["passed"]  # as on average
    report = program.json(*arguments, "-t", 200, "--routing", "zipf")
    assert 200 < report["rows"] < 600  # the most wanted expert is here


def test_what_is_printed(program: Program):
    first, *plan, time, work, check = program.ok(*SMALL, "-t", 12, "--check").splitlines()
    assert re.fullmatch(
        r"y \[12, 256\] bf16: 8 of 8 experts fp8_128x128, H 256, I 128, swiglu; top 3, uniform: "
        r"36 rows of 8 experts, at most \d+ each",
        first,
    )
    assert plan[0].startswith("12 tokens, 3 experts each, of 8 here; ")
    assert re.match(r"time   \S+ (us|ms|s) \(fastest of 5; median ", time)
    assert re.match(r"work   \S+ KiB of weights that are hit, x and y, \S+ GB/s; \S+ GFLOP$", work)
    assert re.match(r"check  12 tokens against float64, .* allowed 0\.006: passed$", check)


@pytest.mark.parametrize(
    ("arguments", "name", "message"),
    [
        ("--routing hot", "usage", "'hot' is no routing; choose one of uniform, zipf, one-hot"),
        ("--samples 3", "usage", "--samples goes with --check"),
        ("--of 3", "usage", "--of is 3, must be at least 8, the experts that are here"),
        ("--top-k 9", "usage", "--top-k is 9, must be at most 8 experts"),
        ("--top-k 17", "usage", "--top-k: '17' is out of range"),
        ("--experts 1025", "usage", "--experts: '1025' is out of range"),
        ("--tokens 0", "usage", "--tokens: '0' is out of range"),
        ("--activation swish", "usage", "'swish' is no transform"),
        ("--activations nvfp4", "invalid_argument", "activations: is nvfp4, must be one of bf16"),
        ("--recipe fp8_row --activations mxfp8_e4m3", "unsupported", "no such pair"),
        ("--recipe nvfp4 --inner 24", "invalid_argument", "24"),
        ("--experts 1024 --hidden 1048576 --inner 1048576", "invalid_argument", "of memory"),
    ],
)
def test_what_is_refused(program: Program, arguments: str, name: str, message: str):
    chosen = arguments.split()
    base = [word for pair in zip(SMALL[1::2], SMALL[2::2], strict=True)
            if pair[0] not in chosen for word in pair]  # fmt: skip
    assert message in program.fails(name, "moe", *base, *chosen)


def test_what_no_gpu_has_computed_fails_its_check(program: Program, fake_driver: str):
    arguments = [*SMALL, "-t", 4, "--device", "cuda", "--check", "--json"]
    result = program(*arguments, BLOCKSCALE_LIBCUDA=fake_driver)
    assert result.code == EXIT_CODES["check_failed"], result
    assert "the result is further from float64 than allowed; please report it" in result.err
    report = json.loads(result.out)
    assert not report["check"]["passed"] and report["device"] == "Fake H200 number 0"
    assert report["check"]["error"] == 1 and report["plan"].startswith("moe_sort: ")
    assert report["seconds"] == pytest.approx(5e-3)  # five launches of the fake
    del arguments[-2:]
    assert program(*arguments, BLOCKSCALE_LIBCUDA=fake_driver).code == 0


def test_bench_of_layers(program: Program):
    arguments = ["bench", "moe", "--layer", "qwen3-30b-a3b", "--repeats", 1, "--threads", 2]
    sizes = ["-t", 1, "-t", 3, "--routing", "uniform", "--routing", "one-hot"]
    report = program.json(*arguments, *sizes)
    cases = [(c["tokens"], c["routing"], c["rows"]) for c in report["cases"]]
    assert cases == [(t, routing, 8 * t) for routing in ("uniform", "one-hot") for t in (1, 3)]
    for case in report["cases"]:
        assert (case["layer"], case["hidden"], case["experts"]) == ("qwen3-30b-a3b", 2048, 128)
        assert 0 < case["seconds"] <= case["median_seconds"] and case["bound_share"] > 0
        assert case["bytes"] > case["experts_hit"] * 3 * 2048 * 768
        assert case["operations"] == case["rows"] * 6 * 2048 * 768
    assert report["peaks"][0]["read_bytes_per_second"] > 0
    header, line = program.ok(*arguments, "-t", 1).splitlines()
    assert header.split()[:6] == ["Layer", "Tokens", "Routing", "Rows", "Experts", "Time"]
    assert line.split()[:5] == ["qwen3-30b-a3b", "1", "uniform", "8", "8"]


def test_bench_on_a_device(program: Program, fake_driver: str):
    arguments = ["bench", "moe", "--layer", "qwen3-30b-a3b", "-t", "2", "--device", "cuda"]
    result = program(*arguments, "--json", BLOCKSCALE_LIBCUDA=fake_driver)
    (case,) = result.json()["cases"]
    assert case["median_seconds"] == pytest.approx(5e-3) and case["rows"] == 16


def test_plans_need_no_gpu(program: Program):
    arguments = ["bench", "moe", "--plan", "-t", 512]
    report = program.json(*arguments, "--device", "cuda", "--chip", "H100")
    names = [case["layer"] for case in report["cases"]]
    assert names == ["deepseek-v3-ep8", "deepseek-v3-tp8", "qwen3-30b-a3b"]
    assert all("\ngrouped_gemm_fp8_" in case["plan"] for case in report["cases"])
    text = program.ok(*arguments, "--recipe", "mxfp4", "--layer", "qwen3-30b-a3b")
    assert text.startswith("qwen3-30b-a3b, 512 tokens\n512 tokens, 8 experts each, of 128 here; ")
    assert "--chip goes with --plan" in program.fails("usage", "bench", "moe", "--chip", "H200")
    message = program.fails("usage", "bench", "moe", "--layer", "mixtral")
    assert "'mixtral' is no layer; choose one of deepseek-v3-ep8, deepseek-v3-tp8, " in message
