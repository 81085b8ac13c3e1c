"""Checks the layering of docs/architecture.md: who may include whom, and what kernels may use.

Usage: check_layering.py [ROOT]. Prints every violation and exits with 1 if there is one.
"""

import pathlib
import re
import subprocess
import sys

# A room may include itself and these.
ALLOWED = {
    "core": set(),
    "include": {"core"},
    "device": {"core"},
    "runtime": {"include", "core"},
    "ops": {"include", "core", "device", "runtime"},
    "models": {"include"},
    "cli": {"include"},
    "python": {"include"},
}
# runtime/ knows no operation: of the public API, only what it implements itself.
RUNTIME_API = {
    "blockscale/device.h",
    "blockscale/error.h",
    "blockscale/files.h",
    "blockscale/hash.h",
    "blockscale/parallel.h",
    "blockscale/system.h",
}
# One operation includes another's headers only where this list says so: from, to, what of it.
OPERATION_INCLUDES = [
    # The list of all kernels.
    ("ops/common/cuda/kernel_list.cpp", "ops/", re.compile(r"/cuda/[a-z_]+\.h$")),
    # Results that are quantized: a quantizer's checks and parameters, or its launches; rows of A
    # that are dequantized to bf16.
    (
        "ops/gemm/",
        "ops/quantize/",
        re.compile(r"/(validate|cuda/(params|plan|dequantize_plan|kernel_sets))\.h$"),
    ),
    # GELU, SiLU and SwiGLU before a plain result on the CPU: a quantizer's transform of a row.
    ("ops/gemm/cpu/transform.cpp", "ops/quantize/", re.compile(r"/cpu/steps\.h$")),
    # Products of groups of rows: the dense product's arguments, kernels and models.
    (
        "ops/grouped_gemm/",
        "ops/gemm/",
        re.compile(r"/(validate|call_memory|path|error_bound|reference)\.h$|/(kernels|cuda|cpu)/"),
    ),
    (
        "ops/grouped_gemm/",
        "ops/quantize/",
        re.compile(r"/(validate|cuda/(params|plan|kernel_sets))\.h$"),
    ),
    # A layer: the products' and the quantizers' plans and launches.
    (
        "ops/moe/",
        "ops/gemm/",
        re.compile(r"/(validate|call_memory)\.h$|/(kernels|cuda)/|/cpu/(memory|transform)\.h$"),
    ),
    ("ops/moe/", "ops/grouped_gemm/", re.compile(r"/validate\.h$|/(kernels|cuda)/")),
    (
        "ops/moe/",
        "ops/quantize/",
        re.compile(r"/(validate|cuda/(params|plan|kernel_sets))\.h$"),
    ),
]

SOURCE_SUFFIXES = {".h", ".cpp", ".cuh", ".cu", ".hpp", ".cc", ".inl"}
TEST_FILE = re.compile(
    r"/test/|_(test|bench|fuzz)\.cpp$|_test_[a-z_]+\.(h|cpp)$|[/_]testing\.(h|cpp)$"
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INLINE_ASM = re.compile(r"\b(asm|__asm__|__asm)\b\s*(volatile\b|__volatile__\b|goto\b)?\s*[({]")
FOREIGN = re.compile(
    r"^(cuda|cuda_.*|nvrtc|cub/.*|thrust/.*|cute/.*|cutlass/.*|mma|cooperative_groups.*"
    r"|torch/.*|ATen/.*|c10/.*|Python|pybind11/.*|nanobind/.*)(\.h|\.hpp|\.cuh)?$"
)
# The one file of core/ that may include standard headers (NVRTC has none).
CORE_CONFIG = "core/config.h"


def room_of_include(file: str, quote: str, target: str, files: set[str]) -> str | None:
    """The room an include leads to, or None for headers of the system and of other projects."""
    if target.startswith("blockscale/"):
        return "include"
    room = target.split("/")[0]
    if "/" in target and (room in ALLOWED or room in ("tests", "tools", "examples")):
        return room
    beside = f"{file.rsplit('/', 1)[0]}/{target}"
    if quote == '"' and beside in files:
        return file.split("/")[0]
    return None


def is_of_another_operation(file: str, target: str) -> bool:
    """Whether a file of ops/ includes a header of an operation that is not its own, nor common."""
    if not (file.startswith("ops/") and target.startswith("ops/")):
        return False
    to = target.split("/")[1]
    if to in ("common", file.split("/")[1]):
        return False
    return not any(
        file.startswith(source) and target.startswith(room) and part.search(target)
        for source, room, part in OPERATION_INCLUDES
    )


def is_kernel_source(file: str) -> bool:
    return file.endswith((".cuh", ".cu")) or file.startswith(("device/", "core/"))


def check_file(file: str, text: str, files: set[str]) -> list[str]:
    room = file.split("/")[0]
    problems = []
    code = COMMENT.sub("", text)
    if INLINE_ASM.search(code) and is_kernel_source(file) and not file.startswith("device/ptx/"):
        problems.append(f"{file}: inline assembly; it belongs in device/ptx/")
    if room not in ALLOWED:
        return problems
    test = TEST_FILE.search(file) is not None
    for quote, target in INCLUDE.findall(code):
        if target.startswith(("gtest/", "gmock/")) and not test:
            problems.append(f"{file}: includes {target}; only files named as tests may")
        to = room_of_include(file, quote, target, files)
        if to is None:
            if FOREIGN.match(target) and room != "python" and not test:
                problems.append(f"{file}: includes {target}; only tests and python/ may")
            elif room == "core" and not test and file != CORE_CONFIG:
                problems.append(f"{file}: includes {target}; in core/ only {CORE_CONFIG} may")
        elif is_of_another_operation(file, target) and not test:
            problems.append(f"{file}: includes {target}; OPERATION_INCLUDES does not list it")
        elif to != room and not test:
            if to not in ALLOWED[room]:
                problems.append(f"{file}: includes {target}; {room}/ may not include {to}/")
            elif (room, to) == ("runtime", "include") and target not in RUNTIME_API:
                problems.append(f"{file}: includes {target}; runtime/ knows no operation")
    return problems


def check_tree(root: pathlib.Path) -> list[str]:
    """All violations below `root`, a git checkout."""
    listed = subprocess.run(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    files = {f for f in listed.stdout.splitlines() if pathlib.Path(f).suffix in SOURCE_SUFFIXES}
    problems = []
    for file in sorted(files):
        path = root / file
        if path.is_file():
            problems += check_file(file, path.read_text(encoding="utf-8"), files)
    return problems


def main() -> int:
    default = pathlib.Path(__file__).resolve().parent.parent
    problems = check_tree(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
