"""Files of `Calibrator`: what `convert` reads, and the state that a calibration goes on from."""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ._calibration_inputs import BINS, Inputs

#: Names of the layers that have one input.
Names: TypeAlias = tuple[str, ...]

_DTYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}
#: The key of the metadata that makes a file a state, and the arrays that it has of an input.
_STATE = "blockscale_calibration_state"
_PARTS = {"absmax": "F64", "squares": "F64", "sums": "F64", "histogram": "I64"}


class State(NamedTuple):
    """A calibration, as far as it is.

    inputs: in the order in which they were first seen, by names.
    experts: the names of what has tokens of one expert as inputs -> the experts' path.
    batches: how many of the loader's are done.
    """

    inputs: dict[Names, Any]
    experts: dict[Names, str]
    batches: int


def write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """A safetensors file, which appears whole or not at all."""
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        offsets = [offset, offset + tensor.nbytes]
        dtype = _NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        part = Path(folder) / "part"
        with part.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for tensor in tensors.values():
                file.write(np.ascontiguousarray(tensor, _DTYPES[_NAMES[tensor.dtype]]).data)
        part.replace(path)


def write_numbers(
    path: Path,
    inputs: dict[Names, Inputs],
    percents: list[float],
    clip: float | None,
    said: dict[str, dict[str, Any]],
    rename: Callable[[str], str],
) -> None:
    """What `convert` reads, and percentiles, as `Calibrator.save` says.

    Args:
        path: of the file.
        inputs: by names.
        percents: of the percentiles.
        clip: percent of that which magnitudes are cut at, if they are.
        said: other metadata, by key and name.
        rename: gives a name in the file.

    Raises:
        TypeError, ValueError: it gives none, or one name twice.
    """
    names = {name: _renamed(rename, name) for name in chain.from_iterable(inputs)}
    if len(set(names.values())) < len(names):
        twice = next(name for name, n in Counter(names.values()).items() if n > 1)
        raise ValueError(f"rename: gives {twice!r} for several layers, must tell them apart")
    tensors: dict[str, np.ndarray] = {}
    percentiles: dict[str, list[float]] = {}
    for group, each in inputs.items():
        absmax = each.absmax if clip is None else np.minimum(each.absmax, each.percentile(clip))
        parts = {
            "input_absmax": absmax,
            "input_mean_square": each.squares / each.rows,
            "input_mean": each.sums / each.rows,
        }
        numbers = {kind: part.astype(np.float32) for kind, part in parts.items()}
        of_each = [each.percentile(percent) for percent in percents]
        for name in group:
            tensors |= {f"{names[name]}.{kind}": part for kind, part in numbers.items()}
            percentiles[names[name]] = of_each
    metadata: dict[str, Any] = {"input_percentiles": {"percents": percents, "of": percentiles}}
    for key, values in said.items():
        metadata[key] = {_renamed(rename, name): value for name, value in values.items()}
    if clip is not None:
        metadata["input_absmax_percentile"] = clip
    texts = {key: json.dumps(value, sort_keys=True) for key, value in metadata.items()}
    write(path, dict(sorted(tensors.items())), texts)


def _renamed(rename: Callable[[str], str], name: str) -> str:
    new = rename(name)
    if not isinstance(new, str):
        raise TypeError(f"rename: gives a {type(new).__name__} for {name!r}, must give a str")
    return new


def of_layers(inputs: dict[Names, Inputs], experts: dict[Names, str]) -> dict[Names, Inputs]:
    """For each of `experts` that is not in `inputs`, those of its like in its layer together, where
    there are any."""
    kinds = {names: (path, last_of(names)) for names, path in experts.items()}
    sums: dict[tuple[str, str], Inputs] = {}
    for names, kind in kinds.items():
        if names in inputs:
            sums[kind] = sums[kind].plus(inputs[names]) if kind in sums else inputs[names]
    return {
        names: sums[kind] for names, kind in kinds.items() if names not in inputs and kind in sums
    }


def last_of(names: Names) -> str:
    """What tells an expert's layers apart."""
    return names[0].rpartition(".")[2]


def write_state(path: Path, state: State) -> None:
    """All of a state; `read_state` gives its numbers back bit by bit."""
    tensors, entries = {}, []
    for i, (names, inputs) in enumerate(state.inputs.items()):
        host = inputs.on_host()
        entries.append({"names": names, "rows": host.rows})
        tensors |= {f"{i}.{part}": getattr(host, part) for part in _PARTS}
    said = {
        "batches": state.batches,
        "inputs": entries,
        "experts": [{"names": names, "path": path} for names, path in state.experts.items()],
    }
    write(path, tensors, {_STATE: json.dumps(said)})


def read_state(path: Path) -> State:
    """What `write_state` wrote.

    Raises:
        ValueError: the file is something else.
    """
    try:
        tensors, metadata = _read(path)
        said = json.loads(metadata[_STATE])
        inputs = {}
        for i, entry in enumerate(said["inputs"]):
            parts = {part: tensors[f"{i}.{part}"] for part in _PARTS}
            _require_parts(parts, entry["rows"])
            inputs[tuple(entry["names"])] = Inputs(entry["rows"], **parts)
        experts = {tuple(entry["names"]): str(entry["path"]) for entry in said["experts"]}
        return State(inputs, experts, int(said["batches"]))
    except (ValueError, LookupError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(
            f"resume: is {path}, must be what a Calibrator wrote there ({error!r})"
        ) from None


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of a safetensors file, and its metadata."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > path.stat().st_size:
            raise ValueError("is no safetensors file")
        header = json.loads(file.read(length))
        data = np.fromfile(file, np.uint8)
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = data[begin:end].copy().view(_DTYPES[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
    return tensors, metadata


def _require_parts(parts: dict[str, np.ndarray], rows: Any) -> None:
    """Raises ValueError where sums do not go together."""
    channels = parts["absmax"].shape
    shapes = {part: (BINS,) if part == "histogram" else channels for part in _PARTS}
    for part, dtype in _PARTS.items():
        array = parts[part]
        if array.dtype != _DTYPES[dtype] or array.shape != shapes[part] or array.ndim != 1:
            raise ValueError(f"{part} is {array.dtype} {array.shape}")
    if int(parts["histogram"].sum()) != rows * math.prod(channels):
        raise ValueError(f"counts do not add up to {rows} rows")
