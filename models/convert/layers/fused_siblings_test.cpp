// Weights that engines fuse: warnings where they differ, one tensor scale where it is asked for;
// and options that mean nothing.
#include "models/convert/layers/fused_siblings.h"

#include <gtest/gtest.h>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::f32_tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SiblingsTest : public ::testing::Test {
 protected:
  SiblingsTest() {
    test::write_checkpoint(folder_ / "plain", test::small_model(), {{"model_type", "mixtral"}});
  }
  ConvertReport run(const std::string& from, const std::string& to, const ConvertOptions& options) {
    return convert(folder_ / from, folder_ / to, options);
  }
  /// An NVFP4 checkpoint whose q, k and v were quantized each by itself.
  void make_separate() {
    std::vector<test::TestTensor> parts;
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      const std::string module = std::string("model.layers.0.") + name;
      const float scale = 2688.0f / (1.0f + static_cast<float>(parts.size()));
      parts.push_back({module + ".weight_packed", DType::U8, {4, 32}, ""});
      parts.push_back({module + ".weight_scale", DType::F8_E4M3, {4, 4}, ""});
      parts.push_back({module + ".weight_global_scale", DType::F32, {1}, test::floats({scale})});
    }
    test::write_checkpoint(
        folder_ / "separate", parts,
        test::compressed_tensors_config("nvfp4-pack-quantized", {{"num_bits", 4},
                                                                 {"type", "float"},
                                                                 {"strategy", "tensor_group"},
                                                                 {"group_size", 16}}));
  }

  test::ScratchFolder folder_;
};

TEST_F(SiblingsTest, OfOneRecipeAndScaleGoUnmentioned) {
  EXPECT_TRUE(run("plain", "out", {}).warnings.empty());
  ConvertOptions all_kept;
  all_kept.exclude = {"re:.*\\.[qkv]_proj$"};
  EXPECT_TRUE(run("plain", "kept", all_kept).warnings.empty());
}

TEST_F(SiblingsTest, OfDifferentRecipesAreWarnedOf) {
  ConvertOptions options;
  options.exclude = {"*.k_proj"};
  EXPECT_THAT(
      run("plain", "out", options).warnings,
      ElementsAre("k_proj f32, q_proj nvfp4, v_proj nvfp4 in \"model.layers.0\": engines fuse "
                  "these weights into one, and may not load different recipes"));
  options = {};
  options.map = {{"*.q_proj", Recipe::mxfp8_e4m3}};
  EXPECT_THAT(run("plain", "mixed", options).warnings,
              ElementsAre(HasSubstr("k_proj nvfp4, q_proj mxfp8_e4m3, v_proj nvfp4")));
}

TEST_F(SiblingsTest, OneWarningStandsForAllLayers) {
  std::vector<test::TestTensor> tensors;
  for (const char* layer : {"l.0.", "l.1.", "l.2."}) {
    tensors.push_back(f32_tensor(std::string(layer) + "gate_proj.weight", {4, 64}, 1));
    tensors.push_back(f32_tensor(std::string(layer) + "up_proj.weight", {4, 64}, 2));
  }
  test::write_checkpoint(folder_ / "many", tensors);
  ConvertOptions options;
  options.exclude = {"*.up_proj"};
  EXPECT_THAT(
      run("many", "out", options).warnings,
      ElementsAre(HasSubstr("gate_proj nvfp4, up_proj f32 in \"l.0\" and 2 more: engines")));
}

TEST_F(SiblingsTest, OfDifferentTensorScalesAreWarnedOfOrShareOne) {
  make_separate();
  ConvertOptions options;
  options.dialect = Dialect::modelopt;
  const ConvertReport copied = run("separate", "copied", options);
  EXPECT_THAT(copied.warnings,
              ElementsAre(HasSubstr("k_proj, q_proj, v_proj in \"model.layers.0\" have different "
                                    "tensor scales")));
  const Checkpoint before = Checkpoint::open(folder_ / "copied");
  const auto scale = [](const Checkpoint& checkpoint, const std::string& name) {
    return test::part_f32(checkpoint, "model.layers.0." + name + ".weight_scale_2");
  };
  EXPECT_NE(scale(before, "q_proj"), scale(before, "k_proj"));

  for (const Dialect dialect : {Dialect::modelopt, Dialect::compressed_tensors}) {
    SCOPED_TRACE(dialect_name(dialect));
    options.dialect = dialect;
    options.share_tensor_scales = true;
    options.overwrite = true;
    const ConvertReport report = run("separate", "shared", options);
    EXPECT_TRUE(report.warnings.empty());
    for (const ConvertedTensor& tensor : report.tensors) {
      EXPECT_TRUE(tensor.converted);
      EXPECT_THAT(tensor.reason, HasSubstr("share a tensor scale"));
    }
    const Checkpoint after = Checkpoint::open(folder_ / "shared");
    if (dialect == Dialect::modelopt) {
      EXPECT_EQ(scale(after, "q_proj"), scale(after, "k_proj"));
      EXPECT_EQ(scale(after, "q_proj"), scale(after, "v_proj"));
    }
    // The largest magnitude decides, so that its weight keeps its values nearly.
    double error = 0, sum = 0;
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      const std::string weight = std::string("model.layers.0.") + name + ".weight";
      const std::vector<float> a = test::values_of(before, weight);
      const std::vector<float> b = test::values_of(after, weight);
      for (std::size_t i = 0; i < a.size(); ++i) {
        error += (a[i] - b[i]) * (a[i] - b[i]);
        sum += a[i] * a[i];
      }
    }
    EXPECT_LT(error, 0.02 * sum);
  }
}

