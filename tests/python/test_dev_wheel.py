"""What `./dev wheel` tries (tools/dev/wheel.sh); tests/package/test_packaging.py has how."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def make_wheel(root: pathlib.Path, folder: pathlib.Path, *arguments: str) -> list[str]:
    """The lines of `./dev wheel ARGUMENTS` in `folder`, where nothing is installed or built."""
    code = f"""
set -euo pipefail
for part in setup build gpu wheel; do source {root}/tools/dev/$part.sh; done
install_packages() {{ :; }}
find_python() {{ python={sys.executable}; }}
make_environment() {{ mkdir -p "$1/bin" && touch "$1/bin/$version" && chmod +x "$1/bin/$version"; }}
has_python_headers() {{ :; }}
build_wheel() {{ wheel_file=$wheel_folder/a.whl && head -c 3500000 /dev/zero >"$wheel_file"; }}
try_wheel() {{ echo "tried $1"; }}
make_wheel {" ".join(arguments)}
"""
    done = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=False, cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_torch_is_tried_where_it_is_or_asked_for(root: pathlib.Path, tmp_path: pathlib.Path):
    size = f"build/wheel-{VERSION}/a.whl: 3 MiB"
    untried = f"not tried with torch: no build/venv-torch/bin/{VERSION} "
    untried += "(--torch makes build/venv-torch, if none is there)"
    assert make_wheel(root, tmp_path) == ["tried numpy", untried, size]
    assert make_wheel(root, tmp_path, "--torch") == ["tried numpy", "tried torch", size]
    assert make_wheel(root, tmp_path) == ["tried numpy", "tried torch", size]


@pytest.mark.parametrize("arguments", [["--numpy"], ["--torch", "--torch"]], ids=str)
def test_other_arguments_are_refused(root: pathlib.Path, arguments: list[str]):
    done = subprocess.run(
        [root / "dev", "wheel", *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    message = f"dev: unknown argument of ./dev wheel: '{' '.join(arguments)}'; --torch is known\n"
    assert done.stderr == message
