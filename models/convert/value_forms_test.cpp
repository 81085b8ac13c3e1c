// Weights that are read by their values only: FP8 convolutions, FP8 in blocks that no recipe has,
// and stacks of experts that are packed along their inputs.
#include <gtest/gtest.h>

#include <cmath>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::floats;
using test::Json;
using test::part;
using test::TestTensor;
using test::values_of;
using Shape = std::vector<std::int64_t>;

std::int64_t count_of(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

/// Powers of two and others, all above 0.
std::vector<float> some_scales(std::int64_t count) {
  std::vector<float> result;
  for (std::int64_t i = 0; i < count; ++i) {
    result.push_back(std::ldexp(static_cast<float>(1 + (i * 7) % 13), -8));
  }
  return result;
}

class ValueFormsTest : public ::testing::Test {
 protected:
  void write(const std::vector<TestTensor>& tensors, const Json& config) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors, config);
  }
  Checkpoint source() const { return Checkpoint::open(folder_ / "model"); }
  Checkpoint run(Recipe recipe, Dialect dialect, const std::string& name = "out") {
    ConvertOptions options = test::options_for({recipe, dialect});
    options.overwrite = true;
    report_ = convert(folder_ / "model", folder_ / name, options);
    return Checkpoint::open(folder_ / name);
  }
  Checkpoint plain() { return run(Recipe::f32, Dialect::plain, "plain"); }
  void expect_refused(ErrorCode code, const std::string& weight, const std::string& message) {
    expect_error(code, weight, message, [&] { (void)source(); });
  }
  std::string reason(const std::string& name) const {
    for (const ConvertedTensor& t : report_.tensors) {
      if (t.name == name) return t.reason;
    }
    return "no " + name;
  }
  /// What the codes of `name`, e4m3, are in f32.
  std::vector<float> codes(const std::string& name) const {
    std::vector<float> result;
    for (const char code : part(source(), name)) {
      result.push_back(decode<Format::e4m3>(static_cast<std::uint8_t>(code)));
    }
    return result;
  }

  test::ScratchFolder folder_;
  ConvertReport report_;
};

/// Configurations of FP8 with one scale a tensor or a row, and the names of the scales.
struct Fp8Dialect {
  const char* name;
  Json config;
};
std::vector<Fp8Dialect> fp8_dialects() {
  const auto ct = [](const char* strategy) {
    return test::compressed_tensors_config(
        "float-quantized", {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}});
  };
  Json modelopt = test::modelopt_config();
  modelopt["quantization_config"]["quant_algo"] = "FP8";
  return {{"modelopt", modelopt},
          {"fp8", {{"quantization_config", {{"quant_method", "fp8"}}}}},
          {"fp8 in blocks", test::deepseek_config()},
          {"ct tensor", ct("tensor")},
          {"ct channel", ct("channel")},
          {"names", nullptr}};
}

class ConvolutionTest : public ValueFormsTest {};

