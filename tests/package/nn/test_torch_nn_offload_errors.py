"""What blockscale.nn.Offload refuses, and that nothing has changed then; `./dev test --torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

from blockscale.nn import Offload, quantize  # noqa: E402
from offload_blocks import WIDTH, Block, blocks_of, offloaded  # noqa: E402


def _twice() -> Any:
    blocks = list(blocks_of(None, count=2))
    return [*blocks, blocks[0]]


def _with(change: Callable[[Any], Any]) -> Callable[[], Any]:
    def made() -> Any:
        blocks = blocks_of(None)
        change(blocks)
        return blocks

    return made


def _put(name: str, value: Any) -> Callable[[], Any]:
    def change(blocks: Any) -> None:
        setattr(blocks[3], name, value)

    return _with(change)


def _share_norm(blocks: Any) -> None:
    blocks[3].norm = blocks[1].norm


def _tie(blocks: Any) -> None:
    blocks[3].norm.bias = blocks[3].norm.weight


class Odd(torch.Tensor):
    """A class of tensors."""


#: What is given, options, and the error.
ERRORS: dict[str, tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = {
    "kind": (lambda: 3, {}, TypeError, "blocks: is a int, must be a torch.nn.ModuleList"),
    "module": (Block, {}, TypeError, "blocks: is a Block, must be a torch.nn.ModuleList"),
    "item": (lambda: [Block(), 3], {}, TypeError, r"blocks\[1\]: is a int, must be a torch.nn.Mo"),
    "one": (lambda: [Block()], {}, ValueError, "blocks: are 1, must be 2 or more"),
    "none": (list, {}, ValueError, "blocks: are 0, must be 2 or more"),
    "twice": (_twice, {}, ValueError, r"blocks\[2\]: is blocks\[0\], must be a module of its own"),
    "empty": (
        lambda: [torch.nn.GELU(), torch.nn.GELU()], {}, ValueError,
        "blocks: have no tensors of their own",
    ),
    "shape": (
        _put("gate", torch.zeros(3)), {}, ValueError,
        r"blocks\[3\].gate: is a Tensor of torch.float32 \(3,\), must be a Tensor of "
        r"torch.bfloat16 \(128,\), as in blocks\[0\]",
    ),
    "less": (
        _put("up_proj", None), {}, ValueError,
        r"blocks\[3\].up_proj.weight: is missing, must be a Parameter of torch.bfloat16",
    ),
    "more": (
        _put("extra", torch.nn.Linear(2, 2)), {}, ValueError,
        r"blocks\[3\].extra.weight: is a Parameter of .* \(2, 2\), must be missing, as in blocks",
    ),
    "tied": (
        _with(_tie), {}, ValueError,
        r"blocks\[3\].norm.weight: is a Parameter of torch.bfloat16 \(128,\), the same as "
        r"norm.bias, must be a Parameter of torch.bfloat16 \(128,\), as in",
    ),
    "shared": (
        _with(_share_norm), {}, ValueError,
        r"blocks\[3\].norm.weight: is in a module that blocks\[1\] has too",
    ),
    "meta": (
        lambda: blocks_of(None).to("meta"), {}, ValueError,
        r"blocks\[0\].gate: is on the meta device, must have numbers",
    ),
    "class": (
        _put("gate", torch.zeros(WIDTH, dtype=torch.bfloat16).as_subclass(Odd)), {}, TypeError,
        r"blocks\[3\].gate: is a Odd in torch.strided, must be a Tensor or a Parameter in",
    ),
    "recipes": (
        lambda: [*quantize(blocks_of(None), "mxfp4", include=["*"]), *blocks_of("nvfp4")], {},
        ValueError, r"blocks\[5\].gate: is a Tensor of torch.float32",
    ),
    "resident": (blocks_of, {"resident": 1}, ValueError, "resident: is 1, must be 2 or more"),
    "resident kind": (blocks_of, {"resident": 2.5}, TypeError, "resident: is 2.5, must be an int"),
    "device": (blocks_of, {"device": "meta"}, ValueError, "device: is meta, must be of CUDA or"),
    "no file": (blocks_of, {"file": "no such file"}, FileNotFoundError, "no such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_change_nothing(case: str) -> None:
    make, options, kind, text = ERRORS[case]
    blocks = make()
    given = list(blocks) if isinstance(blocks, (list, torch.nn.ModuleList)) else []
    modules = [block for block in given if isinstance(block, torch.nn.Module)]
    before = [dict(block.named_parameters()) for block in modules]
    with pytest.raises(kind, match=text):
        Offload(blocks, **{"device": "cpu", **options})
    after = [dict(block.named_parameters()) for block in modules]
    assert all(
        mine.keys() == his.keys() and all(mine[name] is his[name] for name in mine)
        for mine, his in zip(before, after, strict=True)
    )
    assert not any("forward" in block.__dict__ for block in modules)


def test_blocks_of_another_offload_are_refused() -> None:
    offload = offloaded(blocks_of())
    with pytest.raises(ValueError, match=r"blocks\[0\]: is in an Offload already, must be in none"):
        Offload(offload, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_an_error() -> None:
    with pytest.raises(ValueError, match="device: is cuda:1, and torch sees no GPU"):
        Offload(blocks_of(), device="cuda:1")
