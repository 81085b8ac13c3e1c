// torchao's flattened tensor classes: read, converted, refused.
#include <gtest/gtest.h>

#include "models/dialects/swizzled_testing.h"

namespace blockscale {
namespace {

using test::BlockWeight;
using test::expect_error;
using test::floats;
using test::Json;
using test::part;
using test::part_f32;
using test::TestTensor;
using test::values_of;

Json dtype(const char* name) {
  return {{"_type", "torch.dtype"}, {"_data", name}};
}

/// What torchao says of a parameter.
Json described(const char* type, Json data, std::vector<std::string> parts) {
  data["act_quant_kwargs"] = data.value("act_quant_kwargs", Json());
  return {{"_type", type}, {"_data", data}, {"_tensor_data_names", parts}};
}
Json mx_tensor(const char* element, bool swizzled) {
  return described("MXTensor",
                   {{"elem_dtype", dtype(element)},
                    {"block_size", 32},
                    {"orig_dtype", dtype("bfloat16")},
                    {"kernel_preference", {{"_type", "KernelPreference"}, {"_data", "AUTO"}}},
                    {"act_quant_kwargs", {{"_type", "QuantizeTensorToMXKwargs"}}},
                    {"is_swizzled_scales", swizzled}},
                   {"qdata", "scale"});
}
Json nvfp4_tensor(bool swizzled, std::vector<std::string> parts) {
  return described("NVFP4Tensor",
                   {{"block_size", 16},
                    {"orig_dtype", dtype("bfloat16")},
                    {"use_triton_kernel", false},
                    {"is_swizzled_scales", swizzled}},
                   std::move(parts));
}
Json float8_tensor(std::vector<int> block) {
  return described("Float8Tensor",
                   {{"block_size", block},
                    {"mm_config", nullptr},
                    {"kernel_preference", {{"_type", "KernelPreference"}, {"_data", "AUTO"}}},
                    {"dtype", dtype("bfloat16")}},
                   {"qdata", "scale"});
}

class TorchaoTest : public test::DialectTest {
 protected:
  using Descriptions = std::map<std::string, Json>;

  void write(const std::vector<TestTensor>& tensors, const Descriptions& descriptions,
             const char* file = "model.safetensors") {
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
    Json names = Json::array();
    for (const auto& [name, description] : descriptions) {
      names.push_back(name);
      metadata[name] = description.dump();
    }
    metadata["tensor_names"] = names.dump();
    std::filesystem::create_directories(folder_ / "model");
    test::write_store(folder_ / "model" / file, tensors, metadata);
    test::write_text(folder_ / "model" / "config.json",
                     R"({"quantization_config": {"quant_method": "torchao"}})");
  }
  Checkpoint open(const std::vector<TestTensor>& tensors, const Descriptions& descriptions) {
    std::filesystem::remove_all(folder_ / "model");
    write(tensors, descriptions);
    return Checkpoint::open(folder_ / "model");
  }
  void expect_refused(ErrorCode code, const std::vector<TestTensor>& tensors, const Json& of_weight,
                      const std::string& argument, const std::string& reason) {
    SCOPED_TRACE(reason);
    const bool of_file = argument.empty();
    const std::string file = (folder_ / "model" / "model.safetensors").string();
    expect_error(code, of_file ? file : argument, reason,
                 [&] { open(tensors, {{"a.weight", of_weight}}); });
  }
  /// The tensors of a.weight; swizzled ones have the four rows of tiles in one, as torchao does.
  static std::vector<TestTensor> stored(const BlockWeight& w, bool swizzled) {
    const DType values = w.bits == 8 ? DType::F8_E4M3 : DType::U8;
    const DType scale = w.e8m0 ? DType::F8_E8M0 : DType::F8_E4M3;
    return {{"a._weight_qdata", values, {w.rows, w.row_bytes()}, w.codes},
            swizzled ? TestTensor{"a._weight_scale",
                                  scale,
                                  {w.padded_rows() / 4, w.padded_columns() * 4},
                                  w.swizzled()}
                     : TestTensor{"a._weight_scale", scale, {w.rows, w.columns()}, w.scales}};
  }
};

TEST_F(TorchaoTest, MxTensors) {
  for (const bool swizzled : {false, true}) {
    for (const bool fp8 : {false, true}) {
      BlockWeight w = {130, 96, fp8 ? 8 : 4, fp8 ? 4 : 2, 32, true};
      w.fill(1);
      const Recipe recipe = fp8 ? Recipe::mxfp8_e4m3 : Recipe::mxfp4;
      std::vector<TestTensor> tensors = stored(w, swizzled);
      tensors.push_back({"a.bias", DType::BF16, {130}, ""});
      const Checkpoint checkpoint = open(
          tensors, {{"a.weight", mx_tensor(fp8 ? "float8_e4m3fn" : "float4_e2m1fn_x2", swizzled)},
                    {"a.bias", {{"_type", "Tensor"}}}});
      EXPECT_EQ(checkpoint.dialect(), Dialect::torchao);
      EXPECT_EQ(checkpoint.find("a.weight")->recipe, recipe);
      EXPECT_EQ(values_of(checkpoint, "a.weight"), w.values());
      EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values());
      const Checkpoint ct = converted(recipe, Dialect::compressed_tensors);
      EXPECT_EQ(part(ct, fp8 ? "a.weight" : "a.weight_packed"), w.codes);
      EXPECT_EQ(part(ct, "a.weight_scale"), w.scales);
      EXPECT_NE(report_.activations[0].find("dynamic, as in the source"), std::string::npos);
    }
  }
}

TEST_F(TorchaoTest, Nvfp4TensorsWithAndWithoutATensorScale) {
  BlockWeight w = {130, 96, 4, 2, 16, false};
  w.fill(2);
  const std::vector<TestTensor> bare = stored(w, true);
  open(bare, {{"a.weight", nvfp4_tensor(true, {"qdata", "scale"})}});
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values());
  EXPECT_EQ(
      part_f32(converted(Recipe::nvfp4, Dialect::compressed_tensors), "a.weight_global_scale"),
      1.0f);
  EXPECT_EQ(report_.activations[0], "nvfp4: none, as in the source");

