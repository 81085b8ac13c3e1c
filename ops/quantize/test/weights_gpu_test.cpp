// Weights of a real model, quantized on a GPU: every byte equal to the CPU's. BLOCKSCALE_MODEL
// names a safetensors file or a checkpoint's folder; `./dev gpu-test` sets it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "blockscale/safetensors.h"
#include "ops/quantize/test/gpu_support.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using test::Case;
using test::check;
using test::layouts_of;
using test::scaled_recipes;

struct Weight {
  std::string name;
  Format dtype;
  std::int64_t rows, k;
  std::vector<std::uint8_t> elements;
};

std::optional<Format> format_of(DType dtype) {
  switch (dtype) {
    case DType::BF16: return Format::bf16;
    case DType::F16: return Format::f16;
    case DType::F32: return Format::f32;
    default: return std::nullopt;
  }
}

/// The matrices of a checkpoint.
std::vector<Weight> weights_of(const std::filesystem::path& model) {
  const TensorStore store = TensorStore::open(model);
  std::vector<Weight> weights;
  for (const auto& [name, entry] : store.tensors()) {
    const std::optional<Format> dtype = format_of(entry.info.dtype);
    if (!dtype || entry.info.shape.size() != 2) continue;
    const auto bytes = store.data(entry);
    const auto* const first = reinterpret_cast<const std::uint8_t*>(bytes.data());
    weights.push_back(
        {name, *dtype, entry.info.shape[0], entry.info.shape[1], {first, first + bytes.size()}});
  }
  return weights;
}

bool takes(Recipe recipe, std::int64_t k) {
  const RecipeTraits& t = recipe_traits(recipe);
  return t.ragged || k % t.block_k == 0;
}

/// A model that is not there is a failure where a GPU is asked for, as a GPU that is not there is.
class CudaGpuWeights : public test::OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    const char* const model = std::getenv("BLOCKSCALE_MODEL");
    if (model == nullptr || !std::filesystem::exists(model)) {
      const std::string text = "BLOCKSCALE_MODEL names no file or folder: '" +
                               std::string(model == nullptr ? "" : model) + "'";
      if (std::getenv("BLOCKSCALE_REQUIRE_GPU") != nullptr) FAIL() << text;
      GTEST_SKIP() << text;
    }
    weights_ = weights_of(model);
    ASSERT_FALSE(weights_.empty()) << model << " has no matrix of bf16, f16 or f32";
  }

  std::vector<Weight> weights_;
};

/// Every matrix, in every recipe that takes it and in all of its layouts.
TEST_F(CudaGpuWeights, AreQuantizedToTheBytesOfTheCpu) {
  for (const Weight& weight : weights_) {
    for (const Recipe recipe : scaled_recipes()) {
      if (!takes(recipe, weight.k)) continue;
      for (const ScaleLayout layout : layouts_of(recipe)) {
        Case c{recipe, weight.dtype};
        c.rows = weight.rows;
        c.k = weight.k;
        c.layout = layout;
        check(c, weight.elements);
        ASSERT_FALSE(HasFailure()) << weight.name;
      }
    }
  }
}

/// As ModelOpt stores them: with a multiplier.
TEST_F(CudaGpuWeights, HaveTheMultiplierOfTheCpu) {
  for (const Weight& weight : weights_) {
    if (!takes(Recipe::nvfp4, weight.k)) continue;
    Case c{Recipe::nvfp4, weight.dtype};
    c.rows = weight.rows;
    c.k = weight.k;
    c.sense = TensorScaleSense::multiplier;
    check(c, weight.elements);
    ASSERT_FALSE(HasFailure()) << weight.name;
  }
}

/// And back: the values of what the CPU has made of them.
TEST_F(CudaGpuWeights, AreDequantizedToTheBytesOfTheCpu) {
  for (const Weight& weight : weights_) {
    for (const Recipe recipe : scaled_recipes()) {
      if (!takes(recipe, weight.k)) continue;
      ScaledTensor x =
          quantize({weight.elements.data(), weight.dtype, weight.rows, weight.k}, recipe);
      std::vector<std::uint8_t> expected(weight.elements.size());
      MutableMatrixView out{expected.data(), weight.dtype, weight.rows, weight.k};
      dequantize(x.view(), out);
      const test::TensorOnDevice there(x.view(), value_bytes(recipe, weight.rows, weight.k),
                                       scale_bytes(recipe, x.view().layout, weight.rows, weight.k));
      DeviceBuffer values_out(expected.size());
      values_out.fill(0xA5);
      out.data = values_out.data();
      const runtime::DeviceStream stream;
      cuda::dequantize(there.view(), out, {stream.handle(), nullptr, 0});
      stream.wait();
      std::vector<std::uint8_t> actual(expected.size());
      values_out.copy_to_host(actual.data(), actual.size());
      ASSERT_EQ(actual, expected) << weight.name << " in " << recipe_traits(recipe).name;
    }
  }
}

}  // namespace
}  // namespace blockscale
