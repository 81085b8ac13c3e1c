// ComfyUI's checkpoints: read, converted, refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/rows.h"
#include "models/dialects/comfy_testing.h"

namespace blockscale {
namespace {

using test::BlockWeight;
using test::expect_error;
using test::floats;
using test::format;
using test::Json;
using test::part;
using test::part_f32;
using test::TestTensor;
using test::values_of;

std::string swapped(std::string bytes) {
  for (char& byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    byte = static_cast<char>((code >> 4 | code << 4) & 0xFF);
  }
  return bytes;
}

class ComfyTest : public test::ComfyFixture {
 protected:
  static std::vector<TestTensor> nvfp4(const std::string& layer, BlockWeight& weight) {
    weight.fill(static_cast<unsigned>(weight.k));
    weight.factor = 1.0f / 512.0f;
    return {{layer + ".weight", DType::U8, {weight.rows, weight.k / 2}, swapped(weight.codes)},
            {layer + ".weight_scale",
             DType::F8_E4M3,
             {weight.padded_rows(), weight.padded_columns()},
             weight.swizzled()},
            {layer + ".weight_scale_2", DType::F32, {}, floats({weight.factor})}};
  }
  static std::vector<TestTensor> mxfp8(const std::string& layer, BlockWeight& weight, DType scale) {
    weight.fill(static_cast<unsigned>(weight.k));
    return {{layer + ".weight", DType::F8_E4M3, {weight.rows, weight.k}, weight.codes},
            {layer + ".weight_scale",
             scale,
             {weight.padded_rows(), weight.padded_columns()},
             weight.swizzled()}};
  }
  static std::vector<TestTensor> fp8(const std::string& layer, DType dtype, float scale) {
    return {{layer + ".weight", dtype, {4, 32}, ""},
            {layer + ".weight_scale", DType::F32, {}, floats({scale})}};
  }
  static std::vector<float> scaled_codes(const std::string& codes, int exponent_bits, float scale) {
    std::vector<float> values;
    for (const char code : codes) {
      values.push_back(
          test::small_float(static_cast<unsigned char>(code), exponent_bits, 7 - exponent_bits) *
          scale);
    }
    return values;
  }
};

/// Rows of 128 and k of 64: names, dtypes and shapes are ModelOpt's, too.
const BlockWeight kAsModelOpt = {128, 64, 4, 2, 16, false};
const BlockWeight kRagged = {48, 96, 4, 2, 16, false};
const BlockWeight kMxfp8 = {160, 96, 8, 4, 32, true};

TEST_F(ComfyTest, Nvfp4HasSwizzledScalesAndItsFirstCodeInTheHighBits) {
  for (BlockWeight w : {kAsModelOpt, kRagged}) {
    const Checkpoint checkpoint = open(nvfp4("a.b", w), {{"a.b", format("nvfp4")}});
    EXPECT_EQ(checkpoint.dialect(), Dialect::comfy);
    const CheckpointTensor* tensor = checkpoint.find("a.b.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->recipe, Recipe::nvfp4);
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{w.rows, w.k}));
    EXPECT_EQ(tensor->scale_layout, ScaleLayout::swizzled_128x4);
    EXPECT_EQ(values_of(checkpoint, "a.b.weight"), w.values());
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.b.weight"), w.values());
  }
}

TEST_F(ComfyTest, CodesAreCarriedOverInTheOrderOfOthers) {
  BlockWeight w = kAsModelOpt;
  write(nvfp4("a", w), {{"a", format("nvfp4")}});
  const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, "a.weight_packed"), w.codes);
  EXPECT_EQ(part(ct, "a.weight_scale"), w.scales);
  EXPECT_EQ(part_f32(ct, "a.weight_global_scale"), 512.0f);
  EXPECT_EQ(report_.source_dialect, Dialect::comfy);
  EXPECT_EQ(report_.activations[0], "nvfp4: dynamic, as in the source");
  std::vector<TestTensor> with_input = nvfp4("a", w);
  with_input.push_back({"a.input_scale", DType::F32, {}, floats({0.25f})});
  write(with_input, {{"a", format("nvfp4")}});
  const Checkpoint mo = converted(Recipe::nvfp4, Dialect::modelopt);
  EXPECT_EQ(part(mo, "a.weight"), w.codes);
  EXPECT_EQ(part(mo, "a.weight_scale"), w.scales);
  EXPECT_EQ(part_f32(mo, "a.weight_scale_2"), w.factor);
  EXPECT_EQ(part_f32(mo, "a.input_scale"), 0.25f);
  EXPECT_EQ(report_.activations[0], "nvfp4: static, as in the source");
}

