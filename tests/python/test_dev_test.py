"""What `./dev test` does in which order (tools/dev/test.sh)."""

from __future__ import annotations

import pathlib
import subprocess

import pytest


def checks(root: pathlib.Path, folder: pathlib.Path, *steps: str) -> list[str]:
    """The names of what `./dev test STEPS` checks, none of which is run."""
    code = f"""
set -euo pipefail
for part in setup build test demo gpu; do source {root}/tools/dev/$part.sh; done
install_packages() {{ :; }}
make_venv() {{ python=python3; }}
require_python_headers() {{ :; }}
run_fuzzers() {{ :; }}
fuzzer_names() {{ :; }}
check() {{ echo "$1"; passed=$((passed + 1)); }}
run_tests {" ".join(steps)}
"""
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=False, cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[:-2]  # without the closing lines


@pytest.mark.parametrize(
    "steps", [["python", "package", "install"], ["python"], ["release", "python"], []], ids=str
)
def test_the_kernel_pack_is_built_once_and_before_the_tests_that_need_it(
    root: pathlib.Path, tmp_path: pathlib.Path, steps: list[str]
):
    done = checks(root, tmp_path, *steps)
    assert done.count("kernels") == 1
    for tests in {"ctest-release", "pytest", "pytest-package"} & set(done):
        assert done.index("kernels") < done.index(tests)
