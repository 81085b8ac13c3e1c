"""`blockscale gemm` and `bench gemm` on a GPU. `./dev gpu-test` runs these where there is one."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

CLI = os.environ.get("BLOCKSCALE_CLI")
SIZES = ["-m", "200", "-n", "576", "-k", "1040"]
PAIRS = [("fp8_1x128", "fp8_128x128"), ("fp8_row", "fp8_row"), ("fp8_tensor", "fp8_tensor")]


def run(*arguments: str) -> Any:
    if CLI is None:
        pytest.skip("BLOCKSCALE_CLI is not set: ./dev gpu-test")
    command = [CLI, *arguments, "--device", "cuda", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "error: no GPU" in done.stderr and not os.environ.get("BLOCKSCALE_REQUIRE_GPU"):
        pytest.skip("no GPU")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("left", "right"), PAIRS, ids="-".join)
def test_a_product_is_checked(left: str, right: str, dtype: str) -> None:
    recipes = ["--recipe-a", left, "--recipe-b", right]
    report = run("gemm", *SIZES, *recipes, "--dtype", dtype, "--samples", "100000")
    check = report["check"]
    assert check["passed"] and check["elements"] == 100000
    assert 0 < check["largest_error"] <= check["proven_error"] and 0 < check["of_usual"] <= 1
    assert report["seconds"] > 0 and report["device"]


@pytest.mark.parametrize("transform", ["identity", "gelu_tanh", "silu", "swiglu"])
@pytest.mark.parametrize("to", ["fp8_1x128", "fp8_row", "mxfp8_e4m3", "nvfp4"])
@pytest.mark.parametrize("sizes", [SIZES, ["-m", "64", "-n", "512", "-k", "7168"]], ids="x".join)
def test_a_quantized_product_is_checked(sizes: list[str], to: str, transform: str) -> None:
    recipes = ["--recipe-a", "fp8_1x128", "--recipe-b", "fp8_128x128"]
    report = run("gemm", *sizes, *recipes, "--to", to, "--transform", transform)
    assert (report["to"], report["transform"]) == (to, transform)
    check = report["check"]
    assert check["passed"] and check["different_bytes"] == 0
    compared = transform != "swiglu" or int(sizes[3]) // 2 % 64 == 0
    assert check["bytes"] > 64 * 256 / 2 if compared else check["bytes"] == 0
    assert 0 < check["largest_error"] <= check["proven_error"]


@pytest.mark.parametrize("transform", ["gelu_erf", "swiglu"])
@pytest.mark.parametrize("pair", [("fp8_1x128", "fp8_128x128"), ("mxfp8_e4m3", "mxfp4")])
def test_a_transformed_product_is_checked(pair: tuple[str, str], transform: str) -> None:
    recipes = ["--recipe-a", pair[0], "--recipe-b", pair[1]]
    sizes = ["-m", "200", "-n", "576", "-k", "1024"]
    report = run("gemm", *sizes, *recipes, "--dtype", "bf16", "--transform", transform)
    assert report["transform"] == transform and report["check"]["passed"]
    assert report["seconds"] > 0


def test_rates() -> None:
    report = run("bench", "gemm", *SIZES)
    assert [(case["recipe_a"], case["recipe_b"]) for case in report["cases"]] == sorted(
        PAIRS, key=lambda pair: ["fp8_tensor", "fp8_row", "fp8_1x128"].index(pair[0])
    )
    assert all(case["median_seconds"] > 0 and case["gflops"] > 0 for case in report["cases"])
