// LightX2V's checkpoints: read, written, converted, refused.
#include <gtest/gtest.h>

#include "models/dialects/swizzled_testing.h"

namespace blockscale {
namespace {

using test::BlockWeight;
using test::expect_error;
using test::floats;
using test::part;
using test::part_f32;
using test::TestTensor;
using test::values_of;

class LightX2VTest : public test::DialectTest {
 protected:
  void write(const std::vector<TestTensor>& tensors) {
    std::filesystem::remove_all(folder_ / "model");
    test::write_checkpoint(folder_ / "model", tensors);
  }
  Checkpoint open(const std::vector<TestTensor>& tensors) {
    write(tensors);
    return Checkpoint::open(folder_ / "model");
  }
  void expect_refused(ErrorCode code, const std::vector<TestTensor>& tensors,
                      const std::string& argument, const std::string& reason) {
    SCOPED_TRACE(reason);
    write(tensors);
    expect_error(code, argument, reason, [&] { Checkpoint::open(folder_ / "model"); });
  }
  /// `module`'s weight and swizzled scales.
  static std::vector<TestTensor> stored(const std::string& module, const BlockWeight& weight) {
    return {{module + ".weight", DType::U8, {weight.rows, weight.row_bytes()}, weight.codes},
            {module + ".weight_scale",
             weight.e8m0 ? DType::F8_E8M0 : DType::F8_E4M3,
             {weight.padded_rows(), weight.padded_columns()},
             weight.swizzled()}};
  }
  static BlockWeight filled(BlockWeight weight) {
    weight.fill(static_cast<unsigned>(weight.k + weight.bits));
    return weight;
  }
};

const BlockWeight kMxfp4 = {130, 256, 4, 2, 32, true};
const BlockWeight kMxfp6 = {130, 512, 6, 3, 32, true};
const BlockWeight kRaggedMxfp8 = {130, 416, 8, 4, 32, true};
const BlockWeight kNvfp4 = {130, 96, 4, 2, 16, false};

TEST_F(LightX2VTest, BlocksOf32AreToldApartByTheirShapes) {
  for (const auto& [weight, recipe] :
       {std::pair(kMxfp4, Recipe::mxfp4), std::pair(kMxfp6, Recipe::mxfp6_e3m2),
        std::pair(kRaggedMxfp8, Recipe::mxfp8_e4m3)}) {
    SCOPED_TRACE(recipe_traits(recipe).name);
    const BlockWeight w = filled(weight);
    std::vector<TestTensor> tensors = stored("blocks.0.ffn.0", w);
    tensors.push_back({"blocks.0.ffn.0.bias", DType::BF16, {130}, ""});
    const Checkpoint checkpoint = open(tensors);
    EXPECT_EQ(checkpoint.dialect(), Dialect::lightx2v);
    const CheckpointTensor* tensor = checkpoint.find("blocks.0.ffn.0.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->recipe, recipe);
    EXPECT_EQ(tensor->shape, (std::vector<std::int64_t>{w.rows, w.k}));
    EXPECT_EQ(checkpoint.view(*tensor).layout, ScaleLayout::swizzled_128x4);
    EXPECT_EQ(values_of(checkpoint, tensor->name), w.values());
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), tensor->name), w.values());
    converted(Recipe::nvfp4, Dialect::compressed_tensors);
    EXPECT_EQ(report_.source_dialect, Dialect::lightx2v);
    EXPECT_EQ(report_.activations[0], recipe == Recipe::mxfp4
                                          ? "nvfp4: dynamic, as in the source"
                                          : "nvfp4: none, dynamic in the source, in other bits");
  }
}

TEST_F(LightX2VTest, CodesAndScalesAreCarriedOverRowByRow) {
  const BlockWeight mxfp4 = filled(kMxfp4);
  write(stored("a", mxfp4));
  const Checkpoint ct = converted(Recipe::mxfp4, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, "a.weight_packed"), mxfp4.codes);
  EXPECT_EQ(part(ct, "a.weight_scale"), mxfp4.scales);
  const BlockWeight mxfp8 = filled(kRaggedMxfp8);
  write(stored("a", mxfp8));
  const Checkpoint mo = converted(Recipe::mxfp8_e4m3, Dialect::modelopt);
  EXPECT_EQ(part(mo, "a.weight"), mxfp8.codes);
  EXPECT_EQ(part(mo, "a.weight_scale"), mxfp8.scales);
}

