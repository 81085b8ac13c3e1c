// ComfyUI's layers of whole numbers: read by their values, converted, refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/rows.h"
#include "models/dialects/comfy_testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::floats;
using test::format;
using test::Json;
using test::TestTensor;
using test::values_of;

class ComfyIntegersTest : public test::ComfyFixture {};

/// All codes, 512 a row, in an order of their own, each whole; scales are powers of two.
std::vector<TestTensor> int8(const std::string& layer, const std::vector<std::int64_t>& scales) {
  std::string codes;
  for (int i = 0; i < 3 * 512; ++i) codes.push_back(static_cast<char>((i * 37 + i / 256) & 0xFF));
  const bool one = scales.empty() || scales[0] == 1;
  return {{layer + ".weight", DType::I8, {3, 512}, codes},
          {layer + ".weight_scale", DType::F32, scales,
           one ? floats({0.125f}) : floats({0.125f, 0.5f, 4.0f})}};
}
std::vector<float> scaled_integers(const TestTensor& weight, const std::vector<float>& scales) {
  std::vector<float> values;
  for (std::size_t i = 0; i < weight.data.size(); ++i) {
    const auto code = static_cast<signed char>(weight.data[i]);
    values.push_back(static_cast<float>(code) * scales[scales.size() == 1 ? 0 : i / 512]);
  }
  return values;
}
/// Rows times comfy-kitchen's matrix, element by element; sums of these values are exact.
std::vector<float> rotated(const std::vector<float>& values, std::size_t size) {
  const auto sign = [&](std::size_t i, std::size_t j) {
    float result = 1.0f;
    for (std::size_t left = size; left > 1; left /= 4, i /= 4, j /= 4) {
      if (i % 4 + j % 4 == 3) result = -result;
    }
    return result;
  };
  std::vector<float> result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    float sum = 0;
    for (std::size_t j = 0; j < size; ++j) {
      sum += sign(i % size, j) * values[i / size * size + j];
    }
    result.push_back(sum / std::sqrt(static_cast<float>(size)));
  }
  return result;
}

TEST_F(ComfyIntegersTest, Int8IsReadByItsValues) {
  const std::vector<float> row_scales = {0.125f, 0.5f, 4.0f};
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{}, {1}, {1, 1}, {3, 1}}) {
    const std::vector<TestTensor> tensors = int8("a", shape);
    const auto scales = shape.size() == 2 && shape[0] == 3 ? row_scales : std::vector{0.125f};
    const std::vector<float> expected = scaled_integers(tensors[0], scales);
    const Json said = {{"format", "int8_tensorwise"}, {"convrot", false}, {"orig_shape", {3, 512}}};
    const Checkpoint checkpoint = open(tensors, {{"a", said}});
    const CheckpointTensor* tensor = checkpoint.find("a.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->form, "int8");
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{3, 512}));
    expect_error(ErrorCode::unsupported, "a.weight", "is stored as int8, which a view cannot say",
                 [&] { checkpoint.view(*tensor); });
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), expected);
    EXPECT_EQ(report_.tensors[0].source_form, "int8");
    const auto compared = compare(folder_ / "model", folder_ / "out");
    EXPECT_EQ(compared.total.status, ComparisonStatus::equal);
    EXPECT_EQ(compared.tensors[0].recipe_a, "I8");
    EXPECT_EQ(report_.tensors[0].reason, "int8, read by its values");
    // Codes have 8 bits, scales are powers of two: nothing is rounded.
    EXPECT_EQ(values_of(converted(Recipe::bf16, Dialect::plain), "a.weight"), expected);
    EXPECT_EQ(converted(Recipe::bf16, Dialect::plain).tensors().size(), 1u);
  }
  // A scale of inputs, which has no effect on such layers in ComfyUI, has none here.
  std::vector<TestTensor> tensors = int8("a", {3, 1});
  tensors.push_back({"a.input_scale", DType::F32, {}, floats({0.25f})});
  write(tensors, {{"a", format("int8_tensorwise")}});
  converted(Recipe::fp8_tensor, Dialect::compressed_tensors);
  EXPECT_EQ(report_.activations[0], "fp8_tensor: dynamic, as in the source");
}