TEST_F(ConvolutionTest, Fp8IsReadToPlain) {
  struct Case {
    Shape values, scales;
  };
  const std::vector<Case> cases = {{{6, 4, 3, 3}, {}},
                                   {{6, 4, 3, 3}, {1}},
                                   {{6, 4, 3, 3}, {1, 1, 1, 1}},
                                   {{6, 4, 3, 3}, {6}},
                                   {{6, 4, 3, 3}, {6, 1, 1, 1}},
                                   {{6, 4, 1, 1}, {6, 1}},
                                   {{6, 4, 2, 3, 3}, {}},
                                   {{6, 4, 2, 3, 3}, {6, 1, 1, 1, 1}},
                                   {{6, 4, 5}, {1}},
                                   {{6, 4, 5}, {6, 1, 1}},
                                   {{6, 1, 4}, {6}}};
  for (const Fp8Dialect& dialect : fp8_dialects()) {
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(dialect.name) + " " + std::to_string(c.values.size()) + "-D, " +
                   std::to_string(count_of(c.scales)) + " scales");
      const bool blocks = std::string_view(dialect.name) == "fp8 in blocks";
      const std::vector<float> scales = some_scales(count_of(c.scales));
      write({{"conv.weight", DType::F8_E4M3, c.values, ""},
             {blocks ? "conv.weight_scale_inv" : "conv.weight_scale", DType::F32, c.scales,
              floats(scales)}},
            dialect.config);
      EXPECT_EQ(source().find("conv.weight")->shape, c.values);
      std::vector<float> expected = codes("conv.weight");
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] *= scales[i * scales.size() / expected.size()];
      }
      const Checkpoint out = plain();
      EXPECT_EQ(out.find("conv.weight")->shape, c.values);
      EXPECT_EQ(values_of(out, "conv.weight"), expected);
      EXPECT_EQ(values_of(source(), "conv.weight"), expected);
      EXPECT_EQ(compare(folder_ / "model", folder_ / "plain").total.status,
                ComparisonStatus::equal);
    }
  }
}

TEST_F(ConvolutionTest, BesideQuantizedLayersItBecomesBf16) {
  for (const Fp8Dialect& dialect : fp8_dialects()) {
    SCOPED_TRACE(dialect.name);
    const bool blocks = std::string_view(dialect.name) == "fp8 in blocks";
    const bool rows = std::string_view(dialect.name) == "ct channel";
    const std::string suffix = blocks ? "_scale_inv" : "_scale";
    const Shape one = rows ? Shape{16, 1} : blocks ? Shape{1, 1} : Shape{1};
    write({{"l.weight", DType::F8_E4M3, {16, 64}, ""},
           {"l.weight" + suffix, DType::F32, one, floats(some_scales(count_of(one)))},
           {"conv.weight", DType::F8_E4M3, {16, 64, 3, 3}, ""},
           {"conv.weight" + suffix, DType::F32, {1}, floats({0.5f})}},
          dialect.config);
    for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor, Recipe::fp8_row}) {
      const Checkpoint out = run(recipe, Dialect::compressed_tensors);
      EXPECT_EQ(out.find("l.weight")->recipe, recipe);
      EXPECT_FALSE(out.find("conv.weight")->quantized);
      EXPECT_EQ(out.find("conv.weight")->dtype, DType::BF16);
      EXPECT_EQ(reason("conv.weight"), "has 4 dimensions; as bf16");
    }
  }
}

TEST_F(ConvolutionTest, OtherScalesAreRefused) {
  const TestTensor conv = {"conv.weight", DType::F8_E4M3, {256, 128, 3, 3}, ""};
  const Json modelopt = fp8_dialects()[0].config;
  // Legal elsewhere, perhaps.
  write({conv, {"conv.weight_scale_inv", DType::F32, {2, 1, 3, 3}, ""}}, test::deepseek_config());
  expect_refused(ErrorCode::unsupported, "conv.weight", "have shape [256, 128, 3, 3], must have 2");
  write({conv, {"conv.weight_scale", DType::U8, {256, 128, 3, 1}, ""}}, modelopt);
  expect_refused(ErrorCode::unsupported, "conv.weight", "are U8, which cannot hold f32 of fp8_");
  write({{"conv.weight_packed", DType::U8, {8, 4, 3, 16}, ""},
         {"conv.weight_scale", DType::F8_E4M3, {8, 4, 3, 2}, ""},
         {"conv.weight_global_scale", DType::F32, {1}, floats({1})}},
        nullptr);
  expect_refused(ErrorCode::unsupported, "conv.weight", "have shape [8, 4, 3, 16], must have 2");
  write({{"conv.weight", DType::F8_E4M3, {2, 2, 2, 2, 2, 2}, ""},
         {"conv.weight_scale", DType::F32, {1}, floats({1})}},
        modelopt);
  expect_refused(ErrorCode::unsupported, "conv.weight", "must have 2 or 3 dimensions, or up to 5");
  // Damaged.
  write({conv, {"conv.weight_scale", DType::F32, {255}, ""}}, modelopt);
  expect_refused(ErrorCode::corrupt_file, "conv.weight",
                 "have shape [255], must be [1, 1, 1, 1] for fp8_tensor or [256, 1, 1, 1] for "
                 "fp8_row of [256, 128, 3, 3]");
  write({conv, {"conv.weight_scale", DType::F32, {128, 2}, ""}}, modelopt);
  expect_refused(ErrorCode::corrupt_file, "conv.weight", "have shape [128, 2], must be");
}

