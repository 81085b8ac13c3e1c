"""`blockscale kernels`, and what `doctor` says of kernels, with and without pack and compiler."""

import pathlib

import pytest
from cli_testing import EXIT_CODES, Program

ARCHITECTURES = ("sm_90a", "sm_100f", "sm_120f")
NO_NVRTC = {"BLOCKSCALE_NVRTC": "/none/libnvrtc.so.13"}


@pytest.fixture(name="pack", scope="session")
def pack_fixture(tmp_path_factory: pytest.TempPathFactory, cli: pathlib.Path) -> pathlib.Path:
    """A folder with the pack that the build has made: that takes longer than a test may."""
    folder = tmp_path_factory.mktemp("pack")
    for name in (f"blockscale-{architecture}.pack" for architecture in ARCHITECTURES):
        made = [file for file in (cli.parent / name, cli.parent.parent / name) if file.exists()]
        if not made:
            pytest.skip("no kernel pack beside the command line: ./dev kernels makes it")
        (folder / name).write_bytes(made[-1].read_bytes())
    result = Program(cli)("kernels", "build", "--output", folder, "--json")
    if result.code == EXIT_CODES["not_found"]:
        pytest.skip("no libnvrtc: set BLOCKSCALE_NVRTC")
    report = result.json()
    packed = sum(pack["kernels"] for pack in report["packs"])
    assert report["compiled"] + report["reused"] == packed > 0
    assert 0 < sum(pack["seconds"] for pack in report["packs"]) <= report["seconds"]
    return folder


def states(report: dict) -> set[str]:
    return {kernel["state"] for kernel in report["kernels"]}


def test_without_pack_cache_and_compiler(program: Program, tmp_path: pathlib.Path):
    empty = tmp_path / "empty.pack"
    empty.write_bytes(b"")
    result = program(
        "kernels", "list", "--json", BLOCKSCALE_KERNELS=str(empty), BLOCKSCALE_CACHE=str(tmp_path)
    )
    report = result.json()
    assert states(report) == {"missing"}
    assert "is cut off within its header" in report["packs"][0]["problem"]
    assert report["cache"] == {
        "path": str(tmp_path),
        "problem": "",
        "kernels": 0,
        "bytes": 0,
        "limit_bytes": 512 << 20,
        "entries": [],
    }
    homeless = {"BLOCKSCALE_CACHE": "", "XDG_CACHE_HOME": "", "HOME": ""}
    assert "Cache: none, for want of a home folder" in program("kernels", "list", **homeless).out
    doctor = program("doctor", BLOCKSCALE_KERNELS="/none", **NO_NVRTC)
    assert doctor.code == 0
    text = " ".join(doctor.out.split())
    assert "BLOCKSCALE_KERNELS: there is no kernel pack at /none" in text
    assert "NVRTC none: /none/libnvrtc.so.13: " in text
    assert "Kernels of the pack run without it; the cache needs the one that filled it" in text
    assert " kernels cannot be launched without NVRTC" in text
    with_nvrtc = " ".join(program("doctor", BLOCKSCALE_KERNELS="/none").out.split())
    if "NVRTC none" not in with_nvrtc:
        assert " kernels would be compiled at their first launch" in with_nvrtc


def test_what_only_the_emulator_has_run_is_named(program: Program, fake_driver: str):
    words = "compiled and emulated, never run on silicon"
    kernels = program("kernels", "list", "--json").json()["kernels"]
    assert {kernel["architecture"] for kernel in kernels if not kernel["emulated_only"]} == {
        "sm_90a"
    }
    assert program("kernels", "list").out.count(words) == 2
    for capability, times in (("90", 0), ("120", 1)):
        fake = {
            "BLOCKSCALE_LIBCUDA": fake_driver,
            "BLOCKSCALE_FAKE_CUDA_CAPABILITY": capability,
        }
        text = " ".join(program("doctor", **fake).out.split())
        assert text.count(words) == times
    plan = ("bench", "gemm", "--device", "cuda", "--plan", "-m", "4", "--chip")
    assert words in program.ok(*plan, "RTX 5090")
    assert words not in program.ok(*plan, "H200")


def test_a_cache_that_others_can_write(program: Program, tmp_path: pathlib.Path):
    tmp_path.chmod(0o777)
    environment = {"BLOCKSCALE_CACHE": str(tmp_path)}
    problem = f"{tmp_path} can be written by others, who could put any code there"
    report = program("kernels", "list", "--json", **environment).json()
    assert report["cache"]["problem"].startswith(problem)
    listed = program("kernels", "list", **environment).out
    assert f"Cache: not used: {problem}; `chmod go-w` makes it usable" in listed
    doctor = " ".join(program("doctor", **environment).out.split())
    assert f"the cache is not used: {problem}" in doctor
    report = program("doctor", "--json", **environment).json()
    assert report["kernels"]["cache_problem"].startswith(problem)