TEST_F(ComfyIntegersTest, RotatedInt8IsTurnedBack) {
  for (const std::size_t size : {4u, 16u, 64u, 256u}) {
    const std::vector<TestTensor> tensors = int8("a", {3, 1});
    const std::vector<float> expected =
        rotated(scaled_integers(tensors[0], {0.125f, 0.5f, 4.0f}), size);
    Json said = {{"format", "int8_tensorwise"}, {"convrot", true}};
    if (size != 256) said["convrot_groupsize"] = size;
    const Checkpoint checkpoint = open(tensors, {{"a", said}});
    EXPECT_EQ(checkpoint.find("a.weight")->form, "int8, rotated");
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), expected) << size;
  }
}

TEST_F(ComfyIntegersTest, Int8IsQuantizedFromItsValues) {
  for (const bool rotate : {false, true}) {
    const Json said = {{"format", "int8_tensorwise"}, {"convrot", rotate}};
    write(int8("a", {3, 1}), {{"a", said}});
    const Checkpoint plain = converted(Recipe::f32, Dialect::plain);
    const std::vector<float> values = values_of(plain, "a.weight");
    for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp8_e4m3, Recipe::fp8_tensor}) {
      write({{"a.weight", DType::F32, {3, 512}, floats(values)}}, nullptr);
      const Checkpoint of_plain = converted(recipe, Dialect::compressed_tensors);
      const std::vector<float> expected = values_of(of_plain, "a.weight");
      write(int8("a", {3, 1}), {{"a", said}});
      const Checkpoint result = converted(recipe, Dialect::compressed_tensors);
      EXPECT_EQ(result.find("a.weight")->recipe, recipe);
      EXPECT_EQ(values_of(result, "a.weight"), expected);
    }
  }
}

/// All pairs of codes, 512 codes a row in 256 bytes.
std::vector<TestTensor> int4() {
  std::string codes;
  for (int i = 0; i < 3 * 256; ++i) codes.push_back(static_cast<char>((i * 37 + i / 256) & 0xFF));
  return {{"a.weight", DType::I8, {3, 256}, codes},
          {"a.weight_scale", DType::F32, {3}, floats({0.125f, 0.5f, 4.0f})}};
}

TEST_F(ComfyIntegersTest, RotatedInt4IsReadByItsValues) {
  const std::vector<TestTensor> tensors = int4();
  TestTensor unpacked = tensors[0];  // a byte a code
  unpacked.data.clear();
  for (const char pair : tensors[0].data) {
    const int byte = static_cast<unsigned char>(pair);
    for (const int nibble : {byte & 15, byte >> 4}) {
      unpacked.data.push_back(static_cast<char>(nibble < 8 ? nibble : nibble - 16));
    }
  }
  const std::vector<float> scaled = scaled_integers(unpacked, {0.125f, 0.5f, 4.0f});
  for (const std::size_t size : {4u, 64u, 256u}) {
    const std::vector<float> expected = rotated(scaled, size);
    Json said = {{"format", "convrot_w4a4"}, {"quant_group_size", 64}, {"linear_dtype", "int8"}};
    if (size != 256) said["convrot_groupsize"] = size;
    const Checkpoint checkpoint = open(tensors, {{"a", said}});
    const CheckpointTensor* tensor = checkpoint.find("a.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->form, "int4, rotated");
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{3, 512}));
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), expected) << size;
    const auto compared = compare(folder_ / "model", folder_ / "out");
    EXPECT_EQ(compared.total.status, ComparisonStatus::equal);
  }
}

