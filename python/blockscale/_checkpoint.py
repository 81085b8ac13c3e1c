"""Checkpoints: read any dialect lazily, convert, compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import _native
from ._arrays import count, number, to_library
from ._native import (
    Activations,
    CompareReport,
    ConvertReport,
    Dialect,
    ExpertsLayout,
    Format,
    MxScaleMode,
    Recipe,
    ScaleChoice,
    TensorInfo,
    UnusedInputs,
    WeightInputs,
)
from ._tensor import TRAITS, ScaledTensor, enum_member

Path = str | os.PathLike[str]

_NUMPY_DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16,
    "U32": np.uint32, "I32": np.int32, "U64": np.uint64, "I64": np.int64,
    "F16": np.float16, "F32": np.float32, "F64": np.float64, "C64": np.complex64,
}  # fmt: skip
_FORMATS = {
    "BF16": Format.bf16, "F8_E4M3": Format.e4m3, "F8_E5M2": Format.e5m2, "F8_E8M0": Format.ue8m0,
}  # fmt: skip


def _path(value: Any, argument: str) -> str:
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{argument}: is a {type(value).__name__}, must be a path") from None
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ValueError(f"{argument}: is {path!r}, which no file can be called") from None
    if "\0" in path:
        raise ValueError(f"{argument}: is {path!r}, must have no null character")
    return path


def _globs(value: Any, argument: str) -> list[str]:
    globs = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [None]
    if not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"{argument}: is {value!r}, must be a list of patterns")
    for glob in globs:
        if any("\ud800" <= c <= "\udfff" for c in glob):
            raise ValueError(f"{argument}: {glob!r} is no Unicode text, names of tensors are")
    return globs


def _glob_recipes(value: Any) -> list[tuple[str, Recipe]]:
    if isinstance(value, str | os.PathLike):
        return _native.read_recipe_file(_path(value, "map"))
    if isinstance(value, Mapping):
        value = value.items()
    try:
        pairs = [(glob, recipe) for glob, recipe in value]
    except (TypeError, ValueError):
        raise TypeError(
            f"map: is {value!r}, must map patterns to recipes, or be a recipe file"
        ) from None
    _globs([glob for glob, _ in pairs], "map")
    return [(glob, enum_member(recipe, Recipe, "map")) for glob, recipe in pairs]


class Checkpoint(Mapping[str, Any]):
    """A checkpoint in any readable dialect: a mapping of weight names to lazily read tensors.

    Quantized weights come as ScaledTensor, others as read-only numpy arrays: bf16 and FP8 ones
    typed by ml_dtypes, those of types that numpy lacks (packed FP6, say) as their bytes. Both are
    views of the mapped file, and keep it open.

    Args:
        path: a safetensors file, or a folder with one or with an index and its shards.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: a file that breaks the rules of its format, with the rule.

    >>> import blockscale
    >>> model = blockscale.Checkpoint("model-nvfp4")
    >>> model["layers.0.q_proj.weight"]
    ScaledTensor(nvfp4, shape=(64, 128), layout=row_major)
    >>> model["layers.0.q_proj.bias"].dtype
    dtype('float32')
    """

    def __init__(self, path: Path) -> None:
        self._path = _path(path, "path")
        self._native = _native.Checkpoint.open(self._path)
        self._infos = {info.name: info for info in self._native.tensors}

    @property
    def dialect(self) -> Dialect:
        """The dialect that it is stored in."""
        return self._native.dialect

    def info(self, name: str) -> TensorInfo:
        """Name, logical shape, recipe and stored bytes of a tensor, without reading it."""
        return self._infos[name]

    def problem(self, name: str) -> str | None:
        """Why `convert` would refuse the scales of a tensor, or None: it would not.

        >>> import blockscale
        >>> blockscale.Checkpoint("model-nvfp4").problem("layers.0.q_proj.weight")
        """
        return self._native.problem(self._infos[name].name) or None

    def inputs(self, name: str) -> WeightInputs:
        """How the inputs of a weight's layer are quantized, as the configuration says.

        Static ones whose scales are not stored, or that calibration never set, are dynamic. Where
        the configuration says nothing, scales that are stored hold.

        Raises:
            KeyError: no tensor has that name.
            ValueError: inputs that no recipe describes (int8, say).

        >>> import blockscale
        >>> blockscale.Checkpoint("model-nvfp4").inputs("layers.0.q_proj.weight")
        WeightInputs(none)
        """
        return self._native.inputs(self._infos[name].name)

    def __getitem__(self, name: str) -> Any:
        info = self._infos[name]
        return self._scaled(info) if info.quantized else self._plain(info)

    def __repr__(self) -> str:
        quantized = sum(info.quantized for info in self._infos.values())
        return (
            f"Checkpoint({self._path!r}, {self.dialect.name}, {len(self._infos)} tensors, "
            f"{quantized} quantized)"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def _plain(self, info: TensorInfo) -> Any:
        data, dtype, shape = self._native.plain_parts(info.name)
        if dtype in _NUMPY_DTYPES:
            return data.view(_NUMPY_DTYPES[dtype]).reshape(shape)
        if dtype == "BF16":
            return to_library(data.view(np.uint16).reshape(shape), Format.bf16, "numpy")
        if dtype in _FORMATS:
            return to_library(data.reshape(shape), _FORMATS[dtype], "numpy")
        return data

    def _scaled(self, info: TensorInfo) -> ScaledTensor:
        parts = self._native.scaled_parts(info.name)
        batch, rows, k = parts["shape"]
        lead = (batch,) if len(info.shape) > 2 else ()
        _, grids = _native.part_shapes(parts["recipe"], parts["layout"], (*lead, rows, k))
        scales = parts["scales"]
        if TRAITS[parts["recipe"]].scale == Format.f32:
            scales = scales.view(np.float32)
        factors = parts.get("tensor_scale")
        return ScaledTensor(
            parts["values"].reshape((*lead, rows, -1)),
            scales.reshape(grids),
            parts["recipe"],
            layout=parts["layout"],
            tensor_scale=None if factors is None else factors.view(np.float32),
            sense=parts["sense"],
        )


def inspect(path: Path) -> list[TensorInfo]:
    """Every weight of a checkpoint with its logical shape, recipe and stored bytes, by name.

    Args:
        path: a safetensors file or a folder.

    Raises:
        FileNotFoundError, ValueError: as `Checkpoint`.

    >>> import blockscale
    >>> sum(tensor.bytes for tensor in blockscale.inspect("model-nvfp4") if tensor.quantized)
    9224
    """
    return list(_native.Checkpoint.open(_path(path, "path")).tensors)


def convert(
    source: Path,
    destination: Path,
    recipe: Recipe | str,
    *,
    dialect: Dialect | str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    map: Mapping[str, Recipe | str] | Sequence[tuple[str, Recipe | str]] | Path = (),
    experts_layout: ExpertsLayout | str | None = None,
    share_tensor_scales: bool = False,
    activation_scales: Path | None = None,
    activations: Activations | str | None = None,
    unused_inputs: UnusedInputs | str = "drop",
    scales: ScaleChoice | str = "amax",
    calibration: Path | None = None,
    scale_mode: MxScaleMode | str | None = None,
    amax_floor: float = 0.0,
    shard_bytes: int = 5_000_000_000,
    memory_bytes: int = 2 << 30,
    threads: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    copy_all: bool = False,
    allow_nonfinite: bool = False,
    dry_run: bool = False,
    progress: Callable[[int, int, str], object] | None = None,
) -> ConvertReport:
    """Convert a checkpoint; nothing appears at `destination` before it is complete.

    Args:
        source: a safetensors file or a folder, in any readable dialect; a model of a Hugging Face
            cache (models--ORG--NAME) stands for its snapshot.
        destination: a new file (if the source is one) or folder.
        recipe: what to convert linear layers to; "f32", "f16" and "bf16" dequantize.
        dialect: "plain", "deepseek", "modelopt", "compressed_tensors" or "lightx2v"; default: the
            recipe's own.
        include, exclude: patterns of weight names: globs, or "re:" and a regular expression that
            matches from the name's start, as in llm-compressor. One that matches nothing is an
            error.
        map: {pattern: recipe}, or pairs, the first match wins; or a file of them, YAML (a flat
            mapping) or JSON.
        experts_layout: how stacks of experts are stored: "out_in" ([experts, out, in]) or "in_out",
            which stay plain; default: as the model type does.
        share_tensor_scales: quantize weights anew that engines fuse (q, k and v; gate and up) and
            whose NVFP4 tensor scales differ in the source.
        activation_scales: safetensors or JSON file: weight or module name -> absmax of its input,
            such as `Calibrator` writes.
        activations: how engines quantize inputs: "none", "dynamic", or "static" (nvfp4, fp8_tensor
            and fp8_row, with `activation_scales`); default: as the source has it, or as the
            presets of llm-compressor; `activations` of the report says which.
        unused_inputs: what becomes of input scales of 0 in the source, of experts that no token
            reached in calibration: "drop", with those of all weights of the recipe, or "one".
        scales: MX and NVFP4: which scale a block takes. "amax": from its largest magnitude; "mse":
            that of the least squared error; "weighted": the same, each squared error weighted by
            the mean square of its input channel in `calibration` (MX: and by its mean).
        calibration: the file that `Calibrator` writes, for scales="weighted".
        scale_mode: MX exponent rule; default "ceil"; in compressed-tensors "even", and for MXFP8
            "even_e2m1".
        amax_floor: FP8: a block's largest magnitude counts as at least this.
        shard_bytes: largest shard.
        memory_bytes: resident memory to keep to, beyond mapped files.
        threads: 0 for all of the machine's.
        resume: continue an interrupted conversion with the same options.
        overwrite: replace an existing destination: a regular file, or a folder that is empty or
            holds a checkpoint.
        copy_all: copy the source's files that hold other weights (*.bin, *.pth, *.gguf, original/,
            onnx/, ...) too; else `not_copied` of the report lists them, with reasons.
        allow_nonfinite: quantize NaN and Inf instead of refusing them.
        dry_run: decide and report, write nothing; `disk_bytes` and `free_bytes` of the report say
            what the result needs and what its disk has.
        progress: called as progress(done bytes, total bytes, tensor name) in this thread; an
            exception that it raises stops the conversion.

    Raises:
        FileNotFoundError, FileExistsError, OSError, ValueError: with the library's text.
        KeyboardInterrupt: Ctrl-C; what was done can be resumed.

    >>> import blockscale
    >>> report = blockscale.convert("model", "model-mxfp8", "mxfp8_e4m3", exclude=["*.o_proj.*"])
    >>> [tensor.name for tensor in report.tensors if tensor.converted]
    ['layers.0.q_proj.weight']
    """
    options = choice_options(
        recipe,
        dialect=dialect,
        include=include,
        exclude=exclude,
        activation_scales=activation_scales,
        activations=activations,
        scales=scales,
        calibration=calibration,
        scale_mode=scale_mode,
        amax_floor=amax_floor,
    )
    options.map = _glob_recipes(map)
    if experts_layout is not None:
        layout = (
            experts_layout.replace("-", "_") if isinstance(experts_layout, str) else experts_layout
        )
        options.experts_layout = enum_member(layout, ExpertsLayout, "experts_layout")
    options.share_tensor_scales = bool(share_tensor_scales)
    options.unused_inputs = enum_member(unused_inputs, UnusedInputs, "unused_inputs")
    options.shard_bytes = count(shard_bytes, "shard_bytes", 2**63)
    options.memory_bytes = count(memory_bytes, "memory_bytes", 2**63)
    options.threads = count(threads, "threads")
    options.resume = bool(resume)
    options.overwrite = bool(overwrite)
    options.copy_all = bool(copy_all)
    options.allow_nonfinite = bool(allow_nonfinite)
    options.dry_run = bool(dry_run)
    if progress is not None and not callable(progress):
        raise TypeError(f"progress: is a {type(progress).__name__}, must be callable")
    return _native.convert(
        _path(source, "source"), _path(destination, "destination"), options, progress
    )


def choice_options(
    recipe: Recipe | str,
    *,
    dialect: Dialect | str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    activation_scales: Path | None,
    activations: Activations | str | None,
    scales: ScaleChoice | str,
    calibration: Path | None,
    scale_mode: MxScaleMode | str | None,
    amax_floor: float,
) -> _native.ConvertOptions:
    """What `convert` says of weights and of their numbers."""
    options = _native.ConvertOptions()
    options.recipe = enum_member(recipe, Recipe, "recipe")
    if dialect is not None:
        name = dialect.replace("-", "_") if isinstance(dialect, str) else dialect
        options.dialect = enum_member(name, Dialect, "dialect")
    options.include = _globs(include, "include")
    options.exclude = _globs(exclude, "exclude")
    if activation_scales is not None:
        options.activation_scales = _path(activation_scales, "activation_scales")
    if activations is not None:
        if isinstance(activations, str) and activations not in ("none", "dynamic", "static"):
            raise ValueError(f'activations: "{activations}" is none of none, dynamic, static')
        name = "calibrated" if activations == "static" else activations
        options.activations = enum_member(name, Activations, "activations")
    options.scales = enum_member(scales, ScaleChoice, "scales")
    if calibration is not None:
        options.calibration = _path(calibration, "calibration")
    if scale_mode is not None:
        options.scale_mode = enum_member(scale_mode, MxScaleMode, "scale_mode")
    options.amax_floor = number(amax_floor, "amax_floor")
    return options


def compare(a: Path, b: Path, *, tensors: Sequence[str] = (), threads: int = 0) -> CompareReport:
    """Compare two checkpoints value by value (dequantized); `a` is the reference.

    Args:
        a, b: safetensors files or folders in any readable dialect.
        tensors: patterns of the names to compare, as `include` of `convert`; none: everything.
        threads: 0 for all of the machine's.

    Returns:
        Per tensor and in total: status, SQNR in dB, largest and mean absolute error, bytes. The
        total counts converted tensors (recipe, dtype or values differ); ruined ones, in which NaN
        or infinity is on one side only, come first.

    Raises:
        FileNotFoundError, ValueError: as `Checkpoint`; ValueError also where no tensor has the
            same name and shape in both.

    >>> import blockscale
    >>> report = blockscale.compare("model", "model-nvfp4")
    >>> 15 < report.total.sqnr_db < 25, report.converted
    (True, 2)
    >>> [tensor.name for tensor in report.tensors if tensor.status == "ruined"]
    []
    """
    threads = count(threads, "threads")
    return _native.compare(_path(a, "a"), _path(b, "b"), threads, _globs(tensors, "tensors"))