  w.factor = 1.0f / 512.0f;
  std::vector<TestTensor> tensors = bare;
  tensors.push_back({"a._weight_per_tensor_scale", DType::F32, {}, floats({w.factor})});
  tensors.push_back({"a._weight_act_per_tensor_scale", DType::F32, {}, floats({0.25f})});
  open(tensors, {{"a.weight", nvfp4_tensor(true, {"per_tensor_scale", "act_per_tensor_scale",
                                                  "qdata", "scale"})}});
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values());
  const Checkpoint mo = converted(Recipe::nvfp4, Dialect::modelopt);
  EXPECT_EQ(part(mo, "a.weight"), w.codes);
  EXPECT_EQ(part(mo, "a.weight_scale"), w.scales);
  EXPECT_EQ(part_f32(mo, "a.weight_scale_2"), w.factor);
  EXPECT_EQ(part_f32(mo, "a.input_scale"), 0.25f);
  EXPECT_EQ(report_.activations[0], "nvfp4: static, as in the source");
}

TEST_F(TorchaoTest, Float8TensorsOfRowsTensorsAndBlocks) {
  struct Case {
    std::vector<int> block;
    std::vector<std::int64_t> scales;
    Recipe recipe;
  };
  const std::string codes(4 * 256, '\x38');  // 1
  for (const Case& c :
       {Case{{1, 256}, {4, 1}, Recipe::fp8_row}, Case{{4, 256}, {1, 1}, Recipe::fp8_tensor},
        Case{{1, 128}, {4, 2}, Recipe::fp8_1x128}}) {
    std::vector<float> factors;
    for (std::int64_t i = 0; i < c.scales[0] * c.scales[1]; ++i) {
      factors.push_back(0.5f * static_cast<float>(i + 1));
    }
    const Checkpoint checkpoint = open({{"a._weight_qdata", DType::F8_E4M3, {4, 256}, codes},
                                        {"a._weight_scale", DType::F32, c.scales, floats(factors)}},
                                       {{"a.weight", float8_tensor(c.block)}});
    EXPECT_EQ(checkpoint.find("a.weight")->recipe, c.recipe);
    const std::vector<float> values = values_of(checkpoint, "a.weight");
    for (std::int64_t i = 0; i < 4 * 256; ++i) {
      const std::int64_t row = c.scales[0] == 1 ? 0 : i / 256;
      const std::int64_t column = c.scales[1] == 1 ? 0 : i % 256 / 128;
      EXPECT_EQ(values[static_cast<std::size_t>(i)],
                factors[static_cast<std::size_t>(row * c.scales[1] + column)]);
    }
  }
}

