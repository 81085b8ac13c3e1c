"""The whole converted model, loaded and run by transformers on a CPU in bf16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cases
import example_model
import numpy as np
import pytest
import store
import torch
from cases import Case
from findings import Findings, in_words

SECTION = "The converted model in transformers, in bf16 on a CPU"
NOTE = """\
*Cosine* is between sentence embeddings, the mean over {count} sentences (the smallest in
brackets). *of the recipe*: the f32 model with our dequantized weights against the f32 model: what
the recipe costs. *loaded*: the converted checkpoint as transformers runs it against the f32 model.
*between them*: the two against each other; all that may differ is the arithmetic in bf16, so it
must be no further from 1 than {allowance} times bf16 is without quantization ({bf16:.6f})."""
BF16_ALLOWANCE = 4.0


@pytest.fixture(scope="module")
def bf16_cosines(model_folder: Path, reference: np.ndarray) -> np.ndarray:
    model, _ = example_model.load(model_folder, torch.bfloat16)
    return example_model.cosines(reference, example_model.embed(model, model_folder))


def load_converted(case: Case, folder: Path) -> torch.nn.Module:
    model, report = example_model.load(folder, torch.bfloat16)
    assert not any(report.values()), report
    if case.dialect == "deepseek":
        # transformers leaves tensors that the source stored in f32, and we kept, in f32.
        model = model.to(torch.bfloat16)
    return model


def assert_weights(case: Case, folder: Path, model: torch.nn.Module) -> None:
    """The weights that ran are the file's, by the package's documented order and type."""
    stored = store.read(folder)
    parameters = dict(model.named_parameters())
    names = [name for name in parameters if example_model.QUANTIZED.fullmatch(name)]
    assert len(names) == 37
    for name in names:
        expected = case.dequantize_as_loaded(store.parts(stored, name))
        assert parameters[name].dtype == torch.bfloat16
        assert np.array_equal(parameters[name].detach().float().numpy(), expected), name


@pytest.mark.parametrize("case", cases.LOADABLE, ids=cases.case_id)
def test_model_loads_and_runs(
    case: Case,
    converted: Callable[[Case], Path],
    dequantized: Callable[[Case], Path],
    model_folder: Path,
    reference: np.ndarray,
    bf16_cosines: np.ndarray,
    findings: Findings,
) -> None:
    model = load_converted(case, converted(case))
    loaded = example_model.embed(model, model_folder)
    assert_weights(case, converted(case), model)  # after a run: packed weights unfold in it
    plain, report = example_model.load(dequantized(case), torch.float32)
    assert not any(report.values()), report
    simulated = example_model.embed(plain, model_folder)

    between = example_model.cosines(loaded, simulated)
    assert 1 - between.min() <= BF16_ALLOWANCE * (1 - bf16_cosines.min())
    findings.record(
        SECTION,
        f"`{case.recipe}`, {case.dialect}",
        weights_as_loaded="equal",
        cosine_of_the_recipe=in_words(example_model.cosines(reference, simulated)),
        cosine_loaded=in_words(example_model.cosines(reference, loaded)),
        cosine_between_them=f"{between.mean():.6f} ({between.min():.6f})",
    )
    count = len(example_model.SENTENCES)
    bf16 = bf16_cosines.min()
    findings.note(SECTION, NOTE.format(count=count, allowance=int(BF16_ALLOWANCE), bf16=bf16))