class OddBlocksTest : public ValueFormsTest {
 protected:
  static Json fp8(const Json& block) {
    Json config = test::deepseek_config();
    config["quantization_config"]["weight_block_size"] = block;
    return config;
  }
  static Json ct(const char* strategy, const char* key, const Json& size) {
    return test::compressed_tensors_config(
        "float-quantized",
        {{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {key, size}});
  }
  struct Case {
    std::int64_t rows, columns;
    Json config;
    DType dtype = DType::F32;
    Shape shape = {130, 300};
  };
  static std::vector<Case> cases() {
    return {{64, 64, fp8({64, 64})},
            {32, 32, fp8({32, 32})},
            {1, 64, fp8({1, 64})},
            {128, 64, fp8({128, 64})},
            {256, 256, fp8({256, 256})},
            {7, 11, fp8({7, 11})},
            {64, 64, fp8({64, 64}), DType::F8_E8M0},
            {64, 64, fp8({64, 64}), DType::F32, {3, 130, 192}},
            {64, 64, ct("block", "block_structure", {64, 64})},
            {64, 64, ct("block", "block_structure", "64x64")},
            {1, 64, ct("group", "group_size", 64)},
            {128, 256, ct("block", "block_structure", {128, 256}), DType::F32, {256, 512}}};
  }
  /// Writes a.weight, and returns its values.
  std::vector<float> write_case(const Case& c) {
    const bool in_ct = c.config["quantization_config"]["quant_method"] != "fp8";
    Shape grid = c.shape;
    grid.back() = (c.shape.back() + c.columns - 1) / c.columns;
    const std::int64_t rows = c.shape[c.shape.size() - 2];
    const std::int64_t grid_rows = grid[grid.size() - 2] = (rows + c.rows - 1) / c.rows;
    std::vector<float> scales = some_scales(count_of(grid));
    std::string stored = floats(scales);
    if (c.dtype == DType::F8_E8M0) {
      stored.assign(scales.size(), '\x7d');
      scales.assign(scales.size(), 0.25f);
    }
    write({{"a.weight", DType::F8_E4M3, c.shape, ""},
           {in_ct ? "a.weight_scale" : "a.weight_scale_inv", c.dtype, grid, stored}},
          c.config);
    std::vector<float> values = codes("a.weight");
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const std::int64_t row = at / c.shape.back() % rows;
      const std::int64_t matrix = at / c.shape.back() / rows;
      values[i] *= scales[static_cast<std::size_t>(
          (matrix * grid_rows + row / c.rows) * grid.back() + at % c.shape.back() / c.columns)];
    }
    return values;
  }
};

TEST_F(OddBlocksTest, AreReadByTheirValues) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.config.dump());
    const std::vector<float> expected = write_case(c);
    const std::string form =
        "blocks of " + std::to_string(c.rows) + " x " + std::to_string(c.columns);
    EXPECT_EQ(source().find("a.weight")->form, form);
    EXPECT_FALSE(source().find("a.weight")->column_factors);
    expect_error(ErrorCode::unsupported, "a.weight", "is stored as " + form, [&] {
      const Checkpoint checkpoint = source();
      checkpoint.view(*checkpoint.find("a.weight"));
    });
    EXPECT_EQ(values_of(plain(), "a.weight"), expected);
    EXPECT_EQ(reason("a.weight"), form + ", read by its values");
    EXPECT_EQ(compare(folder_ / "model", folder_ / "plain").total.status, ComparisonStatus::equal);
  }
}

