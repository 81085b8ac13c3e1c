"""The coefficients of polynomials in the sources are those that tools/fit_polynomials.py finds."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONSTANT = re.compile(r"-?0x[0-9a-f.]+p[+-]?\d+f|-?\d+\.\d+f")


def constants(text: str) -> list[float]:
    texts = [constant.removesuffix("f") for constant in CONSTANT.findall(text)]
    return [float.fromhex(t) if "0x" in t else float(t) for t in texts]


def used_in(path: str, call: str) -> list[list[float]]:
    """Coefficients of each polynomial in a source, of those calls that `call` begins."""
    calls = re.findall(call + r",([^;]*?)\)+;", (ROOT / path).read_text(), re.DOTALL)
    return [one for one in map(constants, calls) if one]


def test_coefficients_are_the_fitted_ones() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "fit_polynomials.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    fitted = [constants(line) for line in lines[1::2]]
    used = used_in("core/math-inl.h", r"polynomial<M>\(\s*(?:fraction|x)")
    used += used_in(
        "ops/quantize/kernel_sm90_gelu_codes.cuh",
        r"polynomial<Math>\(\s*ptx::min\(ptx::abs\(x\), 13\.0f\)",
    )
    assert [len(one) for one in fitted] == [7, 6, 11, 7]
    assert [len(one) for one in used] == [7, 6, 11, 7]
    for in_source, found in zip(sum(used, []), sum(fitted, []), strict=True):
        # A unit of the last place of f32, where linear algebra may differ between machines.
        assert abs(in_source - found) <= abs(found) * 2.0**-23
