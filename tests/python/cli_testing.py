"""What the tests of the command line share: running it, and a small model to run it on."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import struct
import subprocess
from dataclasses import dataclass

import numpy
import pytest
from safetensors.numpy import save_file

EXIT_CODES = {
    "success": 0,
    "internal": 1,
    "usage": 2,
    "invalid_argument": 3,
    "unsupported": 4,
    "not_found": 5,
    "already_exists": 6,
    "corrupt_file": 7,
    "io": 8,
    "nonfinite": 9,
    "check_failed": 10,
    "device": 11,
    "compile_failed": 12,
    "interrupted": 130,
}

COMMANDS = ["convert", "inspect", "compare", "gemm", "moe", "bench", "kernels", "doctor"]
KERNELS = ["list", "build"]
BENCHMARKS = ["quantize", "dequantize", "gemm", "grouped_gemm", "moe", "copy", "peaks"]

LINEAR = {
    "encoder.layer.0.attention.self.query": (128, 128),
    "encoder.layer.0.attention.self.key": (128, 128),
    "encoder.layer.0.intermediate.dense": (256, 128),
    "encoder.layer.0.output.dense": (128, 256),
}
WEIGHTS = [module + ".weight" for module in LINEAR]


def open_terminal() -> tuple[int, int]:
    """Both ends of a pseudo-terminal; some containers have none."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminal on this machine: {error}")


@dataclass(frozen=True)
class Result:
    """One run of the program."""

    code: int
    out: str
    err: str

    def json(self) -> dict:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Program:
    """The executable under test."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __call__(self, *arguments: object, **environment: str) -> Result:
        done = subprocess.run(
            [str(self.path), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | environment,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: object) -> str:
        """Standard output of a run that must succeed without a word on standard error."""
        result = self(*arguments)
        assert (result.code, result.err) == (0, ""), result
        return result.out

    def json(self, *arguments: object) -> dict:
        return self(*arguments, "--json").json()

    def fails(self, name: str, *arguments: object) -> str:
        """The message of a run that must fail with the exit code called `name`."""
        result = self(*arguments)
        assert result.code == EXIT_CODES[name], result
        assert result.out == "", result
        assert result.err.startswith("blockscale"), result
        assert ": error: " in result.err, result
        assert result.err.count("\n") == 1, "an error is one line: " + result.err
        assert result.err.endswith("\n"), result
        return result.err.strip()


def files_below(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_tensors(file: pathlib.Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Dtype, shape and bytes of each tensor; numpy has no FP8, so safetensors' own reader fails."""
    contents = file.read_bytes()
    (length,) = struct.unpack_from("<Q", contents)
    header = json.loads(contents[8 : 8 + length])
    header.pop("__metadata__", None)
    data = contents[8 + length :]
    return {
        name: (info["dtype"], info["shape"], data[slice(*info["data_offsets"])])
        for name, info in header.items()
    }


def small_model(folder: pathlib.Path, **changes: numpy.ndarray) -> pathlib.Path:
    """Four linear layers, an embedding and a norm in f32. `changes` replaces tensors."""
    random = numpy.random.default_rng(0)
    tensors = {"embeddings.word_embeddings.weight": random.standard_normal((64, 128))}
    tensors["encoder.layer.0.output.LayerNorm.weight"] = numpy.ones(128)
    for module, shape in LINEAR.items():
        tensors[module + ".weight"] = 0.1 * random.standard_normal(shape)
        tensors[module + ".bias"] = 0.1 * random.standard_normal(shape[0])
    tensors = {name: value.astype(numpy.float32) for name, value in tensors.items()} | changes
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 128}))
    (folder / "tokenizer.json").write_text("{}")
    return folder
