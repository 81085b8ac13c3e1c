"""Checkpoints that are read and never written, and what is applied while they are read.

torchao's and ModelOpt's are made by the packages, FBGEMM's stacks by transformers' own integration.
LightX2V's own code needs a checkout (test_use_lightx2v.py), vLLM an environment of its own
(test_vllm.py): here, theirs are written by the rules that their public source states, re-stated
here and in rules.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import cases
import lightx2v_layers
import numpy as np
import packages
import pytest
import rules
import small_models
import store
import torch
import torchao_models
from command import Blockscale, run_program
from findings import Findings
from safetensors.torch import save_file
from test_read import HERE, SECTION, assert_read

SHAPES = {"blocks.0.attn.q": (256, 256), "blocks.0.ffn.0": (200, 512), "blocks.0.ffn.2": (256, 384)}


def dequantized(blockscale: Blockscale, folder: Path, work: Path) -> dict[str, store.Stored]:
    return store.read(blockscale.dequantize(folder, work / "read-as-f32"))


def assert_values(ours: dict[str, store.Stored], expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        assert np.array_equal(ours[name].array, values), name


def record(findings: Findings, row: str, layers: int, rewritten: str) -> None:
    findings.record(SECTION, row, layers=layers, values="equal", rewritten=rewritten)


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict, index: str = "") -> None:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    if index:
        places = dict.fromkeys(tensors, "model.safetensors")
        (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def in_other_dialects(
    blockscale: Blockscale, folder: Path, recipe: str, expected: dict[str, np.ndarray], work: Path
) -> str:
    """The same recipe where others can say it: their package reads it, and values stay."""
    through = []
    for dialect in ("compressed-tensors", "modelopt"):
        case = next((c for c in cases.ALL if (c.recipe, c.dialect) == (recipe, dialect)), None)
        if case is None:
            continue
        result = blockscale.convert(folder, work / dialect, recipe, "--dialect", dialect)
        (work / f"{dialect}-f32").mkdir()
        assert assert_read(blockscale, case, result, work / f"{dialect}-f32") == len(expected)
        ours = dequantized(blockscale, result, work / f"{dialect}-f32")
        if recipe == "nvfp4":  # whose tensor scale may be stored as its rounded inverse
            for name, values in expected.items():
                np.testing.assert_array_max_ulp(ours[name].array, values, maxulp=2)
        else:
            assert_values(ours, expected)
        through.append(dialect)
    return "as " + " and ".join(through) if through else "not written"


@pytest.mark.parametrize(
    ("name", "recipe", "quantize"), torchao_models.TENSORS, ids=lambda x: str(x)[:40]
)
def test_torchao(
    name: str, recipe: str, quantize, blockscale: Blockscale, tmp_path: Path, findings: Findings
) -> None:
    folder = tmp_path / "written"
    torchao_models.write(quantize, folder)
    expected = torchao_models.values(folder)
    assert len(expected) == 14
    assert_values(dequantized(blockscale, folder, tmp_path), expected)
    written = in_other_dialects(blockscale, folder, recipe, expected, tmp_path)
    version = findings.versions["torchao"]
    record(findings, f"torchao {version} ({name}), `{recipe}`, llama, bf16", 14, written)


def test_torchao_as_transformers_saves_it(blockscale: Blockscale, tmp_path: Path) -> None:
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from transformers import AutoModelForCausalLM, TorchAoConfig

    small_models.save("llama", tmp_path / "source")
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "source", quantization_config=TorchAoConfig(NVFP4WeightOnlyConfig())
    )
    model.save_pretrained(tmp_path / "written")
    ours = dequantized(blockscale, tmp_path / "written", tmp_path)
    assert_values(ours, torchao_models.values(tmp_path / "written"))


def test_modelopt_awq(blockscale: Blockscale, tmp_path: Path, findings: Findings) -> None:
    """Our weights are the package's times the factors of its inputs, column by column, and with
    them as near to the model's own as NVFP4 is."""
    config, folder = "NVFP4_AWQ_LITE_CFG", tmp_path / "written"
    run_program(sys.executable, HERE / "produce_with_modelopt.py", "llama", config, folder)
    stored = store.read(folder)
    names = [n.removesuffix("_scale_2") for n in stored if n.endswith(".weight_scale_2")]
    ours = dequantized(blockscale, folder, tmp_path)
    theirs = packages.dequantize("modelopt", folder, names)
    model = small_models.build("llama").state_dict()
    with_factors = []
    for name in names:
        factors = stored.get(name.removesuffix("weight") + "pre_quant_scale")
        if factors is not None:
            assert np.ptp(factors.array) > 0, name
            theirs[name] = theirs[name] * factors.array
            assert rules.sqnr_db(store.as_array(model[name]), theirs[name]) > 18, name
            with_factors.append(name)
    assert with_factors
    assert_values(ours, theirs)
    again = blockscale.convert(folder, tmp_path / "again", "nvfp4", "--dialect", "modelopt")
    for name, tensor in store.read(again).items():
        assert tensor.array.tobytes() == stored[name].array.tobytes(), name
    options = ("--dialect", "compressed-tensors")
    result = blockscale.convert(folder, tmp_path / "ct", "nvfp4", *options)
    (tmp_path / "ct-f32").mkdir()
    case = cases.find("nvfp4", "compressed-tensors")
    assert assert_read(blockscale, case, result, tmp_path / "ct-f32") == len(names)
    for name in with_factors:  # as near as NVFP4 is
        read = store.read(tmp_path / "ct-f32" / "f32")[name].array
        assert rules.sqnr_db(theirs[name], read) > 18, name
    version = findings.versions["nvidia-modelopt"]
    row = f"ModelOpt {version} ({config}), `nvfp4`, llama, bf16, {len(with_factors)} with factors"
    record(findings, row, len(names), "equal")