TEST_F(ComfyIntegersTest, Int4OfOtherShapesAndWordsIsRefused) {
  const auto refused = [&](const Json& more, const std::string& reason) {
    Json said = format("convrot_w4a4");
    said.update(more);
    expect_refused(ErrorCode::unsupported, int4(), {{"a", said}}, file().string(), reason);
  };
  refused({{"convrot", false}}, "has convrot false, readable is true");
  refused({{"quant_group_size", 32}}, "quant_group_size is 32");
  refused({{"linear_dtype", "fp8"}}, "linear_dtype is \"fp8\"");
  refused({{"group_size", 64}}, "has group_size 64, readable is null");
  refused({{"orig_shape", {3, 256}}}, "has orig_shape [3,256], readable is [3,512]");
  refused({{"convrot_groupsize", 1024}}, "readable are powers of 4 that divide 512");
  for (const char* key : {"quant_group_size", "linear_dtype"}) {
    Json said = format("int8_tensorwise");
    said[key] = std::string(key) == "linear_dtype" ? Json("int4") : Json(64);
    expect_refused(ErrorCode::unsupported, int8("a", {3, 1}), {{"a", said}}, file().string(),
                   std::string("has ") + key);
  }
  const Json said = {{"a", format("convrot_w4a4")}};
  std::vector<TestTensor> tensors = int4();
  tensors[1].shape = {3, 1};
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight_scale",
                 "of shape [3, 1], must be floats of shape [3] for convrot_w4a4");
  tensors[1] = {"a.weight_scale", DType::F32, {1}, floats({1})};
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight_scale", "of shape [1]");
  tensors.pop_back();
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight", "has no \"a.weight_scale\"");
  tensors = int4();
  tensors[0].dtype = DType::U8;
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight", "is U8 of shape [3, 256]");
}

TEST_F(ComfyIntegersTest, Int8OfOtherShapesAndWordsIsRefused) {
  const auto refused = [&](const Json& more, const std::string& reason) {
    Json said = format("int8_tensorwise");
    said.update(more);
    expect_refused(ErrorCode::unsupported, int8("a", {3, 1}), {{"a", said}}, file().string(),
                   reason);
  };
  refused({{"group_size", 64}}, "has group_size 64, readable is null");
  refused({{"orig_shape", {3, 500}}}, "has orig_shape [3,500], readable is [3,512]");
  refused({{"convrot", "yes"}}, "convrot is \"yes\", readable are null and [false,true]");
  for (const Json& size : std::vector<Json>{0, 1, 2, 8, 128, 1024, -4, 16.0, "16"}) {
    refused({{"convrot", true}, {"convrot_groupsize", size}},
            "has convrot_groupsize " + size.dump() + ", readable are powers of 4 that divide 512");
  }
  const Json said = {{"a", format("int8_tensorwise")}};
  std::vector<TestTensor> tensors = int8("a", {3, 1});
  tensors[1].shape = {1, 3};
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight_scale",
                 "of shape [1, 3], must be floats of shape [] or [3, 1]");
  tensors[1] = {"a.weight_scale", DType::F8_E8M0, {3, 1}, ""};
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight_scale", "is F8_E8M0");
  tensors.pop_back();
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight", "has no \"a.weight_scale\"");
  tensors = int8("a", {});
  tensors[0].dtype = DType::U8;
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight", "is U8 of shape [3, 512]");
  tensors[0] = {"a.weight", DType::I8, {3, 2, 256}, ""};
  expect_refused(ErrorCode::unsupported, tensors, said, "a.weight", "of two dimensions");
  tensors[0] = {"a.weight", DType::I8, {0, 256}, ""};
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight", "of shape [0, 256]");
}

/// Codes of 4 or 6 bits as comfy-kitchen packs the rows of a matrix.
std::string packed(const std::vector<int>& codes, std::size_t columns, int bits) {
  std::string bytes;
  for (std::size_t row = 0; row < codes.size(); row += columns) {
    for (std::size_t k = row; k < row + columns; k += 2) {
      bytes.push_back(static_cast<char>((codes[k] & 15) | (codes[k + 1] & 15) << 4));
    }
    for (std::size_t k = row; bits == 6 && k < row + columns; k += 4) {
      int byte = 0;
      for (std::size_t i = 0; i < 4; ++i) byte |= (codes[k + i] >> 4 & 3) << (2 * i);
      bytes.push_back(static_cast<char>(byte));
    }
  }
  return bytes;
}

/// [3, 64] of numbers that are read by a formula with groups of columns.
struct GroupedIntegers {
  static constexpr std::size_t kRows = 3, kColumns = 64;
  int bits = 4;
  std::size_t group = 16;
  std::vector<int> codes;

