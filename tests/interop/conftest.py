"""Options and shared fixtures: the command, the example model, its conversions, the findings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import example_model
import numpy as np
import store
import torch
from cases import Case
from command import Blockscale
from findings import Findings
from lightx2v_checkout import LightX2V

FINDINGS = pytest.StashKey[Findings]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--blockscale", type=Path, required=True, help="the command line to test")
    parser.addoption("--llm-compressor-python", type=Path, help="interpreter with llm-compressor")
    parser.addoption("--vllm-python", type=Path, help="interpreter with vLLM")
    parser.addoption("--lightx2v", type=Path, help="checkout of ModelTC/LightX2V")
    parser.addoption("--package-python", type=Path, help="interpreter with the blockscale package")
    parser.addoption("--report", type=Path, help="page to write when every test has passed")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FINDINGS] = Findings()
    torch.set_num_threads(2)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    report = session.config.getoption("--report")
    if report and exitstatus == pytest.ExitCode.OK:
        report.write_text(session.config.stash[FINDINGS].page())


@pytest.fixture(scope="session")
def findings(pytestconfig: pytest.Config) -> Findings:
    return pytestconfig.stash[FINDINGS]


@pytest.fixture(scope="session")
def blockscale(pytestconfig: pytest.Config) -> Blockscale:
    return Blockscale(pytestconfig.getoption("--blockscale").resolve())


def path_of(config: pytest.Config, option: str) -> Path:
    path = config.getoption(option)
    if path is None:
        pytest.skip(f"no {option}")
    return path


@pytest.fixture(scope="session")
def package_python(pytestconfig: pytest.Config) -> Path:
    """A Python with the package blockscale and what examples/requirements.txt names."""
    return path_of(pytestconfig, "--package-python")


@pytest.fixture(scope="session")
def llm_compressor_python(pytestconfig: pytest.Config) -> Path:
    return path_of(pytestconfig, "--llm-compressor-python")


@pytest.fixture(scope="session")
def vllm_python(pytestconfig: pytest.Config) -> Path:
    return path_of(pytestconfig, "--vllm-python")


@pytest.fixture(scope="session")
def lightx2v(pytestconfig: pytest.Config, work: Path) -> LightX2V:
    checkout = path_of(pytestconfig, "--lightx2v").resolve()
    folder = work / "lightx2v"
    folder.mkdir()
    return LightX2V(checkout, folder)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return example_model.package_path()


@pytest.fixture(scope="session")
def source(model_folder: Path) -> dict[str, store.Stored]:
    return store.read(model_folder)


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interop")


@pytest.fixture(scope="session")
def converted(blockscale: Blockscale, model_folder: Path, work: Path) -> Callable[[Case], Path]:
    """The example model in a case's recipe and dialect, converted once."""

    def convert(case: Case) -> Path:
        folder = work / case.name
        if not folder.exists():
            options = ["--dialect", case.dialect]
            if case.dialect == "compressed-tensors":
                options += ["--activations", "none"]
            blockscale.convert(model_folder, folder, case.recipe, *options)
        return folder

    return convert


@pytest.fixture(scope="session")
def dequantized(
    blockscale: Blockscale, converted: Callable[[Case], Path], work: Path
) -> Callable[[Case], Path]:
    """That conversion read back by us, as a plain f32 checkpoint."""

    def dequantize(case: Case) -> Path:
        folder = work / f"{case.name}-f32"
        return folder if folder.exists() else blockscale.dequantize(converted(case), folder)

    return dequantize


@pytest.fixture(scope="session")
def reference(model_folder: Path) -> np.ndarray:
    """Sentence embeddings of the example model in f32."""
    model, _ = example_model.load(model_folder, torch.float32)
    return example_model.embed(model, model_folder)
