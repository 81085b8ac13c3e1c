"""What holds for every test of the Python package."""

import signal
from pathlib import Path

import blockscale
import pytest
from report_pages import save_model

# A shell has its background commands ignore SIGINT, and children inherit that; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and what it became in several recipes."""
    folder = tmp_path_factory.mktemp("report")
    model = save_model(folder / "model")
    for recipe in ("nvfp4", "mxfp8_e4m3", "bf16"):
        blockscale.convert(model, folder / recipe, recipe)
    return folder
