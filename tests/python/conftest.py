"""Fixtures of the Python tests, which `./dev test python` runs with the command line just built."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def cli() -> pathlib.Path:
    """The `blockscale` executable."""
    return pathlib.Path(os.environ["BLOCKSCALE_CLI"])
