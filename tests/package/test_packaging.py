"""What a build says on a machine that lacks everything, and what the installed package holds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import blockscale
import numpy as np
import pytest
from safetensors.numpy import save_file

SOURCE = Path(__file__).resolve().parents[2]
PACKAGE = Path(blockscale.__file__).parent
EXTRAS = "optional-dependencies"


def missing_packages(folder: Path, compiler: str) -> list[str]:
    """What a build names where nothing is searched for: all but the compiler and pkg-config."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if cmake is None or ninja is None:
        pytest.skip("no cmake or no ninja on the path")
    searches = ("CMAKE_PATH", "CMAKE_ENVIRONMENT_PATH", "CMAKE_SYSTEM_PATH")
    searches += ("SYSTEM_ENVIRONMENT_PATH", "PACKAGE_ROOT_PATH")
    options = [f"-DCMAKE_FIND_USE_{search}=OFF" for search in searches]
    options += [f"-DCMAKE_CXX_COMPILER={compiler}", "-DBLOCKSCALE_PKG_CONFIG=pkg-config"]
    options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    run = subprocess.run(
        [cmake, *options, "-S", str(SOURCE), "-B", str(folder)],
        capture_output=True,
        text=True,
    )
    lines = [line.strip() for line in run.stderr.splitlines() if "missing packages" in line]
    assert run.returncode != 0 and len(lines) == 1, run.stderr
    said, _, packages = lines[0].partition("apt-get install ")
    assert said == "blockscale: missing packages: "
    return packages.split()


def test_missing_packages_are_named_in_one_line(tmp_path: Path) -> None:
    """Whatever this machine has: no compiler of the name that CMake looks for, say."""
    libraries = ["libhwy-dev", "libtbb-dev", "nlohmann-json3-dev", "libspdlog-dev"]
    libraries += ["libxxhash-dev", "libre2-dev", "libcli11-dev", "libgtest-dev", "libgmock-dev"]
    libraries += ["libboost-context-dev"]
    assert missing_packages(tmp_path / "compiler", "a-compiler") == libraries
    assert missing_packages(tmp_path / "none", "NOTFOUND") == ["g++", *libraries]


def test_the_package_brings_its_libraries() -> None:
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_native.pyi").exists()
    assert not any(path.is_symlink() for path in PACKAGE.rglob("*"))  # wheels would copy the file
    program = "import blockscale, os; print(open(f'/proc/{os.getpid()}/maps').read())"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {Path(line.split()[-1]) for line in run.stdout.splitlines() if ".so" in line}
    for library in ("libtbb", "libhwy", "libre2"):
        paths = {path.parent for path in loaded if path.name.startswith(library)}
        assert paths == {PACKAGE}, library


