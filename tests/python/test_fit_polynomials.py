"""The coefficients of core/math-inl.h are those that tools/fit_polynomials.py finds."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONSTANT = re.compile(r"-?0x[0-9a-f.]+p[+-]?\d+f|-?\d+\.\d+f")


def constants(text: str) -> list[float]:
    texts = [constant.removesuffix("f") for constant in CONSTANT.findall(text)]
    return [float.fromhex(t) if "0x" in t else float(t) for t in texts]


def test_coefficients_are_the_fitted_ones() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "fit_polynomials.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    fitted = [constants(line) for line in lines[1::2]]
    assert [len(one) for one in fitted] == [7, 6, 11]
    header = (ROOT / "core" / "math-inl.h").read_text()
    calls = re.findall(r"polynomial<M>\(\s*(?:fraction|x),([^;]*?)\)+;", header, re.DOTALL)
    used = [constants(call) for call in calls if constants(call)]
    assert [len(one) for one in used] == [7, 6, 11]
    for in_header, found in zip(sum(used, []), sum(fitted, []), strict=True):
        # A unit of the last place of f32, where linear algebra may differ between machines.
        assert abs(in_header - found) <= abs(found) * 2.0**-23