TEST_F(LightX2VTest, Nvfp4HasATensorScaleAndInputs) {
  BlockWeight w = filled(kNvfp4);
  std::vector<TestTensor> tensors = stored("a", w);
  tensors.push_back({"a.weight_global_scale", DType::F32, {}, floats({512.0f})});
  tensors.push_back({"a.input_absmax", DType::F32, {}, floats({42.0f})});
  w.factor = 1.0f / 512.0f;
  const Checkpoint checkpoint = open(tensors);
  EXPECT_EQ(checkpoint.dialect(), Dialect::lightx2v);
  EXPECT_EQ(values_of(checkpoint, "a.weight"), w.values());
  const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, "a.weight_packed"), w.codes);
  EXPECT_EQ(part(ct, "a.weight_scale"), w.scales);
  EXPECT_EQ(part_f32(ct, "a.weight_global_scale"), 512.0f);
  EXPECT_EQ(part_f32(ct, "a.input_global_scale"), 64.0f);  // 2688 / 42
  const Checkpoint mo = converted(Recipe::nvfp4, Dialect::modelopt);
  EXPECT_EQ(part(mo, "a.weight_scale"), w.scales);
  EXPECT_EQ(part_f32(mo, "a.weight_scale_2"), w.factor);
  EXPECT_EQ(part_f32(mo, "a.input_scale"), 1.0f / 64.0f);
  EXPECT_EQ(report_.activations[0], "nvfp4: static, as in the source");
}

/// alpha is 1 / (input_global_scale * weight_global_scale): of the two, one may stand for the
/// other.
TEST_F(LightX2VTest, Nvfp4MayHaveAlpha) {
  BlockWeight w = filled(kNvfp4);
  w.factor = 1.0f / 512.0f;
  std::vector<TestTensor> tensors = stored("a", w);
  tensors.push_back({"a.input_global_scale", DType::F32, {}, floats({64.0f})});
  tensors.push_back({"a.alpha", DType::F32, {}, floats({1.0f / (64.0f * 512.0f)})});
  for (const bool both : {false, true}) {
    if (both) tensors.push_back({"a.weight_global_scale", DType::F32, {1}, floats({512.0f})});
    write(tensors);
    EXPECT_EQ(values_of(converted(Recipe::f32, Dialect::plain), "a.weight"), w.values());
    const Checkpoint ct = converted(Recipe::nvfp4, Dialect::compressed_tensors);
    EXPECT_EQ(part_f32(ct, "a.weight_global_scale"), 512.0f);
    EXPECT_EQ(part_f32(ct, "a.input_global_scale"), 64.0f);
    EXPECT_EQ(ct.store().find("a.alpha"), nullptr);
    EXPECT_EQ(part_f32(converted(Recipe::nvfp4, Dialect::modelopt), "a.input_scale"), 1.0f / 64.0f);
  }
}

TEST_F(LightX2VTest, Fp8HasItsIndexAsAMark) {
  const TestTensor values = {"blocks.0.attn.q.weight", DType::F8_E4M3, {4, 32}, ""};
  const TestTensor scales = {
      "blocks.0.attn.q.weight_scale", DType::F32, {4, 1}, floats({0.5f, 1.0f, 0.25f, 2.0f})};
  std::filesystem::create_directories(folder_ / "model");
  test::write_store(folder_ / "model" / "block_0.safetensors", {values, scales});
  EXPECT_EQ(Checkpoint::open(folder_ / "model").dialect(), Dialect::compressed_tensors);
  test::write_text(folder_ / "model" / "diffusion_pytorch_model.safetensors.index.json",
                   R"({"weight_map": {"blocks.0.attn.q.weight": "block_0.safetensors",
                       "blocks.0.attn.q.weight_scale": "block_0.safetensors"}})");
  const Checkpoint checkpoint = Checkpoint::open(folder_ / "model");
  EXPECT_EQ(checkpoint.dialect(), Dialect::lightx2v);
  EXPECT_EQ(checkpoint.find("blocks.0.attn.q.weight")->recipe, Recipe::fp8_row);
  const std::string codes = part(checkpoint, values.name);
  std::vector<float> expected;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float factor[] = {0.5f, 1.0f, 0.25f, 2.0f};
    expected.push_back(test::small_float(codes[i], 4, 3) * factor[i / 32]);
  }
  EXPECT_EQ(values_of(checkpoint, values.name), expected);
  const Checkpoint ct = converted(Recipe::fp8_row, Dialect::compressed_tensors);
  EXPECT_EQ(part(ct, values.name), codes);
  EXPECT_EQ(report_.activations[0], "fp8_row: dynamic, as in the source");
  EXPECT_TRUE(test::read_text(folder_ / "out" / "config.json").find("float-quantized") !=
              std::string::npos);
}