TEST_F(TorchaoTest, ShardsMayTellOfAllParameters) {
  BlockWeight w = {8, 64, 8, 4, 32, true};
  w.fill(3);
  const std::vector<TestTensor> tensors = stored(w, false);
  const Descriptions both = {{"a.weight", mx_tensor("float8_e4m3fn", false)}};
  write({tensors[0]}, both, "model-1-of-2.safetensors");
  write({tensors[1]}, both, "model-2-of-2.safetensors");
  EXPECT_EQ(values_of(Checkpoint::open(folder_ / "model"), "a.weight"), w.values());
  write({tensors[1]}, {{"a.weight", mx_tensor("float8_e5m2", false)}}, "model-2-of-2.safetensors");
  expect_error(ErrorCode::unsupported, (folder_ / "model" / "model-2-of-2.safetensors").string(),
               "metadata \"a.weight\" differs from that in",
               [&] { Checkpoint::open(folder_ / "model"); });
}

TEST_F(TorchaoTest, WhatIsNotKnownIsRefused) {
  BlockWeight w = {8, 64, 8, 4, 32, true};
  w.fill(4);
  const std::vector<TestTensor> tensors = stored(w, false);
  const Json good = mx_tensor("float8_e4m3fn", false);
  const auto edited = [&](const char* pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    return json;
  };
  expect_refused(ErrorCode::unsupported, tensors, edited("/_type", "Int4Tensor"), "",
                 "is of the type \"Int4Tensor\", readable are");
  expect_refused(ErrorCode::unsupported, tensors, edited("/_data/elem_dtype", "fp6_e2m3"), "",
                 "has elem_dtype \"fp6_e2m3\"");
  expect_refused(ErrorCode::unsupported, tensors, edited("/_data/block_size", 16), "",
                 "_data.block_size is 16");
  expect_refused(ErrorCode::unsupported, tensors, edited("/_data/pre_scale", 2), "",
                 "_data.pre_scale");
  expect_refused(ErrorCode::unsupported, tensors, edited("/_tensor_data_names/1", "zero_point"), "",
                 "has a tensor \"zero_point\"");
  expect_refused(ErrorCode::corrupt_file, {tensors[0]}, good, "a.weight", "has no scales");
  expect_refused(ErrorCode::corrupt_file, tensors, edited("/_data/is_swizzled_scales", true),
                 "a.weight", "must be [128, 4] for mxfp8_e4m3 of [8, 64]");
  expect_refused(ErrorCode::corrupt_file,
                 {{"a._weight_qdata", DType::F8_E4M3, {4, 256}, ""},
                  {"a._weight_scale", DType::F32, {4, 1}, floats({1, 1, 1, 1})}},
                 float8_tensor({4, 256}), "", "has block_size [4,256], which its scales do not");
  expect_refused(ErrorCode::corrupt_file,
                 {{"a._weight_qdata", DType::U8, {4, 32}, ""},
                  {"a._weight_scale", DType::F8_E4M3, {4, 4}, ""}},
                 nvfp4_tensor(false, {"per_tensor_scale", "qdata", "scale"}), "a.weight",
                 "has no tensor scale");
  std::filesystem::remove_all(folder_ / "model");
  test::write_checkpoint(folder_ / "model", tensors,
                         {{"quantization_config", {{"quant_method", "torchao"}}}});
  expect_error(ErrorCode::unsupported, (folder_ / "model" / "config.json").string(),
               "no file has the metadata \"tensor_names\"",
               [&] { Checkpoint::open(folder_ / "model"); });
  test::write_store(folder_ / "model" / "model.safetensors", tensors,
                    {{"tensor_names", R"(["a.weight"])"}});
  expect_error(ErrorCode::corrupt_file, (folder_ / "model" / "model.safetensors").string(),
               "has \"a.weight\", of which nothing is said",
               [&] { Checkpoint::open(folder_ / "model"); });
}

}  // namespace
}  // namespace blockscale
