"""The experts of a mixture-of-experts layer as two products of groups.

Each token goes to the `--top` experts that the router likes best. Sorted by expert, rows of tokens
are groups: of the first product they are gathered from where the tokens lie (`index`), and what
the second one gives is weighted and added up where it belongs (`destinations`, `weights`, `add`).
So rows are never copied into order by anybody. Prints how far the result moves from the same layer
in float64, and what a call takes, next to a `gemm` for each product of each expert.

    python examples/mixture_of_experts.py
    python examples/mixture_of_experts.py --tokens 64 --experts 32 --recipe nvfp4

Needs: numpy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import blockscale
import numpy as np

#: Recipes of activations and of weights.
RECIPES = {
    "fp8": ("fp8_1x128", "fp8_128x128"),
    "mxfp4": ("mxfp8_e4m3", "mxfp4"),
    "nvfp4": ("nvfp4", "nvfp4"),
}
#: Of four roundings: activations and weights of both products.
LARGEST_ERROR = {"fp8": 0.08, "mxfp4": 0.25, "nvfp4": 0.25}


@dataclass
class Routes:
    """Where rows come from and go: one row for each token and expert, those of expert 0 first."""

    tokens: np.ndarray  # int32 [rows]
    weights: np.ndarray  # float32 [rows]
    offsets: np.ndarray  # int32 [experts + 1]


def route(x: np.ndarray, router: np.ndarray, top: int) -> Routes:
    """The `top` experts of each token, weighted by the softmax of their scores."""
    scores = x @ router.T
    experts = np.argsort(-scores, axis=1, kind="stable")[:, :top]  # [tokens, top]
    chosen = np.take_along_axis(scores, experts, axis=1)
    weights = np.exp(chosen - chosen.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    order = np.argsort(experts, axis=None, kind="stable")
    counts = np.bincount(experts.ravel(), minlength=len(router))
    return Routes(
        (order // top).astype(np.int32),
        weights.ravel()[order].astype(np.float32),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
    )


class Experts:
    """down(silu(gate(x)) * up(x)) of each expert; gate and up are one matrix."""

    def __init__(self, gate_up: np.ndarray, down: np.ndarray, recipe: str) -> None:
        self.activations, weights = RECIPES[recipe]
        self.gate_up = blockscale.quantize(gate_up, weights)  # [experts, 2 hidden, width]
        self.down = blockscale.quantize(down, weights)  # [experts, width, hidden]

    def __call__(self, x: np.ndarray, routes: Routes) -> np.ndarray:
        blockscale.check_groups(
            x, self.gate_up, routes.offsets, index=routes.tokens
        )  # while writing a router: a product itself reads no more than it must
        a = blockscale.quantize(x, self.activations)
        h = blockscale.grouped_gemm(
            a, self.gate_up, routes.offsets, index=routes.tokens, transform="swiglu"
        )
        return blockscale.grouped_gemm(
            blockscale.quantize(h, self.activations),
            self.down,
            routes.offsets,
            destinations=routes.tokens,
            weights=routes.weights,
            out_rows=len(x),
            add=True,
        )

    def one_by_one(self, x: np.ndarray, routes: Routes) -> np.ndarray:
        """The same, expert by expert."""
        y = np.zeros_like(x)
        for expert in range(self.down.shape[0]):
            rows = slice(*routes.offsets[expert : expert + 2])
            tokens = routes.tokens[rows]
            if len(tokens) == 0:
                continue
            a = blockscale.quantize(x[tokens], self.activations)
            h = blockscale.gemm(a, self.gate_up[expert], transform="swiglu")
            h = blockscale.quantize(h, self.activations)
            d = blockscale.gemm(h, self.down[expert])
            np.add.at(y, tokens, routes.weights[rows, None] * d)
        return y


def exact(x: np.ndarray, gate_up: np.ndarray, down: np.ndarray, routes: Routes) -> np.ndarray:
    """The layer in float64."""
    y = np.zeros(x.shape)
    for expert, (gates_and_ups, back) in enumerate(zip(gate_up, down, strict=True)):
        rows = slice(*routes.offsets[expert : expert + 2])
        tokens = routes.tokens[rows]
        gate, up = np.split(x[tokens].astype(float) @ gates_and_ups.T.astype(float), 2, axis=1)
        d = (gate / (1 + np.exp(-gate)) * up) @ back.T.astype(float)
        np.add.at(y, tokens, routes.weights[rows, None] * d)
    return y


def milliseconds(call: Callable[[], object], calls: int = 5) -> float:
    """The fastest of some calls."""
    call()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {
        "tokens": 32, "experts": 16, "top": 4, "width": 1024, "hidden": 512,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--recipe", choices=list(RECIPES), default="mxfp4")
    options = parser.parse_args()
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) / np.float32(shape[-1]) ** 0.5

    x = normal(options.tokens, options.width) * options.width**0.5
    gate_up = normal(options.experts, 2 * options.hidden, options.width)
    down = normal(options.experts, options.width, options.hidden)
    routes = route(x, normal(options.experts, options.width), options.top)
    experts = Experts(gate_up, down, options.recipe)
    ways = {"in groups": experts, "one by one": experts.one_by_one}
    want = exact(x, gate_up, down, routes)
    errors = [
        float(np.linalg.norm(way(x, routes) - want) / np.linalg.norm(want)) for way in ways.values()
    ]
    counts = np.diff(routes.offsets)
    print(
        f"{options.tokens} tokens, {options.top} of {options.experts} experts each: "
        f"{counts.min()} to {counts.max()} rows an expert"
    )
    for (name, way), error in zip(ways.items(), errors, strict=True):
        taken = milliseconds(lambda way=way: way(x, routes))
        print(f"{name:10} error {error:.2e} of the result, {taken:.2f} ms a call")
    return 0 if max(errors) < LARGEST_ERROR[options.recipe] else 1


if __name__ == "__main__":
    sys.exit(main())
