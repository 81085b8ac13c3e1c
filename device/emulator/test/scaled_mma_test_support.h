// What programs with SM120's mma.sync share: operands with a random scale for each block of each
// row, the product as a warp computes it, with a bug or without, and as a plain loop does.
#pragma once

#include <random>
#include <utility>
#include <vector>

#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/sm120/mma.h"
#include "device/ptx/special_registers.h"

namespace blockscale::emulator {

inline constexpr uint32_t kTileRows = 16, kTileColumns = 8;

/// A product of several instructions: kScales of each row and instruction; 0: none.
template <Format kElementA, Format kElementB, int kCount, class Sums = ptx::MmaAccumulator>
struct ScaledForm {
  using Accumulator = Sums;
  static constexpr Format kA = kElementA, kB = kElementB;
  static constexpr int kScales = kCount;
  static constexpr bool kPacked = kScales > 1;
  static constexpr uint32_t kK = kPacked ? 64 : 32;
  /// Instructions: a word of scales is used up.
  static constexpr int kBlocks = kScales == 0 ? 4 : 4 / kScales;
};
using Nvfp4 = ScaledForm<Format::e2m1, Format::e2m1, 4>;
using Mxfp4 = ScaledForm<Format::e2m1, Format::e2m1, 2>;
template <Format kA, Format kB>
using Mxf8f6f4 = ScaledForm<kA, kB, 1>;
template <Format kA, Format kB>
using F8f6f4 = ScaledForm<kA, kB, 0>;
template <Format kA, Format kB>
using F8f6f4InF16 = ScaledForm<kA, kB, 0, ptx::MmaAccumulatorF16>;

inline float sum_of(const ptx::MmaAccumulator& d, uint32_t i) {
  return d.value[i];
}
inline float sum_of(const ptx::MmaAccumulatorF16& d, uint32_t i) {
  return decode<Format::f16>(d.value[i / 2] >> 16 * (i % 2) & 0xFFFFu);
}

/// Rows of 32 bytes for each instruction, and a word of scales for each row. Elements are integers
/// from -4 to 4 and scales are near 1, so that every sum is exact in f32; in f16 without scales.
struct ScaledRows {
  uint32_t blocks;
  std::vector<uint32_t> words;
  std::vector<uint32_t> scale_words;
  std::vector<double> values;  // [row][k], scaled

  template <class Form>
  ScaledRows(Form, Format element, uint32_t rows, uint32_t seed)
      : blocks(Form::kBlocks), words(rows * 8 * blocks), scale_words(rows) {
    auto random = [bits = std::mt19937(seed)]() mutable { return static_cast<uint32_t>(bits()); };
    const uint32_t step = Form::kPacked ? 4 : 8;
    const uint32_t shift = !Form::kPacked && element == Format::e2m1 ? 2 : 0;
    for (uint32_t row = 0; row < rows; ++row) {
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t code = Form::kScales == 4 ? 0x38 + random() % 16 : 125 + random() % 5;
        scale_words[row] |= code << 8 * i;
      }
      for (uint32_t k = 0; k < blocks * Form::kK; ++k) {
        const float value = static_cast<float>(random() % 9) - 4;
        words[(row * blocks * Form::kK + k) * step / 32] |= encode(element, value)
                                                            << (k * step % 32 + shift);
        values.push_back(static_cast<double>(value) * scale_of<Form>(row, k));
      }
    }
  }

  template <class Form>
  double scale_of(uint32_t row, uint32_t k) const {
    if constexpr (Form::kScales == 0) return 1;
    const uint32_t byte = k * Form::kScales / Form::kK;
    const uint32_t code = scale_words[row] >> 8 * byte & 0xFFu;
    // The sign of a ue4m3 is not looked at.
    return Form::kScales == 4 ? static_cast<double>(decode<Format::ue4m3>(code & 0x7Fu))
                              : static_cast<double>(decode<Format::ue8m0>(code));
  }
};

enum class ScaleBug : uint8_t { none, other_thread_of_b, rows_of_accumulators, same_byte };

/// The lane's word of scales: that of a row where the instruction looks, another elsewhere.
inline uint32_t scale_word(const uint32_t* words, uint32_t row, bool is_looked_at) {
  const uint32_t word = ptx::ld_global_nc(words + row);
  return is_looked_at ? word : word << 8 | word >> 24;
}

