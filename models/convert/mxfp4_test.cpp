// MXFP4 sources: gpt-oss in every recipe and plain, and NVFP4 without loss where that is exact.
#include <gtest/gtest.h>

#include <cmath>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::Json;
using test::options_for;
using test::part;
using test::part_f32;
using test::values_of;

class Mxfp4Test : public ::testing::Test {
 protected:
  ConvertReport run(const std::string& source, const std::string& destination,
                    const test::Target& target) {
    ConvertOptions options = options_for(target);
    options.overwrite = true;
    return convert(folder_ / source, folder_ / destination, options);
  }
  /// Weights of compressed-tensors in [rows, k]: random codes, the scale bytes given.
  void write_mxfp4(const std::vector<std::pair<std::string, std::string>>& scales) {
    std::vector<test::TestTensor> tensors;
    for (const auto& [name, bytes] : scales) {
      const auto blocks = static_cast<std::int64_t>(bytes.size()) / 2;
      tensors.push_back({name + ".weight_packed", DType::U8, {2, 16 * blocks}, ""});
      tensors.push_back({name + ".weight_scale", DType::U8, {2, blocks}, bytes});
    }
    std::filesystem::remove_all(folder_ / "mx");
    test::write_checkpoint(folder_ / "mx", tensors);
  }
  void expect_equal_values(const std::string& a, const std::string& b, const std::string& name) {
    EXPECT_EQ(values_of(Checkpoint::open(folder_ / a), name),
              values_of(Checkpoint::open(folder_ / b), name));
  }

  test::ScratchFolder folder_;
};

/// e4m3 has powers of two from 2^-9 to 2^8: 18 of them, so exponents that span no more are exact.
TEST_F(Mxfp4Test, BecomesNvfp4WithoutLossWithinTheRangeOfE4M3) {
  std::string q(2, '\0');
  q[0] = static_cast<char>(130);
  q[1] = static_cast<char>(130 - 17);
  write_mxfp4({{"l.q_proj", q}, {"l.k_proj", std::string(2, static_cast<char>(120))}});
  for (const Dialect dialect : {Dialect::compressed_tensors, Dialect::modelopt}) {
    const ConvertReport report = run("mx", "nv", {Recipe::nvfp4, dialect});
    EXPECT_EQ(report.exact_blocks, 4);
    EXPECT_EQ(report.blocks, 4);
    EXPECT_EQ(report.tensors[1].reason,
              "codes of 2 of 2 blocks copied, as e4m3 holds their scales");
    expect_equal_values("mx", "nv", "l.q_proj.weight");
    expect_equal_values("mx", "nv", "l.k_proj.weight");
    const Checkpoint nv = Checkpoint::open(folder_ / "nv");
    // One tensor scale of both, 2^(3 - 8).
    const bool divisor = dialect == Dialect::compressed_tensors;
    for (const char* name : {"l.q_proj.weight", "l.k_proj.weight"}) {
      EXPECT_EQ(part_f32(nv, std::string(name) + (divisor ? "_global_scale" : "_scale_2")),
                divisor ? 32.0f : 1.0f / 32.0f);
    }
    EXPECT_EQ(part(nv, "l.q_proj.weight_scale"), std::string("\x78\x78\x01\x01", 4));
    EXPECT_EQ(part(nv, divisor ? "l.q_proj.weight_packed" : "l.q_proj.weight"),
              part(Checkpoint::open(folder_ / "mx"), "l.q_proj.weight_packed"));
  }
}

TEST_F(Mxfp4Test, BlocksBeyondThatRangeAreQuantizedAndCounted) {
  const std::string scales = {static_cast<char>(140), static_cast<char>(140 - 18),
                              static_cast<char>(0), static_cast<char>(131)};
  write_mxfp4({{"l.o_proj", scales}});
  const ConvertReport report = run("mx", "nv", {Recipe::nvfp4, Dialect::compressed_tensors});
  EXPECT_EQ(report.blocks, 4);
  EXPECT_EQ(report.exact_blocks, 2);
  const std::vector<float> from = values_of(Checkpoint::open(folder_ / "mx"), "l.o_proj.weight");
  const std::vector<float> to = values_of(Checkpoint::open(folder_ / "nv"), "l.o_proj.weight");
  for (std::size_t i = 0; i < from.size(); ++i) {
    const bool exact = i / 32 == 0 || i / 32 == 3;
    // The tensor scale is 2^5: the others' block scales are at most half of e4m3's least number.
    EXPECT_EQ(to[i], exact ? from[i] : 0.0f) << i;
  }
}

