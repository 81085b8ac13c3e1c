"""What the tests found, as the page docs/interop.md."""

from __future__ import annotations

from importlib import metadata

import numpy as np

PACKAGES = [
    "safetensors",
    "compressed-tensors",
    "transformers",
    "torch",
    "nvidia-modelopt",
    "torchao",
    "comfy-kitchen",
    "numpy",
]

INTRODUCTION = """\
# Interoperability

Written by `./dev interop`, which checks our checkpoints with other people's packages. All of it
runs on a CPU. The example model is all-MiniLM-L6-v2. Where this page says *equal*, every byte or
every value of every converted layer is equal; the tests fail otherwise.

"""


def in_words(cosines: np.ndarray) -> str:
    """Mean and smallest."""
    return f"{cosines.mean():.5f} ({cosines.min():.5f})"


ADVICE = """
## What to know

- transformers 5.23 leaves kept `.weight` tensors of a DeepSeek checkpoint in the type of the file.
  From an f32 source, load it as f32 or call `.to(torch.bfloat16)` on the loaded model.
- It also derives the block size as rows / scale rows: sizes must be multiples of 128.
- It drops `weight_global_scale` of NVFP4 experts, in llm-compressor's own files too.
- Packed and MX formats of compressed-tensors unfold to bf16: load them with `dtype=torch.bfloat16`.
"""


class Findings:
    """Tables of results: section -> row -> column -> text, in the order of recording."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, dict[str, str]]] = {}
        self._notes: dict[str, list[str]] = {}
        self.versions = {name: metadata.version(name) for name in PACKAGES}

    def record(self, section: str, row: str, **columns: object) -> None:
        """Underscores of column names read as spaces."""
        cells = self._tables.setdefault(section, {}).setdefault(row, {})
        cells.update({name.replace("_", " "): str(value) for name, value in columns.items()})

    def note(self, section: str, text: str) -> None:
        notes = self._notes.setdefault(section, [])
        if text not in notes:
            notes.append(text)

    def page(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        sections = [self._section(title) for title in self._tables]
        return INTRODUCTION + f"Packages: {versions}.\n" + "".join(sections) + ADVICE

    def _section(self, title: str) -> str:
        rows = self._tables[title]
        columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
        lines = [f"\n## {title}\n", "| | " + " | ".join(columns) + " |"]
        lines.append("|---" * (len(columns) + 1) + "|")
        for row, cells in rows.items():
            lines.append(f"| {row} | " + " | ".join(cells.get(c, "") for c in columns) + " |")
        notes = [f"\n{note}" for note in self._notes.get(title, [])]
        return "\n".join(lines + notes) + "\n"