  explicit GroupedIntegers(int bits_of_codes, std::size_t group_size)
      : bits(bits_of_codes), group(group_size) {
    for (std::size_t i = 0; i < kRows * kColumns; ++i) {
      codes.push_back(static_cast<int>(i * 37 + i / 64) & ((1 << bits) - 1));
    }
  }
  std::int64_t groups() const { return static_cast<std::int64_t>(kColumns / group); }
  TestTensor weight() const {
    return {"a.weight", DType::I8, {3, 8 * bits}, packed(codes, kColumns, bits)};
  }
  /// Numbers that differ from group to group, and their order.
  float scale(std::size_t row, std::size_t g) const {
    return 0.125f * static_cast<float>(3 + 5 * row + 7 * g);
  }
  TestTensor by_groups(const char* name, float factor) const {
    std::vector<float> numbers;
    for (std::size_t g = 0; g < kColumns / group; ++g) {
      for (std::size_t row = 0; row < kRows; ++row) numbers.push_back(factor * scale(row, g));
    }
    return {name, DType::F32, {groups(), 3}, floats(numbers)};
  }
  /// Values by a function of code, row, column and group.
  template <class Value>
  std::vector<float> values(const Value& value) const {
    std::vector<float> result;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      result.push_back(value(codes[i], i / kColumns, i % kColumns, i % kColumns / group));
    }
    return result;
  }
};

/// With F8_E4M3 scales of groups, 1 to 1.875 in eighths, and powers of two for rows.
struct W4A8 : GroupedIntegers {
  std::vector<float> levels, row_scales = {0.5f, 2.0f, 0.125f};
  bool corrected = false;
  DType dtype = DType::F8_E4M3;

  using GroupedIntegers::GroupedIntegers;
  std::vector<TestTensor> tensors() const {
    std::string scales;
    std::vector<float> wide;
    for (std::size_t i = 0; i < kRows * kColumns / group; ++i) {
      scales.push_back(static_cast<char>(0x38 + i % 8));
      wide.push_back(1.0f + 0.125f * static_cast<float>(i % 8));
    }
    std::vector<TestTensor> result = {
        weight(),
        {"a.weight_s_rel", dtype, {3, groups()}, dtype == DType::F32 ? floats(wide) : scales},
        {"a.weight_s_channel", DType::F32, {3}, floats(row_scales)}};
    if (!levels.empty()) {
      result.push_back({"a.weight_codebook", DType::F32, {16}, floats(levels)});
    }
    if (corrected) result.push_back(by_groups("a.weight_correction", 1.0f));
    return result;
  }
  std::vector<float> expected(std::size_t rotation) const {
    return rotated(
        values([&](int code, std::size_t row, std::size_t, std::size_t g) {
          const float s = 1.0f + 0.125f * static_cast<float>((row * kColumns / group + g) % 8);
          const float level = levels.empty() ? static_cast<float>(code - (1 << (bits - 1)))
                                             : levels[static_cast<std::size_t>(code)];
          const float whole = std::clamp(std::nearbyint(level * s), -127.0f, 127.0f);
          return whole * row_scales[row] + (corrected ? scale(row, g) : 0.0f);
        }),
        rotation);
  }
};

/// Levels that scales bring beyond 127, and halves.
std::vector<float> codebook() {
  std::vector<float> levels;
  for (int i = -8; i < 8; ++i) levels.push_back(17.5f * static_cast<float>(i) + 0.25f);
  return levels;
}

TEST_F(ComfyIntegersTest, W4A8IsReadByItsValues) {
  for (const std::size_t group : {4u, 8u, 16u, 32u, 64u}) {
    for (const bool with_levels : {false, true}) {
      for (const bool corrected : {false, true}) {
        W4A8 w(4, group);
        if (with_levels) w.levels = codebook();
        w.corrected = corrected;
        Json said = {{"format", "asym_w4a8_int8"}, {"convrot_groupsize", 16}, {"convrot", true}};
        if (group != 16) said["group_size"] = group;
        const Checkpoint checkpoint = open(w.tensors(), {{"a", said}});
        EXPECT_EQ(checkpoint.find("a.weight")->form,
                  "int4 in groups of " + std::to_string(group) + ", rotated");
        const Checkpoint result = converted(Recipe::f32, Dialect::plain);
        EXPECT_EQ(values_of(result, "a.weight"), w.expected(16)) << group;
        EXPECT_EQ(result.tensors().size(), 1u);
      }
    }
  }
}