TEST_F(ComfyTest, ManyPiecesOfALargeWeightAreSwapped) {
  BlockWeight w = {1024, 2048, 4, 2, 16, false};
  write(nvfp4("a", w), {{"a", format("nvfp4")}});
  const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, "a.weight_packed"), w.codes);
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values());
  // Pieces of a few rows have no room for all codes at once.
  ConvertOptions options = test::options_for({Recipe::f32, Dialect::plain});
  options.memory_bytes = 5 << 20;
  options.overwrite = true;
  convert(folder_ / "model", folder_ / "out", options);
  EXPECT_EQ(values_of(Checkpoint::open(folder_ / "out"), "a.weight"), w.values());
}

TEST_F(ComfyTest, CodesOfOneRowNeedHalfAByteEachBesideItsValues) {
  BlockWeight w = kRagged;
  write(nvfp4("a", w), {{"a", format("nvfp4")}});
  const auto checkpoint = models::StoredCheckpoint::open(folder_ / "model");
  const std::size_t index = checkpoint->index_of(*checkpoint->find("a.weight"));
  EXPECT_EQ(models::buffer_bytes_per_row(*checkpoint, index, false), 4 * w.k + w.k / 2);
  std::vector<std::byte> buffer;
  models::read_rows(*checkpoint, index, {0, 7, 3}, false, buffer);
  EXPECT_EQ(buffer.size(), static_cast<std::size_t>(3 * (4 * w.k + w.k / 2)));
}

TEST_F(ComfyTest, PreQuantScalesMultiplyColumns) {
  BlockWeight w = kRagged;
  std::vector<TestTensor> tensors = nvfp4("a", w);
  std::vector<float> factors(96, 1.0f);
  factors[5] = 2.0f;
  tensors.push_back({"a.pre_quant_scale", DType::F32, {96}, floats(factors)});
  write(tensors, {{"a", format("nvfp4")}});
  std::vector<float> expected = w.values();
  for (std::size_t i = 5; i < expected.size(); i += 96) expected[i] *= 2.0f;
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), expected);
}

TEST_F(ComfyTest, Mxfp8HasSwizzledScales) {
  for (const DType scale : {DType::U8, DType::F8_E8M0}) {
    BlockWeight w = kMxfp8;
    const Checkpoint checkpoint = open(mxfp8("a", w, scale), {{"a", format("mxfp8")}});
    EXPECT_EQ(values_of(checkpoint, "a.weight"), w.values());
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values());
    const Checkpoint mo = converted(Recipe::mxfp8_e4m3, Dialect::modelopt);
    EXPECT_EQ(part(mo, "a.weight"), w.codes);
    EXPECT_EQ(part(mo, "a.weight_scale"), w.scales);
  }
}

TEST_F(ComfyTest, Fp8HasOneScaleOrOneARow) {
  const Checkpoint e4m3 = open(fp8("a", DType::F8_E4M3, 0.5f), {{"a", format("float8_e4m3fn")}});
  EXPECT_EQ(e4m3.find("a.weight")->recipe, Recipe::fp8_tensor);
  EXPECT_EQ(values_of(e4m3, "a.weight"), scaled_codes(part(e4m3, "a.weight"), 4, 0.5f));
  const Checkpoint e5m2 = open(fp8("a", DType::F8_E5M2, 0.25f), {{"a", format("float8_e5m2")}});
  EXPECT_EQ(e5m2.find("a.weight")->recipe, Recipe::fp8_tensor_e5m2);
  EXPECT_EQ(values_of(e5m2, "a.weight"), scaled_codes(part(e5m2, "a.weight"), 5, 0.25f));
  std::vector<TestTensor> rows = fp8("a", DType::F8_E4M3, 1.0f);
  rows[1] = {"a.weight_scale", DType::F32, {4, 1}, floats({1.0f, 2.0f, 4.0f, 8.0f})};
  EXPECT_EQ(open(rows, {{"a", format("float8_e4m3fn")}}).find("a.weight")->recipe, Recipe::fp8_row);
  rows[1].shape = {4};  // comfy-kitchen's product would take it for one a column
  expect_refused(ErrorCode::unsupported, rows, {{"a", format("float8_e4m3fn")}}, "a.weight_scale",
                 "has 1 dimensions");
}

