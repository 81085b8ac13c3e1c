"""What is added to a weight of LightX2V's classes: a LoRA, and differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

#: What may be added to a weight, and what its names have in place of ".weight".
_SUFFIXES = {
    "lora_down": ".lora_down.weight",
    "lora_up": ".lora_up.weight",
    "lora_alpha": ".alpha",
    "weight_diff": ".diff",
    "bias_diff": ".diff_b",
}
_LORA = ("lora_down", "lora_up", "lora_alpha")
_DIFFERENCES = ("weight_diff", "bias_diff")


def itself(name: str) -> str:
    """No renaming."""
    return name


def place_of_weights() -> torch.device:
    """Where weights are multiplied: the current CUDA device, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class Additions:
    """A part of MMWeightTemplate."""

    weight_name: str
    lora_prefix: str | None
    weight: torch.Tensor | None
    lora_down: torch.Tensor | None
    lora_up: torch.Tensor | None
    lora_alpha: torch.Tensor | None
    lora_scale: torch.Tensor | None
    weight_diff: torch.Tensor | None
    bias_diff: torch.Tensor | None

    def _shape(self) -> tuple[int, int] | None:
        raise NotImplementedError

    def _names(self, rename: Callable[[str], str] = itself) -> dict[str, str]:
        raise NotImplementedError

    def _add_nothing(self) -> None:
        self.lora_strength: float = 1
        self.weight_diff = self.bias_diff = None
        self.remove_lora()

    def register_lora(
        self, weight_dict: Mapping[str, torch.Tensor], lora_strength: float = 1
    ) -> None:
        """Takes a LoRA, where `weight_dict` has one for this weight: down [r, K], up [N, r] and
        alpha, with which the scale is alpha / r instead of 1.

        Raises:
            ValueError: one that does not fit the weight.
        """
        given = self._given(weight_dict, self._added_names(), self._shape())
        if given["lora_down"] is not None:
            self._set_lora(given)
            self.lora_strength = lora_strength

    def update_lora(
        self, weight_dict: Mapping[str, torch.Tensor], lora_strength: float = 1
    ) -> None:
        """`register_lora`, which writes a LoRA of the shape of the last one where that is, as a
        captured graph wants it; but `lora_strength` is no tensor."""
        self.register_lora(weight_dict, lora_strength)

    def remove_lora(self) -> None:
        """No LoRA from here on."""
        self.lora_down = self.lora_up = self.lora_alpha = self.lora_scale = None
        self.has_lora_branch = False

    def register_diff(self, weight_dict: Mapping[str, torch.Tensor]) -> None:
        """Takes differences from the weight, [N, K], and the bias, [N], where `weight_dict` has
        some. That of the weight is a product of its own, in the dtype of the inputs.

        Raises:
            ValueError: one that does not fit the weight.
        """
        self._set_differences(self._given(weight_dict, self._added_names(), self._shape()))

    @property
    def has_diff(self) -> bool:
        """Whether there is a difference."""
        return self.weight_diff is not None or self.bias_diff is not None

    def apply_lora(self, input_tensor: torch.Tensor) -> torch.Tensor:
        """lora_strength * lora_scale * (input_tensor lora_down^T) lora_up^T, in its dtype."""
        dtype = input_tensor.dtype
        inner = input_tensor @ self.lora_down.to(dtype).t()
        factor = (self.lora_strength * self.lora_scale).to(dtype)
        return factor * (inner @ self.lora_up.to(dtype).t())

    def _added_to(self, y: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`y`, the product of `rows` without them, and what they add."""
        if self.has_lora_branch:
            y = y + self.apply_lora(rows)
        if self.weight_diff is not None:
            y = y + rows @ self.weight_diff.to(rows.dtype).t()
        return y

    def _require_added(
        self,
        given: Mapping[str, torch.Tensor | None],
        names: Mapping[str, str],
        shape: tuple[int, int] | None,
    ) -> None:
        """Raises ValueError where what is to be added does not fit a weight of `shape`, where that
        is known."""
        down, up = given.get("lora_down"), given.get("lora_up")
        shapes: dict[str, tuple[int, ...]] = {}
        if down is not None:
            if up is None:
                raise ValueError(f"{names['lora_up']}: is missing beside {names['lora_down']}")
            n, k = shape or (up.shape[0], down.shape[-1])
            rank = down.shape[0]
            shapes |= {"lora_down": (rank, k), "lora_up": (n, rank)}
            alpha = given.get("lora_alpha")
            if alpha is not None and alpha.numel() != 1:
                shapes["lora_alpha"] = ()
        if shape is not None:
            shapes |= {"weight_diff": shape, "bias_diff": shape[:1]}
        for part, wanted in shapes.items():
            x = given.get(part)
            if x is not None and tuple(x.shape) != wanted:
                raise ValueError(f"{names[part]}: shape is {tuple(x.shape)}, must be {wanted}")

    def _set_lora(self, given: Mapping[str, torch.Tensor | None]) -> None:
        for attribute in _LORA:
            tensor, old = given.get(attribute), getattr(self, attribute)
            if old is not None and tensor is not None and old.shape == tensor.shape:
                old.copy_(tensor, non_blocking=True)
            else:
                setattr(self, attribute, self._copied(tensor))
        if self.lora_scale is None:
            self.lora_scale = torch.empty((), dtype=torch.float32, device=self.lora_down.device)
        if self.lora_alpha is None:
            self.lora_scale.fill_(1)
        else:
            self.lora_scale.copy_(self.lora_alpha.reshape(()).float() / self.lora_down.shape[0])
        self.has_lora_branch = True

    def _set_differences(self, given: Mapping[str, torch.Tensor | None]) -> None:
        for part in _DIFFERENCES:
            if given.get(part) is not None:
                setattr(self, part, self._copied(given[part]))

    def _copied(self, x: torch.Tensor | None) -> torch.Tensor | None:
        place = place_of_weights() if self.weight is None else self.weight.device
        return None if x is None else x.detach().to(place, copy=True)

    def _given(
        self,
        source: Mapping[str, torch.Tensor],
        names: Mapping[str, str],
        shape: tuple[int, int] | None,
    ) -> dict[str, torch.Tensor | None]:
        """What `source` has by `names` for a weight of `shape`, checked."""
        given = {part: source.get(name) for part, name in names.items()}
        self._require_added(given, names, shape)
        return given

    def _replace_added(self, given: Mapping[str, torch.Tensor | None]) -> None:
        """This is added, and nothing else."""
        if given["lora_down"] is None:
            self.remove_lora()
        else:
            self._set_lora(given)
        self.weight_diff = self.bias_diff = None
        self._set_differences(given)

    def _move_added(self, place: torch.device, non_blocking: bool) -> None:
        for attribute in (*_SUFFIXES, "lora_scale"):
            tensor = getattr(self, attribute)
            if tensor is not None:
                setattr(self, attribute, tensor.to(place, non_blocking=non_blocking))

    def _added(self) -> dict[str, torch.Tensor]:
        """What there is, by names."""
        names = self._added_names(in_state=True)
        held = {name: getattr(self, part) for part, name in names.items()}
        return {name: tensor for name, tensor in held.items() if tensor is not None}

    def _added_names(
        self, rename: Callable[[str], str] = itself, in_state: bool = False
    ) -> dict[str, str]:
        """Names by attributes. `in_state`: beside the weight's own, where without a prefix NVFP4's
        alpha has the name of a LoRA's."""
        module = rename(self.weight_name).removesuffix(".weight")
        if self.lora_prefix is not None:
            module = f"{self.lora_prefix}.{module.partition('.')[2]}"
        names = {part: module + suffix for part, suffix in _SUFFIXES.items()}
        if in_state and names["lora_alpha"] in self._names(rename).values():
            names["lora_alpha"] = f"{module}.lora_alpha"
        return names