def try_package(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `./dev wheel` does with what it has installed, with the package on sys.path."""
    return subprocess.run(
        [sys.executable, SOURCE / "tools/dev/try_wheel.py", folder],
        env={"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_wheel_with_every_kernel_is_taken() -> None:
    packs = {path.name for path in PACKAGE.glob("blockscale-*.pack")}
    if not packs:
        pytest.skip("no kernel pack in the package: ./dev kernels makes it")
    done = try_package(PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first.startswith("quantize, dequantize and gemm on the CPU: fp8_1x128, ")
    assert {line.partition(":")[0] for line in others} == packs
    assert all(re.search(r": [1-9]\d* kernels, \d+\.\d MiB$", line) for line in others)


def test_a_wheel_without_kernels_or_from_elsewhere_is_refused(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.pack", "__pycache__")
    package = shutil.copytree(PACKAGE, tmp_path / "blockscale", ignore=ignored)
    done = try_package(tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("quantize, dequantize and gemm")
    assert done.stderr == f"no whole pack for sm_90a in {package}: none was found\n"
    shutil.rmtree(package)
    done = try_package(tmp_path)
    refused = f"blockscale was imported from {PACKAGE}, not from {tmp_path}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", refused)


# The licence text of each bundled project: what it must say, and how sources include the project.
LICENSES = {
    "oneTBB": ("Apache", "oneapi/"),
    "Highway": ("Apache", "hwy/"),
    "spdlog": ("MIT", "spdlog/"),
    "fmt": ("without restriction", "fmt/"),
    "nlohmann-json": ("MIT", "nlohmann/"),
    "xxHash": ("Redistribution and use in source and binary forms", "xxhash.h"),
    "RE2": ("Redistribution and use in source and binary forms", "re2/"),
    "CLI11": ("Redistribution and use in source and binary forms", "CLI/"),
    "nanobind": ("Redistribution and use in source and binary forms", "nanobind/"),
    "robin_map": ("Permission is hereby granted, free of charge", "tsl/"),
    "Abseil": ("Apache", None),
    "Apache-2.0": ("TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION", None),
}
LIBRARIES = {
    "libtbb": "oneTBB",
    "libhwy": "Highway",
    "libspdlog": "spdlog",
    "libfmt": "fmt",
    "libre2": "RE2",
    "libabsl": "Abseil",  # where this machine's RE2 needs it
}


def test_the_package_has_the_licence_of_what_it_bundles() -> None:
    texts = {path.stem: path.read_text() for path in (PACKAGE / "licenses").iterdir()}
    bundled = {re.split("[._]", path.name)[0] for path in PACKAGE.glob("lib*.so*")}
    assert bundled | {"libabsl"} == set(LIBRARIES)
    absent = {LIBRARIES[library] for library in set(LIBRARIES) - bundled}
    assert set(texts) == set(LICENSES) - absent
    assert len(set(texts.values())) == len(texts)
    for name, text in texts.items():
        assert LICENSES[name][0] in text and "opyright" in text, name


def test_every_included_project_is_one_whose_licence_is_bundled() -> None:
    sources = [
        path
        for room in ("cli", "include", "models", "ops", "python", "runtime")
        for path in (SOURCE / room).rglob("*")
        if path.suffix in (".h", ".cpp")
        and not re.search("/test/|_(test|bench|fuzz)|testing", str(path.relative_to(SOURCE)))
    ]
    included = {
        header
        for path in sources
        for header in re.findall(r"^ *#include [<\"]([^>\"]+)", path.read_text(), re.M)
    }
    roots = (SOURCE, SOURCE / "cli", SOURCE / "include")  # where our own headers are found
    systems = ("sys/", "linux/", "ucontext")
    known = tuple(prefix for _, prefix in LICENSES.values() if prefix)
    for header in included:
        standard = "/" not in header and not header.startswith("xxhash")
        ours = any((root / header).is_file() for root in roots)
        assert standard or ours or header.startswith((*known, *systems)), header
    assert all(any(h.startswith(p) for h in included) for p in set(known) - {"fmt/", "tsl/"})


CORE_HEADERS = ["config", "format", "input_transform", "layout", "layout_print", "packing"]
CORE_HEADERS += ["recipe", "scale_layout"]


def test_cmake_installs_what_a_cpp_user_needs(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake on the path")
    build = SOURCE / "build/release"
    command = [cmake, "--install", build, "--prefix", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    installed = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if not p.is_dir()}
    public = [path.name for path in (SOURCE / "include/blockscale").iterdir()]
    targets = "lib/cmake/blockscale/blockscaleTargets"
    expected = {
        "bin/blockscale",
        "lib/libblockscale.a",
        "lib/cmake/blockscale/blockscaleConfig.cmake",
        "lib/cmake/blockscale/blockscaleConfigVersion.cmake",
        f"{targets}.cmake",
        f"{targets}-release.cmake",
        *(f"include/blockscale/blockscale/{name}" for name in public),
        *(f"include/blockscale/core/{name}.h" for name in CORE_HEADERS),
        *(f"lib/blockscale/{pack.name}" for pack in build.glob("blockscale-*.pack")),
    }
    assert installed == expected
    headers = tmp_path / "include/blockscale"
    needed = {
        name
        for path in headers.rglob("*.h")
        for name in re.findall(r'^#include "(.*)"', path.read_text(), re.M)
    }
    assert {name for name in needed if not (headers / name).exists()} == set()
    assert {f"core/{name}.h" for name in CORE_HEADERS} <= needed


def test_messages_name_an_install_that_exists() -> None:
    """Nobody has put `blockscale` on PyPI for us: what pip installs is a checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    extras = set(tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"][EXTRAS])
    named = set()
    for name in listed:
        path = SOURCE / name
        if path == Path(__file__) or path.suffix not in (
            ".py",
            ".cpp",
            ".h",
            ".md",
            ".sh",
            ".toml",
        ):
            continue
        if path.is_symlink() or not path.exists():
            continue
        text = path.read_text()
        assert not re.search(r"pip install ['\"]?blockscale\b", text), name
        named |= set(re.findall(r"pip install ['\"]?\.\[(\w+)\]", text))
    assert named and named <= extras


def test_import_needs_neither_torch_nor_ml_dtypes() -> None:
    program = (
        "import sys; sys.modules.update(torch=None, ml_dtypes=None)\n"
        "import numpy as np, blockscale\n"
        "t = blockscale.quantize(np.ones((2, 32), np.float32), 'mxfp8_e4m3')\n"
        "assert t.values.dtype == np.uint8 and (blockscale.dequantize(t) == 1).all()\n"
        "try:\n    blockscale.dequantize(t, out_dtype='bfloat16')\n"
        "except TypeError as error:\n    assert 'ml_dtypes' in str(error)\n"
        "else:\n    raise SystemExit('bf16 without ml_dtypes')\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_pages_show_what_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    save_file({"q_proj.weight": np.ones((64, 64), np.float32)}, tmp_path / "model/m.safetensors")
    monkeypatch.chdir(tmp_path)
    shown = re.findall(r"^```python\n(.*?)^```$", (SOURCE / page).read_text(), re.M | re.S)
    assert shown
    for block in shown:
        if not block.startswith(("import torch", "import blockscale.compat")):  # test_torch*.py do
            exec(block, {})
    assert blockscale.Checkpoint("model-nvfp4")["q_proj.weight"].recipe.name == "nvfp4"