TEST_F(ComfyIntegersTest, W4A8SaysItsSizesInParamsToo) {
  W4A8 w(4, 32);
  const Json sizes = {{"group_size", 32}, {"convrot_groupsize", 64}};
  open(w.tensors(), {{"a", {{"format", "asym_w4a8_int8"}, {"params", sizes}}}});
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.expected(64));
  // What the layer itself says holds.
  open(w.tensors(),
       {{"a", {{"format", "asym_w4a8_int8"}, {"convrot_groupsize", 4}, {"params", sizes}}}});
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.expected(4));
  const Json rotates = {{"convrot", true}, {"convrot_groupsize", 64}};
  open(int8("a", {3, 1}), {{"a", {{"format", "int8_tensorwise"}, {"params", rotates}}}});
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"),
            rotated(scaled_integers(int8("a", {3, 1})[0], {0.125f, 0.5f, 4.0f}), 64));
}

TEST_F(ComfyIntegersTest, W4A8HasCodesOfSixBitsAndScalesOfOtherDtypes) {
  const Json said = {{"format", "asym_w4a8_int8"}, {"convrot_groupsize", 64}};
  for (const DType dtype : {DType::F8_E4M3, DType::U8, DType::F32}) {
    for (const int bits : {4, 6}) {
      W4A8 w(bits, 16);
      w.dtype = dtype;
      const Checkpoint checkpoint = open(w.tensors(), {{"a", said}});
      EXPECT_EQ(checkpoint.find("a.weight")->shape, (std::vector<std::int64_t>{3, 64}));
      EXPECT_EQ(checkpoint.find("a.weight")->form,
                "int" + std::to_string(bits) + " in groups of 16, rotated");
      EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.expected(64));
      // Rows are read from anywhere.
      const auto stored = models::StoredCheckpoint::open(folder_ / "model");
      std::vector<std::byte> buffer;
      const MatrixView last = models::read_rows(*stored, 0, {0, 2, 1}, true, buffer);
      const auto* row = static_cast<const float*>(last.data);
      EXPECT_EQ(std::vector<float>(row, row + 64), [&] {
        const std::vector<float> all = w.expected(64);
        return std::vector<float>(all.end() - 64, all.end());
      }());
    }
  }
}

