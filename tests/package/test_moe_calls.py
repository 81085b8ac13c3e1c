"""What a mixture-of-experts layer takes as it is, what bad input gets, and plans of layers."""

from __future__ import annotations

import re
from typing import Any

import blockscale
import numpy as np
import pytest

X, IDS, WEIGHTS = np.ones((5, 64), np.float32), np.zeros((5, 2), np.int32), np.ones((5, 2), "f4")
W13, W2 = np.ones((4, 96, 64), np.float32), np.ones((4, 64, 48), np.float32)
GIVEN = {"x": X, "w13": W13, "w2": W2, "ids": IDS, "weights": WEIGHTS}


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"x": [1.0]}, TypeError, "x: is a list, must be an array"),
        ({"x": X[None]}, ValueError, "x: shape is (1, 5, 64), must be (T, H)"),
        ({"x": X[:, :32]}, ValueError, "w2.rows: is 64, must be 32, the k of x"),
        ({"x": X.astype(float)}, TypeError, "x: has dtype float64"),
        ({"w13": W13[0]}, ValueError, "w13: shape is (96, 64), must be (E, 2 I, H)"),
        ({"w13": W13[0], "activation": None}, ValueError,
         "w13: shape is (96, 64), must be (E, I, H)"),
        ({"w13": W13[:, :40]}, ValueError, "w13.rows: is 40, must be 96, twice the k of w2"),
        ({"w13": W13[:3]}, ValueError, "w13.batch: is 3, must be 4, the experts of w2"),
        ({"w13": W13[..., :32]}, ValueError, "w13.k: is 32, must be 64, the k of x"),
        ({"w2": W2[0]}, ValueError, "w2: shape is (64, 48), must be (E, H, I)"),
        ({"w2": W2[:0], "w13": W13[:0]}, ValueError, "w2.batch: is 0"),
        ({"ids": IDS.astype(np.int64)}, TypeError,
         'ids: has dtype int64, must be int32; convert it with .astype("int32")'),
        ({"ids": IDS[0]}, ValueError, "ids: shape is (2,), must be (T, top_k)"),
        ({"ids": IDS[:4]}, ValueError, "ids: shape is (4, 2), must be (5, top_k), a row for each"),
        ({"ids": np.zeros((5, 17), np.int32), "weights": None}, ValueError,
         "ids: is 17, must be in 1..16"),
        ({"ids": np.zeros((5, 4), np.int32)[:, ::2]}, ValueError,
         "ids: its elements must be contiguous; copy it first"),
        ({"weights": WEIGHTS.astype(float)}, TypeError, "weights: has dtype float64, must be flo"),
        ({"weights": WEIGHTS[:, :1]}, ValueError,
         "weights: shape is (5, 1), must be (5, 2), that of ids"),
        ({"activation": "relu"}, ValueError,
         "activation: is 'relu', must be swiglu, silu, gelu_tanh, gelu_erf or None"),
        ({"activation": blockscale.Swiglu()}, TypeError,
         "activation: is a Swiglu, must be a name or None"),
        ({"interleave": 7}, ValueError, "interleave: is 7, must be 0, 1 or 64"),
        ({"interleave": 64}, ValueError, "interleave: is 64, but the result has 48 columns"),
        ({"interleave": 1, "w13": W13.reshape(8, 48, 64)}, ValueError,
         "interleave: is 1, must be 0, as gates and ups are apart"),
        ({"interleave": 1, "activation": "gelu_erf"}, ValueError,
         "interleave: is given, goes with swiglu alone"),
        ({"gate_first": False, "activation": None}, ValueError,
         "gate_first: is given, goes with swiglu alone"),
        ({"activations": "nvfp4"}, ValueError, "activations: is nvfp4, must be one of bf16"),
        ({"activations": "int8"}, ValueError, "activations: is 'int8', must be one of"),
        ({"activations": "mxfp8_e4m3", "w13": blockscale.quantize(W13, "fp8_row")}, ValueError,
         "w2.k: is 48, must be a multiple of 32 for activations in mxfp8_e4m3"),
        ({"expert_alphas": np.ones(4, np.float32)}, TypeError,
         "expert_alphas: is a ndarray, must be a pair: of w13 and of w2"),
        ({"expert_alphas": (None,)}, TypeError, "expert_alphas: is a tuple of 1, must be a pair"),
        ({"expert_alphas": (np.ones(4), None)}, TypeError,
         "expert_alphas[0]: has dtype float64, must be float32"),
        ({"expert_alphas": (None, np.ones(3, np.float32))}, ValueError,
         "expert_alphas[1]: has 3 elements, must have 4, one for each expert of w2"),
        ({"biases": 1}, TypeError, "biases: is a int, must be a pair"),
        ({"biases": (np.ones((4, 95), np.float32), None)}, ValueError,
         "biases[0]: must be (E, N) = (4, 96), the rows of w13 of an expert"),
        ({"biases": (None, np.ones((4, 48), np.float32))}, ValueError,
         "biases[1]: must be (E, H) = (4, 64), the rows of w2"),
        ({"biases": (np.ones((4, 96), np.float32), np.ones((4, 64), np.float16))}, TypeError,
         "biases[1]: has dtype f16, must be f32 like biases[0]"),
        ({"biases": (None, np.ones((4, 80), np.float32)[:, :64])}, ValueError,
         "biases[1]: must be contiguous"),
        ({"local_expert_offset": -1}, ValueError, "local_expert_offset: is -1"),
        ({"residual": X.astype(np.float16)}, ValueError,
         "residual.dtype: is f16, must be that of out, f32"),
        ({"residual": X[:4]}, ValueError, "residual.rows: is 4, must be 5, the rows of out"),
        ({"out": X[:4].copy()}, ValueError, "out: shape is (4, 64), must be (5, 64)"),
        ({"out": X}, ValueError, "out: overlaps x.values, must not share memory with it"),
        ({"out": WEIGHTS}, ValueError, "out: shape is (5, 2)"),
        ({"out": np.broadcast_to(np.float32(1), (5, 64))}, ValueError, "out: is read-only"),
        ({"x": blockscale.quantize(X, "fp8_1x128"), "weights_on_input": True}, ValueError,
         "x.recipe: is fp8_1x128, must be f32, f16 or bf16 where weights are on the input"),
        ({"shared": W13}, TypeError, "shared: is a ndarray, must be a pair: of w13 and of w2"),
        ({"shared": (W13, None)}, TypeError, "shared[1]: is a NoneType, must be an array"),
        ({"shared": (W13[0], W2)}, ValueError,
         "shared[0]: shape is (96, 64), must be (S, 2 I, H)"),
        ({"shared": (W13, W2[:2])}, ValueError,
         "shared[0].batch: is 4, must be 2, the experts of shared[1]"),
        ({"shared": (W13[..., :32], W2)}, ValueError, "shared[0].k: is 32, must be 64, the k of x"),
        ({"shared": (W13, W2[..., :32])}, ValueError,
         "shared[0].rows: is 96, must be 64, twice the k of shared[1]"),
        ({"shared": (blockscale.quantize(W13, "fp8_row"), W2), "activations": "bf16",
          "x": blockscale.quantize(X, "nvfp4"), "w13": blockscale.quantize(W13, "nvfp4")},
         ValueError, "shared[0].recipe: is fp8_row with x in nvfp4: no such pair"),
        ({"workspace_limit": 0}, ValueError, "workspace_limit: is 0, must be in 1..2^57"),
        ({"threads": -1}, ValueError, "threads: is -1"),
        ({"x": blockscale.quantize(X, "nvfp4")}, ValueError, "w13.recipe: is f32 with x in nvfp4"),
        ({"w13": blockscale.quantize(W13.reshape(8, 48, 64), "nvfp4")}, ValueError,
         "w13.tensor_scale_batch_stride: is 1, must be 0: gates and ups of an expert share"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    out = np.full((5, 64), 7, np.float32)
    for given in (GIVEN, GIVEN | {"out": out}):
        with pytest.raises(kind, match="^" + re.escape(message)):
            blockscale.moe(**(given | changes))
    assert (out == 7).all()


FP8_WEIGHTS = {
    name: blockscale.quantize(w, "fp8_128x128") for name, w in (("w13", W13), ("w2", W2))
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": None, "activation": "gelu_erf", "w13": W13[:, :48]},
        {"interleave": 1, "limit": 7.0, "alpha": 1.702, "up_shift": 1.0},
        {"activations": "fp8_1x128", "local_expert_offset": 1, "batch_invariant": True}
        | FP8_WEIGHTS,
        {"biases": (np.ones((4, 96), np.float32), np.ones((4, 64), np.float32))},
        {"biases": (None, np.ones((4, 64), np.float16)), "residual": X},
        {"expert_alphas": (np.full(4, 2, np.float32), None)},
        {"expert_map": np.array([3, 2, 1, 0], np.int32)},
        {"x": blockscale.quantize(X, "fp8_1x128")} | FP8_WEIGHTS,
    ],
)
def test_calls_with_out_are_taken_as_they_are(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = GIVEN | options
    y = blockscale.moe(**given)
    monkeypatch.setattr(blockscale._moe, "_operand", None)  # nothing is looked at in Python
    out = np.full(y.shape, np.nan, y.dtype)
    assert blockscale.moe(**given, out=out) is out
    assert np.array_equal(out, y)


def test_residuals_that_overlap_the_result() -> None:
    memory = np.ones((6, 64), np.float32)
    with pytest.raises(ValueError, match="^out: overlaps residual, must not share memory with it"):
        blockscale.moe(*GIVEN.values(), residual=memory[1:], out=memory[:5])
    assert (memory == 1).all()


# --- plans ----------------------------------------------------------------------------------------


def test_plans_of_a_gpu() -> None:
    text = blockscale.describe_moe(64, 7168, 2048, 32, 8, chip="H200")
    assert "32.0 experts are hit" in text and "all: at least " in text
    plan = text[: text.index("if every id")].splitlines()
    steps = ("moe_sort", "quantize_", "grouped_gemm_fp8_", "grouped_gemm_fp8_", "moe_finalize")
    kernels = [line for line in plan if not line.startswith("workspace")]
    assert len(kernels) == len(steps) and all(map(str.startswith, kernels, steps))
    plan = blockscale.describe_moe(
        9, 512, 256, 4, 2, w13="nvfp4", w2="mxfp4", activation="gelu_erf", chip="B200"
    )
    assert "quantize_" not in plan and plan.count("grouped_gemm_plain_") == 2

    def refuses(message: str, *sizes: int, **options: Any) -> None:
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            blockscale.describe_moe(*sizes, **options)

    refuses("top_k: is 17", 9, 512, 256, 4, 17)
    refuses("tokens, hidden, inner, experts: matrices must", 2**30, 2**30, 256, 4, 2)
    refuses("activation: is 'relu'", 9, 512, 256, 4, 2, activation="relu")
    refuses("w2.recipe: is fp8_128x128 with activations in mxfp8_e4m3", 9, 512, 256, 4, 2,
            w13="mxfp4", activations="mxfp8_e4m3")  # fmt: skip
    refuses("interleave: is 64, but the result has 96", 9, 512, 96, 4, 2, interleave=64)
