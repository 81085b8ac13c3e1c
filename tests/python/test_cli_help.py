"""Help, version, usage errors and exit codes of the command line, and their page in docs/."""

import itertools
import pathlib
import re
import subprocess

import pytest
from cli_testing import BENCHMARKS, COMMANDS, EXIT_CODES, KERNELS, Program

SUBCOMMANDS = [[command] for command in COMMANDS] + [["bench", name] for name in BENCHMARKS]
SUBCOMMANDS += [["kernels", name] for name in KERNELS]
OPTIONS = {
    "convert": "--recipe --dialect --include --exclude --map --experts-layout "
    "--share-tensor-scales --unused-inputs --activation-scales --activations --shard-size "
    "--memory --threads --resume --overwrite --copy-all --allow-nonfinite --scale-mode "
    "--amax-floor --scales --calibration --recipes --dry-run --quiet --json",
    "inspect": "--tensor --sort --top --layout --shape --recipe --group --rows-per-scale "
    "--major --leading-stride --batch --json",
    "compare": "--html --conversion --overwrite --tensor --sort --top --threads --json",
    "gemm": "-m --groups -n -k --recipe-a --recipe-b --dtype --to --transform --threads --repeats "
    "--samples --device --weights --reference --tensor --baselines --json",
    "moe": "-t --hidden --inner --experts --of --top-k --routing --recipe --activations "
    "--activation --dtype --repeats --device --check --samples --threads --json",
    "bench quantize": "--recipe --dtype --layout --transform --scales --rows --k --threads "
    "--repeats --device --size --chip --plan --json --output",
    "bench dequantize": "--recipe --dtype --layout --rows --k --threads --repeats --json --output",
    "bench gemm": "-m -n -k --pair --dtype --to --transform --threads --repeats --device --chip "
    "--plan --tune --json --output",
    "bench grouped_gemm": "--groups -n -k --pair --dtype --transform --threads --repeats --device "
    "--chip --plan --json --output",
    "bench moe": "--layer -t --routing --recipe --activations --activation --dtype --threads "
    "--repeats --device --chip --plan --json --output",
    "bench copy": "--size --threads --repeats --json --output",
    "bench peaks": "--threads --repeats --json --output",
    "kernels": "--json",
    "kernels list": "--json",
    "kernels build": "--architecture --output --line-info --rebuild --quiet --threads --json",
    "doctor": "--json",
}


@pytest.fixture(name="page")
def page_fixture(root: pathlib.Path) -> str:
    return (root / "docs" / "cli.md").read_text()


def option_section(text: str) -> str:
    return text.split("\nOptions:\n")[1].split("\n\n")[0]


def test_version(program: Program):
    assert re.fullmatch(r"blockscale \d+\.\d+\.\d+\n", program.ok("--version"))


def test_help_lists_the_commands_and_exit_codes(program: Program):
    text = program.ok("--help")
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\S", text, re.MULTILINE), command
    for name, code in EXIT_CODES.items():
        assert re.search(rf"^ +{code}  {name} +\S", text, re.MULTILINE), name


@pytest.mark.parametrize("command", OPTIONS)
def test_help_lists_exactly_the_options(program: Program, command: str):
    section = option_section(program.ok(*command.split(), "--help"))
    listed = re.findall(r"^  (-[-\w]+)", section, re.MULTILINE)
    assert sorted(listed) == sorted(["-h", *OPTIONS[command].split()])


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_help_ends_with_worked_examples(program: Program, command: list[str]):
    text = program.ok(*command, "--help")
    examples = text.split("Examples:\n")[1]
    commands = re.findall(r"^    blockscale (\w+)", examples, re.MULTILINE)
    assert 2 <= len(commands) <= 3
    assert set(commands) == {command[0]}
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "command", ["convert", "gemm", "moe", "bench gemm", "bench grouped_gemm", "bench moe"]
)
def test_help_lists_every_recipe(program: Program, command: str):
    known = program.fails("usage", "convert", "a", "b", "--recipe", "none")
    recipes = known.split("choose one of ")[1].split("; see")[0].split(", ")
    assert {"nvfp4", "mxfp4", "fp8_128x128", "bf16"} <= set(recipes)
    text = program.ok(*command.split(), "--help")
    for recipe in recipes:
        assert re.search(rf"^{recipe} +\d", text, re.MULTILINE), recipe


def test_docs_describe_every_command_and_exit_code(page: str):
    for command in [" ".join(command) for command in SUBCOMMANDS]:
        assert f"`{command}" in page, command
    for name, code in EXIT_CODES.items():
        assert re.search(rf"^\| {code} \| {name} \| \S", page, re.MULTILINE), name


def test_docs_have_the_table_of_the_help(program: Program, page: str):
    rows = re.findall(r"^ +(\d+)  (\w+) +(\S.*)$", program.ok("--help"), re.MULTILINE)
    assert len(rows) == len(EXIT_CODES)
    for row in rows:
        assert "| " + " | ".join(row) + " |" in page


