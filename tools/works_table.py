"""Writes what works into README.md: operations x devices, as the package just built says.

Usage: works_table.py [--check]

The table stands between `<!-- works -->` and `<!-- end -->`. On the CPU small calls are made; for a
GPU there must be kernels of the operation in the library's list for its architecture, and a plan.
With --check nothing is written, and the exit code is 1 if the page differs. Run it with the
package: `./dev python tools/works_table.py`.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import blockscale
import numpy as np
from blockscale import Recipe

PAGE = pathlib.Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- works -->\n).*?(<!-- end -->)", re.DOTALL)
ROWS, K = 128, 256  # of matrices that are tried: whole blocks and tiles of every recipe

FAMILIES = {"bf16, f16 or f32": ["bf16", "f16", "f32"]}
FAMILIES |= {
    family.upper(): [recipe.name for recipe in Recipe if recipe.name.startswith(family)]
    for family in ("fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4")
}
PLAIN, QUANTIZED = next(iter(FAMILIES)), list(FAMILIES)[1:]
#: What fits a call whose operands need none of their own.
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "silu", "swiglu")
FUSED = (*ACTIVATIONS, "modulate", "rms_norm")
SCORES = ("softmax", "sigmoid")  # of experts
#: Of an architecture: its column, and the chip that plans are asked for.
CHIPS = {
    "sm_90a": ("H100, H200", "H200"),
    "sm_100f": ("B200, B300", "B200"),
    "sm_120f": ("RTX 50, GB10", "RTX 5090"),
}


def is_taken(call: Callable[[], Any]) -> bool:
    """Whether the library takes it. Nothing that is tried here is wrong otherwise."""
    with contextlib.suppress(ValueError):
        call()
        return True
    return False


def families_of(taken: Callable[[str], bool], names: Iterable[str]) -> str:
    """Families all of whose recipes are taken; where only some are, "in part"."""
    cells = []
    for name in names:
        found = [taken(recipe) for recipe in FAMILIES[name]]
        if any(found):
            cells.append(name if all(found) else f"{name} in part")
    return ", ".join(cells) or "-"


# --- what a device takes --------------------------------------------------------------------------


def as_recipe(x: np.ndarray, recipe: str) -> Any:
    import ml_dtypes

    plain = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
    return x.astype(plain[recipe]) if recipe in plain else blockscale.quantize(x, recipe)


class Cpu:
    name = "CPU"
    x = np.ones((ROWS, K), np.float32)

    def operand(self, recipe: str) -> Any:
        return as_recipe(self.x, recipe)

    def quantizes(self, recipe: str) -> bool:
        return is_taken(lambda: blockscale.quantize(self.x, recipe))

    def fuses(self, transform: str) -> bool:
        operands = np.ones((1, K), np.float32)
        made = {
            "modulate": lambda: blockscale.Modulate(operands, operands),
            "rms_norm": lambda: blockscale.RmsNorm(operands[0]),
        }
        given = made.get(transform, lambda: transform)()
        return is_taken(lambda: blockscale.quantize(self.x, "mxfp8_e4m3", transform=given))

    def quantizes_twice(self, recipe: str) -> bool:
        return is_taken(lambda: blockscale.quantize_rows_and_columns(self.x, recipe))

    def dequantizes(self, recipe: str) -> bool:
        return is_taken(lambda: blockscale.dequantize(self.operand(recipe)))

    def multiplies(self, a: str, b: str) -> bool:
        return is_taken(lambda: blockscale.gemm(self.operand(a), self.operand(b)))

    def transforms_product(self, transform: str) -> bool:
        return is_taken(lambda: blockscale.gemm(self.x, self.x, transform=transform))

    def multiplies_groups(self, a: str, b: str) -> bool:
        offsets = np.array([0, ROWS], np.int32)
        experts = as_recipe(self.x[None], b)
        return is_taken(lambda: blockscale.grouped_gemm(self.operand(a), experts, offsets))

    def multiplies_groups_of_k(self, a: str, b: str) -> bool:
        offsets = np.array([0, K], np.int32)
        return is_taken(
            lambda: blockscale.k_grouped_gemm(self.operand(a), self.operand(b), offsets)
        )

    def quantizes_product(self, recipe: str, transform: str = "identity") -> bool:
        a, b = self.operand("fp8_1x128"), self.operand("fp8_128x128")
        scale = 1.0 if recipe == "nvfp4" else None
        options = {"tensor_scale": scale, "transform": transform}
        return is_taken(lambda: blockscale.gemm_quantize(a, b, recipe, **options))

    def routes(self, score: str) -> bool:
        return is_taken(lambda: blockscale.route(self.x, 8, score=score, groups=8, top_groups=4))

    def runs_layer(self, recipe: str, activation: str = "swiglu") -> bool:
        inner = K // 2 if activation == "swiglu" else K
        shapes = ((1, K, K), (1, K, inner))
        weights = [as_recipe(np.ones(shape, np.float32), recipe) for shape in shapes]
        ids = np.zeros((ROWS, 1), np.int32)
        options = {"activation": activation}
        return is_taken(lambda: blockscale.moe(self.x, *weights, ids, None, **options))


class Gpu:
    def __init__(self, architecture: str, kernels: list[str], emulated_only: bool) -> None:
        chips, self.chip = CHIPS[architecture]
        self.name = f"{chips} ({architecture}{', emulated only' if emulated_only else ''})"
        self.kernels = kernels

    def plans(self, recipe: str, **options: Any) -> bool:
        return is_taken(lambda: blockscale.describe((ROWS, K), recipe, chip=self.chip, **options))

    def plans_product(self, *recipes: str, **options: Any) -> bool:
        plan = lambda: blockscale.describe_gemm(  # noqa: E731
            ROWS, ROWS, K, *recipes, chip=self.chip, **options
        )
        return self.has("gemm") and is_taken(plan)

    def has(self, operation: str) -> bool:
        return any(kernel.startswith(operation) for kernel in self.kernels)

    def quantizes(self, recipe: str) -> bool:
        return self.has("quantize") and self.plans(recipe)

    def fuses(self, transform: str) -> bool:
        return self.has("quantize") and self.plans("mxfp8_e4m3", transform=transform)

    def quantizes_twice(self, recipe: str) -> bool:
        return self.has("quantize_rows_and_columns") and Cpu().quantizes_twice(recipe)

    def dequantizes(self, recipe: str) -> bool:
        return self.has("dequantize") and self.quantizes(recipe)

    def multiplies(self, a: str, b: str) -> bool:
        return self.plans_product(a, b)

    def multiplies_groups(self, a: str, b: str) -> bool:
        plan = lambda: blockscale.describe_grouped_gemm(  # noqa: E731
            1, ROWS, ROWS, K, a, b, chip=self.chip
        )
        return self.has("grouped_gemm") and is_taken(plan)

    def multiplies_groups_of_k(self, a: str, b: str) -> bool:
        """By plain kernels, which take what groups of rows do."""
        return self.has("k_grouped_gemm") and self.multiplies_groups(a, b)

    def transforms_product(self, transform: str) -> bool:
        return self.plans_product(transform=transform)

    def quantizes_product(self, recipe: str, transform: str = "identity") -> bool:
        return self.plans_product(to=recipe, transform=transform)

    def routes(self, _score: str) -> bool:
        """By one kernel, which has them all."""
        return self.has("moe_route")

    def runs_layer(self, recipe: str, activation: str = "swiglu") -> bool:
        plan = lambda: blockscale.describe_moe(  # noqa: E731
            *(ROWS, K, K // 2, 1, 1, "f32", recipe, recipe),
            activation=activation,
            chip=self.chip,
        )
        return self.has("moe_sort") and is_taken(plan)


def devices() -> list[Cpu | Gpu]:
    command = [sys.executable, "-m", "blockscale", "kernels", "list", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    kernels: dict[str, list[str]] = {}
    emulated_only: dict[str, bool] = {}
    for kernel in json.loads(done.stdout)["kernels"]:
        kernels.setdefault(kernel["architecture"], []).append(kernel["name"])
        emulated_only[kernel["architecture"]] = kernel["emulated_only"]
    names = sorted(kernels, key=architecture_order)
    return [Cpu(), *(Gpu(name, kernels[name], emulated_only[name]) for name in names)]


def architecture_order(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def rows() -> dict[str, Callable[[Any], str]]:
    """Operations, and what stands in the cell of a device."""
    found: dict[str, Callable[[Any], str]] = {
        "quantize to": lambda on: families_of(on.quantizes, QUANTIZED),
        "with x transformed by": lambda on: ", ".join(filter(on.fuses, FUSED)) or "-",
        "quantize rows and columns": lambda on: families_of(on.quantizes_twice, QUANTIZED),
        "dequantize": lambda on: families_of(on.dequantizes, QUANTIZED),
    }
    for name, recipes in FAMILIES.items():
        found[f"gemm, {name} x"] = lambda on, recipes=recipes: families_of(
            lambda b: (
                all(on.multiplies(a, b) for a in recipes if blockscale_pairs(a, b))
                and any(blockscale_pairs(a, b) for a in recipes)
            ),
            FAMILIES,
        )
    found["gemm, then"] = lambda on: ", ".join(filter(on.transforms_product, ACTIVATIONS)) or "-"
    found["gemm, quantized to"] = lambda on: families_of(on.quantizes_product, QUANTIZED)
    found["behind"] = lambda on: (
        ", ".join(t for t in ACTIVATIONS if on.quantizes_product("mxfp8_e4m3", t)) or "-"
    )
    found["grouped gemm, rows"] = lambda on: like_gemm(on.multiplies_groups)
    found["grouped gemm, k"] = lambda on: like_gemm(on.multiplies_groups_of_k)
    found["route by"] = lambda on: ", ".join(filter(on.routes, SCORES)) or "-"
    found["moe, weights in"] = lambda on: families_of(on.runs_layer, FAMILIES)
    found["moe, between its products"] = lambda on: (
        ", ".join(a for a in ACTIVATIONS if on.runs_layer("fp8_128x128", a)) or "-"
    )
    return found


def like_gemm(taken: Callable[[str, str], bool]) -> str:
    """Whether all pairs of gemm are taken."""
    pairs = [(a.name, b.name) for a in Recipe for b in Recipe if blockscale_pairs(a.name, b.name)]
    found = [taken(a, b) for a, b in pairs]
    return "the pairs of gemm" if all(found) else "some pairs of gemm" if any(found) else "-"


def blockscale_pairs(a: str, b: str) -> bool:
    """Whether the library has the pair at all."""
    return blockscale._native.gemm_supports(Recipe[a], Recipe[b])


def table() -> str:
    columns = devices()
    lines = [f"| | {' | '.join(on.name for on in columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, cell in rows().items():
        cpu, *gpus = map(cell, columns)
        cells = [cpu, *("as the CPU" if gpu == cpu else gpu for gpu in gpus)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    new = BLOCK.sub(lambda found: found[1] + table() + found[2], text)
    if "--check" in sys.argv[1:]:
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