TEST_F(ComfyIntegersTest, W4A8OfOtherShapesAndWordsIsRefused) {
  const W4A8 w(4, 16);
  const auto refused = [&](const Json& more, const std::string& reason) {
    Json said = {{"format", "asym_w4a8_int8"}, {"convrot_groupsize", 64}};
    said.update(more);
    expect_refused(ErrorCode::unsupported, w.tensors(), {{"a", said}}, file().string(), reason);
  };
  refused({{"group_size", 12}},
          "has group_size 12, readable are those of 4, 8 and multiples of 16 that divide 64");
  refused({{"group_size", 0}}, "has group_size 0");
  refused({{"group_size", "16"}}, "has group_size \"16\"");
  refused({{"convrot", false}}, "has convrot false, readable is true");
  refused({{"convrot_groupsize", 256}}, "has convrot_groupsize 256, readable are powers of 4");
  refused({{"linear_dtype", "int8"}}, "has linear_dtype");
  refused({{"orig_shape", {3, 128}}}, "has orig_shape [3,128], readable is [3,64]");
  refused({{"params", {{"bits", 4}}}}, ".params.bits is no key that is known here");
  const Json said = {{"a", {{"format", "asym_w4a8_int8"}, {"convrot_groupsize", 64}}}};
  const auto other = [&](std::size_t i, const TestTensor& tensor, const std::string& reason,
                         int bits = 4) {
    W4A8 whole(bits, 16);
    whole.levels = codebook();
    whole.corrected = true;
    std::vector<TestTensor> tensors = whole.tensors();
    tensors[i] = tensor;
    expect_refused(ErrorCode::corrupt_file, tensors, said, tensor.name, reason);
  };
  other(1, {"a.weight_s_rel", DType::F8_E4M3, {4, 3}, ""}, "F8_E4M3 or floats of shape [3, 4]");
  other(1, {"a.weight_s_rel", DType::F8_E5M2, {3, 4}, ""}, "is F8_E5M2 of shape [3, 4]");
  other(2, {"a.weight_s_channel", DType::F32, {3, 1}, ""}, "floats of shape [3]");
  other(3, {"a.weight_codebook", DType::F32, {32}, ""}, "floats of shape [16]");
  other(4, {"a.weight_correction", DType::F32, {3, 4}, ""}, "floats of shape [4, 3]");
  W4A8 six(6, 16);
  six.corrected = true;
  expect_refused(ErrorCode::corrupt_file, six.tensors(), said, "a.weight_correction",
                 "absent where codes have 6 bits");
  std::vector<TestTensor> tensors = w.tensors();
  tensors.pop_back();
  expect_refused(ErrorCode::corrupt_file, tensors, said, "a.weight",
                 "has no \"a.weight_s_channel\", which asym_w4a8_int8 needs");
  tensors = w.tensors();
  tensors[0].shape = {1, 3, 32};
  expect_refused(ErrorCode::unsupported, tensors, said, "a.weight", "I8 of two dimensions");
  expect_refused(ErrorCode::unsupported, w.tensors(), Json::object(), "a.weight_s_rel",
                 "scales a weight of which the file's description says nothing");
}

TEST_F(ComfyIntegersTest, AwqHasScalesAndZerosOfGroups) {
  for (const std::size_t group : {64u, 32u, 16u, 2u}) {
    const GroupedIntegers w(4, group);
    const std::vector<TestTensor> tensors = {w.weight(), w.by_groups("a.weight_scale", 1.0f),
                                             w.by_groups("a.weight_zeros", -0.5f)};
    Json said = format("awq_w4a16");
    if (group != 64) said["group_size"] = group;
    const Checkpoint checkpoint = open(tensors, {{"a", said}});
    EXPECT_EQ(checkpoint.find("a.weight")->form, "int4 in groups of " + std::to_string(group));
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"),
              w.values([&](int code, std::size_t row, std::size_t, std::size_t g) {
                return static_cast<float>(code - 8) * w.scale(row, g) - 0.5f * w.scale(row, g);
              }));
    write(tensors, {{"a", said}});
    converted(Recipe::mxfp8_e4m3, Dialect::compressed_tensors);
    EXPECT_EQ(report_.activations[0], "mxfp8_e4m3: none, as in the source");
  }
}

TEST_F(ComfyIntegersTest, AwqOfOtherShapesAndWordsIsRefused) {
  const GroupedIntegers w(4, 64);
  const std::vector<TestTensor> good = {w.weight(), w.by_groups("a.weight_scale", 1.0f),
                                        w.by_groups("a.weight_zeros", 1.0f)};
  const auto refused = [&](const Json& more, const std::string& reason) {
    Json said = format("awq_w4a16");
    said.update(more);
    expect_refused(ErrorCode::unsupported, good, {{"a", said}}, file().string(), reason);
  };
  refused({{"group_size", 48}},
          "has group_size 48, readable are those of whole numbers that divide 64");
  refused({{"convrot", true}}, "has convrot true, readable is false");
  refused({{"zero_point", 8}}, ".zero_point is no key");
  const auto other = [&](std::size_t i, DType dtype, const std::vector<std::int64_t>& shape,
                         const std::string& reason) {
    std::vector<TestTensor> tensors = good;
    tensors[i] = {tensors[i].name, dtype, shape, ""};
    expect_refused(ErrorCode::corrupt_file, tensors, {{"a", format("awq_w4a16")}}, tensors[i].name,
                   reason);
  };
  other(0, DType::U8, {3, 32}, "is U8 of shape [3, 32]");
  other(1, DType::F32, {3, 1}, "must be floats of shape [1, 3] for awq_w4a16");
  other(2, DType::I8, {1, 3}, "is I8 of shape [1, 3]");
  std::vector<TestTensor> tensors = good;
  tensors.pop_back();
  expect_refused(ErrorCode::corrupt_file, tensors, {{"a", format("awq_w4a16")}}, "a.weight",
                 "has no \"a.weight_zeros\"");
}

