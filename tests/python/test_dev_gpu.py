"""`./dev gpu-test` and `./dev gpu-bench` on a machine without a GPU, and the parts of
tools/dev/gpu.sh that decide what runs."""

from __future__ import annotations

import fnmatch
import os
import pathlib
import re
import subprocess

import pytest

NO_GPU = 77
NO_DRIVER = "/none/libcuda.so.1"
COMMANDS = [
    ["gpu-test"],
    ["gpu-test", "--sanitizer", "memcheck"],
    ["gpu-bench"],
    ["gpu-bench", "gemm"],
    ["gpu-bench", "gemm_sweep"],
]


def dev(root: pathlib.Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [root / "dev", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_a_driver_they_say_so(root: pathlib.Path, command: list[str]):
    done = dev(root, *command, BLOCKSCALE_LIBCUDA=NO_DRIVER)
    assert (done.returncode, done.stdout) == (NO_GPU, "no GPU\n"), done.stderr


@pytest.mark.parametrize("function", ["cuInit", "cuDeviceGetCount"])
def test_a_driver_without_a_device_is_no_gpu(root: pathlib.Path, fake_driver: str, function: str):
    failure = {"BLOCKSCALE_FAKE_CUDA_FAILURE": f"{function}=100"}
    done = dev(root, "gpu-test", BLOCKSCALE_LIBCUDA=fake_driver, **failure)
    assert (done.returncode, done.stdout) == (NO_GPU, "no GPU\n"), done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_driver_that_fails_is_an_error(root: pathlib.Path, fake_driver: str, command: list[str]):
    failure = {"BLOCKSCALE_FAKE_CUDA_FAILURE": "cuInit=999"}
    done = dev(root, *command, BLOCKSCALE_LIBCUDA=fake_driver, **failure)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "the NVIDIA driver: cuInit failed with error 999 (CUDA_ERROR_OF_THE_FAKE): "
        "the fake was told to fail\n"
    )


def test_a_driver_that_is_none_is_an_error(root: pathlib.Path, tmp_path: pathlib.Path):
    file = tmp_path / "libcuda.so.1"
    file.write_text("no library")
    done = dev(root, "gpu-test", BLOCKSCALE_LIBCUDA=str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot be loaded: {file}: " in done.stderr


def test_without_python_nothing_is_said_of_gpus(root: pathlib.Path, tmp_path: pathlib.Path):
    for tool in ("bash", "dirname", "nproc"):
        (tmp_path / tool).symlink_to(pathlib.Path("/usr/bin") / tool)
    done = dev(root, "gpu-test", PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "dev: python3 is needed to look for a GPU\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fast"], "unknown argument '--fast' of ./dev gpu-test; --sanitizer TOOL is known"),
        (["memcheck"], "unknown argument 'memcheck' of ./dev gpu-test"),
        (["--sanitizer"], "--sanitizer is followed by ''; one of memcheck racecheck"),
        (["--sanitizer", "--gtest_filter=A"], "--sanitizer is followed by '--gtest_filter=A'"),
        (["--sanitizer", "memcheck", "-v"], "unknown argument '-v' after --sanitizer memcheck"),
        (
            ["--sanitizer", "memcheck", "ops_gemm", "x"],
            "unknown argument 'x' after --sanitizer mem",
        ),
        (
            ["--sanitizer", "initcheck", "ops_jemm"],
            "'ops_jemm' after --sanitizer initcheck is in no",
        ),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(root: pathlib.Path, arguments: list[str], message: str):
    done = dev(root, "gpu-test", *arguments, BLOCKSCALE_LIBCUDA=NO_DRIVER)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"dev: {message}"), done.stderr


