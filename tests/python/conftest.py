"""Fixtures of the Python tests, which `./dev test python` runs with the command line just built."""

import os
import pathlib

import pytest
from cli_testing import Program, small_model

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def cli() -> pathlib.Path:
    """The `blockscale` executable."""
    return pathlib.Path(os.environ["BLOCKSCALE_CLI"])


@pytest.fixture
def program(cli: pathlib.Path) -> Program:
    """It as something to call."""
    return Program(cli)


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with a small model."""
    return small_model(tmp_path / "model")


@pytest.fixture(scope="session")
def fake_driver() -> str:
    """The path of tests/fake_libcuda.cpp, for BLOCKSCALE_LIBCUDA."""
    return driver("fake")


@pytest.fixture(scope="session")
def old_driver() -> str:
    """The same driver, but without the functions of CUDA 12."""
    return driver("old")


def driver(kind: str) -> str:
    path = pathlib.Path(os.environ["BLOCKSCALE_BUILD"]) / f"libblockscale_{kind}_libcuda.so"
    assert path.exists(), path
    return str(path)