template <class Form, int kThreadA, int kThreadB, ScaleBug kBug, int kBlock>
void multiply_block(typename Form::Accumulator& d, const ptx::MmaFragmentA& a,
                    const ptx::MmaFragmentB& b, uint32_t scales_a, uint32_t scales_b,
                    SourceLocation at) {
  constexpr int kByte = kBug == ScaleBug::same_byte ? 0 : kBlock * Form::kScales;
  constexpr ptx::ScaleSelector kOfA = {kByte, kThreadA};
  constexpr ptx::ScaleSelector kOfB = {
      kBlock * Form::kScales, kBug == ScaleBug::other_thread_of_b ? kThreadB ^ 1 : kThreadB};
  if constexpr (Form::kScales == 0) {
    ptx::mma_sync_m16n8k32_f8f6f4<Form::kA, Form::kB>(d, a, b, at);
  } else if constexpr (Form::kScales == 1) {
    ptx::mma_sync_m16n8k32_mxf8f6f4<Form::kA, Form::kB, kOfA, kOfB>(d, a, b, scales_a, scales_b,
                                                                    at);
  } else {
    ptx::mma_sync_m16n8k64_mxf4nvf4<Form::kScales, kOfA, kOfB>(d, a, b, scales_a, scales_b, at);
  }
}

/// `out` is D's 16 rows of 8, of one warp.
template <class Form, int kThreadA, int kThreadB, ScaleBug kBug = ScaleBug::none>
void multiply_scaled(const ScaledRows& a, const ScaledRows& b, float* out, bool shifts = true,
                     SourceLocation at = SourceLocation::current()) {
  const uint32_t lane = ptx::laneid(), quad = lane / 4, in_quad = lane % 4;
  const uint32_t row_of_a =
      kBug == ScaleBug::rows_of_accumulators ? quad + 8 * (in_quad / 2) : quad + 8 * (in_quad % 2);
  const bool looked_at = in_quad / 2 == kThreadA || kBug == ScaleBug::rows_of_accumulators;
  const uint32_t scales_a = scale_word(a.scale_words.data(), row_of_a, looked_at);
  const uint32_t scales_b = scale_word(b.scale_words.data(), quad, in_quad == kThreadB);
  typename Form::Accumulator d = {};
  const auto block = [&]<int kBlock>(std::integral_constant<int, kBlock>) {
    const auto word = [&](const ScaledRows& rows, uint32_t row, uint32_t i, Format element) {
      const uint32_t value =
          ptx::ld_global_nc(rows.words.data() + (row * rows.blocks + kBlock) * 8 + i);
      return !shifts && element == Format::e2m1 ? value >> 2 : value;
    };
    const ptx::MmaFragmentA of_a = {
        {word(a, quad, in_quad, Form::kA), word(a, quad + 8, in_quad, Form::kA),
         word(a, quad, in_quad + 4, Form::kA), word(a, quad + 8, in_quad + 4, Form::kA)}};
    const ptx::MmaFragmentB of_b = {
        {word(b, quad, in_quad, Form::kB), word(b, quad, in_quad + 4, Form::kB)}};
    multiply_block<Form, kThreadA, kThreadB, kBug, kBlock>(d, of_a, of_b, scales_a, scales_b, at);
  };
  [&]<int... kBlocks>(std::integer_sequence<int, kBlocks...>) {
    (block(std::integral_constant<int, kBlocks>{}), ...);
  }(std::make_integer_sequence<int, Form::kBlocks>{});
  for (uint32_t i = 0; i < 4; ++i) {
    ptx::st_global(out + (quad + 8 * (i / 2)) * kTileColumns + 2 * in_quad + i % 2, sum_of(d, i));
  }
}

/// Operands, and how many values of D a program has wrong.
template <class Form>
struct ScaledProduct {
  ScaledRows a = {Form{}, Form::kA, kTileRows, 1};
  ScaledRows b = {Form{}, Form::kB, kTileColumns, 2};
  std::vector<float> out = std::vector<float>(kTileRows * kTileColumns);

  std::vector<Buffer> buffers() {
    return {input("a", a.words), input("b", b.words), input("scales of a", a.scale_words),
            input("scales of b", b.scale_words), output("out", out)};
  }
  uint32_t wrong_values() const {
    const uint32_t k_end = Form::kBlocks * Form::kK;
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < out.size(); ++i) {
      double sum = 0;
      for (uint32_t k = 0; k < k_end; ++k) {
        sum += a.values[i / kTileColumns * k_end + k] * b.values[i % kTileColumns * k_end + k];
      }
      wrong += static_cast<double>(out[i]) == sum ? 0 : 1;
    }
    return wrong;
  }
};

}  // namespace blockscale::emulator
