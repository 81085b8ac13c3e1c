"""`blockscale convert --recipes` and `--dry-run`: what is decided for each tensor, and why."""

import pathlib
import re

import pytest
from cli_testing import WEIGHTS, Program, files_below


def test_dry_run_decides_and_writes_nothing(program: Program, model: pathlib.Path):
    before = files_below(model.parent)
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4"]
    dry = program.json(*arguments, "--dry-run")
    text = program.ok(*arguments, "--dry-run")
    assert files_below(model.parent) == before
    for name in WEIGHTS:
        assert re.search(rf"^{re.escape(name)} .* nvfp4 ", text, re.MULTILINE)
    assert "no weight of a linear layer" in text and "Nothing was written." in text
    real = program.json(*arguments)
    assert dry["tensors"] == real["tensors"] and dry["bytes"] == real["bytes"]
    size = sum(path.stat().st_size for path in (model.parent / "result").iterdir())
    assert size <= dry["disk_bytes"] == real["disk_bytes"] <= size + 4096 * len(before) + 4096
    assert dry["free_bytes"] > dry["disk_bytes"] and real["free_bytes"] is None


def test_dry_run_says_what_chose_each_tensor(program: Program, model: pathlib.Path):
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4", "--dry-run"]
    arguments += [
        "--map",
        "*.query=mxfp4",
        "--map",
        "*.attention.*=mxfp8_e4m3",
        "--exclude",
        "*.key*",
    ]
    report = program.json(*arguments)
    layer = "encoder.layer.0."
    chosen = {
        f"{layer}attention.self.query.weight": ("mxfp4", "", 'map "*.query"'),  # the first match
        f"{layer}attention.self.key.weight": ("f32", "excluded", 'exclude "*.key*"'),
        f"{layer}attention.self.key.bias": ("f32", "excluded", 'exclude "*.key*"'),
        f"{layer}intermediate.dense.weight": ("nvfp4", "", "a linear layer"),
        "embeddings.word_embeddings.weight": ("f32", "embedding", ""),
    }
    found = {t["name"]: (t["recipe"], t["reason"], t["rule"]) for t in report["tensors"]}
    assert found | chosen == found
    bias = found[f"{layer}attention.self.query.bias"]  # was asked for, and cannot be
    assert bias == ("f32", "a vector", 'map "*.attention.*"')
    text = program(*arguments).out
    assert re.search(r"query\.weight .* mxfp4 .* map \"\*\.query\"$", text, re.MULTILINE)
    assert re.search(
        r"key\.weight .* kept .* excluded \(exclude \"\*\.key\*\"\)$", text, re.MULTILINE
    )
    assert all(tensor["reason"] or tensor["rule"] for tensor in report["tensors"])
    include = ["--include", "*.output.*", "--dry-run"]
    report = program.json(*arguments[:5], *include)
    rules = {t["rule"] for t in report["tensors"] if t["converted"]}
    assert rules == {'include "*.output.*"'}


RECIPE_FILES = {
    "r.yaml": "# experts first\n---\n\"*.query.weight\": mxfp8_e4m3  # wide\n're:.*key': bf16\n"
    "encoder.layer.0.output.dense: 'mxfp4'\n",
    "r.json": '{"*.query.weight": "mxfp8_e4m3", "re:.*key": "bf16", '
    '"encoder.layer.0.output.dense": "mxfp4"}',
}


@pytest.mark.parametrize("name", RECIPE_FILES)
def test_recipe_file(program: Program, model: pathlib.Path, name: str):
    recipes = model.parent / name
    recipes.write_text(RECIPE_FILES[name])
    patterns = {"*.query.weight": "mxfp8_e4m3", "re:.*key": "bf16"}
    patterns["encoder.layer.0.output.dense"] = "mxfp4"
    maps = [text for p, r in patterns.items() for text in ("--map", f"{p}={r}")]
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4", "--dry-run"]
    assert (
        program.json(*arguments, "--recipes", recipes)["tensors"]
        == program.json(*arguments, *maps)["tensors"]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("*.query: mxfp4\n", 'line 1: YAML gives "*" a meaning here; quote the text'),
        ("a: mxfp4\n  b: mxfp4\n", "line 2: is indented"),
        ("a: int4\n", 'line 1: "int4" is no recipe, must be one of f32'),
        ("a\n", "line 1: must be PATTERN: RECIPE"),
        ("'a: mxfp4\n", "line 1: a quote is not closed"),
        ("a: mxfp4\na: nvfp4\n", 'line 2: "a" was there before'),
        ("a: 'mxfp4' b\n", 'line 1: "b" follows the recipe'),
        ("'': mxfp4\n", "line 1: has an empty pattern"),
        ('"\\n": mxfp4\n', "line 1: of escapes only"),
        ("# nothing\n", "has no pattern"),
    ],
)
def test_bad_recipe_files(program: Program, model: pathlib.Path, text: str, message: str):
    recipes = model.parent / "r.yml"
    recipes.write_text(text)
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4"]
    assert message in program.fails("corrupt_file", *arguments, "--recipes", recipes)
    recipes = recipes.rename(model.parent / "r.txt")
    message = program.fails("invalid_argument", *arguments, "--recipes", recipes)
    assert "must end in .json, .yaml or .yml" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must hold a JSON object of pattern -> recipe"),
        ('{"a": 4}', '"a" must be the name of a recipe'),
        ('{"a": "int4"}', '"int4" is no recipe, must be one of f32'),
        ('{"": "mxfp4"}', "has an empty pattern"),
        ('{"a": "mxfp4", "a": "nvfp4"}', 'names "a" more than once'),
        ("{}", "has no pattern"),
    ],
)
def test_bad_recipe_files_in_json(program: Program, model: pathlib.Path, text: str, message: str):
    recipes = model.parent / "r.json"
    recipes.write_text(text)
    arguments = ["convert", model, model.parent / "result", "--recipe", "nvfp4"]
    assert message in program.fails("corrupt_file", *arguments, "--recipes", recipes)
