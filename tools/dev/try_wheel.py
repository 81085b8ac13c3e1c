"""Tries an installed package: try_wheel.py FOLDER [--torch].

FOLDER is where the package must lie, so that no other one is tried. Products are compared with
float64, and every kernel must be in a pack inside the package. Needs numpy, with --torch torch too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import blockscale
import numpy as np

# What is lost at most of normal numbers: ||x - x'|| / ||x||.
LOST = {"fp8_1x128": 0.04, "mxfp8_e4m3": 0.04, "mxfp4": 0.16, "nvfp4": 0.12}


def check_product(got: Any, x: Any, w: Any, what: str) -> None:
    """docs/numerics.md's bound of f32 sums, of normal numbers."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    allowed = 17 * 2.0**-24 * (np.abs(x) @ np.abs(w).T)
    if not (np.abs(np.asarray(got) - x @ w.T) <= allowed).all():
        sys.exit(f"{what}: the product is not that of float64")


def try_numpy(x: np.ndarray, w: np.ndarray) -> None:
    for recipe, most in LOST.items():
        quantized = blockscale.quantize(w, recipe)
        values = blockscale.dequantize(quantized)
        lost = np.linalg.norm(w - values) / np.linalg.norm(w)
        if not 0 < lost < most:
            sys.exit(f"{recipe}: {lost} of the numbers is lost, {most} at most is right")
        check_product(blockscale.gemm(x, quantized), x, values, recipe)
    print(f"quantize, dequantize and gemm on the CPU: {', '.join(LOST)}")


def try_torch(x: np.ndarray, w: np.ndarray) -> None:
    import blockscale.nn
    import torch

    for recipe in LOST:
        weight = blockscale.quantize(torch.from_numpy(w), recipe)
        y = blockscale.nn.Linear(weight)(torch.from_numpy(x))
        check_product(y, x, blockscale.dequantize(weight), f"blockscale.nn.Linear, {recipe}")
    print(f"blockscale.nn.Linear with torch {torch.__version__}: {', '.join(LOST)}")


def try_kernels(package: Path) -> None:
    command = [sys.executable, "-m", "blockscale", "kernels", "--json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    for pack in listed["packs"]:
        path, architecture = Path(pack["path"]), pack["architecture"]
        states = [k["state"] for k in listed["kernels"] if k["architecture"] == architecture]
        if pack["problem"] or path.parent != package or set(states) != {"packed"}:
            found = pack["problem"] or pack["path"] or "none was found"
            sys.exit(f"no whole pack for {architecture} in {package}: {found}")
        print(f"{path.name}: {len(states)} kernels, {path.stat().st_size / 2**20:.1f} MiB")


def main() -> None:
    package = Path(blockscale.__file__).resolve().parent
    folder = Path(sys.argv[1]).resolve()
    if folder not in package.parents:
        sys.exit(f"blockscale was imported from {package}, not from {folder}")
    random = np.random.default_rng(0)
    x = random.standard_normal((16, 512), np.float32)
    w = random.standard_normal((64, 512), np.float32)
    try_numpy(x, w)
    if "--torch" in sys.argv[2:]:
        try_torch(x, w)
    try_kernels(package)


if __name__ == "__main__":
    main()
