"""The closing tables of `./dev demo` say what the measurements say."""

import json
import subprocess
import sys

STATUS = {None: "equal", "ruined": "ruined"}


def write_measurements(folder, name, sqnr_db, weight_bytes, gemm_error, seconds):
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
    products = [{"name": layer, "error": gemm_error, "seconds": seconds} for layer in layers]
    multiplied = {"m": 128, "threads": 2, "layers": products}
    (folder / f"{name}.compare.json").write_text(json.dumps(compared))
    (folder / f"{name}.gemm.json").write_text(json.dumps(multiplied))


def test_tables(root, tmp_path):
    write_measurements(tmp_path, "f32", [None, None, None], 128, 0.0, 0.001)
    write_measurements(tmp_path, "nvfp4-modelopt", [20.0, 22.0, 21.0], 18, 0.09, 0.002)
    output = subprocess.run(
        [sys.executable, root / "tools/demo.py", tmp_path, "f32", "nvfp4-modelopt"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split() for line in output.splitlines() if line.strip()]
    layers = [row for row in rows if row[0].startswith("encoder.")]
    assert layers == [
        ["encoder.layer.0.output.dense", "20.0"],
        ["encoder.layer.2.output.dense", "21.0"],
        ["encoder.layer.10.output.dense", "22.0"],
    ]
    f32 = next(row for row in rows if row[0] == "f32")
    nvfp4 = next(row for row in rows if row[0] == "nvfp4-modelopt")
    spread = ["20.0", "21.0", "22.0"]
    assert f32[3:] == ["32.00", "1.00", "x", *["exact"] * 3, "0", "%", "3.0"]
    assert nvfp4[1:] == ["5.00", "0.00", "4.50", "7.11", "x", *spread, "9", "%", "6.0"]
    assert str(tmp_path) in output


def test_a_ruined_layer_is_not_exact(root, tmp_path):
    write_measurements(tmp_path, "f32", [None, None, None], 128, 0.0, 0.001)
    write_measurements(tmp_path, "nvfp4", [20.0, "ruined", None], 18, 0.09, 0.002)
    output = subprocess.run(
        [sys.executable, root / "tools/demo.py", tmp_path, "f32", "nvfp4"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    rows = [line.split() for line in output.splitlines() if line.strip()]
    assert ["encoder.layer.10.output.dense", "ruined"] in rows
    nvfp4 = next(row for row in rows if row[0] == "nvfp4")
    assert nvfp4[6:9] == ["ruined", "20.0", "exact"]
