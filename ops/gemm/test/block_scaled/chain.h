// Quantized matrices, as chains of products in the emulator have them, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "blockscale/quantize.h"
#include "ops/quantize/test/emulation.h"
#include "tests/gemm_problem.h"

namespace blockscale::test {

inline QuantizeOptions options_of(Recipe recipe, const QuantizeInput& input = {}) {
  QuantizeOptions options;
  options.input = input;
  if (recipe == Recipe::nvfp4) options.scale_source = ScaleSource::given;
  return options;
}

/// A quantized matrix, its scales as they lie in atoms, its bytes 0xA5 until somebody writes them.
class Quantized {
 public:
  Quantized(Recipe recipe, std::int64_t rows, std::int64_t k) {
    view_.recipe = recipe;
    view_.rows = rows;
    view_.k = k;
    view_.layout = ScaleLayout::swizzled_128x4;
    value_bytes_ = static_cast<std::size_t>(rows * row_bytes(recipe, k));
    lines_.resize((value_bytes_ + sizeof(Line) - 1) / sizeof(Line));
    view_.values = lines_.data();
    std::memset(view_.values, 0xA5, value_bytes_);
    scales_.assign(static_cast<std::size_t>(scale_bytes(recipe, view_.layout, rows, k, 1)), 0xA5);
    view_.scales = scales_.data();
    if (recipe == Recipe::nvfp4) view_.tensor_scale = &tensor_scale_;
    view_ = resolved(view_, "quantized");
  }
  Quantized(const Quantized&) = delete;
  Quantized& operator=(const Quantized&) = delete;

  float tensor_scale() const { return view_.tensor_scale == nullptr ? 1 : tensor_scale_; }
  const MutableScaledTensorView& view() const { return view_; }
  std::vector<std::uint8_t> values() const {
    const auto* const first = static_cast<const std::uint8_t*>(view_.values);
    return {first, first + value_bytes_};
  }
  const std::vector<std::uint8_t>& scales() const { return scales_; }

  void fill(Random& random) {
    TestMatrix matrix(Format::bf16, view_.rows, view_.k);
    matrix.fill(random, InputFamily::normal);
    quantize(matrix.view(), view_, options_of(view_.recipe));
  }
  void add_to(std::vector<emulator::Buffer>& buffers, emulator::BufferUse use) const {
    buffers.push_back(emulator::buffer("values", view_.values, value_bytes_, use));
    buffers.push_back(emulator::buffer("scales", scales_.data(), scales_.size(), use));
    buffers.push_back(
        emulator::buffer("S", &tensor_scale_, sizeof(float), emulator::BufferUse::input));
  }
  void add_to(PlanBuffers& buffers) const {
    buffers.add("values", view_.values, static_cast<std::int64_t>(value_bytes_),
                emulator::BufferUse::output);
    buffers.add("scales", scales_.data(), std::ssize(scales_), emulator::BufferUse::output);
    buffers.add("S", &tensor_scale_, sizeof(float), emulator::BufferUse::input);
  }

 private:
  struct alignas(32) Line {  // as tensor copies of six bits need it
    std::uint8_t bytes[32];
  };

  std::vector<Line> lines_;
  std::size_t value_bytes_ = 0;
  std::vector<std::uint8_t> scales_;
  float tensor_scale_ = 40;
  MutableScaledTensorView view_;
};

}  // namespace blockscale::test
