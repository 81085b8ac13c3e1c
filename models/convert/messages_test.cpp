// What is said of sources that cannot be converted or contradict themselves, and by which code.
#include <gtest/gtest.h>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::contents;
using test::expect_error;
using test::floats;
using test::Json;
using test::TestTensor;
using Shape = std::vector<std::int64_t>;

class MessagesTest : public ::testing::Test {
 protected:
  void write(const std::vector<TestTensor>& tensors, const Json& config,
             const Json& hf_quant_config = nullptr) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors, config);
    if (hf_quant_config.is_null()) return;
    test::write_text(folder_ / "model" / "hf_quant_config.json", hf_quant_config.dump());
  }
  void expect_scales(const Json& config, DType dtype, const Shape& values, const TestTensor& scales,
                     const std::string& message) {
    SCOPED_TRACE(message);
    write({{"a.weight", dtype, values, ""}, scales}, config);
    expect_error(ErrorCode::corrupt_file, "a.weight", message,
                 [&] { Checkpoint::open(folder_ / "model"); });
  }
  std::string warnings_to(Recipe recipe, Dialect dialect) {
    ConvertOptions options = test::options_for({recipe, dialect});
    options.overwrite = true;
    std::string text;
    for (const std::string& line : convert(folder_ / "model", folder_ / "out", options).warnings) {
      text += line + "\n";
    }
    return text;
  }

  test::ScratchFolder folder_;
};

