"""What the tests of the HTML report share: a model, the program, and what a page holds."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import blockscale
import numpy as np
from safetensors.numpy import save_file

PROGRAM = Path(blockscale.__file__).parent / "bin" / "blockscale"
PACKAGE = Path(blockscale.__file__).parents[1]


def save_model(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    tensors = {
        f"encoder.layer.{layer}.{name}.weight": rng.standard_normal((64, 128), np.float32)
        for layer in range(12)
        for name in ("query", "output.dense")
    }
    tensors["encoder.layer.0.<script>&.weight"] = rng.standard_normal((32, 64), np.float32)
    tensors["encoder.norm.weight"] = np.ones(64, np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


def compare(
    checkpoints: Path, output: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`blockscale compare model nvfp4 --html output` with this Python, unless told otherwise."""
    return subprocess.run(
        [PROGRAM, "compare", checkpoints / "model", checkpoints / "nvfp4", "--html", output]
        + list(options),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE)}
        | {"BLOCKSCALE_PYTHON": sys.executable}
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Page(HTMLParser):
    """The tags and attributes of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_self_contained(text: str) -> Page:
    """No script, no link, nothing fetched; the SVGs inside neither."""
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "a", "base", "form"}
    assert not re.search(r"@import|url\(", text)
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        if tag == "img":
            kind, _, data = attributes["src"].partition(",")
            assert kind == "data:image/svg+xml;base64"
            assert attributes["alt"]
            svg = base64.b64decode(data).decode()
            assert "<script" not in svg
            assert "mathdefault" not in svg  # a tick as the text of a formula
            outside = re.findall(r"(?:href|src)=\"([^\"]*)\"", svg)
            assert all(target.startswith("#") for target in outside)
            assert not re.search(r"url\((?!#)", svg)
        else:
            assert "src" not in attributes and "href" not in attributes
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in (
        page.tags
    )
    assert len(text) < 1 << 20
    return page


def svgs(page: Page) -> list[str]:
    images = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    return [base64.b64decode(str(image).partition(",")[2]).decode() for image in images]