TEST_F(ComfyTest, ALayerMayBeDescribedByATensor) {
  BlockWeight w = kAsModelOpt;
  std::vector<TestTensor> tensors = nvfp4("a", w);
  const std::string text = R"({"format": "nvfp4", "full_precision_matrix_mult": true})";
  tensors.push_back({"a.comfy_quant", DType::U8, {static_cast<std::int64_t>(text.size())}, text});
  EXPECT_EQ(values_of(open(tensors, nullptr), "a.weight"), w.values());
  const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, "a.weight_packed"), w.codes);
  EXPECT_EQ(ct.store().find("a.comfy_quant"), nullptr);
  EXPECT_EQ(report_.activations[0], "nvfp4: none, as in the source");
  expect_refused(ErrorCode::unsupported, tensors, {{"a", format("nvfp4")}}, "a.comfy_quant",
                 "differs from what");
  tensors.back().data = "{\"format\"";
  tensors.back().shape = {9};
  expect_refused(ErrorCode::corrupt_file, tensors, nullptr, "a.comfy_quant", "");
}

TEST_F(ComfyTest, FormatsThatAreNotKnownAreNamed) {
  BlockWeight w = kAsModelOpt;
  for (const char* name : {"float8_e4m3fn_rowwise", "nvfp4_v2", "int8", "asym_w4a8", ""}) {
    expect_refused(ErrorCode::unsupported, nvfp4("a", w), {{"a", format(name)}}, file().string(),
                   "what is said of layer \"a\" has the format \"" + std::string(name) +
                       "\", readable are float8_e4m3fn, float8_e5m2, mxfp8, nvfp4, "
                       "int8_tensorwise, convrot_w4a4, asym_w4a8_int8, awq_w4a16 and "
                       "svdquant_w4a4");
  }
  expect_refused(ErrorCode::unsupported, nvfp4("a", w), {{"a", Json::object()}}, file().string(),
                 "has the format null");
}

TEST_F(ComfyTest, WordsThatAreNotKnownAreNamed) {
  BlockWeight w = kAsModelOpt;
  const auto refused = [&](const char* key, const Json& value, const std::string& reason) {
    expect_refused(ErrorCode::unsupported, nvfp4("a", w),
                   {{"a", {{"format", "nvfp4"}, {key, value}}}}, file().string(), reason);
  };
  refused("convrot", true, "has convrot true, readable is false");
  refused("rotation", "hadamard", ".rotation is no key that is known here");
  refused("group_size", 32, "has group_size 32, readable is 16");
  refused("orig_shape", {100, 64}, "has orig_shape [100,64], readable is [128,64]");
  refused("full_precision_matrix_mult", "yes", "readable are null and [false,true]");
  const Json same = {{"a", {{"format", "nvfp4"}, {"group_size", 16}, {"orig_shape", {128, 64}}}}};
  EXPECT_EQ(values_of(open(nvfp4("a", w), same), "a.weight"), w.values());
}

TEST_F(ComfyTest, DescriptionsMustBeOfTheFilesWeights) {
  BlockWeight w = kAsModelOpt;
  expect_refused(ErrorCode::corrupt_file, nvfp4("a", w),
                 {{"a", format("nvfp4")}, {"b", format("nvfp4")}}, file().string(),
                 "there is no \"b.weight\"");
  expect_refused(ErrorCode::corrupt_file, nvfp4("a", w), {{"a", "nvfp4"}}, file().string(),
                 "is \"nvfp4\", must be an object");
  expect_refused(ErrorCode::corrupt_file, fp8("a", DType::F8_E4M3, 1.0f), {{"a", format("nvfp4")}},
                 "a.weight", "its values are F8_E4M3");
  std::vector<TestTensor> row_major = nvfp4("a", w);
  row_major[1] = {"a.weight_scale", DType::F8_E4M3, {128, 8}, ""};
  expect_refused(ErrorCode::corrupt_file, row_major, {{"a", format("nvfp4")}}, "a.weight",
                 "must be [128, 4] for nvfp4 of [128, 64]");
  std::vector<TestTensor> both = nvfp4("a", w);
  for (TestTensor& tensor : nvfp4("b", w)) both.push_back(std::move(tensor));
  expect_refused(ErrorCode::unsupported, both, {{"a", format("nvfp4")}}, "b.weight_scale",
                 "scales a weight of which the file's description says nothing");
}

TEST_F(ComfyTest, AVersionAndAShapeOfTheDescriptionThatAreNotKnownAreRefused) {
  BlockWeight w = kAsModelOpt;
  const auto refused = [&](ErrorCode code, const std::string& text, const std::string& reason) {
    SCOPED_TRACE(text);
    write(nvfp4("a", w), nullptr, {{"_quantization_metadata", text}});
    expect_error(code, file().string(), reason, [&] { Checkpoint::open(folder_ / "model"); });
  };
  refused(ErrorCode::unsupported, R"({"format_version": "2.0", "layers": {}})", "format_version");
  refused(ErrorCode::unsupported, R"({"layers": {}, "rotations": [1]})", "rotations");
  refused(ErrorCode::corrupt_file, R"({"format_version": "1.0"})", ".layers is null");
  refused(ErrorCode::corrupt_file, R"([])", "must be an object");
  refused(ErrorCode::corrupt_file, R"({"layers": )", "");
  expect_refused(ErrorCode::unsupported, nvfp4("a", w), Json::object(), "a.weight_scale",
                 "says nothing");
}

