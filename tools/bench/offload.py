"""Times `blockscale.nn.Offload` on a GPU beside the work and the copies of its blocks alone.

Options: [--blocks N] [--rows M] [--repeats N]

The blocks are those of examples/video_block.py at a video model's sizes, in fp8_row: hidden size
5120, MLP 13824, two of them on the device. Asked is that the longer one of work and copies hides
the other, that the device holds two blocks and no more for them, and that no call waits for the
device (as torch sees it: its warnings about synchronizing). Results have the bits of blocks that
are moved one by one, or nothing is recorded. No file is written for other sizes.
"""

import argparse
import pathlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import record
from gemm import at_least

HIDDEN, FFN, ROWS, BLOCKS, RESIDENT, RECIPE = 5120, 13824, 4096, 40, 2, "fp8_row"
#: Of the longer one of work and copies over a step, at least; of allocated bytes over those of the
#: resident blocks, and of synchronizations a block, at most.
ASKED = {"bound": 0.9, "memory": 1.05, "synchronizations": 0}


def example() -> Any:
    """examples/video_block.py."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
    import video_block

    return video_block


def synchronizations(call: Any) -> int:
    """How often torch waits for the device in a call."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in seen)


def lines(case: dict) -> list[str]:
    """What is printed of a case: each figure with what is asked."""
    said = [
        f"{case['blocks']} blocks, {case['rows']} rows: a step {case['step_ms']:.1f} ms, its work "
        f"{case['work_ms']:.1f} ms, its copies {case['copies_ms']:.1f} ms"
    ]
    for name, asked in ASKED.items():
        is_met = case[name] >= asked if name == "bound" else case[name] <= asked
        side = "least" if name == "bound" else "most"
        said.append(f"{name:17} {case[name]:.3f}   at {side} {asked}: {'yes' if is_met else 'NO'}")
    return said


def measure_case(blocks: int, rows: int, repeats: int) -> dict:
    import blockscale.nn
    import torch

    video_block, device = example(), torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    modules = video_block.blocks_of(blocks, HIDDEN, FFN, RECIPE, device)
    x = torch.randn(rows, HIDDEN, device=device, dtype=torch.bfloat16)
    step = torch.randn(6, HIDDEN, device=device, dtype=torch.bfloat16)
    result = video_block.measure(modules, x, step, RESIDENT, repeats)
    if not result.is_same:
        raise SystemExit("offload: results have other bits; nothing to time")
    offload = blockscale.nn.Offload(modules, resident=RESIDENT, device=device)
    waits = synchronizations(lambda: offload(x, step))
    return {
        "blocks": blocks,
        "hidden": HIDDEN,
        "ffn": FFN,
        "rows": rows,
        "recipe": RECIPE,
        "resident": RESIDENT,
        "step_ms": result.step,
        "work_ms": result.work,
        "copies_ms": result.copies,
        "bound": result.bound,
        "memory": result.allocated / result.memory[0],
        "device_bytes": result.memory[0],
        "host_bytes": result.memory[1],
        "peak_bytes": result.peak,
        "synchronizations": waits / blocks,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=at_least(2), default=BLOCKS, help=f"default: {BLOCKS}")
    parser.add_argument("--rows", type=at_least(1), default=ROWS, help=f"default: {ROWS}")
    parser.add_argument("--repeats", type=at_least(3), default=9, help="at least 3; default: 9")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    import torch

    with torch.no_grad():
        case = measure_case(options.blocks, options.rows, options.repeats)
    print("\n".join(lines(case)), flush=True)
    if (options.blocks, options.rows) != (BLOCKS, ROWS):
        return
    results = {
        "torch": torch.__version__,
        "repeats": options.repeats,
        "asked": ASKED,
        "cases": [case],
    }
    yield record.Measurement("offload", "./dev gpu-bench offload", results, record.gpu())
