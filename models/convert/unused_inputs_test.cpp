// Input scales of 0, of experts that no token reached in calibration: dropped, or stored as 1.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::floats;
using test::Json;
using test::part;
using test::part_f32;
using test::TestTensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Two layers in one dialect, of which the second was never reached.
struct Form {
  std::string name;
  Recipe recipe;
  Dialect dialect;  // of a destination that has input scales of this kind
  std::vector<TestTensor> tensors;
  Json config;
  std::string unused;      // name of the scale that means nothing
  std::string there, one;  // the destination's names of the first and of that one
};

std::vector<TestTensor> two_layers(const std::string& values, const std::string& input, DType dtype,
                                   std::int64_t k, const std::vector<TestTensor>& scales,
                                   std::vector<float> unused) {
  std::vector<TestTensor> tensors;
  for (const std::string layer : {"e0", "e1"}) {
    tensors.push_back({layer + values, dtype, {4, k}, ""});
    for (const TestTensor& t : scales) {
      tensors.push_back({layer + t.name, t.dtype, t.shape, t.data});
    }
    tensors.push_back({layer + input, DType::F32, {1}, floats({0.5f})});
  }
  tensors.back().data = floats(unused);
  return tensors;
}

std::vector<Form> forms() {
  const TestTensor blocks = {".weight_scale", DType::F8_E4M3, {4, 2}, ""};
  const TestTensor whole = {".weight_scale", DType::F32, {1}, floats({0.25f})};
  Json modelopt_fp8 = test::modelopt_config();
  modelopt_fp8["quantization_config"]["quant_algo"] = "FP8";
  const Json fp8 = {
      {"quantization_config", {{"quant_method", "fp8"}, {"activation_scheme", "static"}}}};
  std::vector<Form> result = {
      {"modelopt nvfp4", Recipe::nvfp4, Dialect::modelopt,
       two_layers(".weight", ".input_scale", DType::U8, 16,
                  {blocks, {".weight_scale_2", DType::F32, {}, floats({0.25f})}}, {0}),
       test::modelopt_config(), "e1.input_scale", "e0.input_scale", "e1.input_scale"},
      {"modelopt fp8", Recipe::fp8_tensor, Dialect::modelopt,
       two_layers(".weight", ".input_scale", DType::F8_E4M3, 32, {whole}, {0}), modelopt_fp8,
       "e1.input_scale", "e0.input_scale", "e1.input_scale"},
      {"deepseek", Recipe::fp8_tensor, Dialect::compressed_tensors,
       two_layers(".weight", ".activation_scale", DType::F8_E4M3, 32, {whole}, {0}), fp8,
       "e1.activation_scale", "e0.input_scale", "e1.input_scale"},
      {"ct fp8, minus 0", Recipe::fp8_tensor, Dialect::compressed_tensors,
       two_layers(".weight", ".input_scale", DType::F8_E4M3, 32, {whole}, {-0.0f}), nullptr,
       "e1.input_scale", "e0.input_scale", "e1.input_scale"}};
  for (const float unused : {0.0f, kInfinity}) {
    result.push_back(
        {"ct nvfp4, " + std::to_string(unused), Recipe::nvfp4, Dialect::compressed_tensors,
         two_layers(".weight_packed", ".input_global_scale", DType::U8, 16,
                    {blocks, {".weight_global_scale", DType::F32, {1}, floats({8.0f})}}, {unused}),
         nullptr, "e1.input_global_scale", "e0.input_global_scale", "e1.input_global_scale"});
  }
  return result;
}

class UnusedInputsTest : public ::testing::Test {
 protected:
  void write(const Form& form) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", form.tensors, form.config);
  }
  Checkpoint run(const ConvertOptions& options) {
    ConvertOptions again = options;
    again.overwrite = true;
    report_ = convert(folder_ / "model", folder_ / "out", again);
    return Checkpoint::open(folder_ / "out");
  }
  std::string warnings() const {
    std::string text;
    for (const std::string& line : report_.warnings) text += line + "\n";
    return text;
  }

  test::ScratchFolder folder_;
  ConvertReport report_;
};

TEST_F(UnusedInputsTest, NoneBlocksAConversionToPlain) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    write(form);
    const Checkpoint source = Checkpoint::open(folder_ / "model");
    EXPECT_EQ(source.problem(*source.find("e1.weight")), "");
    const Checkpoint out = run(test::options_for({Recipe::bf16, Dialect::plain}));
    EXPECT_EQ(out.tensors().size(), 2u);
    EXPECT_EQ(out.find("e1.weight")->dtype, DType::BF16);
    EXPECT_NE(warnings().find("(\"" + form.unused + "\"): they are 0"), std::string::npos)
        << warnings();
  }
}

