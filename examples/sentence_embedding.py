"""A real model in every recipe: all-MiniLM-L6-v2 with its linear layers as block-scaled GEMMs.

The forward pass is numpy; each of the 36 linear layers is one `blockscale.gemm` of quantized
weights with activations that are quantized as they come. For every pair of recipes it reports how
far the sentence embeddings move from f32's, whether the similarity ranking of the sentence pairs
survives, what the weights weigh and how many sentences a second go through.

    python examples/sentence_embedding.py build/demo/model
    python examples/sentence_embedding.py build/demo/model --only mxfp4-W4A8 --json result.json

Needs: numpy, scipy, tokenizers, ml_dtypes (examples/requirements.txt).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import blockscale
import numpy as np
from scipy.special import erf
from scipy.stats import spearmanr
from tokenizers import Tokenizer

MAX_TOKENS = 128
SEARCHED = ("mse", "weighted")
Linear = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Pair:
    """What weights and activations of a run are stored in; plain formats are not quantized."""

    name: str
    weight: str
    activation: str
    scales: str = "amax"  # how the scales of weights are chosen


def pairs() -> list[Pair]:
    """The plain formats and, for every recipe of the library, the pairs that are in use."""
    fp8_block = [
        f"fp8_{rows}x128{scale}" for scale in ("", "_pow2", "_ue8m0") for rows in (1, 32, 64, 128)
    ]
    return [
        Pair("f32", "f32", "f32"),
        Pair("f16", "f16", "f16"),
        Pair("bf16", "bf16", "bf16"),
        *(Pair(f"{r}-W8A8", r, r) for r in ("fp8_tensor", "fp8_tensor_e5m2", "fp8_row")),
        *(Pair(f"{r}-W8A8", r, "fp8_1x128") for r in fp8_block),
        *(Pair(f"{r}-W8A8", r, r) for r in ("mxfp8_e4m3", "mxfp8_e5m2")),
        *(
            Pair(f"{r}-{kind}", r, activation)
            for r in ("mxfp6_e2m3", "mxfp6_e3m2")
            for kind, activation in (("W6A6", r), ("W6A8", "mxfp8_e4m3"), ("W6A16", "bf16"))
        ),
        Pair("mxfp4-W4A4", "mxfp4", "mxfp4"),
        Pair("mxfp4-W4A8", "mxfp4", "mxfp8_e4m3"),
        Pair("mxfp4-W4A16", "mxfp4", "bf16"),
        *(Pair(f"mxfp4-W4A16-{scales}", "mxfp4", "bf16", scales) for scales in SEARCHED),
        Pair("nvfp4-W4A4", "nvfp4", "nvfp4"),
        Pair("nvfp4-W4A8", "nvfp4", "fp8_row"),
        Pair("nvfp4-W4A16", "nvfp4", "bf16"),
        *(Pair(f"nvfp4-W4A16-{scales}", "nvfp4", "bf16", scales) for scales in SEARCHED),
    ]


def is_plain(recipe: str) -> bool:
    return recipe in ("f32", "f16", "bf16")


def in_recipe(x: np.ndarray, recipe: str, **scales: Any) -> blockscale.ScaledTensor | np.ndarray:
    """`x` (f32) as an operand: quantized, or rounded to a plain format."""
    if recipe == "f32":
        return x
    if is_plain(recipe):
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16 if recipe == "bf16" else np.float16)
    return blockscale.quantize(x, recipe, **scales)


class Model:
    """A BERT encoder such as all-MiniLM-L6-v2, with weights and activations in `pair`.

    A weight that the recipe cannot divide into its blocks stays in f32, its layer's activations
    too; `kept` says which and why. `weight_bytes` counts the linear layers. `calibrator` observes
    their inputs; `inputs`, what `calibrate` found of them, weights the errors of scales.
    """

    def __init__(
        self,
        folder: Path,
        pair: Pair,
        threads: int,
        *,
        calibrator: blockscale.Calibrator | None = None,
        inputs: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._layers: int = config["num_hidden_layers"]
        self._heads: int = config["num_attention_heads"]
        self.width: int = config["hidden_size"]
        self._epsilon = np.float32(config["layer_norm_eps"])
        self._pair = pair
        self._threads = threads
        self._calibrator = calibrator
        self._inputs = inputs or {}
        checkpoint = blockscale.Checkpoint(folder)
        self._tensors = {
            name: np.asarray(checkpoint[name])
            for name in checkpoint
            if not name.startswith("pooler") and "position_ids" not in name
        }
        self.weight_bytes = 0
        self.kept: dict[str, str] = {}
        self._linears = {
            name.removesuffix(".weight"): self._linear(name.removesuffix(".weight"))
            for name, tensor in self._tensors.items()
            if name.startswith("encoder") and tensor.ndim == 2
        }

    def _linear(self, name: str) -> Linear:
        weight = self._tensors[f"{name}.weight"]
        bias = self._tensors[f"{name}.bias"]
        activation = self._pair.activation
        scales: dict[str, Any] = {}
        if self._pair.scales != "amax":
            scales["scale_choice"] = self._pair.scales
        if self._pair.scales == "weighted":
            scales["channel_weights"] = self._inputs[f"{name}.input_mean_square"]
            if self._pair.weight.startswith("mx"):
                scales["channel_means"] = self._inputs[f"{name}.input_mean"]
        try:
            weight = in_recipe(weight, self._pair.weight, **scales)
        except ValueError as error:
            self.kept[name] = str(error)
            activation = "f32"
        self.weight_bytes += weight.nbytes

        def apply(x: np.ndarray) -> np.ndarray:
            return blockscale.gemm(
                in_recipe(x, activation),
                weight,
                bias=bias,
                out_dtype="float32",
                threads=self._threads,
            )

        return apply if self._calibrator is None else self._calibrator.wrap(name, apply)

    def embed(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Unit sentence embeddings [batch, width] of token ids [batch, length] and their mask."""
        batch, length = ids.shape
        x = self._embeddings(ids).reshape(batch * length, -1)
        for layer in range(self._layers):
            x = self._layer(x, mask, f"encoder.layer.{layer}")
        x = x.reshape(batch, length, -1)
        weights = mask[:, :, None].astype(np.float32)
        mean = (x * weights).sum(axis=1) / weights.sum(axis=1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def _embeddings(self, ids: np.ndarray) -> np.ndarray:
        table = self._tensors
        x = table["embeddings.word_embeddings.weight"][ids]
        x = x + table["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = x + table["embeddings.token_type_embeddings.weight"][0]
        return self._norm(x, "embeddings.LayerNorm")

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(variance + self._epsilon)
        return scaled * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]

    def _layer(self, x: np.ndarray, mask: np.ndarray, name: str) -> np.ndarray:
        attended = self._attention(x, mask, f"{name}.attention.self")
        attended = self._linears[f"{name}.attention.output.dense"](attended)
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        hidden = self._linears[f"{name}.intermediate.dense"](x)
        hidden = 0.5 * hidden * (1.0 + erf(hidden * np.float32(0.5**0.5)))
        hidden = self._linears[f"{name}.output.dense"](hidden.astype(np.float32))
        return self._norm(x + hidden, f"{name}.output.LayerNorm")

    def _attention(self, x: np.ndarray, mask: np.ndarray, name: str) -> np.ndarray:
        batch, length = mask.shape

        def heads(kind: str) -> np.ndarray:  # [batch, head, length, width]
            y = self._linears[f"{name}.{kind}"](x)
            return y.reshape(batch, length, self._heads, -1).transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(query.shape[-1] ** 0.5)
        scores = np.where(mask[:, None, None, :] != 0, scores, np.float32(-np.inf))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities = scores / scores.sum(axis=-1, keepdims=True)
        mixed = probabilities @ value
        return np.ascontiguousarray(mixed.transpose(0, 2, 1, 3)).reshape(batch * length, -1)


def batches(
    tokenizer: Tokenizer, sentences: list[str], size: int
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """(indices, ids, mask) of sentences of similar length."""
    encodings = tokenizer.encode_batch(sentences)
    order = sorted(range(len(sentences)), key=lambda i: len(encodings[i].ids))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        length = max(len(encodings[i].ids) for i in chosen)
        ids = np.zeros((len(chosen), length), np.int64)
        mask = np.zeros((len(chosen), length), np.int64)
        for row, i in enumerate(chosen):
            ids[row, : len(encodings[i].ids)] = encodings[i].ids
            mask[row, : len(encodings[i].ids)] = 1
        yield chosen, ids, mask


@dataclass(frozen=True)
class Result:
    """How one pair of recipes did against f32."""

    name: str
    weight: str
    activation: str
    cosine_min: float
    cosine_mean: float
    rank_correlation: float
    weight_bytes: int
    layers_kept: int  # that the recipe could not divide, and that stayed in f32
    sentences_per_second: float
    sentence_pairs: int


@dataclass
class Run:
    """A model, and what came out of it."""

    model: Model
    embeddings: np.ndarray  # [sentence, width]
    seconds: float = 0.0


def embed_all(models: list[Model], tokenizer: Tokenizer, sentences: list[str]) -> list[Run]:
    """One run a model, in the order of `sentences`.

    The models take turns batch by batch, so that what else the machine does slows them all alike.
    """
    runs = [Run(m, np.empty((len(sentences), m.width), np.float32)) for m in models]
    for chosen, ids, mask in batches(tokenizer, sentences, 64):
        for run in runs:
            start = time.perf_counter()
            run.embeddings[chosen] = run.model.embed(ids, mask)
            run.seconds += time.perf_counter() - start
    return runs


def load_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def calibrate(
    folder: Path, sentences: list[str], path: Path, threads: int = 0
) -> dict[str, np.ndarray]:
    """Runs the f32 model on `sentences` and writes the calibration that `convert` reads to `path`.

    Returns:
        What it wrote: the mean square and the mean of each layer's input channels among it.
    """
    calibrator = blockscale.Calibrator()
    model = Model(folder, pairs()[0], threads, calibrator=calibrator)
    embed_all([model], load_tokenizer(folder), sentences)
    calibrator.save(path)
    checkpoint = blockscale.Checkpoint(path)
    return {name: np.asarray(checkpoint[name]) for name in checkpoint}


def read_pairs(path: Path) -> tuple[list[str], list[str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [row[0] for row in rows], [row[1] for row in rows]


def evaluate(
    folder: Path,
    sentence_pairs: tuple[list[str], list[str]],
    chosen: list[Pair],
    threads: int,
    inputs: Mapping[str, np.ndarray] | None = None,
) -> tuple[list[Result], np.ndarray]:
    """A Result for each pair of recipes, and the f32 embeddings of all sentences."""
    left, right = sentence_pairs
    # f32 comes first: it is what the others are compared with.
    wanted = [pairs()[0], *(pair for pair in chosen if pair.name != "f32")]
    models = [Model(folder, pair, threads, inputs=inputs) for pair in wanted]
    runs = embed_all(models, load_tokenizer(folder), left + right)
    reference = runs[0].embeddings

    def similarity(embeddings: np.ndarray) -> np.ndarray:
        return (embeddings[: len(left)] * embeddings[len(left) :]).sum(axis=1)

    results = []
    for pair, run in zip(wanted, runs, strict=True):
        cosine = (run.embeddings * reference).sum(axis=1)
        rank = spearmanr(similarity(run.embeddings), similarity(reference)).statistic
        result = Result(
            name=pair.name,
            weight=pair.weight,
            activation=pair.activation,
            cosine_min=float(cosine.min()),
            cosine_mean=float(cosine.mean()),
            rank_correlation=float(rank),
            weight_bytes=run.model.weight_bytes,
            layers_kept=len(run.model.kept),
            sentences_per_second=2 * len(left) / run.seconds,
            sentence_pairs=len(left),
        )
        results.append(result)
    return results, reference


def print_table(results: list[Result]) -> None:
    print(
        f"{'weights-activations':24}{'cosine mean':>12}{'min':>9}{'rank':>9}"
        f"{'weights MB':>12}{'sentences/s':>13}"
    )
    for r in results:
        print(
            f"{r.name:24}{r.cosine_mean:12.5f}{r.cosine_min:9.5f}{r.rank_correlation:9.5f}"
            f"{r.weight_bytes / 1e6:12.2f}{r.sentences_per_second:13.0f}"
        )
    for r in results:
        if r.layers_kept:
            print(f"{r.name}: {r.layers_kept} layers stay in f32, {r.weight} cannot divide them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--pairs", type=Path, default=Path(__file__).parent / "sentence_pairs.tsv")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="names of the first column")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N sentence pairs")
    parser.add_argument("--threads", type=int, default=0, help="0: all")
    parser.add_argument(
        "--calibration-sentences",
        type=Path,
        default=Path(__file__).parent / "calibration_sentences.txt",
        metavar="FILE",
        help="one a line; what weighted scales are chosen for",
    )
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="keep the calibration here (.safetensors)"
    )
    parser.add_argument("--json", type=Path, help="write the results here as well")
    parser.add_argument("--save-embeddings", type=Path, help="write f32's embeddings (.npy)")
    arguments = parser.parse_args()
    chosen = [p for p in pairs() if not arguments.only or p.name in arguments.only]
    unknown = set(arguments.only or ()) - {p.name for p in pairs()}
    if unknown:
        sys.exit(f"--only: unknown {', '.join(sorted(unknown))}; see the first column of the table")
    left, right = read_pairs(arguments.pairs)
    taken = (left[: arguments.first], right[: arguments.first])
    if len(taken[0]) < 2:
        sys.exit("--first, --pairs: a ranking needs at least 2 pairs of sentences")
    inputs = None
    if arguments.calibration or any(pair.scales == "weighted" for pair in chosen):
        sentences = arguments.calibration_sentences.read_text(encoding="utf-8").splitlines()
        with tempfile.TemporaryDirectory() as folder:
            path = arguments.calibration or Path(folder) / "calibration.safetensors"
            inputs = calibrate(arguments.model, sentences, path, arguments.threads)
    results, reference = evaluate(arguments.model, taken, chosen, arguments.threads, inputs=inputs)
    print_table(results)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    if arguments.save_embeddings:
        np.save(arguments.save_embeddings, reference)


if __name__ == "__main__":
    main()