TEST_F(LightX2VTest, WhatFitsSeveralRecipesIsRefusedUnlessAnotherWeightDecides) {
  const BlockWeight small = filled({128, 96, 4, 2, 32, true});  // or mxfp6 of 64
  expect_refused(ErrorCode::unsupported, stored("a", small), "a.weight",
                 "is mxfp4 and mxfp6_e3m2 alike by its shapes");
  std::vector<TestTensor> both = stored("a", small);
  for (TestTensor& tensor : stored("b", filled(kMxfp4))) both.push_back(std::move(tensor));
  EXPECT_EQ(open(both).find("a.weight")->recipe, Recipe::mxfp4);
}

TEST_F(LightX2VTest, WhatDoesNotFitIsRefused) {
  const BlockWeight w = filled(kMxfp4);
  std::vector<TestTensor> row_major = stored("a", w);
  row_major[1] = {"a.weight_scale", DType::F8_E8M0, {w.rows, w.columns()}, w.scales};
  expect_refused(ErrorCode::corrupt_file, row_major, "a.weight",
                 "have shape [130, 8], must be [256, 8] for mxfp4");
  std::vector<TestTensor> lacking = stored("a", w);
  lacking.push_back({"b.weight", DType::U8, {130, 128}, w.codes});
  expect_refused(ErrorCode::corrupt_file, lacking, "b.weight",
                 "has no scales b.weight_scale in any shard");
  std::vector<TestTensor> nvfp4 = stored("a", filled(kNvfp4));
  nvfp4.push_back({"a.alpha", DType::F32, {}, floats({1.0f})});
  expect_refused(ErrorCode::corrupt_file, nvfp4, "a.weight", "has no tensor scale");
  std::vector<TestTensor> int8 = stored("a", w);
  int8.push_back({"b.weight", DType::I8, {4, 32}, ""});
  int8.push_back({"b.weight_scale", DType::F32, {4, 1}, ""});
  expect_refused(ErrorCode::unsupported, int8, "b.weight", "holds int8");
  std::vector<TestTensor> negative = stored("a", filled(kNvfp4));
  negative.push_back({"a.weight_global_scale", DType::F32, {}, floats({512.0f})});
  negative.push_back({"a.input_absmax", DType::F32, {}, floats({-1.0f})});
  write(negative);
  expect_error(ErrorCode::corrupt_file, "a.input_absmax", "must be finite and above 0",
               [&] { converted(Recipe::nvfp4, Dialect::modelopt); });
  std::vector<TestTensor> large = stored("a", filled(kNvfp4));
  large.push_back({"a.input_global_scale", DType::F32, {}, floats({1e30f})});
  large.push_back({"a.alpha", DType::F32, {}, floats({1e30f})});
  write(large);
  expect_error(ErrorCode::corrupt_file, "a.alpha", "is inf, must be finite and above 0",
               [&] { converted(Recipe::nvfp4, Dialect::modelopt); });
}

TEST_F(LightX2VTest, ItsComfyuiModeIsComfyUisFp8) {
  for (const DType dtype : {DType::F8_E4M3, DType::F8_E5M2}) {
    const std::vector<TestTensor> tensors = {{"a.weight", dtype, {2, 32}, ""},
                                             {"a.scale_weight", DType::F32, {}, floats({0.5f})}};
    EXPECT_EQ(open(tensors).dialect(), Dialect::comfy);
  }
  EXPECT_EQ(open({{"a.weight", DType::F8_E4M3, {2, 32}, ""}}).dialect(), Dialect::plain);
}

