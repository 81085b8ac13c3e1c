"""Times `blockscale convert` on a generated checkpoint against its two limits on this machine.

Options: --cli BLOCKSCALE --folder FOLDER [--gib N] [--threads N] [--memory SIZE] [--recipe R]...

Writes a checkpoint of N GiB of bf16 linear weights into FOLDER (needs twice that), then for each
recipe converts it and takes, in bytes of input a second:

- quantizer: `bench quantize` of the same recipe and threads, scaled to the input;
- disk: writing as many bytes as the conversion wrote, in one process, with fsync;
- conversion: from the start of the process to its end, published and synced.

Reported are the conversion's share of the slower limit, and its peak of anonymous resident memory
(what it holds beyond mapped files), sampled from /proc. Source pages are in the page cache if they
fit there. FOLDER is left without what was made.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import record
from safetensors.numpy import save_file

ROWS, COLUMNS = 8192, 4096  # of one weight: 64 MiB in bf16
GIB = 1 << 30
SHARD = 16  # weights in a shard: 1 GiB


def generate(folder: pathlib.Path, gib: int) -> int:
    """A checkpoint in shards of 1 GiB; returns the bytes of its weights."""
    import ml_dtypes

    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    weight_map = {}
    for shard in range(gib):
        file = f"model-{shard + 1:05}-of-{gib:05}.safetensors"
        tensors = {}
        for i in range(SHARD):
            name = f"model.layers.{shard * SHARD + i}.mlp.down_proj.weight"
            values = random.standard_normal((ROWS, COLUMNS), np.float32) * np.float32(0.02)
            tensors[name] = values.astype(ml_dtypes.bfloat16)
            weight_map[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
    total = gib * GIB
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return total


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process, 0 once it is gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def convert(command: list[str]) -> tuple[float, int]:
    """Seconds, and the largest RssAnon seen."""
    start = time.monotonic()
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.005)
    seconds = time.monotonic() - start
    if process.returncode != 0:
        raise SystemExit(f"failed with {process.returncode}: {' '.join(command)}")
    return seconds, peak


def seconds_to_write(file: pathlib.Path, size: int) -> float:
    block = np.random.default_rng(1).bytes(64 << 20)
    start = time.monotonic()
    with file.open("wb", buffering=0) as out:
        for begin in range(0, size, len(block)):
            out.write(block[: size - begin])
        os.fsync(out.fileno())
    seconds = time.monotonic() - start
    file.unlink()
    return seconds


def quantizer_rate(blockscale: str, recipe: str, threads: int) -> float:
    command = [blockscale, "bench", "quantize", "--recipe", recipe, "--layout", "row_major"]
    command += ["--threads", str(threads), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return report["cases"][0]["input_gb_per_second"] * 1e9


def convert_and_limits(
    options: argparse.Namespace, source: pathlib.Path, size: int, recipe: str
) -> dict:
    result = options.folder / "converted"
    command = [options.cli, "convert", str(source), str(result), "--recipe", recipe]
    command += ["--threads", str(options.threads), "--memory", options.memory, "--json"]
    os.sync()
    seconds, peak = convert(command)
    written = sum(file.stat().st_size for file in result.rglob("*") if file.is_file())
    shutil.rmtree(result)
    disk = size / seconds_to_write(options.folder / "written", written)
    quantizer = quantizer_rate(options.cli, recipe, options.threads)
    rate = size / seconds
    return {
        "recipe": recipe,
        "input_bytes": size,
        "output_bytes": written,
        "threads": options.threads,
        "memory": options.memory,
        "seconds": round(seconds, 3),
        "conversion_gb_per_second": round(rate * 1e-9, 3),
        "quantizer_gb_per_second": round(quantizer * 1e-9, 3),
        "disk_gb_per_second": round(disk * 1e-9, 3),
        "share_of_slower": round(rate / min(quantizer, disk), 3),
        "peak_anonymous_mib": round(peak / (1 << 20), 1),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cli", required=True, help="the blockscale executable")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--recipe", action="append")


def measure(options: argparse.Namespace) -> Iterator[record.Measurement]:
    source = options.folder / "source"
    size = generate(source, options.gib)
    try:
        recipes = options.recipe or ["nvfp4", "mxfp4", "mxfp8_e4m3", "fp8_128x128"]
        results = []
        for recipe in recipes:
            results.append(convert_and_limits(options, source, size, recipe))
            print(json.dumps(results[-1]), flush=True)
    finally:
        shutil.rmtree(source)
    yield record.Measurement(
        "convert",
        f"tools/bench/record.py conversion --gib {options.gib}",
        results,
        record.cpu([options.cli]),
    )
