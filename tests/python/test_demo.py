"""The closing tables of `./dev demo` say what the measurements say, and what it does on a GPU."""

import json
import subprocess
import sys

from cli_testing import EXIT_CODES

STATUS = {None: "equal", "ruined": "ruined"}


def write_measurements(folder, name, sqnr_db, weight_bytes, gemm_error, seconds):
    """`seconds`: of each layer's product, with 1 row and with 128."""
    layers = [f"encoder.layer.{i}.output.dense.weight" for i in (0, 10, 2)]
    tensors = [
        {
            "name": layer,
            "shape": [4, 8],
            "status": STATUS.get(value, "differs"),
            "sqnr_db": None if value in STATUS else value,
            "bytes_a": 128,
            "bytes_b": weight_bytes,
        }
        for layer, value in zip(layers, sqnr_db, strict=True)
    ]
    rest = 5_000_000 - 3 * weight_bytes
    tensors.append({"name": "embeddings", "status": "equal", "sqnr_db": None, "bytes_b": rest})
    compared = {"tensors": tensors, "total": {"bytes_a": 0, "bytes_b": 0}}  # of converted ones
    (folder / f"{name}.compare.json").write_text(json.dumps(compared))
    for m, own in zip((1, 128), seconds, strict=True):
        products = [{"name": layer, "error": gemm_error * m, "seconds": own} for layer in layers]
        multiplied = {"m": m, "threads": 2, "layers": products}
        (folder / f"{name}.gemm-{m}.json").write_text(json.dumps(multiplied))


def tables_of(root, folder, *names):
    """The words of each line of what demo.py prints."""
    rates = {"f32": 100.0, "bf16": 110.0, "nvfp4-W4A4": 165.0}
    embedding = [{"name": name, "sentences_per_second": rate} for name, rate in rates.items()]
    (folder / "embedding.json").write_text(json.dumps(embedding))
    output = subprocess.run(
        [sys.executable, root / "tools/demo.py", folder, "f32", *names],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return output, [line.split() for line in output.splitlines() if line.strip()]


def write_plain(folder):
    write_measurements(folder, "f32", [None, None, None], 128, 0.0, (0.001, 0.006))
    write_measurements(folder, "bf16-plain", [50.0, 50.0, 50.0], 64, 0.0, (0.0005, 0.004))


def test_tables(root, tmp_path):
    write_plain(tmp_path)
    write_measurements(
        tmp_path, "nvfp4-modelopt", [20.0, 22.0, 21.0], 18, 0.09 / 128, (0.0001, 0.002)
    )
    output, rows = tables_of(root, tmp_path, "bf16-plain", "nvfp4-modelopt")
    layers = [row for row in rows if row[0].startswith("encoder.")]
    assert layers == [
        ["encoder.layer.0.output.dense", "50.0", "20.0"],
        ["encoder.layer.2.output.dense", "50.0", "21.0"],
        ["encoder.layer.10.output.dense", "50.0", "22.0"],
    ]
    f32, f32_speed, f32_sentences = (row for row in rows if row[0] == "f32")
    nvfp4, speed = (row for row in rows if row[0] == "nvfp4-modelopt")
    spread = ["20.0", "21.0", "22.0"]
    assert f32[3:] == ["32.00", "1.00", "x", *["exact"] * 3, "0", "%"]
    assert nvfp4[1:] == ["5.00", "0.00", "4.50", "7.11", "x", *spread, "9", "%"]
    assert f32_speed[1:] == ["3.00", "1.00", "0.50", "18.00", "1.00", "0.67"]
    assert speed[1:] == ["0.30", "10.00", "5.00", "6.00", "3.00", "2.00"]
    assert f32_sentences[1:] == ["100", "1.00", "0.91"]
    assert ["nvfp4-W4A4", "165", "1.65", "1.50"] in rows
    assert str(tmp_path) in output


def test_a_ruined_layer_is_not_exact(root, tmp_path):
    write_plain(tmp_path)
    write_measurements(tmp_path, "nvfp4", [20.0, "ruined", None], 18, 0.09, (0.001, 0.002))
    _, rows = tables_of(root, tmp_path, "bf16-plain", "nvfp4")
    assert ["encoder.layer.10.output.dense", "50.0", "ruined"] in rows
    nvfp4 = next(row for row in rows if row[0] == "nvfp4")
    assert nvfp4[6:9] == ["ruined", "20.0", "exact"]


def run_gpu_part(root, folder, status):
    """The part of a GPU, where tools/dev/find_gpu.py ends with `status`, and each command that it
    would run is a line of its output."""
    cli = folder / "build/release/cli/blockscale"
    cli.parent.mkdir(parents=True)
    cli.write_text('#!/bin/sh\necho "$@"\n')
    cli.chmod(0o755)
    code = f"""
set -euo pipefail
for part in setup demo gpu; do source {root}/tools/dev/$part.sh; done
find_gpu() {{ [[ $1 == tools/dev/find_gpu.py ]] && return {status}; }}
use_nvrtc() {{ :; }}
python=find_gpu
run_demo_on_gpu
"""
    command = ["bash", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_no_gpu_is_said(root, tmp_path):
    assert run_gpu_part(root, tmp_path, 77) == (0, ["no GPU: all of the above is the CPU's"])


def test_a_driver_that_fails_ends_the_demo(root, tmp_path):
    assert run_gpu_part(root, tmp_path, 1) == (1, [])


def test_a_gpu_quantizes_and_multiplies(root, tmp_path, program):
    """Commands that the command line takes: each fails for want of a GPU alone."""
    code, commands = run_gpu_part(root, tmp_path, 0)
    assert code == 0
    assert [line.split()[0] for line in commands] == ["bench", "gemm", "gemm"]
    for line in commands:
        assert "--device cuda" in line
        result = program(*line.split(), BLOCKSCALE_LIBCUDA="/none/libcuda.so.1")
        assert result.code == EXIT_CODES["not_found"] and "no GPU" in result.err, line