def test_docs_name_only_options_that_exist(page: str):
    known = set(itertools.chain.from_iterable(text.split() for text in OPTIONS.values()))
    known |= {"--help", "--version", "--tokens"}
    assert set(re.findall(r"(?<![\w-])--[a-z][-\w]*", page)) <= known


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "A subcommand is required; see blockscale --help"),
        (["quantize"], "'quantize' is no command; the commands are convert, inspect, compare,"),
        (["--threads"], "'--threads' is no option; the commands are"),
        (["bench"], "A subcommand is required; see blockscale bench --help"),
        (["compare", "a"], "B is required; see blockscale compare --help"),
        (["convert", "a", "b"], "--recipe is required; see blockscale convert --help"),
        (["doctor", "more"], "more; see blockscale doctor --help"),
        (["doctor", "--fast"], "--fast; see blockscale doctor --help"),
        (["convert", "a", "b", "--recipe", "fp5"], "--recipe: 'fp5' is no recipe; choose one of"),
        (
            ["convert", "a", "b", "--recipe", "nvfp4", "--dialect", "gguf"],
            "--dialect: 'gguf' is no dialect; choose one of plain, deepseek, modelopt, "
            "compressed-tensors",
        ),
        (["convert", "a", "b", "--recipe", "nvfp4", "--memory", "2G"], "'2G' is no size"),
        (["convert", "a", "b", "--recipe", "nvfp4", "--shard-size", "0"], "'0' is out of range"),
        (
            ["convert", "a", "b", "--recipe", "nvfp4", "--shard-size", "99999999999TB"],
            "out of range: a size is at least 1 byte and below 2^63",
        ),
        (["convert", "a", "b", "--recipe", "nvfp4", "--map", "mxfp4"], "is no mapping"),
        (["convert", "a", "b", "--recipe", "nvfp4", "--map", "*=fp5"], "'fp5' is no recipe"),
        (["convert", "a", "b", "--recipe", "nvfp4", "--include", ""], "must not be empty"),
        (["convert", "a", "b", "--recipe", "mxfp4", "--scale-mode", "up"], "floor, ceil, even"),
        (["convert", "a", "b", "--recipe", "fp8_row", "--amax-floor", "nan"], "no finite number"),
        (["convert", "a", "b", "--recipe", "fp8_row", "--amax-floor", "-1"], "out of range"),
        (["compare", "a", "b", "--sort", "sqnr_db"], "'sqnr_db' is no column; choose one of name,"),
        (["inspect", "a", "--sort", "rows"], "choose one of name, shape, recipe, layout, bytes"),
        (["inspect", "a", "--top", "0"], "--top: '0' is out of range"),
        (["inspect", "a", "--tensor", ""], "must not be empty"),
        (["compare", "a", "b", "--threads", "-1"], "--threads: '-1' is out of range"),
        (["compare", "a", "b", "--threads", "1.5"], "--threads: '1.5' is no integer"),
        (["compare", "a", "b", "--threads", "99999999999999999999"], "out of range"),
        (["bench", "copy", "--size", "2TiB"], "at most 1TiB"),
        (["bench", "quantize", "--repeats", "0"], "--repeats: '0' is out of range"),
        (["bench", "quantize", "--size", "1MiB"], "--size goes with --device cuda"),
        (["bench", "quantize", "--device", "cuda", "--scales", "mse"], "goes with --device cpu"),
        (["convert", "a", "b", "--recipe", "nvfp4", "--scales", "max"], "amax, mse, weighted"),
        (["bench", "gemm", "--pair", "mxfp8_e4m3:"], "'' is no recipe"),
        (["gemm", "--device", "gpu"], "--device: 'gpu' is no device"),
        (["bench", "gemm", "--device", "gpu"], "--device: 'gpu' is no device"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_usage_errors(program: Program, arguments: list[str], message: str):
    assert message in program.fails("usage", *arguments)


def test_unknown_log_level_is_a_usage_error(program: Program):
    result = program("doctor", BLOCKSCALE_LOG="loud")
    assert result.code == EXIT_CODES["usage"]
    assert "BLOCKSCALE_LOG: 'loud' is no level; choose one of trace, debug," in result.err


@pytest.mark.parametrize("level", ["trace", "debug", "info", "warning", "error", "critical", "off"])
def test_log_levels(program: Program, level: str):
    result = program("doctor", "--json", BLOCKSCALE_LOG=level)
    assert result.json()["log_level"] == level


def test_logs_go_to_standard_error(program: Program):
    result = program("doctor", "--json", BLOCKSCALE_LOG="debug")
    lines = result.err.splitlines()
    assert re.fullmatch(r"blockscale: debug: blockscale [\d.]+, \w+ code on .*: doctor", lines[0])
    assert lines[-1] == "blockscale: debug: done, exit code 0"
    assert result.json()["log_level"] == "debug"


def test_output_that_cannot_be_written_is_an_io_error(cli: pathlib.Path):
    with pathlib.Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [cli, "doctor"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == EXIT_CODES["io"]
    assert done.stderr.startswith("blockscale doctor: error: standard output")