// ---- Writing ------------------------------------------------------------------------------------

/// Rows of several pieces and of a part of a tile, columns of a part of a tile.
constexpr std::int64_t kRows = 300, kK = 2144;
constexpr Recipe kWritten[] = {Recipe::nvfp4, Recipe::mxfp4, Recipe::mxfp6_e3m2, Recipe::mxfp8_e4m3,
                               Recipe::fp8_row};

class LightX2VWriteTest : public LightX2VTest {
 protected:
  void SetUp() override {
    write({test::f32_tensor("blocks.0.q.weight", {kRows, kK}, 1),
           test::f32_tensor("blocks.0.o.weight", {64, 512}, 2),
           {"blocks.0.q.bias", DType::BF16, {kRows}, ""}});
    test::write_text(folder_ / "scales.json", R"({"blocks.0.q": 42.0, "blocks.0.o": 21.0})");
  }
  ConvertReport run(const std::string& from, const std::string& to, Recipe recipe, Dialect dialect,
                    bool with_scales = false) {
    ConvertOptions options = test::options_for({recipe, dialect});
    options.overwrite = true;
    if (with_scales) options.activation_scales = folder_ / "scales.json";
    return convert(folder_ / from, folder_ / to, options);
  }
  Checkpoint at(const std::string& name) { return Checkpoint::open(folder_ / name); }
};

/// Codes and scales are those that the quantizer makes of the same rows at once.
TEST_F(LightX2VWriteTest, TilesHoldTheScalesOfTheQuantizer) {
  const std::vector<float> x = test::normal_values(kRows * kK, 1);
  for (const Recipe recipe : kWritten) {
    const RecipeTraits& t = recipe_traits(recipe);
    SCOPED_TRACE(t.name);
    run("model", "out", recipe, Dialect::lightx2v);
    const Checkpoint out = at("out");
    EXPECT_EQ(out.dialect(), Dialect::lightx2v);
    EXPECT_EQ(out.find("blocks.0.q.weight")->recipe, recipe);
    EXPECT_EQ(part(out, "blocks.0.q.bias"), part(at("model"), "blocks.0.q.bias"));
    const ScaleGrid grid = scale_grid(recipe, kRows, kK);
    std::string codes(static_cast<std::size_t>(kRows * row_bytes(recipe, kK)), '\0');
    std::string scales(
        static_cast<std::size_t>(scale_bytes(recipe, ScaleLayout::row_major, kRows, kK)), '\0');
    float factor = 0;
    MutableScaledTensorView view;
    view.recipe = recipe;
    view.rows = kRows;
    view.k = kK;
    view.values = codes.data();
    view.scales = scales.data();
    if (t.tensor_scale) view.tensor_scale = &factor;
    QuantizeOptions options;
    options.mx_scale_mode = MxScaleMode::ceil;
    quantize(MatrixView{x.data(), Format::f32, kRows, kK}, view, options);
    EXPECT_EQ(part(out, "blocks.0.q.weight"), codes);
    const bool rows = recipe == Recipe::fp8_row;
    EXPECT_EQ(
        part(out, "blocks.0.q.weight_scale"),
        rows ? scales : test::swizzle(scales, kRows, static_cast<std::size_t>(grid.columns), '\0'));
    if (!t.tensor_scale) continue;
    EXPECT_EQ(part_f32(out, "blocks.0.q.weight_global_scale"), factor);
  }
}

