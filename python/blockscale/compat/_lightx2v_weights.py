"""Where a weight of LightX2V's classes lies, and by which names it comes and goes. The classes are
in _lightx2v_classes.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch

from .._torch_layer import rows_of
from ._lightx2v_lora import Additions, itself, place_of_weights

Tensors = dict[str, torch.Tensor]
_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")


def of_block(name: str, index: int) -> str:
    """`name` with `index` in place of its first number: blocks.0.ffn.0.weight of block 7 is
    blocks.7.ffn.0.weight."""
    return _NUMBER.sub(f".{index}", name, count=1)


def _block_of(name: str) -> str:
    """The first number of `name`."""
    found = _NUMBER.search(name)
    if found is None:
        raise ValueError(f"weight_name: is {name}, must have a block's number for a folder")
    return found[1]


def _read(path: Path, names: Mapping[str, str]) -> Tensors:
    """The tensors of a safetensors file that have one of `names`."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise RuntimeError(f"{path}: cannot be read without the package safetensors") from None
    with safe_open(str(path), framework="pt", device="cpu") as file:
        stored = set(file.keys())
        return {name: file.get_tensor(name) for name in names.values() if name in stored}


def _pinned(x: torch.Tensor) -> torch.Tensor:
    """An empty tensor like `x` in memory of the host, from which a GPU, if any, reads by itself."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=torch.cuda.is_available())


def _on_device(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, device=place_of_weights())


class MMWeightTemplate(Additions):
    """A weight and what its product needs, by LightX2V's names.

    `parts` are the weight [N, K] as it is stored (not transposed), its scales, the bias and what a
    class adds. Each is on the device as an attribute of its name, in pinned memory as pin_NAME, and
    as a buffer of the device that `load_state_dict` refills as NAME_cuda_buffer; None where it is
    not. The device is the current CUDA device, or the CPU where there is none.

    Args:
        weight_name: "blocks.0.ffn.0.weight"; scales are "blocks.0.ffn.0.weight_scale".
        bias_name: None: there is no bias.
        create_cuda_buffer: `load` makes buffers of the device, and `load_state_dict` fills them
            with one block after the other.
        create_cpu_buffer: `load` keeps everything in pinned memory, and
            `load_state_dict_from_disk` refills it.
        lazy_load: tensors are read from `lazy_load_file`, without buffers at the first use.
        lazy_load_file: a safetensors file, or a folder with block_0.safetensors and so on.
        is_post_adapter: `adapter_block_index` counts the blocks, not `block_index`.
        lora_prefix: what the names of a LoRA have in place of the first part of `weight_name`;
            None: that part.
        lora_path: the safetensors file of `load_lora_state_dict_from_disk`.

    Raises:
        ValueError: `lazy_load` without a file.

    Copies with `non_blocking`, and those of `load_state_dict`, are queued on the current stream:
    whoever writes their source or reads their result on the host waits for it.
    """

    parts: tuple[str, ...] = ("weight", "weight_scale", "bias")
    #: What is stored beside the weight and the bias.
    stored: tuple[str, ...] = ("weight_scale",)

    weight: torch.Tensor | None
    weight_scale: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        weight_name: str,
        bias_name: str | None,
        create_cuda_buffer: bool = False,
        create_cpu_buffer: bool = False,
        lazy_load: bool = False,
        lazy_load_file: str | Path | None = None,
        is_post_adapter: bool = False,
        lora_prefix: str | None = "diffusion_model.blocks",
        lora_path: str | Path = "",
    ) -> None:
        if lazy_load and lazy_load_file is None:
            raise ValueError("lazy_load_file: is missing, must be given with lazy_load")
        self.weight_name, self.bias_name = weight_name, bias_name
        self.create_cuda_buffer, self.create_cpu_buffer = create_cuda_buffer, create_cpu_buffer
        self.lazy_load, self.lazy_load_file = lazy_load, lazy_load_file
        self.is_post_adapter = is_post_adapter
        self.lora_prefix, self.lora_path = lora_prefix, lora_path
        self.config: Mapping[str, Any] = {}
        for part in self.parts:
            for attribute in (part, f"pin_{part}", f"{part}_cuda_buffer"):
                setattr(self, attribute, None)
        self._add_nothing()

    def set_config(self, config: Mapping[str, Any]) -> None:
        """`weight_auto_quant`: weights of float32, float16 or bfloat16 are quantized as they are
        loaded."""
        self.config = config

    # ---- What a class says --------------------------------------------------------------------

    def _parts_of(self, found: Tensors, names: Mapping[str, str]) -> Tensors:
        """The parts, of what is stored: as they are multiplied, and checked.

        Raises:
            TypeError, ValueError: tensors that are missing or do not fit; errors have `names`.
        """
        raise NotImplementedError

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """The product with `rows` [m, K], and the bias, in their dtype."""
        raise NotImplementedError

    def _columns(self, weight: torch.Tensor) -> int:
        """K of a weight as it is stored."""
        raise NotImplementedError

    # ---- The product --------------------------------------------------------------------------

    def apply(self, input_tensor: torch.Tensor) -> torch.Tensor:
        """input_tensor weight^T + bias, and what a LoRA and a difference add.

        Args:
            input_tensor: [..., K] of float32, float16 or bfloat16, on the weight's device.

        Returns:
            [..., N] in that dtype.

        Raises:
            TypeError: another dtype.
            ValueError: another K; another device; nothing was loaded.
        """
        if self.weight is None:
            self.to_cuda()
        if self.weight is None:
            raise ValueError(
                f"{self.weight_name}: is not loaded; `load` does, or `load_state_dict` into buffers"
            )
        rows = rows_of(input_tensor, self._columns(self.weight), "input_tensor")
        y = self._added_to(self._multiply(rows), rows)
        return y if input_tensor.dim() == 2 else y.view(*input_tensor.shape[:-1], y.shape[-1])

    def _get_actual_bias(self) -> torch.Tensor | None:
        """The bias and its difference, which may stand alone."""
        if self.bias is None or self.bias_diff is None:
            return self.bias_diff if self.bias is None else self.bias
        return self.bias + self.bias_diff

    # ---- Loading ------------------------------------------------------------------------------

    def load(self, weight_dict: Mapping[str, torch.Tensor] | None) -> None:
        """Takes the parts from `weight_dict`, or with `lazy_load` from the file: into buffers of
        the device or pinned memory as the constructor says. Without them tensors of a GPU stay
        where they are, shared, and those of the CPU are copied into pinned memory, from where
        `to_cuda` or the first use takes them.

        Raises:
            TypeError, ValueError: tensors that are missing or do not fit; errors have their names.
            OSError, RuntimeError: a file that cannot be read.
        """
        has_buffers = self.create_cuda_buffer or self.create_cpu_buffer
        if self.lazy_load and not has_buffers:
            return
        parts = self._stored_parts() if self.lazy_load else self._gather(weight_dict or {})
        self._forget()
        if self.create_cuda_buffer:
            self._fill("{}_cuda_buffer", parts, _on_device)
        elif self.create_cpu_buffer or parts["weight"].device.type == "cpu":
            self._fill("pin_{}", parts, _pinned)
        else:
            for part, tensor in parts.items():
                setattr(self, part, tensor)

    def load_state_dict(
        self,
        destination: Mapping[str, torch.Tensor],
        block_index: int,
        adapter_block_index: int | None = None,
    ) -> None:
        """Refills the buffers of the device with the weight, and the LoRA, of another block.

        A block without such a weight leaves `weight` None; one without a LoRA leaves none.

        Args:
            destination: the `state_dict` of other weights, or a checkpoint.
            block_index, adapter_block_index: take the place of the first number in names.

        Raises:
            TypeError, ValueError: as for `load`; parts of another shape than the buffers. Nothing
                was written then.
        """
        rename = self._renaming(block_index, adapter_block_index)
        if rename(self.weight_name) not in destination:
            self.weight = None
            return
        parts = self._gather(destination, rename)
        names = self._added_names(rename, in_state=True)
        added = self._given(destination, names, self._shape_of(parts["weight"]))
        self._fill("{}_cuda_buffer", parts, _on_device, non_blocking=True)
        for part in parts:
            setattr(self, part, getattr(self, f"{part}_cuda_buffer"))
        self._replace_added(added)

    def load_state_dict_from_disk(
        self, block_index: int, adapter_block_index: int | None = None
    ) -> None:
        """Becomes the weight of another block, which is read from `lazy_load_file` into the same
        pinned memory: all parts, and the LoRA where there is a `lora_path`.

        Raises:
            TypeError, ValueError: as for `load_state_dict`.
            OSError, RuntimeError: a file that cannot be read.
        """
        rename = self._renaming(block_index, adapter_block_index)
        self._fill("pin_{}", self._stored_parts(rename), _pinned)
        self.weight_name = rename(self.weight_name)
        self.bias_name = None if self.bias_name is None else rename(self.bias_name)
        self._forget()
        if self.lora_path:
            self.load_lora_state_dict_from_disk(block_index)

    def load_lora_state_dict_from_disk(self, block_index: int) -> None:
        """The LoRA and the differences of a block from `lora_path`; none where it has none.

        Raises:
            OSError, RuntimeError: a file that cannot be read.
            ValueError: a LoRA or a difference that does not fit the weight.
        """
        rename = self._renaming(block_index, block_index)
        names = self._added_names(rename)
        stored = _read(Path(self.lora_path), names)
        self._replace_added(self._given(stored, names, self._shape()))

    def state_dict(
        self, destination: MutableMapping[str, torch.Tensor] | None = None
    ) -> MutableMapping[str, torch.Tensor]:
        """What there is by its names, shared: in pinned memory if it is there, else on the device.
        A checkpoint that `load` takes, and `load_state_dict` of a weight with buffers."""
        destination = {} if destination is None else destination
        names = self._names()
        for part in self.parts:
            places = (f"pin_{part}", part, f"{part}_cuda_buffer")
            held = [x for x in (getattr(self, place) for place in places) if x is not None]
            if held:
                destination[names[part]] = held[0]
        destination.update(self._added())
        return destination

    def to_cuda(self, non_blocking: bool = False) -> None:
        """Everything from pinned memory, or wherever it is, to the device. With `lazy_load` it is
        read first, where nothing has been."""
        is_unread = self.weight is None and self.pin_weight is None
        if self.lazy_load and is_unread and not self.create_cuda_buffer:
            self._fill("pin_{}", self._stored_parts(), _pinned)
        place = place_of_weights()
        for part in self.parts:
            here = getattr(self, f"pin_{part}")
            here = getattr(self, part) if here is None else here
            if here is not None:
                setattr(self, part, here.to(place, non_blocking=non_blocking))
        self._move_added(place, non_blocking)

    def to_cpu(self, non_blocking: bool = False) -> None:
        """Everything from the device into pinned memory, and the attributes with it."""
        for part in self.parts:
            here, pinned = getattr(self, part), getattr(self, f"pin_{part}")
            if here is None:
                continue
            pinned = _pinned(here) if pinned is None else pinned
            setattr(self, f"pin_{part}", pinned.copy_(here, non_blocking=non_blocking))
            setattr(self, part, pinned)
        self._move_added(torch.device("cpu"), non_blocking)

    # ---- Names and memory ---------------------------------------------------------------------

    def _names(self, rename: Callable[[str], str] = itself) -> dict[str, str]:
        """Of all that is stored, and of parts."""
        weight = rename(self.weight_name)
        module = weight.removesuffix(".weight")
        names = {part: f"{module}.{part}" for part in (*self.stored, *self.parts)}
        names["weight"] = weight
        del names["bias"]
        return names if self.bias_name is None else names | {"bias": rename(self.bias_name)}

    def _shape(self) -> tuple[int, int] | None:
        """(N, K), where the weight is held anywhere."""
        held = (self.weight, self.pin_weight, self.weight_cuda_buffer)
        weight = next((x for x in held if x is not None), None)
        return None if weight is None else self._shape_of(weight)

    def _shape_of(self, weight: torch.Tensor) -> tuple[int, int]:
        return weight.shape[0], self._columns(weight)

    def _renaming(self, block_index: int, adapter_block_index: int | None) -> Callable[[str], str]:
        index = adapter_block_index if self.is_post_adapter else block_index
        if index is None:
            raise ValueError("adapter_block_index: is missing, must be given with is_post_adapter")
        return lambda name: of_block(name, index)

    def _gather(
        self, source: Mapping[str, torch.Tensor], rename: Callable[[str], str] = itself
    ) -> Tensors:
        """The parts that `source` has."""
        names = self._names(rename)
        found = {part: source[name].detach() for part, name in names.items() if name in source}
        if "weight" not in found:
            raise ValueError(f"{names['weight']}: is missing")
        return self._parts_of(found, names)

    def _stored_parts(self, rename: Callable[[str], str] = itself) -> Tensors:
        """The parts in `lazy_load_file`."""
        if self.lazy_load_file is None:
            raise ValueError("lazy_load_file: is missing, must be given to read a weight from disk")
        path = Path(self.lazy_load_file)
        if path.is_dir():
            path /= f"block_{_block_of(rename(self.weight_name))}.safetensors"
        return self._gather(_read(path, self._names(rename)), rename)

    def _forget(self) -> None:
        """What is on the device is no longer the weight."""
        for part in self.parts:
            setattr(self, part, None)

    def _fill(
        self,
        attribute: str,
        parts: Tensors,
        empty: Callable[[torch.Tensor], torch.Tensor],
        non_blocking: bool = False,
    ) -> None:
        """Copies `parts` into what there is, which does not move, or into new memory."""
        memory = {}
        for part, tensor in parts.items():
            held = getattr(self, attribute.format(part))
            memory[part] = empty(tensor) if held is None else held
            if (memory[part].shape, memory[part].dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(
                    f"{self._names()[part]}: is {tensor.dtype} {tuple(tensor.shape)}, must be "
                    f"{memory[part].dtype} {tuple(memory[part].shape)} as the one before"
                )
        for part, tensor in parts.items():
            memory[part].copy_(tensor, non_blocking=non_blocking)
            setattr(self, attribute.format(part), memory[part])
