"""What README.md shows works as shown."""

import json
import re
import shlex
import subprocess
import textwrap

import numpy as np
import pytest
from safetensors.numpy import save_file


def blocks(root, language):
    text = (root / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def unindented_lines(text):
    return [line.strip() for line in textwrap.dedent(text).splitlines() if line.strip()]


def test_cpp_is_part_of_the_compiled_example(root):
    """`./dev test install` compiles and runs examples/find_package/main.cpp."""
    example = unindented_lines((root / "examples/find_package/main.cpp").read_text())
    shown = blocks(root, "cpp")
    assert len(shown) == 1
    lines = unindented_lines(shown[0])
    starts = range(len(example) - len(lines) + 1)
    assert any(example[i : i + len(lines)] == lines for i in starts)


@pytest.fixture
def model(tmp_path):
    """A checkpoint of one attention layer with an embedding, in tmp_path/model."""
    random = np.random.default_rng(7)
    tensors = {
        "model.embed_tokens.weight": random.standard_normal((64, 256)),
        "model.layers.0.self_attn.q_proj.weight": random.standard_normal((256, 256)),
        "model.layers.0.self_attn.k_proj.weight": random.standard_normal((128, 256)),
        "model.layers.0.self_attn.v_proj.weight": random.standard_normal((128, 256)),
        "model.layers.0.self_attn.o_proj.weight": random.standard_normal((256, 256)),
        "model.norm.weight": np.ones(256),
    }
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(
        {name: value.astype(np.float32) for name, value in tensors.items()},
        folder / "model.safetensors",
    )
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_commands_run(root, cli, model):
    commands = [
        shlex.split(line, comments=True)
        for block in blocks(root, "sh")
        for line in block.splitlines()
        if line.startswith("./dev run ")
    ]
    assert len(commands) >= 3
    for command in commands:
        result = subprocess.run(
            [cli, *command[2:]], cwd=model.parent, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, (command, result.stderr)
        assert result.stdout.strip(), command


def test_pip_install_says_what_it_needs(root):
    """The packages that CMake asks for by name, but for those of the tests."""
    text = (root / "cmake/BlockscaleRequirements.cmake").read_text()
    text = re.sub(r"^if\(BLOCKSCALE_TESTS\)\n.*?^endif\(\)$", "", text, flags=re.M | re.S)
    needed = re.findall(r"^ *blockscale_require_header\(\S+ (\S+)\)$", text, re.MULTILINE)
    needed += re.findall(r"list\(APPEND missing ([a-z+][\w+-]*)\)", text)
    shown = [line for line in "".join(blocks(root, "sh")).splitlines() if "apt-get" in line]
    assert len(shown) == 1
    assert sorted(shown[0].removeprefix("sudo apt-get install ").split()) == sorted(needed)