TEST_F(LightX2VWriteTest, HasTheDtypesAndShapesThatItsLoaderTakes) {
  const auto info = [&](Recipe recipe, const std::string& name) {
    run("model", "out", recipe, Dialect::lightx2v, recipe == Recipe::nvfp4);
    return at("out").store().find("blocks.0.q." + name)->info;
  };
  using Shape = std::vector<std::int64_t>;
  struct Wanted {
    Recipe recipe;
    DType values, scales;
    std::int64_t row;
    Shape scale_shape;
  };
  for (const Wanted& wanted :
       {Wanted{Recipe::nvfp4, DType::U8, DType::F8_E4M3, kK / 2, {384, 136}},
        Wanted{Recipe::mxfp4, DType::U8, DType::F8_E8M0, kK / 2, {384, 68}},
        Wanted{Recipe::mxfp6_e3m2, DType::U8, DType::F8_E8M0, kK * 3 / 4, {384, 68}},
        Wanted{Recipe::mxfp8_e4m3, DType::U8, DType::F8_E8M0, kK, {384, 68}},
        Wanted{Recipe::fp8_row, DType::F8_E4M3, DType::F32, kK, {kRows, 1}}}) {
    SCOPED_TRACE(recipe_traits(wanted.recipe).name);
    EXPECT_EQ(info(wanted.recipe, "weight").dtype, wanted.values);
    EXPECT_EQ(info(wanted.recipe, "weight").shape, (Shape{kRows, wanted.row}));
    EXPECT_EQ(info(wanted.recipe, "weight_scale").dtype, wanted.scales);
    EXPECT_EQ(info(wanted.recipe, "weight_scale").shape, wanted.scale_shape);
  }
  for (const char* scalar : {"weight_global_scale", "input_global_scale", "alpha"}) {
    EXPECT_EQ(info(Recipe::nvfp4, scalar).dtype, DType::F32);
    EXPECT_EQ(info(Recipe::nvfp4, scalar).shape, Shape{});
  }
}

TEST_F(LightX2VWriteTest, IsReadBackByteForByte) {
  for (const Recipe recipe : kWritten) {
    for (const bool scales : {false, true}) {
      if (scales && recipe != Recipe::nvfp4) continue;
      SCOPED_TRACE(recipe_traits(recipe).name);
      run("model", "once", recipe, Dialect::lightx2v, scales);
      const ConvertReport report = run("once", "twice", recipe, Dialect::lightx2v);
      EXPECT_EQ(test::contents(folder_ / "once"), test::contents(folder_ / "twice"));
      EXPECT_EQ(report.source_bytes, report.bytes);
    }
  }
}

TEST_F(LightX2VWriteTest, OtherDialectsComeBackByteForByte) {
  struct Case {
    Recipe recipe;
    Dialect dialect;
    bool scales;
  };
  for (const Case& c : {Case{Recipe::nvfp4, Dialect::compressed_tensors, true},
                        Case{Recipe::mxfp4, Dialect::compressed_tensors, false},
                        Case{Recipe::mxfp8_e4m3, Dialect::compressed_tensors, false},
                        Case{Recipe::mxfp8_e4m3, Dialect::modelopt, false},
                        Case{Recipe::fp8_row, Dialect::compressed_tensors, false},
                        Case{Recipe::fp8_row, Dialect::modelopt, false}}) {
    SCOPED_TRACE(test::name_of({c.recipe, c.dialect}));
    run("model", "other", c.recipe, c.dialect, c.scales);
    run("other", "lx", c.recipe, Dialect::lightx2v);
    EXPECT_EQ(values_of(at("lx"), "blocks.0.q.weight"),
              values_of(at("other"), "blocks.0.q.weight"));
    run("lx", "back", c.recipe, c.dialect);
    EXPECT_EQ(test::contents(folder_ / "other"), test::contents(folder_ / "back"));
    run("back", "again", c.recipe, Dialect::lightx2v);
    EXPECT_EQ(test::contents(folder_ / "lx"), test::contents(folder_ / "again"));
  }
}

TEST_F(LightX2VWriteTest, ExactBlocksOfMxfp4AreKeptInTiles) {
  run("model", "ct", Recipe::mxfp4, Dialect::compressed_tensors);
  const ConvertReport report = run("ct", "out", Recipe::nvfp4, Dialect::lightx2v);
  EXPECT_EQ(report.exact_blocks, report.blocks);
  EXPECT_GT(report.blocks, 0);
  for (const char* name : {"blocks.0.q.weight", "blocks.0.o.weight"}) {
    EXPECT_EQ(values_of(at("out"), name), values_of(at("ct"), name));
  }
}