def part(root: pathlib.Path, folder: pathlib.Path, code: str, **environment: str) -> str:
    """What a part of gpu.sh prints in `folder`."""
    setup = f"source {root}/tools/dev/setup.sh; source {root}/tools/dev/gpu.sh; set -euo pipefail"
    done = subprocess.run(
        ["bash", "-c", f"{setup}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


STUBS = """
compute-sanitizer() { echo "ran $*"; }
build_gpu() { echo "built $*"; }
"""


def test_a_sanitizer_runs_the_programs_that_are_named(root: pathlib.Path, tmp_path: pathlib.Path):
    build = tmp_path / "build/gpu"
    build.mkdir(parents=True)
    (tmp_path / "runtime").mkdir()
    for name in ("one", "two"):
        source = tmp_path / f"ops/{name}/test/{name}_gpu_test.cpp"
        source.parent.mkdir(parents=True)
        source.touch()
        program = build / f"ops_{name}_test_{name}_gpu_test"
        program.write_text("#!/bin/sh\nprintf 'Suite.\\n  Test\\n'\n")
        program.chmod(0o755)

    def lines(arguments: str) -> list[str]:
        text = part(root, tmp_path, f"{STUBS}\nrun_compute_sanitizer {arguments}")
        return [line for line in text.splitlines() if not line.startswith(("--", "left"))]

    two = "ops_two_test_two_gpu_test"
    built, ran, last = lines("racecheck two --gtest_filter='A.*'")
    assert built == f"built --line-info blockscale_cli {two}"
    command = f"--tool racecheck --error-exitcode 1 build/gpu/{two} --gtest_filter=A.*"
    assert ran == f"ran {command}"
    assert last.startswith("racecheck over 1 programs in ") and last.endswith(" s: passed")
    _, first, second, _ = lines("memcheck")
    assert "ops_one" in first and "ops_two" in second
    assert all("--report-api-errors no" in ran and "--gtest_filter=-*Every" in ran
               for ran in (first, second))  # fmt: skip


def test_what_sanitizers_leave_out_is_there(root: pathlib.Path):
    left_out = part(root, root, 'echo "$sanitizer_leaves_out"').split(":")
    tests = []
    for file in [*root.glob("ops/**/*_gpu_test.cpp"), *root.glob("runtime/**/*_gpu_test.cpp")]:
        tests += re.findall(r"^TEST\w*\((\w+), (\w+)\)", file.read_text(), re.M)
    names = [".".join(test) for test in tests]
    for pattern in left_out:
        assert fnmatch.filter(names, pattern), pattern
    kept = [n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in left_out)]
    assert {"CudaGpuGemm.EveryChoice", "CudaGpuQuantizedGemm.Edges"} <= set(kept)


def git(folder: pathlib.Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.strip()


def test_the_tested_commit_is_the_trees(root: pathlib.Path, tmp_path: pathlib.Path):
    def tested() -> str:
        return part(root, tmp_path, "tested_commit")

    assert tested() == "unknown"
    bundle = tmp_path / "build/bundle"
    bundle.mkdir(parents=True)
    (bundle / "commit").write_text("bundled\n")
    assert tested() == "bundled"
    git(tmp_path, "init", "--quiet")
    assert tested() == "bundled"  # there is no commit yet
    (tmp_path / ".gitignore").write_text("build/\n")
    git(tmp_path, "add", ".gitignore")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert tested() == commit
    results = tmp_path / "bench/results"
    results.mkdir(parents=True)
    (results / "new.json").write_text("{}")
    assert tested() == commit
    (tmp_path / ".gitignore").write_text("build\n")
    assert tested() == f"{commit}-dirty"
    # Files that were bundled elsewhere, with a history of their own.
    (bundle / "tree").write_text(part(root, tmp_path, "tree_hash"))
    assert tested() == "bundled"
    (results / "new.json").write_text("[]")
    assert tested() == "bundled"
    (tmp_path / "more").write_text("")
    assert tested() == f"{commit}-dirty"


def test_the_nvrtc_that_was_found_is_the_one_that_is_used(
    root: pathlib.Path, tmp_path: pathlib.Path
):
    library = tmp_path / "cuda-13.7/lib64/libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.touch()
    code = """
ldconfig() { :; }
make_venv() { echo venv; }
use_nvrtc
echo "${BLOCKSCALE_NVRTC:-}"
"""
    toolkit = {"BLOCKSCALE_NVRTC": "", "CUDA_HOME": str(tmp_path / "cuda-13.7")}
    assert part(root, tmp_path, code, **toolkit) == str(library)
    assert part(root, tmp_path, code, **toolkit | {"BLOCKSCALE_NVRTC": "/mine"}) == "/mine"
    loaded = code.replace(":;", "echo libnvrtc.so.13;")
    assert part(root, tmp_path, loaded, **toolkit) == ""  # the library finds it by itself
    pinned = tmp_path / "build/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13"
    pinned.parent.mkdir(parents=True)
    pinned.touch()
    assert part(root, tmp_path, code, **toolkit) == str(pinned)
