"""A real model in every recipe: all-MiniLM-L6-v2 with its linear layers as block-scaled GEMMs.

The forward pass is numpy; each of the 36 linear layers is one `blockscale.gemm` of quantised
weights with activations that are quantised as they come. For every pair of recipes it reports how
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
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import blockscale
import numpy as np
from scipy.special import erf
from scipy.stats import spearmanr
from tokenizers import Tokenizer

HEADS = 12
MAX_TOKENS = 128
LAYER_NORM_EPSILON = 1e-12
Linear = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Pair:
    """What weights and activations of a run are stored in; plain formats are not quantised."""

    name: str
    weight: str
    activation: str


def pairs() -> list[Pair]:
    """f32, bf16 and, for every recipe, the pairs that are in use."""
    fp8_block = [
        f"fp8_{rows}x128{scale}" for scale in ("", "_pow2", "_ue8m0") for rows in (1, 32, 64, 128)
    ]
    return [
        Pair("f32", "f32", "f32"),
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
        Pair("nvfp4-W4A4", "nvfp4", "nvfp4"),
        Pair("nvfp4-W4A8", "nvfp4", "fp8_row"),
        Pair("nvfp4-W4A16", "nvfp4", "bf16"),
    ]


def is_plain(recipe: str) -> bool:
    return recipe in ("f32", "f16", "bf16")


def in_recipe(x: np.ndarray, recipe: str) -> blockscale.ScaledTensor | np.ndarray:
    """`x` (f32) as an operand: quantised, or rounded to a plain format."""
    if recipe == "f32":
        return x
    if is_plain(recipe):
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16 if recipe == "bf16" else np.float16)
    return blockscale.quantize(x, recipe)


class Model:
    """The six transformer layers of all-MiniLM-L6-v2, with weights and activations in `pair`."""

    def __init__(self, checkpoint: blockscale.Checkpoint, pair: Pair, threads: int) -> None:
        self._pair = pair
        self._threads = threads
        self._tensors = {
            name: np.asarray(checkpoint[name])
            for name in checkpoint
            if not name.startswith("pooler") and "position_ids" not in name
        }
        self.weight_bytes = 0
        self._linears = {
            name.removesuffix(".weight"): self._linear(name.removesuffix(".weight"))
            for name, tensor in self._tensors.items()
            if name.startswith("encoder") and tensor.ndim == 2
        }

    def _linear(self, name: str) -> Linear:
        weight = in_recipe(self._tensors[f"{name}.weight"], self._pair.weight)
        bias = self._tensors[f"{name}.bias"]
        self.weight_bytes += weight.nbytes

        def apply(x: np.ndarray) -> np.ndarray:
            return blockscale.gemm(
                in_recipe(x, self._pair.activation),
                weight,
                bias=bias,
                out_dtype="float32",
                threads=self._threads,
            )

        return apply

    def embed(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Unit sentence embeddings [batch, 384] of token ids [batch, length] and their mask."""
        batch, length = ids.shape
        x = self._embeddings(ids).reshape(batch * length, -1)
        for layer in range(6):
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
        scaled = centred / np.sqrt(variance + np.float32(LAYER_NORM_EPSILON))
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
            return y.reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)

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
    sentences_per_second: float


def embed_all(model: Model, tokenizer: Tokenizer, sentences: list[str]) -> tuple[np.ndarray, float]:
    """(embeddings in the order of `sentences`, seconds)."""
    embeddings = np.empty((len(sentences), 384), np.float32)
    seconds = 0.0
    for chosen, ids, mask in batches(tokenizer, sentences, 64):
        start = time.perf_counter()
        embeddings[chosen] = model.embed(ids, mask)
        seconds += time.perf_counter() - start
    return embeddings, seconds


def load_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def read_pairs(path: Path) -> tuple[list[str], list[str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [row[0] for row in rows], [row[1] for row in rows]


def evaluate(
    folder: Path, sentence_pairs: Path, chosen: list[Pair], threads: int
) -> tuple[list[Result], np.ndarray]:
    """A Result for each pair of recipes, and the f32 embeddings of all sentences."""
    left, right = read_pairs(sentence_pairs)
    sentences = left + right
    tokenizer = load_tokenizer(folder)
    checkpoint = blockscale.Checkpoint(folder)

    def similarity(embeddings: np.ndarray) -> np.ndarray:
        return (embeddings[: len(left)] * embeddings[len(left) :]).sum(axis=1)

    reference, _ = embed_all(Model(checkpoint, pairs()[0], threads), tokenizer, sentences)
    results = []
    for pair in chosen:
        model = Model(checkpoint, pair, threads)
        embeddings, seconds = embed_all(model, tokenizer, sentences)
        cosine = (embeddings * reference).sum(axis=1)
        rank = spearmanr(similarity(embeddings), similarity(reference)).statistic
        results.append(
            Result(
                pair.name,
                pair.weight,
                pair.activation,
                float(cosine.min()),
                float(cosine.mean()),
                float(rank),
                model.weight_bytes,
                len(sentences) / seconds,
            )
        )
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--pairs", type=Path, default=Path(__file__).parent / "sentence_pairs.tsv")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="names of the first column")
    parser.add_argument("--threads", type=int, default=0, help="0: all")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    parser.add_argument("--save-embeddings", type=Path, help="write f32's embeddings (.npy)")
    arguments = parser.parse_args()
    chosen = [p for p in pairs() if not arguments.only or p.name in arguments.only]
    unknown = set(arguments.only or ()) - {p.name for p in pairs()}
    if unknown:
        sys.exit(f"--only: unknown {', '.join(sorted(unknown))}; see the first column of the table")
    results, reference = evaluate(arguments.model, arguments.pairs, chosen, arguments.threads)
    print_table(results)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    if arguments.save_embeddings:
        np.save(arguments.save_embeddings, reference)


if __name__ == "__main__":
    main()