TEST_F(ComfyTest, TheElderFp8HasItsOwnNames) {
  for (const bool marked : {false, true}) {
    std::vector<TestTensor> tensors = {{"a.weight", DType::F8_E4M3, {4, 32}, ""},
                                       {"a.scale_weight", DType::F32, {}, floats({0.5f})},
                                       {"a.scale_input", DType::F32, {}, floats({1.0f})}};
    if (marked) tensors.push_back({"scaled_fp8", DType::F8_E4M3, {0}, ""});
    const Checkpoint checkpoint = open(tensors, nullptr);
    EXPECT_EQ(checkpoint.dialect(), Dialect::comfy);
    EXPECT_EQ(values_of(checkpoint, "a.weight"),
              scaled_codes(part(checkpoint, "a.weight"), 4, 0.5f));
    const Checkpoint plain = converted(Recipe::bf16, Dialect::plain);
    EXPECT_EQ(plain.tensors().size(), 1u);
    EXPECT_EQ(report_.warnings.size(), marked ? 1u : 0u);
    converted(Recipe::fp8_tensor, Dialect::compressed_tensors);
    EXPECT_EQ(report_.activations[0], "fp8_tensor: dynamic, as in the source");
  }
  std::vector<TestTensor> inputs = {{"a.weight", DType::F8_E5M2, {4, 32}, ""},
                                    {"a.scale_weight", DType::F32, {1}, floats({0.5f})},
                                    {"a.scale_input", DType::F32, {}, floats({0.125f})}};
  const Checkpoint e5m2 = open(inputs, nullptr);
  EXPECT_EQ(e5m2.find("a.weight")->recipe, Recipe::fp8_tensor_e5m2);
  inputs[0].dtype = DType::F8_E4M3;
  write(inputs, nullptr);
  const Checkpoint mo = converted(Recipe::fp8_tensor, Dialect::modelopt);
  EXPECT_EQ(part_f32(mo, "a.input_scale"), 0.125f);
}

TEST_F(ComfyTest, WhatIsNotDescribedIsPlain) {
  BlockWeight w = kAsModelOpt;
  std::vector<TestTensor> tensors = nvfp4("a", w);
  tensors.push_back({"a.bias", DType::BF16, {128}, ""});
  tensors.push_back({"b.weight", DType::F8_E4M3, {2, 64}, ""});  // cast, without a scale
  write(tensors, {{"a", format("nvfp4")}});
  const Checkpoint plain = converted(Recipe::bf16, Dialect::plain);
  EXPECT_EQ(plain.find("b.weight")->dtype, DType::BF16);
  const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
  EXPECT_EQ(ct.find("b.weight")->dtype, DType::BF16);
  tensors.push_back({"c.weight", DType::I8, {2, 64}, ""});
  expect_refused(ErrorCode::unsupported, tensors, {{"a", format("nvfp4")}}, "c.weight",
                 "holds I8, codes of a quantized weight");
}

TEST_F(ComfyTest, ShardsTellOfOneModel) {
  BlockWeight w = kAsModelOpt;
  std::filesystem::create_directories(folder_ / "model");
  const std::string said =
      Json{{"layers", {{"a", format("nvfp4")}, {"b", format("nvfp4")}}}}.dump();
  const auto shard = [&](const char* file, const char* layer, const std::string& text) {
    test::write_store(folder_ / "model" / file, nvfp4(layer, w),
                      {{"_quantization_metadata", text}});
  };
  shard("model-00001-of-00002.safetensors", "a", said);
  shard("model-00002-of-00002.safetensors", "b", said);
  EXPECT_EQ(values_of(Checkpoint::open(folder_ / "model"), "b.weight"), w.values());
  shard("model-00002-of-00002.safetensors", "b",
        R"({"layers": {"a": {"format": "mxfp8"}, "b": {"format": "nvfp4"}}})");
  expect_error(ErrorCode::unsupported,
               (folder_ / "model" / "model-00002-of-00002.safetensors").string(), "differs from",
               [&] { Checkpoint::open(folder_ / "model"); });
}

TEST_F(ComfyTest, IsReadOnly) {
  BlockWeight w = kAsModelOpt;
  write(nvfp4("a", w), {{"a", format("nvfp4")}});
  expect_error(ErrorCode::unsupported, "dialect", "comfy can be read, not written",
               [&] { converted(Recipe::nvfp4, Dialect::comfy); });
}

}  // namespace
}  // namespace blockscale
