"""examples/video_block.py; `./dev test --torch`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: ./dev test --torch")

FILE = Path(__file__).parents[3] / "examples" / "video_block.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("video_block", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sizes(example: ModuleType, recipe: str, count: int = 3) -> tuple[Any, Any, Any]:
    """Blocks, rows and the embedding of a time step."""
    torch.manual_seed(0)
    blocks = example.blocks_of(count, 256, 384, recipe, torch.device("cpu"))
    x = torch.randn(16, 256, dtype=torch.bfloat16)
    return blocks, x, torch.randn(6, 256, dtype=torch.bfloat16)


def test_a_block_is_what_it_says(example: ModuleType) -> None:
    (block, *_), x, step = sizes(example, "bf16")
    x, step, m = x.double(), step.double(), block.double().modulation + step.double()
    norm = lambda x: torch.nn.functional.layer_norm(x, (256,), eps=1e-6)  # noqa: E731
    with torch.no_grad():
        y = block.qkv_proj((1 + m[1]) * norm(x) + m[0])
        heads = []
        for head in range(2):
            q, k, v = (y[:, i * 256 + head * 128 :][:, :128] for i in range(3))
            heads.append((q @ k.T / 128**0.5).softmax(-1) @ v)
        want = x + m[2] * block.out_proj(torch.cat(heads, 1))
        y = block.up_proj((1 + m[4]) * norm(want) + m[3])
        y = y / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (y + 0.044715 * y**3)))
        want = want + m[5] * block.down_proj(y)
        torch.testing.assert_close(block(x, step), want)


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4", "fp8_128x128"])
def test_results_are_compared_bit_by_bit(
    example: ModuleType, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks, x, step = sizes(example, recipe)
    named = {type(layer).__name__ for layer in blocks[0].modules()}
    assert ("blockscale" in type(blocks[0].up_proj).__module__) == (recipe != "bf16"), named
    with torch.no_grad():
        result = example.measure(blocks, x, step, 2, 1)
        assert result.is_same and result.step > 0
        assert result.memory[0] * 3 == result.memory[1] * 2
        other = example.one_by_one
        monkeypatch.setattr(example, "one_by_one", lambda *all_: other(*all_) + 1)
        assert not example.measure(blocks, x, step, 2, 1).is_same


def run(*arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FILE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_what_it_prints() -> None:
    done = run("--blocks", 3, "--rows", 8, "--recipe", "mxfp8_e4m3", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "3 blocks of 256 x 512 in mxfp8_e4m3, 8 rows, 2 resident on cpu"
    assert lines[1].startswith("a step takes ") and lines[1].endswith(" ms")
    assert lines[-1] == "results have the same bits as those of blocks moved one by one"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--resident", 1], "--resident: is 1, must be 2 or more"),
        (["--rows", 0], "--rows: is 0, must be 1 or more"),
        (["--hidden", 200], "--hidden: is 200, must be a multiple of 128"),
        (["--recipe", "f8"], "--recipe: invalid choice: 'f8'"),
    ],
)
def test_what_is_wrong_is_said(
    example: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[Any],
    text: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["video_block.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        example.main()
    assert exit_.value.code == 2 and text in capsys.readouterr().err
