"""Places of a model, and what a checkpoint stores for them: for `load`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ._checkpoint import Checkpoint
from ._native import Dialect, TensorInfo, WeightInputs
from ._tensor import ScaledTensor
from ._torch_layer import dialect_of

#: Names of dtypes in safetensors files, of those that torch has.
DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16,
    "I16": torch.int16, "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


class Place(NamedTuple):
    """A parameter or a buffer of a model."""

    name: str
    module: torch.nn.Module
    attribute: str
    tensor: torch.Tensor

    @property
    def is_stored(self) -> bool:
        """Whether a state_dict has it."""
        return self.attribute not in self.module._non_persistent_buffers_set

    @property
    def is_weight(self) -> bool:
        """Whether a quantized layer may take its module's place."""
        return type(self.module) is torch.nn.Linear and self.attribute == "weight"

    def device(self, asked: torch.device | None) -> torch.device:
        """Where it goes: where it is, unless that is the meta device or another one is asked."""
        if asked is not None:
            return asked
        return torch.device("cpu") if self.tensor.is_meta else self.tensor.device

    def put(self, tensor: torch.Tensor) -> None:
        if self.attribute in self.module._parameters:
            self.module._parameters[self.attribute] = tensor
        else:
            self.module._buffers[self.attribute] = tensor


class Source:
    """A checkpoint as `load` reads it."""

    def __init__(self, checkpoint: Checkpoint, prefix: str, with_inputs: bool) -> None:
        self.checkpoint, self._prefix, self._with_inputs = checkpoint, prefix, with_inputs
        #: Of quantized weights that have no problems, unless inputs shall stay.
        self.inputs: dict[str, WeightInputs] = {}

    def info(self, name: str) -> TensorInfo | None:
        """Of what is stored for a name of the model. transformers' Mixtral calls `mlp` what its
        checkpoints call `block_sparse_moe`."""
        name = self._prefix + name
        for stored in (name, name.replace(".mlp.", ".block_sparse_moe.")):
            if stored in self.checkpoint:
                return self.checkpoint.info(stored)
        return None

    def problems(self, info: TensorInfo) -> list[str]:
        """Why no layer can have a quantized weight as it is stored."""
        if info.form:
            return [f"{info.name}: is stored as {info.form}; convert the checkpoint first"]
        if problem := self.checkpoint.problem(info.name):
            return [problem]
        if self._with_inputs:
            try:
                self.inputs[info.name] = self.checkpoint.inputs(info.name)
            except ValueError as error:
                return [str(error)]
        return []

    def weight(self, info: TensorInfo, device: torch.device) -> ScaledTensor:
        """A quantized weight, in torch's memory."""
        stored = self.checkpoint[info.name]
        factor = stored.tensor_scale
        return ScaledTensor(
            copied(stored.values, device),
            copied(stored.scales, device),
            stored.recipe,
            layout=stored.layout,
            tensor_scale=None if factor is None else copied(factor, device),
            sense=stored.sense,
        )

    def plain(self, info: TensorInfo, device: torch.device) -> torch.Tensor:
        """A plain tensor, in the dtype that is stored."""
        data, _, shape = self.checkpoint._native.plain_parts(info.name)
        return copied(data, device).view(DTYPES[info.dtype]).reshape(shape)

    def is_same(self, first: TensorInfo, second: TensorInfo) -> bool:
        """Whether two tensors are stored alike, byte by byte."""
        if first.quantized != second.quantized or first.recipe != second.recipe:
            return False
        if not first.quantized:
            (one, *form), (other, *its_form) = (
                self.checkpoint._native.plain_parts(info.name) for info in (first, second)
            )
            return form == its_form and np.array_equal(one, other)
        one, other = (self.checkpoint[info.name] for info in (first, second))
        return one.layout == other.layout and all(
            np.array_equal(_bytes(getattr(one, part)), _bytes(getattr(other, part)))
            for part in ("values", "scales", "tensor_scale")
        )

    def dialect(self, weight: ScaledTensor) -> Dialect | None:
        """The checkpoint's, where it stores such a weight."""
        try:
            return Dialect[dialect_of(weight, self.checkpoint.dialect)]
        except ValueError:
            return None


def extras_of(module: torch.nn.Module, *taken: str) -> str:
    """What a module has beside the parts that a layer in its place takes: "" for nothing."""
    kinds = (module._parameters, module._buffers, module._modules)
    names = [name for kind in kinds for name in kind if name not in taken]
    return ", ".join(names + ["a forward of its own"] * ("forward" in module.__dict__))


def plain_mismatch(place: Place, info: TensorInfo) -> list[str]:
    """Why a plain tensor cannot become what `place` has."""
    dtype, wanted = DTYPES.get(info.dtype), place.tensor.dtype
    if dtype is None:
        return [f"{info.name}: has dtype {info.dtype}, which torch has not"]
    if dtype != wanted and not (dtype.is_floating_point and wanted.is_floating_point):
        return [f"{info.name}: has dtype {info.dtype}, in the model {wanted}"]
    return []


def _bytes(x: np.ndarray | None) -> np.ndarray:
    return np.empty(0, np.uint8) if x is None else x.view(np.uint8)


def copied(x: np.ndarray, device: torch.device) -> torch.Tensor:
    """float32 as it is, everything else as bytes."""
    dtype = torch.float32 if x.dtype == np.float32 else torch.uint8
    copy = torch.empty(x.shape, dtype=dtype, device="cpu")
    copy_into(copy, x)
    return copy.to(device)


def copy_into(destination: torch.Tensor, x: np.ndarray) -> None:
    """The numbers of `x` where `copied` puts them; in CPU memory without a copy between."""
    if destination.device.type == "cpu":
        np.copyto(destination.numpy(), x.view(np.float32 if x.dtype == np.float32 else np.uint8))
    else:
        destination.copy_(copied(x, torch.device("cpu")))
