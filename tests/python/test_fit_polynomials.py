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


def test_coefficients_are_the_fitted_ones() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "tools" / "fit_polynomials.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    fitted = [constants(line) for line in lines[1::2]]
    ends = [float(line.split()[3].rstrip(":")) for line in lines[::2] if " up to " in line]
    in_header = (ROOT / "core/activation_tail.h").read_text()
    assert [float(end) for end in re.findall(r"= {\n    ([0-9.]+)f,", in_header)] == ends
    used = [constants(one) for one in re.findall(r"\n    {(0x[^}]*)}", in_header)]
    assert [len(one) for one in fitted] == [7, 7, 11]
    assert [len(one) for one in used] == [len(one) for one in fitted]
    for in_source, found in zip(sum(used, []), sum(fitted, []), strict=True):
        # A unit of the last place of f32, where linear algebra may differ between machines.
        assert abs(in_source - found) <= abs(found) * 2.0**-23