def test_kernels_alone_lists(program: Program, tmp_path: pathlib.Path):
    environment = {"BLOCKSCALE_CACHE": str(tmp_path)}
    for options in ([], ["--json"]):
        alone = program("kernels", *options, **environment)
        assert (alone.code, alone.err) == (0, "")
        assert alone.out == program("kernels", "list", *options, **environment).out
    header = program("kernels", **environment).out.split("\n", 1)[0]
    assert " ".join(header.split()) == "Kernel For State Registers Spilled Stack Shared Code"
    message = program.fails("usage", "kernels", "--json", "build")
    assert "--json stands after list or build" in message


def test_the_cache_is_listed(program: Program, pack: pathlib.Path, tmp_path: pathlib.Path):
    cache = tmp_path / "cache"
    cache.mkdir(0o700)
    packed = (pack / "blockscale-sm_90a.pack").read_bytes()
    (cache / "many.kernel").write_bytes(packed)
    (cache / "short.kernel").write_bytes(packed[:1000])
    (cache / "odd\033[2J\n.kernel").write_bytes(b"no pack")
    (cache / "folder.kernel").mkdir()
    (cache / "lock-1").write_bytes(b"")
    environment = {"BLOCKSCALE_CACHE": str(cache), "BLOCKSCALE_KERNELS": str(pack)}
    report = program("kernels", "list", "--json", **environment).json()["cache"]
    assert (report["kernels"], report["bytes"]) == (0, len(packed) + 1000 + 7)
    assert [entry["state"] for entry in report["entries"]] == ["damaged"] * 3
    assert report["entries"][0]["path"] == f"{cache}/many.kernel"
    assert "an entry has one kernel" in report["entries"][0]["problem"]
    lines = program("kernels", **environment).out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("In the cache")) :]
    assert table[1].split() == ["many.kernel", "damaged", *table[1].split()[2:]]
    assert table[2].startswith("odd\\x1B[2J\\x0A.kernel ")
    assert sum(line.startswith(f"Damaged: {cache}/") for line in table) == 3


def test_a_pack_that_is_whole(program: Program, pack: pathlib.Path, tmp_path: pathlib.Path):
    environment = {"BLOCKSCALE_KERNELS": str(pack), "BLOCKSCALE_CACHE": str(tmp_path)}
    report = program("kernels", "list", "--json", **environment).json()
    assert states(report) == {"packed"}
    for kernel in report["kernels"]:
        assert kernel["spill_bytes"] == kernel["stack_bytes"] == 0, kernel
        assert 0 < kernel["registers"] <= 255
        assert "--fmad=false" in kernel["flags"]
        assert f"--gpu-architecture={kernel['architecture']}" in kernel["flags"]
        assert kernel["compiler"].startswith("NVRTC 13.")
    text = program("kernels", "list", **environment).out
    for architecture in ARCHITECTURES:
        count = sum(kernel["architecture"] == architecture for kernel in report["kernels"])
        path = f"{pack}/blockscale-{architecture}.pack"
        assert f"Pack for {architecture}: {path}, {count} kernels" in text
    assert program("doctor", "--json", **environment).json()["kernels"]["missing"] == 0


def test_a_second_build_compiles_nothing(program: Program, pack: pathlib.Path):
    before = (pack / "blockscale-sm_90a.pack").read_bytes()
    report = program.json("kernels", "build", "--output", pack)
    assert report["compiled"] == 0 and report["reused"] > 0
    assert (pack / "blockscale-sm_90a.pack").read_bytes() == before


def test_a_damaged_pack_is_reported(program: Program, pack: pathlib.Path, tmp_path: pathlib.Path):
    file = tmp_path / "blockscale-sm_90a.pack"
    file.write_bytes((pack / file.name).read_bytes()[:-1])
    listed = program("kernels", "list", "--json", BLOCKSCALE_KERNELS=str(tmp_path)).json()
    assert "bytes long and says" in listed["packs"][0]["problem"]


def test_a_build_makes_damaged_code_anew(
    program: Program, pack: pathlib.Path, tmp_path: pathlib.Path
):
    file = tmp_path / "blockscale-sm_90a.pack"
    whole = (pack / file.name).read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    options = ("--architecture", "sm_90a", "--output", tmp_path)
    report = program.json("kernels", "build", *options)
    assert report["compiled"] == 1 and report["reused"] > 0
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("arguments", "name", "message"),
    [
        (
            ["--architecture", "sm_70"],
            "invalid_argument",
            "'sm_70'; kernels are written for sm_90a, sm_100f, sm_120f",
        ),
        (["--output", "/dev/null/here"], "not_found", "/dev/null/here: cannot make this folder"),
    ],
)
def test_build_refuses(program: Program, pack: pathlib.Path, arguments, name, message):
    del pack  # NVRTC is there
    assert message in program.fails(name, "kernels", "build", "--quiet", *arguments)


def test_build_without_a_compiler(program: Program, tmp_path: pathlib.Path):
    result = program("kernels", "build", "--output", tmp_path, **NO_NVRTC)
    assert result.code == EXIT_CODES["not_found"]
    assert "/none/libnvrtc.so.13: " in result.err