TEST_F(OddBlocksTest, AreQuantizedFromTheirValuesAndNeverCopied) {
  for (Case c : cases()) {
    c.shape = {128, 192};
    SCOPED_TRACE(c.config.dump());
    write_case(c);
    (void)plain();
    for (const auto& [recipe, dialect] :
         {std::pair(Recipe::nvfp4, Dialect::compressed_tensors),
          std::pair(Recipe::fp8_128x128, Dialect::deepseek),
          std::pair(Recipe::fp8_tensor, Dialect::compressed_tensors),
          std::pair(Recipe::mxfp8_e4m3, Dialect::modelopt)}) {
      ConvertOptions options = test::options_for({recipe, dialect});
      options.include = {"a.weight"};
      options.overwrite = true;
      convert(folder_ / "plain", folder_ / "of_plain", options);
      const Checkpoint direct = run(recipe, dialect);
      EXPECT_EQ(direct.find("a.weight")->recipe, recipe);
      EXPECT_EQ(values_of(direct, "a.weight"),
                values_of(Checkpoint::open(folder_ / "of_plain"), "a.weight"));
    }
  }
}

TEST_F(OddBlocksTest, OfAnotherShapeOrSignAreRefused) {
  const TestTensor values = {"a.weight", DType::F8_E4M3, {128, 192}, ""};
  for (const Shape& grid : {Shape{2, 2}, Shape{1}, Shape{3, 2}, Shape{1, 2, 3}, Shape{2, 4}}) {
    write({values, {"a.weight_scale_inv", DType::F32, grid, ""}}, fp8({64, 64}));
    expect_refused(ErrorCode::corrupt_file, "a.weight",
                   "must be [2, 3] for blocks of 64 x 64 of [128, 192]");
  }
  write({values, {"a.weight_scale_inv", DType::F32, {2, 3}, floats({1, 1, -1, 1, 1, 1})}},
        fp8({64, 64}));
  expect_error(ErrorCode::corrupt_file, "a.weight_scale_inv", "scale 2 is -1", [&] { plain(); });
  for (const Json& block : {Json({64}), Json({64, 64, 64}), Json({0, 64}), Json({64, -64}),
                            Json("a"), Json(64), Json({64.5, 64}), Json({64, 1e30})}) {
    SCOPED_TRACE(block.dump());
    write({values, {"a.weight_scale_inv", DType::F32, {2, 3}, ""}}, fp8(block));
    expect_error(ErrorCode::corrupt_file, (folder_ / "model" / "config.json").string(),
                 "weight_block_size is", [&] { (void)source(); });
  }
}

/// Stacks [E, in, out] whose codes and scales lie along `in`.
class PackedAlongRowsTest : public ValueFormsTest {
 protected:
  static constexpr std::int64_t kExperts = 2, kOut = 5;

