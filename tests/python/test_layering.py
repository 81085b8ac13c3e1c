"""tools/check_layering.py rejects each kind of violation, and nothing else."""

import subprocess
import sys

import pytest

ACCEPTED = {
    "core/config.h": "#include <cstdint>\n",
    "core/format.h": '#include "core/config.h"\n',
    "include/blockscale/error.h": "#include <string>\n",
    "include/blockscale/gemm.h": '#include "blockscale/error.h"\n#include "core/format.h"\n',
    "runtime/error.cpp": '#include "blockscale/error.h"\n#include "core/launch_shape.h"\n',
    "ops/gemm/cpu.cpp": (
        '#include "blockscale/gemm.h"\n#include "ops/gemm/cpu.h"\n'
        '#include "device/ptx/mma.h"\n#include "runtime/load.h"\n#include <hwy/highway.h>\n'
    ),
    "ops/gemm/validate.h": '#include "ops/quantize/validate.h"\n#include "ops/common/checks.h"\n',
    "ops/moe/plan.cpp": '#include "ops/gemm/cuda/sm90/fp8_model.h"\n',
    "models/convert/convert.cpp": '#include "blockscale/gemm.h"\n#include "models/json.h"\n',
    "models/convert/convert_test.cpp": '#include "core/format.h"\n#include "tests/reference.h"\n',
    "models/convert/small_testing.h": "#include <gtest/gtest.h>\n",
    "core/format_test.cpp": "#include <cuda_fp8.h>\n",
    "device/ptx/mma.h": 'inline void mma() { asm volatile("mma"); }\n',
    "device/pipeline/ring.h": "// asm volatile (no code)\n",
}

REJECTED = [
    ("core/format.h", '#include "blockscale/error.h"\n', "may not include include/"),
    ("core/format.h", "#include <type_traits>\n", "in core/ only core/config.h may"),
    ("include/blockscale/gemm.h", '#include "ops/gemm/cpu.h"\n', "may not include ops/"),
    ("include/blockscale/gemm.h", "#include <cuda_runtime.h>\n", "only tests and python/ may"),
    ("include/blockscale/gemm.h", "#include <torch/extension.h>\n", "only tests and python/ may"),
    ("runtime/load.cpp", '#include "blockscale/gemm.h"\n', "knows no operation"),
    ("runtime/load.cpp", '#include "ops/gemm/cpu.h"\n', "may not include ops/"),
    ("models/convert/convert.cpp", '#include "ops/gemm/cpu.h"\n', "may not include ops/"),
    ("models/convert/small.h", "#include <gtest/gtest.h>\n", "only files named as tests may"),
    ("models/convert/convert.cpp", '#  include  "core/format.h"\n', "may not include core/"),
    ("cli/main.cpp", '#include "models/json.h"\n', "may not include models/"),
    ("ops/gemm/cpu.cpp", '#include "models/json.h"\n', "may not include models/"),
    ("ops/gemm/cpu.cpp", '#include "tests/reference.h"\n', "may not include tests/"),
    ("ops/gemm/cpu.cpp", '#include "ops/quantize/cpu/steps.h"\n', "OPERATION_INCLUDES"),
    ("ops/quantize/plan.h", '#include "ops/gemm/cuda/plan.h"\n', "OPERATION_INCLUDES"),
    ("ops/common/cuda/call.h", '#include "ops/quantize/validate.h"\n', "OPERATION_INCLUDES"),
    ("device/pipeline/ring.h", '#include "ops/gemm/cpu.h"\n', "may not include ops/"),
    ("device/pipeline/ring.h", 'void f() { asm volatile("bar"); }\n', "inline assembly"),
    ("ops/gemm/kernel_sm90.cuh", 'void f() { asm("bar"); }\n', "inline assembly"),
    ("bench/probe.cu", 'void f() { asm("bar"); }\n', "inline assembly"),
    ("ops/gemm/kernel_sm90.cuh", "#include <cooperative_groups.h>\n", "only tests and python/ may"),
]


def run_check(root, checkout, files):
    subprocess.run(["git", "init", "-q", checkout], check=True)
    for name, text in files.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run(
        [sys.executable, root / "tools/check_layering.py", checkout],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_clean_tree_passes(root, tmp_path):
    result = run_check(root, tmp_path, ACCEPTED)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(("name", "text", "message"), REJECTED)
def test_a_violation_is_named(root, tmp_path, name, text, message):
    result = run_check(root, tmp_path, ACCEPTED | {name: text})
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{name}: ")
    assert message in lines[0]