TEST_F(LightX2VWriteTest, AlphaIsOfBothScales) {
  run("model", "out", Recipe::nvfp4, Dialect::lightx2v, true);
  for (const auto& [module, absmax] : {std::pair("blocks.0.q.", 42.0f), {"blocks.0.o.", 21.0f}}) {
    const float of_weight = part_f32(at("out"), std::string(module) + "weight_global_scale");
    EXPECT_EQ(part_f32(at("out"), std::string(module) + "input_global_scale"), 2688.0f / absmax);
    EXPECT_EQ(part_f32(at("out"), std::string(module) + "alpha"),
              1.0f / (2688.0f / absmax * of_weight));
  }
  EXPECT_EQ(report_.warnings, std::vector<std::string>{});
  // Others replace those of the source; the weight and its tiles stay.
  test::write_text(folder_ / "scales.json", R"({"blocks.0.q": 84.0, "blocks.0.o": 21.0})");
  run("out", "again", Recipe::nvfp4, Dialect::lightx2v, true);
  for (const char* same : {"weight", "weight_scale", "weight_global_scale"}) {
    const std::string name = std::string("blocks.0.q.") + same;
    EXPECT_EQ(part(at("again"), name), part(at("out"), name));
  }
  EXPECT_EQ(part_f32(at("again"), "blocks.0.q.input_global_scale"), 32.0f);
  EXPECT_EQ(part_f32(at("again"), "blocks.0.q.alpha"),
            2.0f * part_f32(at("out"), "blocks.0.q.alpha"));
  const ConvertReport without = run("model", "out", Recipe::nvfp4, Dialect::lightx2v);
  EXPECT_EQ(without.activations[0], "nvfp4: dynamic, all that the dialect has");
  ASSERT_EQ(without.warnings.size(), 1u);
  EXPECT_EQ(without.warnings[0],
            "nvfp4 has no scales of inputs, which engines of lightx2v read "
            "beside it; activation_scales gives them");
  EXPECT_EQ(at("out").store().find("blocks.0.q.alpha"), nullptr);
}

/// What its own programs leave: absmax, and alpha in the place of the weight's scale.
TEST_F(LightX2VWriteTest, ItsOwnScalesStayWhereTheWeightStays) {
  BlockWeight w = filled(kNvfp4);
  std::vector<TestTensor> tensors = stored("a", w);
  tensors.push_back({"a.input_global_scale", DType::F32, {}, floats({64.0f})});
  tensors.push_back({"a.alpha", DType::F32, {1}, floats({1.0f / (64.0f * 512.0f)})});
  for (const bool both : {false, true}) {
    if (both) tensors.push_back({"a.weight_global_scale", DType::F32, {1}, floats({512.0f})});
    write(tensors);
    run("model", "out", Recipe::nvfp4, Dialect::lightx2v);
    for (const TestTensor& tensor : tensors) {
      EXPECT_EQ(part(at("out"), tensor.name), part(at("model"), tensor.name)) << tensor.name;
    }
    ConvertOptions options = test::options_for({Recipe::nvfp4, Dialect::lightx2v});
    options.overwrite = true;
    options.activations = Activations::dynamic;  // which needs no scale
    (void)convert(folder_ / "model", folder_ / "out", options);
    EXPECT_EQ(part(at("out"), "a.alpha"), "no tensor a.alpha");
    EXPECT_EQ(part_f32(at("out"), "a.weight_global_scale"), 512.0f);
    EXPECT_EQ(part(at("out"), "a.weight"), w.codes);
  }
  tensors = stored("a", w);
  tensors.push_back({"a.weight_global_scale", DType::F32, {}, floats({512.0f})});
  tensors.push_back({"a.input_absmax", DType::BF16, {}, std::string("\x28\x42", 2)});  // 42
  write(tensors);
  run("model", "out", Recipe::nvfp4, Dialect::lightx2v);
  EXPECT_EQ(part(at("out"), "a.input_absmax"), std::string("\x28\x42", 2));
  EXPECT_EQ(part(at("out"), "a.weight_scale"), w.swizzled());  // with the padding that it had
}