  /// Bytes [experts, a, b] of each expert as [b, a].
  static std::string turned(const std::string& bytes, std::int64_t a, std::int64_t b) {
    std::string result;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      for (std::int64_t j = 0; j < b; ++j) {
        for (std::int64_t i = 0; i < a; ++i) {
          result += bytes[static_cast<std::size_t>((e * a + i) * b + j)];
        }
      }
    }
    return result;
  }
  struct Case {
    const char* name;
    DType values, scales;
    std::int64_t in, in_values, in_scales;  // and stored
    const char* values_name;
    const char* scales_name;
    const char* tensor_scale;  // null: none
    Json config;
  };
  static std::vector<Case> cases() {
    const auto ct = [](const char* format, int bits, int group, const char* strategy) {
      return test::compressed_tensors_config(
          format,
          {{"num_bits", bits}, {"type", "float"}, {"strategy", strategy}, {"group_size", group}});
    };
    return {{"modelopt nvfp4", DType::U8, DType::F8_E4M3, 48, 24, 3, "p", "p_weight_scale",
             "p_weight_scale_2", test::modelopt_config()},
            {"modelopt mxfp4", DType::U8, DType::U8, 96, 48, 3, "p", "p_weight_scale", nullptr,
             test::modelopt_config()},
            {"modelopt mxfp8", DType::F8_E4M3, DType::U8, 96, 96, 3, "p", "p_weight_scale", nullptr,
             test::modelopt_config()},
            {"ct nvfp4", DType::U8, DType::F8_E4M3, 48, 24, 3, "p_packed", "p_scale",
             "p_global_scale", ct("nvfp4-pack-quantized", 4, 16, "tensor_group")},
            {"ct mxfp4", DType::U8, DType::U8, 64, 32, 2, "p_packed", "p_scale", nullptr,
             ct("mxfp4-pack-quantized", 4, 32, "group")},
            {"ct mxfp8", DType::F8_E4M3, DType::U8, 64, 64, 2, "p", "p_scale", nullptr,
             ct("mxfp8-quantized", 8, 32, "group")}};
  }
  /// Writes the stack both ways: "straight" [E, out, in] and "model" [E, in, out].
  void write_case(const Case& c, std::int64_t tensor_scales) {
    TestTensor values = {c.values_name, c.values, {kExperts, kOut, c.in_values}, ""};
    TestTensor scales = {c.scales_name, c.scales, {kExperts, kOut, c.in_scales}, ""};
    values.data = test::test_bytes(values);
    scales.data = test::test_bytes(scales);
    if (c.scales == DType::U8) std::ranges::fill(scales.data, '\x7b');
    for (std::size_t i = 0; i < scales.data.size(); i += 2) ++scales.data[i];
    std::vector<TestTensor> more;
    if (c.tensor_scale != nullptr) {
      more.push_back(
          {c.tensor_scale, DType::F32, {tensor_scales}, floats(some_scales(tensor_scales))});
    }
    more.push_back({"norm.weight", DType::BF16, {4}, ""});
    std::vector<TestTensor> tensors = more;
    tensors.push_back(values);
    tensors.push_back(scales);
    std::filesystem::remove_all(folder_ / "straight");
    test::write_checkpoint(folder_ / "straight", tensors, c.config);
    more.push_back({c.values_name,
                    c.values,
                    {kExperts, c.in_values, kOut},
                    turned(values.data, kOut, c.in_values)});
    more.push_back({c.scales_name,
                    c.scales,
                    {kExperts, c.in_scales, kOut},
                    turned(scales.data, kOut, c.in_scales)});
    write(more, c.config);
  }
};

TEST_F(PackedAlongRowsTest, AreReadAsTheyAreStored) {
  for (const Case& c : cases()) {
    for (const std::int64_t tensor_scales : {std::int64_t{1}, kExperts}) {
      SCOPED_TRACE(c.name);
      write_case(c, tensor_scales);
      EXPECT_EQ(source().find("p")->shape, (Shape{kExperts, c.in, kOut}));
      EXPECT_EQ(source().find("p")->form, "packed along rows");
      const std::vector<float> straight = values_of(Checkpoint::open(folder_ / "straight"), "p");
      const std::vector<float> values = values_of(plain(), "p");
      ASSERT_EQ(values.size(), straight.size());
      for (std::int64_t i = 0; i < std::ssize(values); ++i) {
        const std::int64_t e = i / (c.in * kOut), in = i / kOut % c.in, out = i % kOut;
        EXPECT_EQ(values[static_cast<std::size_t>(i)],
                  straight[static_cast<std::size_t>((e * kOut + out) * c.in + in)])
            << i;
      }
      EXPECT_EQ(compare(folder_ / "model", folder_ / "plain").total.status,
                ComparisonStatus::equal);
      EXPECT_EQ(run(Recipe::bf16, Dialect::plain).find("p")->dtype, DType::BF16);
    }
  }
}

