// Scales of least error: every byte against the oracle, on every instruction set, and the property
// itself, in f64 over dequantized values.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "blockscale/cuda.h"
#include "blockscale/quantize.h"
#include "ops/quantize/test/support.h"
#include "tests/expect_error.h"
#include "tests/oracles/quantize_oracle.h"
#include "tests/simd_targets.h"

namespace blockscale {
namespace {

using test::Data;

std::vector<float> channel_weights(std::int64_t k) {
  std::mt19937 random(77);
  std::vector<float> weights(static_cast<std::size_t>(k));
  for (float& weight : weights) {
    // From 0 to 2^8, a few of them 0.
    weight = random() % 16 == 0 ? 0.0f
                                : std::ldexp(static_cast<float>(random() >> 9),
                                             static_cast<int>(random() % 16) - 30);
  }
  return weights;
}

/// Some of the largest that their weights allow.
std::vector<float> channel_means(const std::vector<float>& weights) {
  std::mt19937 random(78);
  std::vector<float> means;
  for (const float weight : weights) {
    const float share = static_cast<float>(random() % 9) / 8 - 0.5f;
    means.push_back(2 * share * std::sqrt(weight) * 0.9999f);
  }
  return means;
}

struct Case {
  oracle::Rules rules;
  std::int64_t rows, k, padding;
  Format dtype;
  Data data;
  bool weighted;
  std::uint32_t seed;
  int threads;
  bool has_means = false;
};

Recipe recipe_named(const std::string& name) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.name == name) return t.recipe;
  }
  throw std::invalid_argument(name);
}

std::string text_of(const Case& c, std::int64_t target) {
  return c.rules.name + " " + format_traits(c.dtype).name + " " + std::to_string(c.rows) + "x" +
         std::to_string(c.k) + " " + test::data_name(c.data) + (c.weighted ? " weighted " : " ") +
         (c.has_means ? "means " : "") + hwy::TargetName(target);
}

/// Codes one a byte.
std::vector<std::uint8_t> codes_of(const ScaledTensorView& tensor, int bits) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(tensor.rows * tensor.k), 0);
  const auto* bytes = static_cast<const std::uint8_t*>(tensor.values);
  const std::int64_t row = tensor.k * bits / 8;
  for (std::int64_t i = 0; i < tensor.rows * tensor.k; ++i) {
    for (int b = 0; b < bits; ++b) {
      const std::int64_t bit = i % tensor.k * bits + b;
      const int value = bytes[i / tensor.k * row + bit / 8] >> (bit % 8) & 1;
      codes[static_cast<std::size_t>(i)] |= static_cast<std::uint8_t>(value << b);
    }
  }
  return codes;
}

void check_case(const Case& c) {
  const test::Matrix x(c.dtype, c.rows, c.k, 1, c.padding, c.data, c.seed);
  const std::vector<float> weights = channel_weights(c.k);
  oracle::Options wanted;
  wanted.search = true;
  if (c.weighted) wanted.weights = weights;
  const std::vector<float> means = channel_means(weights);
  if (c.has_means) wanted.means = means;
  const oracle::Result expected = oracle::quantize(x.values(0), c.rows, c.k, c.rules, wanted);
  const std::vector<std::uint8_t> scales(expected.scales.begin(), expected.scales.end());
  QuantizeOptions options;
  options.threads = c.threads;
  options.scale_choice = c.weighted ? ScaleChoice::weighted : ScaleChoice::mse;
  if (c.weighted) options.channel_weights = weights.data();
  if (c.has_means) options.channel_means = means.data();
  for (const std::int64_t target : test::simd_targets()) {
    const test::UseSimdTarget use(target);
    const ScaledTensor got =
        quantize(x.view(), recipe_named(c.rules.name), ScaleLayout::row_major, options);
    const auto* const stored = static_cast<const std::uint8_t*>(got.view().scales);
    ASSERT_EQ(std::vector<std::uint8_t>(stored, stored + scales.size()), scales)
        << text_of(c, target);
    ASSERT_EQ(codes_of(got.view(), c.rules.element->bits()), expected.codes) << text_of(c, target);
  }
}

class ScaleSearch : public testing::TestWithParam<oracle::Rules> {};

