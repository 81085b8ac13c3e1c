"""What a build says on a machine that lacks everything, and what the installed package holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import blockscale
import numpy as np
import pytest
from safetensors.numpy import save_file

SOURCE = Path(__file__).resolve().parents[2]
PACKAGE = Path(blockscale.__file__).parent


def test_missing_packages_are_named_in_one_line(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake on the path")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    options = ["-S", str(SOURCE), "-B", str(tmp_path), "-DCMAKE_IGNORE_PREFIX_PATH=/usr;/"]
    run = subprocess.run(
        [cmake, *generator, *options],
        capture_output=True,
        text=True,
    )
    lines = [line.strip() for line in run.stderr.splitlines() if "missing packages" in line]
    assert run.returncode != 0 and len(lines) == 1
    assert lines[0].endswith(
        "apt-get install libhwy-dev libtbb-dev nlohmann-json3-dev libspdlog-dev libxxhash-dev "
        "libre2-dev libcli11-dev libgtest-dev libgmock-dev libboost-context-dev"
    )


def test_the_package_brings_its_libraries() -> None:
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_native.pyi").exists()
    assert not any(path.is_symlink() for path in PACKAGE.rglob("*"))  # wheels would copy the file
    program = "import blockscale, os; print(open(f'/proc/{os.getpid()}/maps').read())"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {Path(line.split()[-1]) for line in run.stdout.splitlines() if ".so" in line}
    for library in ("libtbb", "libhwy", "libre2"):
        paths = {path.parent for path in loaded if path.name.startswith(library)}
        assert paths == {PACKAGE}, library


def test_import_needs_neither_torch_nor_ml_dtypes() -> None:
    program = (
        "import sys; sys.modules.update(torch=None, ml_dtypes=None)\n"
        "import numpy as np, blockscale\n"
        "t = blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp8_e4m3')\n"
        "assert t.values.dtype == np.uint8 and (blockscale.dequantize(t) == 1).all()\n"
        "try:\n    blockscale.dequantize(t, out_dtype='bfloat16')\n"
        "except TypeError as error:\n    assert 'ml_dtypes' in str(error)\n"
        "else:\n    raise SystemExit('bf16 without ml_dtypes')\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_pages_show_what_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    save_file({"q_proj.weight": np.ones((64, 64), np.float32)}, tmp_path / "model/m.safetensors")
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^```python\n(.*?)^```$", (SOURCE / page).read_text(), re.M | re.S)
    assert shown
    for block in shown:
        exec(block, {})
    assert blockscale.Checkpoint("model-nvfp4")["q_proj.weight"].recipe.name == "nvfp4"