TEST_F(LightX2VWriteTest, AnAlphaThatIsNoNumberIsRefused) {
  run("model", "ct", Recipe::nvfp4, Dialect::compressed_tensors);
  test::write_text(folder_ / "scales.json", R"({"blocks.0.q": 1e-34, "blocks.0.o": 1.0})");
  expect_error(ErrorCode::unsupported, "blocks.0.q.weight", "whose product is inf",
               [&] { run("ct", "out", Recipe::nvfp4, Dialect::lightx2v, true); });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(LightX2VWriteTest, TheIndexHasBothNames) {
  const std::filesystem::path diffusers =
      folder_ / "out/diffusion_pytorch_model.safetensors.index.json";
  run("model", "out", Recipe::fp8_row, Dialect::lightx2v);
  EXPECT_TRUE(std::filesystem::exists(diffusers));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/config.json"));
  ConvertOptions options = test::options_for({Recipe::fp8_row, Dialect::lightx2v});
  options.overwrite = true;
  options.shard_bytes = 1;
  const ConvertReport report = convert(folder_ / "model", folder_ / "out", options);
  EXPECT_EQ(test::read_text(diffusers),
            test::read_text(folder_ / "out/model.safetensors.index.json"));
  const Checkpoint out = at("out");
  EXPECT_EQ(out.dialect(), Dialect::lightx2v);
  EXPECT_EQ(out.store().files().size(), report.tensors.size());
  // The second name is no index of other weights, and another dialect has no use for the first.
  const ConvertReport plain = run("out", "plain", Recipe::f32, Dialect::plain);
  EXPECT_TRUE(plain.not_copied.empty());
  EXPECT_EQ(at("plain").dialect(), Dialect::plain);
  EXPECT_FALSE(
      std::filesystem::exists(folder_ / "plain/diffusion_pytorch_model.safetensors.index.json"));
}

TEST_F(LightX2VWriteTest, TheConfigurationSaysNothing) {
  test::write_text(folder_ / "model/config.json", R"({"_class_name": "WanModel", "dim": 512})");
  run("model", "ct", Recipe::mxfp8_e4m3, Dialect::compressed_tensors);
  run("ct", "out", Recipe::mxfp8_e4m3, Dialect::lightx2v);
  EXPECT_EQ(test::Json::parse(test::read_text(folder_ / "out/config.json")),
            test::Json::parse(test::read_text(folder_ / "model/config.json")));
}

TEST_F(LightX2VWriteTest, MemoryDoesNotChangeTheBytes) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp6_e3m2}) {
    run("model", "out", recipe, Dialect::lightx2v);
    ConvertOptions options = test::options_for({recipe, Dialect::lightx2v});
    options.overwrite = true;
    options.memory_bytes = std::uint64_t{4} << 20;
    options.threads = 1;
    (void)convert(folder_ / "model", folder_ / "small", options);
    EXPECT_EQ(test::contents(folder_ / "out"), test::contents(folder_ / "small"));
  }
}

TEST_F(LightX2VWriteTest, WhatItsReaderCannotTellIsRefused) {
  write({test::f32_tensor("a.q.weight", {64, 128}, 1)});
  expect_error(ErrorCode::unsupported, "destination",
               "is mxfp4 and mxfp8_e4m3 alike by its shapes, and nothing else says what it is",
               [&] { run("model", "out", Recipe::mxfp4, Dialect::lightx2v); });
  write({test::f32_tensor("a.q.weight", {64, 512}, 1), test::f32_tensor("a.table", {64, 512}, 2)});
  ConvertOptions options = test::options_for({Recipe::nvfp4, Dialect::lightx2v});
  options.include = {"a.table"};
  expect_error(ErrorCode::unsupported, "a.table",
               "would not be read as a quantized weight in lightx2v",
               [&] { convert(folder_ / "model", folder_ / "out", options); });
  expect_error(ErrorCode::unsupported, "recipe",
               "mxfp6_e2m3 cannot be said in lightx2v, which has fp8_row, mxfp8_e4m3, mxfp6_e3m2, "
               "mxfp4, nvfp4",
               [&] { run("model", "out", Recipe::mxfp6_e2m3, Dialect::lightx2v); });
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace blockscale
