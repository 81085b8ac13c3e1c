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