Json modelopt(const std::string& algorithm) {
  return {{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", algorithm}}}};
}
Json hf_quant_config(const Json& quantization) {
  return {{"producer", {{"name", "modelopt"}}}, {"quantization", quantization}};
}

TEST_F(MessagesTest, AWrongShapeOfScalesIsSaidWithThoseThatFit) {
  const auto ct = [](const char* strategy) {
    return test::compressed_tensors_config(
        "float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}});
  };
  const Json fp8 = {{"quantization_config", {{"quant_method", "fp8"}}}};
  const Shape shape = {256, 384};
  const auto scales = [](const char* name, DType dtype, const Shape& of) {
    return TestTensor{name, dtype, of, ""};
  };
  expect_scales(modelopt("FP8"), DType::F8_E4M3, shape, scales("a.weight_scale", DType::F32, {255}),
                "its scales a.weight_scale have shape [255], must be [1, 1] for fp8_tensor or "
                "[256, 1] for fp8_row or [2, 3] for fp8_128x128 of [256, 384]");
  expect_scales(modelopt("FP8"), DType::F8_E4M3, shape,
                scales("a.weight_scale", DType::BF16, {2, 2}), "have shape [2, 2], must be [1, 1]");
  expect_scales(modelopt("MXFP8"), DType::F8_E4M3, shape,
                scales("a.weight_scale", DType::U8, {256, 11}),
                "have shape [256, 11], must be [256, 12] for mxfp8_e4m3 of [256, 384]");
  expect_scales(modelopt("NVFP4"), DType::U8, {256, 192},
                scales("a.weight_scale", DType::F8_E4M3, {256, 12}),
                "have shape [256, 12], must be [256, 24] for nvfp4 of [256, 384]");
  expect_scales(fp8, DType::F8_E4M3, shape, scales("a.weight_scale", DType::F32, {2, 3}),
                "have shape [2, 3], must be [1, 1] for fp8_tensor or [256, 1] for fp8_row");
  expect_scales(test::deepseek_config(), DType::F8_E4M3, shape,
                scales("a.weight_scale_inv", DType::F32, {3, 2}),
                "have shape [3, 2], must be [2, 3] for fp8_128x128 of [256, 384]");
  expect_scales(ct("tensor"), DType::F8_E4M3, shape, scales("a.weight_scale", DType::F32, {256, 1}),
                "have shape [256, 1], must be [1, 1] for fp8_tensor of [256, 384]");
  expect_scales(ct("channel"), DType::F8_E4M3, shape, scales("a.weight_scale", DType::BF16, {1}),
                "have shape [1], must be [256, 1] for fp8_row of [256, 384]");
  expect_scales(nullptr, DType::F8_E4M3, shape, scales("a.weight_scale", DType::F32, {384}),
                "or [256, 3] for fp8_1x128 of [256, 384]");
  // Still the dtype, where that is what is wrong.
  expect_scales(ct("tensor"), DType::F8_E4M3, shape, scales("a.weight_scale", DType::U8, {1}),
                "are U8, which cannot hold f32 of fp8_tensor");
}

TEST_F(MessagesTest, WhatWouldBeMisreadIsTheSourcesAndNamedBeforeAnythingIsWritten) {
  const std::vector<TestTensor> nvfp4 = {
      {"a.weight_packed", DType::U8, {4, 16}, ""},
      {"a.weight_scale", DType::F8_E4M3, {4, 2}, ""},
      {"a.weight_global_scale", DType::F32, {1}, floats({8.0f})}};
  const Json config = test::compressed_tensors_config(
      "nvfp4-pack-quantized",
      {{"num_bits", 4}, {"type", "float"}, {"strategy", "tensor_group"}, {"group_size", 16}});
  struct Case {
    TestTensor odd;
    Dialect dialect;
  };
  const std::vector<Case> cases = {
      {{"table.weight", DType::U8, {4, 8}, ""}, Dialect::modelopt},
      {{"m.table.weight", DType::U8, {2, 4, 8}, ""}, Dialect::modelopt},
      {{"x.weight_scale_2", DType::F32, {1}, floats({1.0f})}, Dialect::modelopt},
      {{"odd_weight_scale", DType::F32, {1}, floats({1.0f})}, Dialect::modelopt},
      {{"other_weight_scale", DType::I32, {3}, ""}, Dialect::modelopt}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.odd.name);
    std::vector<TestTensor> tensors = nvfp4;
    tensors.push_back(c.odd);
    write(tensors, config);
    ConvertOptions options = test::options_for({Recipe::nvfp4, c.dialect});
    try {
      convert(folder_ / "model", folder_ / "never", options);
      ADD_FAILURE() << "was converted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      EXPECT_EQ(error.argument(), c.odd.name) << error.what();
      EXPECT_NE(std::string(error.what()).find("in the source and stays so, but modelopt would"),
                std::string::npos)
          << error.what();
    }
    EXPECT_FALSE(std::filesystem::exists(folder_ / "never"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / ".never.blockscale-partial"));
    // Where nothing reads them so, they stay.
    options.dialect = Dialect::compressed_tensors;
    options.overwrite = true;
    EXPECT_NO_THROW(convert(folder_ / "model", folder_ / "out", options));
  }
}

TEST_F(MessagesTest, AContradictingQuantizationFileIsWarnedOf) {
  const std::vector<TestTensor> fp8 = {{"a.weight", DType::F8_E4M3, {4, 64}, ""},
                                       {"a.weight_scale", DType::F32, {1}, floats({1.0f})}};
  const Json ct = test::compressed_tensors_config(
      "float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}});
  const auto said = [](const char* algorithm) {
    return hf_quant_config({{"quant_algo", algorithm}});
  };
  const auto warning = [&](const Json& config, const Json& file) {
    write(fp8, config, file);
    return warnings_to(Recipe::bf16, Dialect::plain);
  };
  EXPECT_EQ(warning(ct, said("NVFP4")),
            "hf_quant_config.json says quant_algo \"NVFP4\", config.json \"compressed-tensors\"; "
            "config.json is followed\n");
  EXPECT_EQ(warning({{"quantization_config", {{"quant_method", "fp8"}}}}, said("FP8")),
            "hf_quant_config.json says quant_algo \"FP8\", config.json \"fp8\"; config.json is "
            "followed\n");
  EXPECT_EQ(warning(modelopt("NVFP4"), said("FP8")),
            "hf_quant_config.json says quant_algo \"FP8\", config.json \"NVFP4\"; weights are read "
            "as they are stored\n");
  EXPECT_EQ(warning(nullptr, said("NVFP4")),
            "hf_quant_config.json says quant_algo \"NVFP4\", but \"a.weight\" is fp8_tensor; "
            "weights are read as they are stored\n");
  EXPECT_EQ(warning(nullptr, hf_quant_config(
                                 {{"quant_algo", "FP8"}, {"exclude_modules", {"lm_head", "a*"}}})),
            "hf_quant_config.json excludes \"a*\", but \"a.weight\" is fp8_tensor; weights are "
            "read as they are stored\n");
  Json cache = modelopt("FP8");
  cache["quantization_config"]["kv_cache_scheme"] = {
      {"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
  EXPECT_NE(
      warning(cache, hf_quant_config({{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "NVFP4"}}))
          .find("kv_cache_quant_algo \"NVFP4\", config.json {"),
      std::string::npos);
  // No contradictions.
  for (const Json& config : {modelopt("FP8"), Json(nullptr)}) {
    EXPECT_EQ(warning(config, said("FP8")), "");
  }
  EXPECT_EQ(warning(modelopt("FP8"),
                    hf_quant_config({{"quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}})),
            "");
  EXPECT_EQ(warning(modelopt("FP8"), nullptr), "");
}

}  // namespace
}  // namespace blockscale