TEST_F(PackedAlongRowsTest, BesideQuantizedLayersTheyBecomeBf16) {
  Case c = cases()[0];
  write_case(c, 1);
  std::vector<TestTensor> tensors;
  const Checkpoint stored = source();
  for (const auto& [name, entry] : stored.store().tensors()) {
    tensors.push_back({name, entry.info.dtype, entry.info.shape, part(stored, name)});
  }
  tensors.push_back({"l.weight", DType::U8, {4, 32}, ""});
  tensors.push_back({"l.weight_scale", DType::F8_E4M3, {4, 4}, ""});
  tensors.push_back({"l.weight_scale_2", DType::F32, {}, floats({0.5f})});
  write(tensors, c.config);
  for (const Dialect dialect : {Dialect::compressed_tensors, Dialect::modelopt}) {
    ConvertOptions options = test::options_for({Recipe::nvfp4, dialect});
    options.activations = Activations::none;
    options.overwrite = true;
    report_ = convert(folder_ / "model", folder_ / "out", options);
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    EXPECT_EQ(out.find("l.weight")->recipe, Recipe::nvfp4);
    EXPECT_EQ(out.find("p")->dtype, DType::BF16);
    EXPECT_NE(reason("p").find("for it is stored as packed along rows; as bf16"), std::string::npos)
        << reason("p");
  }
}

TEST_F(PackedAlongRowsTest, LargeStacksArePiecesOfWholeBlocks) {
  // Pieces of 1 MiB are 512 rows of 512; comparing cuts elsewhere.
  Case c = cases()[0];
  const std::int64_t in = 1040, out = 500;
  write({{"p", DType::U8, {1, in / 2, out}, ""},
         {"p_weight_scale", DType::F8_E4M3, {1, in / 16, out}, ""},
         {"p_weight_scale_2", DType::F32, {}, floats({0.5f})}},
        c.config);
  (void)plain();
  EXPECT_EQ(compare(folder_ / "model", folder_ / "plain").total.status, ComparisonStatus::equal);
  write({{"p", DType::U8, {1, in / 2, out}, ""},
         {"p_weight_scale",
          DType::F8_E4M3,
          {1, in / 16, out},
          std::string(static_cast<std::size_t>(in / 16 * out - 1), '\x38') + '\xb8'},
         {"p_weight_scale_2", DType::F32, {}, floats({0.5f})}},
        c.config);
  expect_error(ErrorCode::corrupt_file, "p_weight_scale", "is -1", [&] { plain(); });
}

TEST_F(PackedAlongRowsTest, Fp8WithAScaleAnOutput) {
  for (const Fp8Dialect& dialect : fp8_dialects()) {
    const std::string_view name = dialect.name;
    if (name == "fp8 in blocks" || name == "ct tensor") continue;
    SCOPED_TRACE(name);
    const std::vector<float> scales = some_scales(kExperts * kOut);
    write({{"p", DType::F8_E4M3, {kExperts, 48, kOut}, ""},
           {name == "modelopt" ? "p_weight_scale" : "p_scale",
            DType::F32,
            {kExperts, 1, kOut},
            floats(scales)},
           {"l.weight", DType::F8_E4M3, {16, 64}, ""},
           {"l.weight_scale", DType::F32, {16, 1}, floats(some_scales(16))}},
          dialect.config);
    if (name == "fp8") continue;  // no such names there
    EXPECT_TRUE(source().find("p")->column_factors);
    std::vector<float> expected = codes("p");
    for (std::int64_t i = 0; i < std::ssize(expected); ++i) {
      expected[static_cast<std::size_t>(i)] *=
          scales[static_cast<std::size_t>(i / (48 * kOut) * kOut + i % kOut)];
    }
    EXPECT_EQ(values_of(plain(), "p"), expected);
  }
}

}  // namespace
}  // namespace blockscale
