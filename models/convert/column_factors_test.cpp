// Weights with factors of their columns: AWQ's pre_quant_scale in ModelOpt, and FBGEMM's stacks.
#include <gtest/gtest.h>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::floats;
using test::Json;
using test::part;
using test::TestTensor;
using test::values_of;

class ColumnFactorsTest : public ::testing::Test {
 protected:
  Checkpoint run(const ConvertOptions& options) {
    ConvertOptions again = options;
    again.overwrite = true;
    report_ = convert(folder_ / "model", folder_ / "out", again);
    return Checkpoint::open(folder_ / "out");
  }
  static ConvertOptions to(Recipe recipe, Dialect dialect) {
    return test::options_for({recipe, dialect});
  }
  const ConvertedTensor& reported(const std::string& name) const {
    return *std::find_if(report_.tensors.begin(), report_.tensors.end(),
                         [&](const ConvertedTensor& t) { return t.name == name; });
  }

  test::ScratchFolder folder_;
  ConvertReport report_;
};

/// o_proj has factors of its 64 inputs, k/64 + 1; q_proj has none, and both the same codes.
class AwqTest : public ColumnFactorsTest {
 protected:
  void SetUp() override {
    std::vector<TestTensor> tensors;
    for (const char* layer : {"l.o_proj", "l.q_proj"}) {
      const std::string name = layer;
      tensors.push_back({name + ".weight", DType::U8, {4, 32}, codes_});
      tensors.push_back({name + ".weight_scale", DType::F8_E4M3, {4, 4}, std::string(16, '\x38')});
      tensors.push_back({name + ".weight_scale_2", DType::F32, {}, floats({0.25f})});
      tensors.push_back({name + ".input_scale", DType::F32, {}, floats({0.5f})});
    }
    std::vector<float> factors;
    for (int k = 0; k < 64; ++k) factors.push_back(1.0f + static_cast<float>(k) / 64.0f);
    tensors.push_back({"l.o_proj.pre_quant_scale", DType::F32, {64}, floats(factors)});
    test::write_checkpoint(
        folder_ / "model", tensors,
        {{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4_AWQ"}}}});
    test::write_text(folder_ / "model" / "hf_quant_config.json",
                     R"({"producer": {"name": "modelopt"}, "quantization": {"group_size": 16,
                         "quant_algo": "NVFP4_AWQ", "pre_quant_scale": true}})");
  }
  /// Of the codes 0x53 in turn: 1.5 and 3, block scales 1, tensor scale 1/4.
  static float value(int k) { return (k % 2 == 0 ? 1.5f : 3.0f) * 0.25f; }

  const std::string codes_ = std::string(4 * 32, '\x53');
};

TEST_F(AwqTest, FactorsAreAppliedToTheColumns) {
  const Checkpoint source = Checkpoint::open(folder_ / "model");
  EXPECT_TRUE(source.find("l.o_proj.weight")->column_factors);
  EXPECT_FALSE(source.find("l.q_proj.weight")->column_factors);
  EXPECT_EQ(source.find("l.o_proj.pre_quant_scale"), nullptr);
  expect_error(ErrorCode::unsupported, "l.o_proj.weight", "\"l.o_proj.pre_quant_scale\"",
               [&] { source.view(*source.find("l.o_proj.weight")); });
  const Checkpoint plain = run(to(Recipe::f32, Dialect::plain));
  const std::vector<float> with = values_of(plain, "l.o_proj.weight");
  const std::vector<float> without = values_of(plain, "l.q_proj.weight");
  for (int i = 0; i < 4 * 64; ++i) {
    const int k = i % 64;
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(without[at], value(k));
    EXPECT_EQ(with[at], value(k) * (1.0f + static_cast<float>(k) / 64.0f));
  }
  EXPECT_EQ(reported("l.o_proj.weight").reason, "factors of its columns applied");
  const CompareReport same = compare(folder_ / "model", folder_ / "out");
  EXPECT_EQ(same.tensors.size(), 2u);
  EXPECT_EQ(same.total.status, ComparisonStatus::equal);
}

TEST_F(AwqTest, WeightsWithFactorsAreQuantizedAnewAndInputScalesGo) {
  for (const Dialect dialect : {Dialect::compressed_tensors, Dialect::modelopt}) {
    ConvertOptions options = to(Recipe::nvfp4, dialect);
    options.activations =
        dialect == Dialect::modelopt ? std::optional(Activations::none) : std::nullopt;
    const Checkpoint out = run(options);
    const bool modelopt = dialect == Dialect::modelopt;
    EXPECT_EQ(part(out, modelopt ? "l.q_proj.weight" : "l.q_proj.weight_packed"), codes_);
    EXPECT_NE(part(out, modelopt ? "l.o_proj.weight" : "l.o_proj.weight_packed"), codes_);
    EXPECT_EQ(out.store().find("l.o_proj.pre_quant_scale"), nullptr);
    for (const char* name : {"l.q_proj.input_scale", "l.o_proj.input_global_scale"}) {
      EXPECT_EQ(out.store().find(name), nullptr) << name;
    }
    const std::vector<float> values = values_of(out, "l.o_proj.weight");
    for (int k = 0; k < 64; ++k) {
      const float wanted = value(k) * (1.0f + static_cast<float>(k) / 64.0f);
      EXPECT_NEAR(values[static_cast<std::size_t>(k)], wanted, wanted / 4);
    }
    EXPECT_EQ(reported("l.o_proj.weight").reason, "factors of its columns applied");
    const Json config = Json::parse(test::read_text(folder_ / "out" / "config.json"));
    EXPECT_EQ(config.dump().find("AWQ"), std::string::npos);
  }
}

TEST_F(AwqTest, NothingChangesWhereNothingIsAskedFor) {
  run(to(Recipe::nvfp4, Dialect::modelopt));
  EXPECT_EQ(test::contents(folder_ / "out")["config.json"],
            test::contents(folder_ / "model")["config.json"]);
  const Checkpoint out = Checkpoint::open(folder_ / "out");
  EXPECT_TRUE(out.find("l.o_proj.weight")->column_factors);
  const Checkpoint source = Checkpoint::open(folder_ / "model");
  for (const auto& [name, entry] : source.store().tensors()) {
    EXPECT_EQ(part(out, name), part(source, name)) << name;
  }
}

TEST_F(AwqTest, ExcludedWeightsBecomePlain) {
  ConvertOptions options = to(Recipe::nvfp4, Dialect::modelopt);
  options.exclude = {"l.o_proj"};
  const Checkpoint out = run(options);
  EXPECT_EQ(out.find("l.o_proj.weight")->recipe, Recipe::bf16);
  EXPECT_EQ(values_of(out, "l.o_proj.weight")[32], value(32) * 1.5f);
  EXPECT_EQ(reported("l.o_proj.weight").reason,
            "excluded; as bf16, with the factors of its columns applied");
}

/// Llama 4 in fbgemm_fp8: stacks [experts, in, out] with a scale an output.
class FbgemmStackTest : public ColumnFactorsTest {
 protected:
  static constexpr std::int64_t kExperts = 2, kIn = 32, kOut = 48;