TEST_P(ScaleSearch, EveryByteIsTheOracles) {
  std::uint32_t seed = 0;
  for (const Data data : test::kAllData) {
    for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
      for (const bool weighted : {false, true}) {
        check_case({GetParam(), 5, 352, 3, dtype, data, weighted, ++seed, 1});
        if (HasFatalFailure()) return;
      }
    }
  }
  check_case({GetParam(), 70, 4192, 0, Format::bf16, Data::normal, true, 900, 2});
}

TEST_P(ScaleSearch, EveryByteIsTheOraclesWithMeans) {
  if (GetParam().kind != oracle::Kind::mx) GTEST_SKIP() << "no means: see NameTheArgument";
  std::uint32_t seed = 1000;
  for (const Data data : test::kAllData) {
    for (const Format dtype : {Format::f32, Format::f16, Format::bf16}) {
      check_case({GetParam(), 5, 352, 3, dtype, data, true, ++seed, 1, true});
      if (HasFatalFailure()) return;
    }
  }
  check_case({GetParam(), 70, 4192, 0, Format::bf16, Data::normal, true, 1900, 2, true});
}

std::string bytes_of(const ScaledTensor& tensor) {
  const ScaledTensorView view = tensor.view();
  return {static_cast<const char*>(view.values),
          static_cast<std::size_t>(view.rows * row_bytes(view.recipe, view.k))};
}

TEST(ScaleSearchProperty, MeansOfZeroChangeNothing) {
  const test::Matrix x(Format::f32, 64, 256, 1, 0, Data::normal, 8);
  const std::vector<float> weights = channel_weights(256), zeros(256, 0.0f);
  const std::vector<float> means = channel_means(weights);
  const auto with = [&](const float* of_means) {
    QuantizeOptions options;
    options.scale_choice = ScaleChoice::weighted;
    options.channel_weights = weights.data();
    options.channel_means = of_means;
    return bytes_of(quantize(x.view(), Recipe::mxfp4, ScaleLayout::row_major, options));
  };
  EXPECT_EQ(with(zeros.data()), with(nullptr));
  EXPECT_NE(with(means.data()), with(nullptr));
}

/// What a product leaves of inputs with these means and mean squares, whose channels are not
/// correlated otherwise.
TEST(ScaleSearchProperty, MeansLowerTheErrorOfProducts) {
  const std::int64_t k = 1024;
  const test::Matrix x(Format::f32, 64, k, 1, 0, Data::normal, 10);
  const std::vector<float> weights(static_cast<std::size_t>(k), 1.0f);
  const std::vector<float> means(static_cast<std::size_t>(k), 0.7f);
  const auto error_with = [&](const float* of_means) {
    QuantizeOptions options;
    options.scale_choice = ScaleChoice::weighted;
    options.channel_weights = weights.data();
    options.channel_means = of_means;
    const ScaledTensor tensor = quantize(x.view(), Recipe::mxfp4, ScaleLayout::row_major, options);
    const std::vector<float> wanted = x.values(0);
    std::vector<float> values(wanted.size());
    dequantize(tensor.view(), MutableMatrixView{values.data(), Format::f32, 64, k}, 1);
    double sum = 0;
    for (std::size_t r = 0; r < 64; ++r) {
      double squares = 0, products = 0;
      for (std::size_t i = r * 1024; i < (r + 1) * 1024; ++i) {
        const double e = double{wanted[i]} - double{values[i]};
        squares += (1 - 0.49) * e * e;
        products += 0.7 * e;
      }
      sum += squares + products * products;
    }
    return sum;
  };
  EXPECT_LT(error_with(means.data()), 0.8 * error_with(nullptr));
}

/// The candidates are those of `ceil`, also where another mode takes the power of two above: at an
/// amax of 1.75, for `even_e2m1`.
TEST(ScaleSearchProperty, MxScalesDoNotDependOnTheMode) {
  std::vector<float> x(64 * 128, std::ldexp(1.0f, -13));
  for (std::size_t i = 0; i < x.size(); i += 32) x[i] = i % 64 == 0 ? 1.75f : 1.9375f;
  const MatrixView view{x.data(), Format::f32, 64, 128};
  for (const RecipeTraits& t : kRecipes) {
    if (t.family != Family::mx) continue;
    std::vector<std::string> bytes;
    ScaleErrors errors[4];
    for (const MxScaleMode mode :
         {MxScaleMode::ceil, MxScaleMode::floor, MxScaleMode::even, MxScaleMode::even_e2m1}) {
      QuantizeOptions options;
      options.mx_scale_mode = mode;
      options.scale_choice = ScaleChoice::mse;
      options.scale_errors = &errors[bytes.size()];
      const ScaledTensor got = quantize(view, t.recipe, ScaleLayout::row_major, options);
      bytes.emplace_back(static_cast<const char*>(got.view().scales), x.size() / 32);
    }
    for (std::size_t i = 1; i < bytes.size(); ++i) {
      EXPECT_EQ(bytes[i], bytes[0]) << t.name;
      EXPECT_EQ(errors[i].amax, errors[0].amax) << t.name;
      EXPECT_EQ(errors[i].chosen, errors[0].chosen) << t.name;
    }
  }
}