TEST_F(UnusedInputsTest, TheyAreDroppedWithAllOthersOfTheRecipe) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    write(form);
    const ConvertOptions options = test::options_for({form.recipe, form.dialect});
    if (form.name == "modelopt fp8") {  // which has static ones only
      expect_error(ErrorCode::invalid_argument, "activation_scales", "is not given, and must be",
                   [&] { run(options); });
      continue;
    }
    const Checkpoint out = run(options);
    EXPECT_EQ(out.find("e1.weight")->recipe, form.recipe);
    for (const auto& [name, entry] : out.store().tensors()) {
      EXPECT_EQ(name.find("input"), std::string::npos) << name;
    }
    EXPECT_NE(warnings().find("unused_inputs = one stores 1"), std::string::npos) << warnings();
    EXPECT_NE(warnings().find("other weights in"), std::string::npos) << warnings();
  }
}

TEST_F(UnusedInputsTest, OrStoredAsOne) {
  for (const Form& form : forms()) {
    SCOPED_TRACE(form.name);
    write(form);
    ConvertOptions options = test::options_for({form.recipe, form.dialect});
    options.unused_inputs = UnusedInputs::one;
    const Checkpoint source = Checkpoint::open(folder_ / "model");
    const Checkpoint out = run(options);
    EXPECT_EQ(part_f32(out, form.there), 0.5f);
    EXPECT_EQ(part_f32(out, form.one), 1.0f);
    const bool packed = out.store().find("e1.weight_packed") != nullptr;
    const std::string values = packed ? "e1.weight_packed" : "e1.weight";
    EXPECT_EQ(part(out, values), part(source, values));
    EXPECT_EQ(warnings(), "stored 1 for input scales of 0 (\"" + form.unused +
                              "\"): calibration never reached those layers\n");
  }
  // In the other sense, too.
  write(forms()[0]);
  ConvertOptions options = test::options_for({Recipe::nvfp4, Dialect::compressed_tensors});
  options.unused_inputs = UnusedInputs::one;
  const Checkpoint out = run(options);
  EXPECT_EQ(part_f32(out, "e0.input_global_scale"), 2.0f);
  EXPECT_EQ(part_f32(out, "e1.input_global_scale"), 1.0f);
}

TEST_F(UnusedInputsTest, OfAStackSomeMayBe) {
  const std::vector<TestTensor> stack = {
      {"experts.up", DType::U8, {2, 4, 16}, ""},
      {"experts.up_weight_scale", DType::F8_E4M3, {2, 4, 2}, ""},
      {"experts.up_weight_scale_2", DType::F32, {2}, floats({0.5f, 0.25f})},
      {"experts.up_input_scale", DType::F32, {2}, floats({0.5f, 0.0f})}};
  test::write_checkpoint(folder_ / "model", stack, test::modelopt_config());
  EXPECT_EQ(run(test::options_for({Recipe::bf16, Dialect::plain})).tensors().size(), 1u);
  ConvertOptions options = test::options_for({Recipe::nvfp4, Dialect::modelopt});
  options.unused_inputs = UnusedInputs::one;
  EXPECT_EQ(part(run(options), "experts.up_input_scale"), floats({0.5f, 1.0f}));
}

TEST_F(UnusedInputsTest, GivenScalesStandForThem) {
  write(forms()[0]);
  test::write_text(folder_ / "scales.json", R"({"e0.weight": 4, "e1.weight": 8})");
  ConvertOptions options = test::options_for({Recipe::nvfp4, Dialect::modelopt});
  options.activation_scales = folder_ / "scales.json";
  EXPECT_EQ(part_f32(run(options), "e1.input_scale"), 8.0f / 2688.0f);
  EXPECT_EQ(warnings(), "");
}

TEST_F(UnusedInputsTest, WhatIsNo0IsRefusedAsEver) {
  for (Form form : forms()) {
    SCOPED_TRACE(form.name);
    const bool divisor = form.name.starts_with("ct nvfp4");
    for (const float scale : {-1.0f, std::nanf(""), divisor ? -kInfinity : kInfinity}) {
      form.tensors.back().data = floats({scale});
      write(form);
      expect_error(ErrorCode::corrupt_file, form.unused, "must be finite and above 0",
                   [&] { run(test::options_for({Recipe::bf16, Dialect::plain})); });
    }
    form.tensors.back().data = floats({1.0f});
    write(form);
    ConvertOptions options = test::options_for({Recipe::bf16, Dialect::plain});
    options.unused_inputs = UnusedInputs::one;
    expect_error(ErrorCode::invalid_argument, "unused_inputs", "no input scale of the source is 0",
                 [&] { run(options); });
    options.unused_inputs = static_cast<UnusedInputs>(2);
    expect_error(ErrorCode::invalid_argument, "unused_inputs", "must be drop or one",
                 [&] { run(options); });
  }
}

}  // namespace
}  // namespace blockscale