  void write() {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(
        folder_ / "model",
        {{"l.experts.gate_up_proj", DType::F8_E4M3, {kExperts, kIn, kOut}, ""},
         {"l.experts.gate_up_proj_scale", DType::F32, {kExperts, 1, kOut}, floats(scales(0))},
         {"l.experts.down_proj", DType::F8_E4M3, {kExperts, kIn, kOut}, ""},
         {"l.experts.down_proj_scale", DType::F32, {kExperts, kOut, 1}, floats(scales(1))},
         {"l.o_proj.weight", DType::F8_E4M3, {4, 32}, ""},
         {"l.o_proj.weight_scale", DType::F32, {4, 1}, floats({1, 2, 3, 4})}},
        {{"model_type", "llama4_text"}, {"quantization_config", {{"quant_method", "fbgemm_fp8"}}}});
  }
  static std::vector<float> scales(int seed) {
    std::vector<float> result;
    for (int i = 0; i < kExperts * kOut; ++i) {
      result.push_back(std::ldexp(static_cast<float>(1 + (i * 7 + seed) % 13), -6));
    }
    return result;
  }
  std::vector<float> expected(const std::string& name, int seed) {
    const Checkpoint source = Checkpoint::open(folder_ / "model");
    const std::string codes = part(source, name);
    std::vector<float> result;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const std::size_t e = i / (kIn * kOut), out = i % kOut;
      result.push_back(decode<Format::e4m3>(static_cast<std::uint8_t>(codes[i])) *
                       scales(seed)[e * kOut + out]);
    }
    return result;
  }
};

TEST_F(FbgemmStackTest, PlainIsAsLlama4HasIt) {
  write();
  const Checkpoint source = Checkpoint::open(folder_ / "model");
  EXPECT_TRUE(source.find("l.experts.gate_up_proj")->column_factors);
  const Checkpoint plain = run(to(Recipe::f32, Dialect::plain));
  EXPECT_EQ(plain.find("l.experts.gate_up_proj")->shape,
            (std::vector<std::int64_t>{kExperts, kIn, kOut}));
  EXPECT_EQ(values_of(plain, "l.experts.gate_up_proj"), expected("l.experts.gate_up_proj", 0));
  EXPECT_EQ(values_of(plain, "l.experts.down_proj"), expected("l.experts.down_proj", 1));
}

TEST_F(FbgemmStackTest, StacksBecomePlainBesideQuantizedWeights) {
  write();
  for (const auto& [recipe, dialect] : {std::pair(Recipe::fp8_row, Dialect::compressed_tensors),
                                        std::pair(Recipe::nvfp4, Dialect::modelopt)}) {
    ConvertOptions options = to(recipe, dialect);
    const Checkpoint out = run(options);
    EXPECT_EQ(out.find("l.o_proj.weight")->recipe, recipe);
    EXPECT_EQ(out.find("l.experts.down_proj")->recipe, Recipe::bf16);
    EXPECT_EQ(reported("l.experts.down_proj").reason,
              "is stored as [in, out], scales run along the last dimension; as bf16, with the "
              "factors of its columns applied");
  }
}

TEST_F(FbgemmStackTest, ScalesOfAnotherShapeAreRefused) {
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{kExperts, 1, kOut - 1},
                                                 std::vector<std::int64_t>{kExperts * kOut}}) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model",
                           {{"l.experts.up", DType::F8_E4M3, {kExperts, kIn, kOut}, ""},
                            {"l.experts.up_scale", DType::F32, shape, ""}},
                           {{"quantization_config", {{"quant_method", "fbgemm_fp8"}}}});
    expect_error(ErrorCode::corrupt_file, "l.experts.up",
                 "must be F32, BF16 or F16 [2, 1, 48] or [2, 48, 1], one for each output",
                 [&] { Checkpoint::open(folder_ / "model"); });
  }
}

}  // namespace
}  // namespace blockscale
