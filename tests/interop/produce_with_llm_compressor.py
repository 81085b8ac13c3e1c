"""Writes small models with llm-compressor, each KIND in each SCHEME, into FOLDER/KIND-SCHEME.

`python produce_with_llm_compressor.py FOLDER SCHEME...`, in llm-compressor's own environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import small_models
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM


def main(folder: Path, schemes: list[str]) -> None:
    for kind in small_models.KINDS:
        small_models.save(kind, folder / f"{kind}-source")
        for scheme in schemes:
            model = AutoModelForCausalLM.from_pretrained(folder / f"{kind}-source", dtype="auto")
            ignore = ["lm_head", "re:.*mlp.gate$"]
            oneshot(
                model=model,
                recipe=QuantizationModifier(targets="Linear", scheme=scheme, ignore=ignore),
            )
            model.save_pretrained(folder / f"{kind}-{scheme}", save_compressed=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