/// Rank 2, and columns that were multiplied.
std::vector<TestTensor> svdquant(const GroupedIntegers& w) {
  std::vector<float> smooth, down;
  for (int k = 0; k < 64; ++k) {
    smooth.push_back(std::ldexp(1.0f, k % 5 - 2));
    down.insert(down.end(), {static_cast<float>(k), static_cast<float>(3 - k % 7)});
  }
  return {w.weight(),
          w.by_groups("a.weight_scale", 1.0f),
          {"a.weight_smooth_factor", DType::F32, {64}, floats(smooth)},
          {"a.weight_proj_down", DType::F32, {64, 2}, floats(down)},
          {"a.weight_proj_up", DType::F32, {3, 2}, floats({0.5f, 1, -2, 0.25f, 4, -1})}};
}

TEST_F(ComfyIntegersTest, SvdquantDividesColumnsAndAddsAProduct) {
  const GroupedIntegers w(4, 64);
  const Json said = {{"format", "svdquant_w4a4"}, {"group_size", 64}, {"act_unsigned", false}};
  const Checkpoint checkpoint = open(svdquant(w), {{"a", said}});
  EXPECT_EQ(checkpoint.find("a.weight")->form, "int4 in groups of 64, a product added");
  const float up[3][2] = {{0.5f, 1}, {-2, 0.25f}, {4, -1}};
  const auto value = [&](int code, std::size_t row, std::size_t k, std::size_t g) {
    const auto number = static_cast<float>(code < 8 ? code : code - 16);
    const float product =
        up[row][0] * static_cast<float>(k) + up[row][1] * (3.0f - static_cast<float>(k % 7));
    return number * w.scale(row, g) / std::ldexp(1.0f, static_cast<int>(k % 5) - 2) + product;
  };
  EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values(value));
}

TEST_F(ComfyIntegersTest, SvdquantOfOtherShapesAndWordsIsRefused) {
  const GroupedIntegers w(4, 64);
  const auto refused = [&](const Json& more, const std::string& reason) {
    Json said = format("svdquant_w4a4");
    said.update(more);
    expect_refused(ErrorCode::unsupported, svdquant(w), {{"a", said}}, file().string(), reason);
  };
  refused({{"act_unsigned", true}}, "act_unsigned is true");
  refused({{"group_size", 32}}, "has group_size 32, readable are those of 64 that divide 64");
  refused({{"convrot", true}}, "has convrot true");
  const Json said = {{"a", format("svdquant_w4a4")}};
  const auto other = [&](std::size_t i, const std::vector<std::int64_t>& shape,
                         const std::string& argument, const std::string& reason) {
    std::vector<TestTensor> tensors = svdquant(w);
    tensors[i] = {tensors[i].name, DType::F32, shape, ""};
    expect_refused(ErrorCode::corrupt_file, tensors, said, argument, reason);
  };
  other(1, {3, 1}, "a.weight_scale", "floats of shape [1, 3]");
  other(2, {3}, "a.weight_smooth_factor", "floats of shape [64]");
  other(3, {2, 64}, "a.weight_proj_down", "floats of shape [64, 64]");
  other(3, {64, 3}, "a.weight_proj_up", "floats of shape [3, 3]");
  other(3, {128}, "a.weight_proj_down", "floats of shape [64, 0]");
  std::vector<TestTensor> tiles = svdquant(w);
  tiles[0].shape = {1, 1, 3, 32};
  expect_refused(ErrorCode::unsupported, tiles, said, "a.weight",
                 "is I8 of shape [1, 1, 3, 32], must be I8 of two dimensions for svdquant_w4a4");
}

}  // namespace
}  // namespace blockscale
