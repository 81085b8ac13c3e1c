"""Tokens from a converted checkpoint: one of transformers' causal language models, whose linear
layers and experts run in the numbers that they are stored in.

    blockscale convert qwen3 qwen3-fp8 --recipe fp8_128x128
    python examples/generate.py qwen3-fp8 --prompt "The sea is" --device cuda
    python examples/generate.py qwen3-fp8 --beside qwen3 --tokens 1,2,3 --json result.json

Each token is the likeliest one. `--beside` runs a second checkpoint of the same model, say the
one that was converted, and says where its tokens are others and what time it takes.

Needs: torch, transformers, accelerate; Python's `resource` module, so Linux or macOS.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import blockscale.nn
import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass
class Run:
    """What a checkpoint gave."""

    checkpoint: str
    layers: dict[str, int]  # recipes of quantized layers, and how many have each
    weight_bytes: int
    tokens: list[list[int]]  # new ones, of each sequence
    prompt_tokens_per_second: float
    tokens_per_second: float  # of all sequences together, behind the first new one; 0 without
    memory_bytes: int  # of the device at most; of the CPU: of the process, both models of --beside


def load(folder: Path, device: torch.device, dtype: torch.dtype, activations: str | None) -> Any:
    """The model that the folder's config.json describes, from the folder's tensors."""
    with init_empty_weights():  # no memory, but for what no checkpoint has
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.tie_weights()  # which tensors without memory are not
    return blockscale.nn.load(model.eval(), folder, device, activations=activations)


class Clock:
    """A streamer of transformers: when the prompt and each new token was there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        """Tokens, which `generate` has copied to the CPU: the device is done."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def generate(model: Any, ids: torch.Tensor, count: int) -> tuple[torch.Tensor, list[float]]:
    """At most `count` new tokens behind `ids` [sequences, length], and the seconds of each step."""
    clock = Clock()
    with torch.no_grad():
        tokens = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,  # none: all sequences are one prompt, and end together
            streamer=clock,
        )
    steps = [after - before for before, after in pairwise(clock.times)]
    return tokens[:, ids.shape[1] :], steps


def run(folder: Path, ids: torch.Tensor, count: int, options: argparse.Namespace) -> Run:
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    model = load(folder, device, DTYPES[options.dtype], options.activations)
    layers: dict[str, int] = {}
    for module in model.modules():
        if isinstance(module, blockscale.nn.Linear):
            recipe = module.recipe
        elif isinstance(module, blockscale.nn.Experts):
            recipe = module.w13.recipe.name
        else:
            continue
        layers[recipe] = layers.get(recipe, 0) + 1
    tensors = {id(x): x for x in (*model.parameters(), *model.buffers())}.values()
    ids = ids.to(device)
    generate(model, ids, count)  # what is done once: kernels are loaded, tables made, threads begun
    tokens, seconds = generate(model, ids, count)
    if device.type == "cuda":
        memory = torch.cuda.max_memory_allocated(device)
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    steps = len(seconds) - 1
    return Run(
        checkpoint=str(folder),
        layers=layers,
        weight_bytes=sum(x.numel() * x.element_size() for x in tensors),
        tokens=tokens.tolist(),
        prompt_tokens_per_second=ids.numel() / seconds[0],
        tokens_per_second=len(ids) * steps / sum(seconds[1:]) if steps else 0.0,
        memory_bytes=memory,
    )


def show(result: Run, tokenizer: Any) -> None:
    layers = ", ".join(f"{count} layers in {recipe}" for recipe, count in result.layers.items())
    print(f"{result.checkpoint}: {layers or 'no quantized layer'}")
    for tokens in result.tokens:
        print("  " + (tokenizer.decode(tokens) if tokenizer else " ".join(map(str, tokens))))
    print(
        f"  {result.prompt_tokens_per_second:.1f} tokens/s of the prompt, "
        f"{result.tokens_per_second:.1f} new tokens/s, "
        f"{result.weight_bytes / 1e6:.1f} MB of weights, {result.memory_bytes / 1e6:.1f} MB at most"
    )


def same_tokens(a: Run, b: Run) -> int:
    """How many new tokens each sequence has before one differs, of all sequences together."""
    pairs = [list(zip(x, y, strict=False)) for x, y in zip(a.tokens, b.tokens, strict=True)]
    return sum(next((i for i, (x, y) in enumerate(p) if x != y), len(p)) for p in pairs)


def token_ids(text: str) -> list[int]:
    """Numbers between commas."""
    ids = [int(part) for part in text.split(",")]
    if min(ids) < 0:
        raise ValueError(text)
    return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("model", type=Path, help="folder of a checkpoint with a config.json")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--prompt", help="text; needs the folder's tokenizer")
    given.add_argument("--tokens", type=token_ids, metavar="ID,ID...", help="the prompt's tokens")
    parser.add_argument("--sequences", type=int, default=1, metavar="N", help="the prompt, N times")
    parser.add_argument("--new-tokens", type=int, default=32, metavar="N", help="at most; 32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of what is plain")
    parser.add_argument(
        "--activations", choices=["none"], help="inputs of layers as they are, whatever is stored"
    )
    parser.add_argument("--beside", type=Path, metavar="MODEL", help="a second one, for comparison")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here as well")
    options = parser.parse_args()
    for name in ("sequences", "new_tokens"):
        if getattr(options, name) < 1:
            parser.error(
                f"--{name.replace('_', '-')}: is {getattr(options, name)}, must be 1 or more"
            )
    tokenizer = None if options.prompt is None else AutoTokenizer.from_pretrained(options.model)
    ids = options.tokens if tokenizer is None else tokenizer(options.prompt)["input_ids"]
    size = AutoConfig.from_pretrained(options.model).get_text_config().vocab_size
    if not ids or max(ids) >= size:
        parser.error(f"--tokens: is {ids}, must be ids below {size}, the size of the vocabulary")
    rows = torch.tensor([ids]).repeat(options.sequences, 1)
    folders = [options.model] + ([options.beside] if options.beside else [])
    results = [run(folder, rows, options.new_tokens, options) for folder in folders]
    for result in results:
        show(result, tokenizer)
    if options.beside:
        new = sum(map(len, results[0].tokens))
        print(f"the first {same_tokens(*results)} of {new} new tokens are the same")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