@pytest.mark.parametrize("recipe", lightx2v_layers.RECIPES)
def test_lightx2v(recipe: str, blockscale: Blockscale, tmp_path: Path, findings: Findings) -> None:
    random = np.random.default_rng(7)
    tensors, expected = {}, {}
    for module, shape in SHAPES.items():
        weight = random.normal(0, 0.05, shape).astype(np.float32)
        stored, expected[module + ".weight"] = lightx2v_layers.layer(recipe, weight)
        tensors |= {module + suffix: tensor for suffix, tensor in stored.items()}
    tensors["blocks.0.ffn.0.bias"] = torch.zeros(200, dtype=torch.bfloat16)
    folder = tmp_path / "written"
    write(folder, tensors, {}, "diffusion_pytorch_model.safetensors.index.json")
    shown = json.loads(blockscale.run("inspect", folder, "--json"))
    assert shown["dialect"] == "lightx2v"
    assert_values(dequantized(blockscale, folder, tmp_path), expected)
    written = in_other_dialects(blockscale, folder, recipe, expected, tmp_path)
    record(findings, f"LightX2V's layout by its rules, `{recipe}`", len(expected), written)


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
def test_vllm_fp8(scheme: str, blockscale: Blockscale, tmp_path: Path, findings: Findings) -> None:
    """vllm/model_executor/layers/quantization/fp8.py: a value is the code times the one
    weight_scale of its layer, and a static input_scale is absmax / 448."""
    random = np.random.default_rng(8)
    tensors, expected = {}, {}
    for module, shape in SHAPES.items():
        q = rules.quantize_fp8(random.normal(0, 0.05, shape).astype(np.float32), *shape)
        tensors[module + ".weight"] = torch.from_numpy(q.codes).view(torch.float8_e4m3fn)
        tensors[module + ".weight_scale"] = torch.tensor(q.scales[0, 0])
        if scheme == "static":
            tensors[module + ".input_scale"] = torch.tensor(0.125)
        expected[module + ".weight"] = rules.E4M3.decode(q.codes) * q.scales
    quantization = {"quant_method": "fp8", "activation_scheme": scheme}
    folder = tmp_path / "written"
    write(folder, tensors, {"quantization_config": quantization})
    assert_values(dequantized(blockscale, folder, tmp_path), expected)
    written = in_other_dialects(blockscale, folder, "fp8_tensor", expected, tmp_path)
    result = store.config(tmp_path / "compressed-tensors")["quantization_config"]
    inputs = result["config_groups"]["group_0"]["input_activations"]
    assert inputs["dynamic"] == (scheme == "dynamic")
    row = f"vLLM's fp8 by its rules, {scheme} inputs, `fp8_tensor`"
    record(findings, row, len(expected), written)


def test_fbgemm_fp8(
    blockscale: Blockscale, tmp_path: Path, findings: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers quantizes; the operator of FBGEMM that it calls needs a GPU and is the rule."""
    from transformers.integrations import fbgemm_fp8

    def quantize_fp8_per_row(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = rules.quantize_fp8(x.float().numpy(), 1, x.shape[1])
        return torch.from_numpy(q.codes).view(torch.float8_e4m3fn), torch.from_numpy(q.scales[:, 0])

    monkeypatch.setattr(fbgemm_fp8, "quantize_fp8_per_row", quantize_fp8_per_row, raising=False)
    sizes = SimpleNamespace(
        num_local_experts=2, intermediate_size=64, hidden_size=96, hidden_act="silu"
    )
    model = torch.nn.Module()
    model.experts = fbgemm_fp8.FbgemmFp8Llama4TextExperts(sizes)
    model.o_proj = fbgemm_fp8.FbgemmFp8Linear(96, 96, bias=False)
    generator = torch.Generator().manual_seed(9)
    tensors = {}
    for name in ("experts.gate_up_proj", "experts.down_proj", "o_proj.weight"):
        shape = model.get_parameter(name).shape
        plain = torch.randn(shape, generator=generator).bfloat16()
        quantized = fbgemm_fp8.FbgemmFp8Quantize(None).convert({name: [plain]}, model)
        tensors |= {key: tensor.data.contiguous() for key, tensor in quantized.items()}
    expected = {}
    for name in ("experts.gate_up_proj", "experts.down_proj"):  # as its forward pass takes them
        codes, scales = tensors[name].float(), tensors[name + "_scale"].float()
        weights = [(codes[i].T * scales[i].view(-1, 1)).T for i in range(len(codes))]
        expected[name] = torch.stack(weights).numpy()
    linear = tensors["o_proj.weight"].float() * tensors["o_proj.weight_scale"]
    expected["o_proj.weight"] = linear.numpy()
    folder = tmp_path / "written"
    config = {"model_type": "llama4_text", "quantization_config": {"quant_method": "fbgemm_fp8"}}
    write(folder, tensors, config)
    assert_values(dequantized(blockscale, folder, tmp_path), expected)
    options = ("--dialect", "compressed-tensors")
    result = store.read(blockscale.convert(folder, tmp_path / "ct", "fp8_row", *options))
    for name in ("weight", "weight_scale"):
        stored = store.as_array(tensors["o_proj." + name])
        assert result["o_proj." + name].array.tobytes() == stored.tobytes()
    rounded = rules.round_to_bfloat16(expected["experts.down_proj"])
    assert np.array_equal(result["experts.down_proj"].array, rounded)
    version = findings.versions["transformers"]
    row = f"fbgemm_fp8 of transformers {version}, `fp8_row`, and Llama 4's stacks, random"
    record(findings, row, 3, "as compressed-tensors, stacks in bf16")
