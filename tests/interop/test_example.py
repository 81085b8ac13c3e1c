"""examples/sentence_embedding.py in f32 against transformers, tokenizer included."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import example_model
import numpy as np
import pytest
import torch
from findings import Findings

SECTION = "The example's forward pass"
EXAMPLE = Path(__file__).parents[2] / "examples"
LARGEST_DIFFERENCE = 1e-5  # of an element of a unit-length embedding
BATCH = 64


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Left sides of all pairs, then right sides: the order of the example's embeddings."""
    text = (EXAMPLE / "sentence_pairs.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()]
    assert len(rows) >= 200
    return [row[0] for row in rows] + [row[1] for row in rows]


@pytest.fixture(scope="module")
def example_embeddings(package_python: Path, model_folder: Path, work: Path) -> np.ndarray:
    output = work / "example.npy"
    command = [package_python, EXAMPLE / "sentence_embedding.py", model_folder]
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    subprocess.run(
        [*command, "--only", "f32", "--save-embeddings", output], check=True, env=environment
    )
    return np.load(output)


def test_example_in_f32_is_the_model(
    example_embeddings: np.ndarray, sentences: list[str], model_folder: Path, findings: Findings
) -> None:
    model, _ = example_model.load(model_folder, torch.float32)
    parts = [sentences[i : i + BATCH] for i in range(0, len(sentences), BATCH)]
    expected = np.concatenate([example_model.embed(model, model_folder, p) for p in parts])
    assert example_embeddings.shape == expected.shape
    difference = float(np.abs(example_embeddings - expected).max())
    print(f"largest difference: {difference:.3g}")
    assert difference <= LARGEST_DIFFERENCE
    findings.record(
        SECTION,
        "`examples/sentence_embedding.py`, f32",
        sentences=str(len(sentences)),
        largest_difference_from_transformers=f"{difference:.1e}",
        allowed=f"{LARGEST_DIFFERENCE:.0e}",
    )