/// Sum of w (x - value)^2 over row 0, of the values that the codes stand for.
double error_of(const std::vector<float>& x, const ScaledTensorView& tensor,
                const std::vector<float>& weights) {
  std::vector<float> values(x.size());
  dequantize(tensor, MutableMatrixView{values.data(), Format::f32, tensor.rows, tensor.k}, 1);
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = double{x[i]} - double{values[i]};
    sum += difference * difference * double{weights[i % static_cast<std::size_t>(tensor.k)]};
  }
  return sum;
}

/// No scale code of 1 to 254 gives a block a smaller error than the one that was chosen, but for
/// rounding: codes beyond the candidates, which the rule leaves out, are worse for normal numbers.
TEST(ScaleSearchProperty, ChosenScalesAreTheBestOfAll) {
  for (const char* name : {"nvfp4", "mxfp4"}) {
    const oracle::Rules rules = oracle::rules_of(name);
    const Recipe recipe = recipe_named(name);
    const std::int64_t k = rules.block_k;
    const std::vector<float> ones(static_cast<std::size_t>(k), 1.0f);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<float> x(static_cast<std::size_t>(k));
      for (float& value : x) value = normal(random);
      QuantizeOptions options;
      options.scale_choice = ScaleChoice::mse;
      ScaleErrors errors;
      options.scale_errors = &errors;
      // 1.5 leaves codes above the rule's, which the tensor's own scale would not.
      const std::optional<float> s = recipe == Recipe::nvfp4 ? std::optional(1.5f) : std::nullopt;
      const MatrixView row{x.data(), Format::f32, 1, k};
      const ScaledTensor chosen = quantize(row, recipe, ScaleLayout::row_major, options, s);
      const ScaledTensor rule = quantize(row, recipe, ScaleLayout::row_major, {}, s);
      const double least = error_of(x, chosen.view(), ones);
      EXPECT_NEAR(errors.chosen, least, 1e-5 * least);
      EXPECT_NEAR(errors.amax, error_of(x, rule.view(), ones), 1e-5 * errors.amax);
      for (int code = 1; code < (recipe == Recipe::nvfp4 ? 0x7F : 0xFF); ++code) {
        const double scale = recipe == Recipe::nvfp4
                                 ? oracle::kE4M3.values[static_cast<std::size_t>(code)] / 1.5
                                 : std::ldexp(1.0, code - 127);
        double error = 0;
        for (const float value : x) {
          const int best = oracle::kE2M1.nearest(std::fabs(double{value}) / scale);
          const double difference = std::fabs(double{value}) -
                                    oracle::kE2M1.values[static_cast<std::size_t>(best)] * scale;
          error += difference * difference;
        }
        EXPECT_GE(error, least * (1 - 1e-4)) << name << " trial " << trial << " code " << code;
      }
    }
  }
}

TEST(ScaleSearchProperty, WeightsMoveTheErrorToWhereItCostsLeast) {
  const test::Matrix x(Format::f32, 64, 256, 1, 0, Data::normal, 8);
  std::vector<float> weights = channel_weights(256);
  const auto error_with = [&](ScaleChoice choice) {
    QuantizeOptions options;
    options.scale_choice = choice;
    if (choice == ScaleChoice::weighted) options.channel_weights = weights.data();
    const ScaledTensor tensor = quantize(x.view(), Recipe::nvfp4, ScaleLayout::row_major, options);
    return error_of(x.values(0), tensor.view(), weights);
  };
  EXPECT_LT(error_with(ScaleChoice::mse), 0.9 * error_with(ScaleChoice::amax));
  EXPECT_LT(error_with(ScaleChoice::weighted), 0.9 * error_with(ScaleChoice::mse));
}