TEST_F(Mxfp4Test, AllZerosAndTheSmallestScalesAreExact) {
  write_mxfp4({{"a", std::string(2, '\0')}});
  EXPECT_EQ(run("mx", "nv", {Recipe::nvfp4, Dialect::compressed_tensors}).exact_blocks, 2);
  expect_equal_values("mx", "nv", "a.weight");
  write_mxfp4({{"a", std::string(2, static_cast<char>(251))}});
  EXPECT_EQ(run("mx", "nv", {Recipe::nvfp4, Dialect::modelopt}).exact_blocks, 2);
  expect_equal_values("mx", "nv", "a.weight");
  const std::string zeros(32, '\x08');  // -0 and 0
  test::write_checkpoint(folder_ / "zero", {{"a.weight_packed", DType::U8, {2, 16}, zeros},
                                            {"a.weight_scale", DType::U8, {2, 1}, "\xF0\x10"}});
  EXPECT_EQ(run("zero", "nv", {Recipe::nvfp4, Dialect::compressed_tensors}).exact_blocks, 2);
  EXPECT_EQ(part(Checkpoint::open(folder_ / "nv"), "a.weight_packed"), zeros);
}

class GptOssTest : public Mxfp4Test {
 protected:
  static constexpr std::int64_t kExperts = 2, kRows = 6, kK = 96;
  void SetUp() override {
    std::string scales(kExperts * kRows * kK / 32, '\0');
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<char>(118 + i % 9);
    test::write_checkpoint(
        folder_ / "oss",
        {{"l.experts.gate_up_proj_blocks", DType::U8, {kExperts, kRows, kK / 32, 16}, ""},
         {"l.experts.gate_up_proj_scales", DType::U8, {kExperts, kRows, kK / 32}, scales},
         test::f32_tensor("l.experts.gate_up_proj_bias", {kExperts, kRows}, 3),
         test::f32_tensor("l.q_proj.weight", {32, 96}, 4)},
        {{"model_type", "gpt_oss"},
         {"torch_dtype", "bfloat16"},
         {"quantization_config",
          {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"l.q_proj"}}}}});
  }
  std::vector<float> source() {
    return values_of(Checkpoint::open(folder_ / "oss"), "l.experts.gate_up_proj");
  }
};

TEST_F(GptOssTest, PlainIsExpertsInOut) {
  const std::vector<float> stored = source();
  for (const Recipe recipe : {Recipe::f32, Recipe::bf16}) {
    for (const std::uint64_t memory : {std::uint64_t{1} << 30, std::uint64_t{24'000}}) {
      ConvertOptions options = options_for({recipe, Dialect::plain});
      options.overwrite = true;
      options.memory_bytes = memory;
      convert(folder_ / "oss", folder_ / "out", options);
      const Checkpoint out = Checkpoint::open(folder_ / "out");
      EXPECT_EQ(out.find("l.experts.gate_up_proj")->shape,
                (std::vector<std::int64_t>{kExperts, kK, kRows}));
      const std::vector<float> values = values_of(out, "l.experts.gate_up_proj");
      for (std::int64_t e = 0; e < kExperts; ++e) {
        for (std::int64_t r = 0; r < kRows; ++r) {
          for (std::int64_t k = 0; k < kK; ++k) {
            EXPECT_EQ(values[static_cast<std::size_t>((e * kK + k) * kRows + r)],
                      stored[static_cast<std::size_t>((e * kRows + r) * kK + k)]);
          }
        }
      }
    }
  }
  const Json config = Json::parse(test::read_text(folder_ / "out" / "config.json"));
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
}

TEST_F(GptOssTest, EveryRecipeInEveryDialect) {
  for (const test::Target& target : test::all_targets()) {
    if (is_plain(target.recipe)) continue;
    SCOPED_TRACE(test::name_of(target));
    run("oss", "out", target);
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    const CheckpointTensor* stack = out.find("l.experts.gate_up_proj");
    ASSERT_NE(stack, nullptr);
    EXPECT_EQ(stack->shape, (std::vector<std::int64_t>{kExperts, kRows, kK}));
    EXPECT_TRUE(stack->quantized);
    EXPECT_FALSE(out.find("l.q_proj.weight")->quantized);
    EXPECT_EQ(part(out, "l.experts.gate_up_proj_bias"),
              part(Checkpoint::open(folder_ / "oss"), "l.experts.gate_up_proj_bias"));
    const bool exact = target.recipe == Recipe::mxfp4 || target.recipe == Recipe::nvfp4;
    EXPECT_TRUE(!exact || values_of(out, "l.experts.gate_up_proj") == source());
  }
}

}  // namespace
}  // namespace blockscale