TEST_F(SiblingsTest, BehindWrappersShareATensorScale) {
  for (const char* wrapper :
       {"linear", "base_layer", "module", "_orig_mod", "0", "3", "0.linear"}) {
    SCOPED_TRACE(wrapper);
    const std::string end = std::string(".") + wrapper + ".weight";
    const auto named = [&](const char* name) { return std::string("l.0.") + name + end; };
    test::write_checkpoint(folder_ / "wrapped",
                           {test::scaled(f32_tensor(named("q_proj"), {4, 64}, 1), 3.0f),
                            f32_tensor(named("k_proj"), {4, 64}, 2),
                            test::scaled(f32_tensor(named("v_proj"), {4, 64}, 3), 0.25f),
                            f32_tensor(named("gate_proj"), {4, 64}, 4),
                            test::scaled(f32_tensor(named("up_proj"), {4, 64}, 5), 5.0f)});
    ConvertOptions options;
    options.overwrite = true;
    EXPECT_TRUE(run("wrapped", "out", options).warnings.empty());
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    const auto scale = [&](const char* name) {
      return test::part_f32(out, named(name) + "_global_scale");
    };
    EXPECT_EQ(scale("q_proj"), scale("k_proj"));
    EXPECT_EQ(scale("q_proj"), scale("v_proj"));
    EXPECT_EQ(scale("gate_proj"), scale("up_proj"));
    EXPECT_NE(scale("gate_proj"), scale("q_proj"));
    options.exclude = {"*.k_proj*"};
    const std::string number = wrapper[0] == '0' ? ".0" : wrapper[0] == '3' ? ".3" : "";
    EXPECT_THAT(
        run("wrapped", "out", options).warnings,
        ElementsAre("k_proj" + number + " f32, q_proj" + number + " nvfp4, v_proj" + number +
                    " nvfp4 in \"l.0\": engines fuse these weights into one, and "
                    "may not load different recipes"));
  }
}

TEST_F(SiblingsTest, WhatIsExcludedIsNotQuantizedAnew) {
  make_separate();
  ConvertOptions options;
  options.share_tensor_scales = true;
  options.exclude = {"*.k_proj"};
  options.dialect = Dialect::modelopt;
  EXPECT_THAT(run("separate", "out", options).warnings,
              ElementsAre(HasSubstr("have different tensor scales")));
}

TEST_F(SiblingsTest, OptionsThatMeanNothingAreErrors) {
  const auto refuse = [&](const char* argument, const std::string& reason, auto change,
                          Recipe recipe = Recipe::nvfp4, const char* source = "plain") {
    ConvertOptions options;
    options.recipe = recipe;
    change(options);
    expect_error(ErrorCode::invalid_argument, argument, reason,
                 [&] { run(source, "out", options); });
  };
  const auto mode = [](ConvertOptions& o) { o.mx_scale_mode = MxScaleMode::even; };
  const auto floor = [](ConvertOptions& o) { o.fp8_amax_floor = 1e-4f; };
  const auto share = [](ConvertOptions& o) { o.share_tensor_scales = true; };
  const auto scales = [](ConvertOptions& o) { o.activation_scales = "scales.json"; };
  refuse("mx_scale_mode", "given for nvfp4, which has no choice of it: only MX recipes do", mode);
  refuse("fp8_amax_floor", "given for mxfp4, which has none: only FP8 recipes do", floor,
         Recipe::mxfp4);
  refuse("share_tensor_scales", "given for fp8_row", share, Recipe::fp8_row);
  refuse("activation_scales", "given for mxfp4 in compressed-tensors", scales, Recipe::mxfp4);
  refuse("mx_scale_mode", "given for bf16", mode, Recipe::bf16);

  test::write_checkpoint(folder_ / "dense", {f32_tensor("a.q_proj.weight", {4, 64}, 1)});
  refuse(
      "experts_layout", "the source has no stack of experts that it could say",
      [](ConvertOptions& o) { o.experts_layout = ExpertsLayout::out_in; }, Recipe::nvfp4, "dense");
  (void)run("dense", "ready", {});
  refuse(
      "allow_nonfinite", "no tensor is quantized or rounded",
      [](ConvertOptions& o) { o.allow_nonfinite = true; }, Recipe::nvfp4, "ready");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));

  // Any recipe of the map counts.
  ConvertOptions options;
  options.map = {{"*.o_proj", Recipe::mxfp4}, {"*.experts.*", Recipe::fp8_row}};
  mode(options);
  floor(options);
  share(options);
  EXPECT_NO_THROW(run("plain", "out", options));
  options.recipe = Recipe::mxfp8_e4m3;
  options.map = {{"*.o_proj", Recipe::nvfp4}};
  options.fp8_amax_floor = 0;
  EXPECT_NO_THROW(run("plain", "other", options));
}

}  // namespace
}  // namespace blockscale