TEST(ScaleSearchProperty, ErrorsAreTheSameForAnyNumberOfThreads) {
  const test::Matrix x(Format::bf16, 300, 1024, 1, 0, Data::normal, 9);
  ScaleErrors errors[2];
  for (const int threads : {1, 2}) {
    QuantizeOptions options;
    options.scale_choice = ScaleChoice::mse;
    options.threads = threads;
    options.scale_errors = &errors[threads - 1];
    (void)quantize(x.view(), Recipe::nvfp4, ScaleLayout::row_major, options);
  }
  EXPECT_EQ(errors[0].amax, errors[1].amax);
  EXPECT_EQ(errors[0].chosen, errors[1].chosen);
  EXPECT_LT(errors[0].chosen, errors[0].amax);
}

TEST(ScaleSearchErrors, NameTheArgument) {
  const std::vector<float> x(256, 1.0f);
  std::vector<float> weights(256, 1.0f);
  const MatrixView matrix{x.data(), Format::f32, 1, 256};
  const auto expect = [&](Recipe recipe, const char* argument, const char* part, auto edit) {
    QuantizeOptions options;
    options.scale_choice = ScaleChoice::weighted;
    options.channel_weights = weights.data();
    edit(options);
    test::expect_invalid(argument, part,
                         [&] { (void)quantize(matrix, recipe, ScaleLayout::row_major, options); });
  };
  expect(Recipe::nvfp4, "options.scale_choice", "is 3, must be amax, mse or weighted",
         [](QuantizeOptions& o) { o.scale_choice = static_cast<ScaleChoice>(3); });
  expect(Recipe::fp8_1x128, "options.scale_choice", "only MX recipes and nvfp4",
         [](QuantizeOptions&) {});
  expect(Recipe::nvfp4, "options.channel_weights", "is null",
         [](QuantizeOptions& o) { o.channel_weights = nullptr; });
  expect(Recipe::mxfp4, "options.channel_weights", "is not weighted",
         [](QuantizeOptions& o) { o.scale_choice = ScaleChoice::mse; });
  expect(Recipe::mxfp4, "options.channel_weights", "misaligned", [](QuantizeOptions& o) {
    o.channel_weights =
        reinterpret_cast<const float*>(reinterpret_cast<const char*>(o.channel_weights) + 1);
  });
  std::vector<float> means(256, 0.5f);
  expect(Recipe::nvfp4, "options.channel_means", "takes weights alone",
         [&](QuantizeOptions& o) { o.channel_means = means.data(); });
  expect(Recipe::mxfp4, "options.channel_means", "is not weighted", [&](QuantizeOptions& o) {
    o.scale_choice = ScaleChoice::mse;
    o.channel_weights = nullptr;
    o.channel_means = means.data();
  });
  for (const float bad : {1.01f, -1.01f, INFINITY, NAN}) {
    means[9] = bad;
    expect(Recipe::mxfp4, "options.channel_means", "for column 9, must have a square",
           [&](QuantizeOptions& o) { o.channel_means = means.data(); });
  }
  ScaleErrors errors;
  expect(Recipe::mxfp4, "options.scale_errors", "is amax", [&](QuantizeOptions& o) {
    o = {};
    o.scale_errors = &errors;
  });
  for (const float bad : {-1.0f, INFINITY, NAN}) {
    weights[17] = bad;
    expect(Recipe::nvfp4, "options.channel_weights", "for column 17", [](QuantizeOptions&) {});
  }
}

TEST(ScaleSearchErrors, OnTheCpuOnly) {
  const std::vector<float> x(256, 1.0f);
  ScaledTensor out(Recipe::mxfp4, 1, 256, ScaleLayout::row_major);
  QuantizeOptions options;
  options.scale_choice = ScaleChoice::mse;
  try {
    (void)cuda::describe_quantize(MatrixView{x.data(), Format::f32, 1, 256}, out.view(), options);
    ADD_FAILURE() << "planned";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(error.argument(), "options.scale_choice");
  }
}

std::string rule_name(const testing::TestParamInfo<oracle::Rules>& param_info) {
  return param_info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Recipes, ScaleSearch,
                         testing::Values(oracle::rules_of("nvfp4"), oracle::rules_of("mxfp4"),
                                         oracle::rules_of("mxfp6_e2m3"),
                                         oracle::rules_of("mxfp6_e3m2"),
                                         oracle::rules_of("mxfp8_e4m3"),
                                         oracle::rules_of("mxfp8_e5m2")),
                         rule_name);

}  // namespace
}  // namespace blockscale
