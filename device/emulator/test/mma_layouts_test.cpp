// Where SM120's mma.sync has elements, scales and sums is where CuTe's traits say: NVIDIA/cutlass
// f5c7903, include/cute/atom/mma_traits_sm120.hpp and mma_traits_sm80.hpp, as shapes and strides.
#include <gtest/gtest.h>

#include <random>
#include <type_traits>
#include <vector>

#include "core/layout.h"
#include "device/emulator/meaning/scaled_mma.h"

namespace blockscale::emulator::meaning {
namespace {

/// From a thread and the number of its value to an element of a matrix, whose rows vary fastest.
template <class Layout>
struct Fragment {
  int rows;
  Layout layout;

  MmaPlace operator()(uint32_t lane, uint32_t i) const {
    const int at = layout(static_cast<int>(lane), static_cast<int>(i));
    return {static_cast<uint32_t>(at % rows), static_cast<uint32_t>(at / rows)};
  }
};
template <class Thread, class Value, class ThreadStride, class ValueStride>
constexpr auto fragment(int rows, const Thread& thread, const Value& value,
                        const ThreadStride& thread_stride, const ValueStride& value_stride) {
  const auto layout =
      make_layout(make_tuple(thread, value), make_tuple(thread_stride, value_stride));
  return Fragment<std::remove_cv_t<decltype(layout)>>{rows, layout};
}

constexpr auto modes(auto... sizes) {
  return make_tuple(sizes...);
}

/// SM120::BLOCKSCALED::SM120_16x8x64_TN_VS.
struct Packed {
  static constexpr uint32_t kK = 64;
  static constexpr auto kA =
      fragment(16, modes(4, 8), modes(8, 2, 2), modes(128, 1), modes(16, 8, 512));
  static constexpr auto kB = fragment(8, modes(4, 8), modes(8, 2), modes(64, 1), modes(8, 256));
  static constexpr auto kScalesA = fragment(16, modes(2, 2, 8), 64, modes(8, 0, 1), 16);
  static constexpr auto kScalesB = fragment(8, modes(4, 8), 64, modes(0, 1), 8);
};
/// SM120::BLOCKSCALED::SM120_16x8x32_TN_VS; A and B are those of SM80_16x8x32_S32S8S8S32_TN.
struct Bytes {
  static constexpr uint32_t kK = 32;
  static constexpr auto kA =
      fragment(16, modes(4, 8), modes(4, 2, 2), modes(64, 1), modes(16, 8, 256));
  static constexpr auto kB = fragment(8, modes(4, 8), modes(4, 2), modes(32, 1), modes(8, 128));
  static constexpr auto kScalesA = fragment(16, modes(2, 2, 8), 32, modes(8, 0, 1), 16);
  static constexpr auto kScalesB = fragment(8, modes(4, 8), 32, modes(0, 1), 8);
};
/// SM80_16x8_Row, which both have for C.
constexpr auto kSums = fragment(16, modes(4, 8), modes(2, 2), modes(32, 1), modes(16, 8));

/// `place_of`: of words, in bytes.
template <class Fragment>
void expect_words(const Fragment& cute, uint32_t words, uint32_t element_bits,
                  MmaPlace (*place_of)(uint32_t, uint32_t)) {
  for (uint32_t lane = 0; lane < kMmaLanes; ++lane) {
    for (uint32_t i = 0; i < words * 32 / element_bits; ++i) {
      const MmaPlace word = place_of(lane, i * element_bits / 32);
      EXPECT_EQ(cute(lane, i).row, word.row);
      EXPECT_EQ(cute(lane, i).column, word.column * 8 / element_bits + i % (32 / element_bits));
    }
  }
}

TEST(MmaLayouts, ElementsAndSumsLieWhereCuteHasThem) {
  expect_words(Packed::kA, 4, 4, mma_place_of_a);
  expect_words(Packed::kB, 2, 4, mma_place_of_b);
  expect_words(Bytes::kA, 4, 8, mma_place_of_a);
  expect_words(Bytes::kB, 2, 8, mma_place_of_b);
  for (uint32_t i = 0; i < kMmaLanes * 4; ++i) {
    EXPECT_EQ(kSums(i / 4, i % 4).row, mma_place_of_d(i / 4, i % 4).row);
    EXPECT_EQ(kSums(i / 4, i % 4).column, mma_place_of_d(i / 4, i % 4).column);
  }
}

/// A matrix with a scale for each block of each row, and the registers that CuTe's layouts make of
/// it. Elements are integers from -4 to 4 and scales near 1: every sum is exact in f32.
struct Operand {
  uint32_t k, scales;
  std::vector<double> scaled;  // [row][k]
  std::vector<uint32_t> codes, scale_codes;

  Operand(Format element, Format scale, uint32_t rows, uint32_t row_k, uint32_t count,
          uint32_t seed)
      : k(row_k), scales(count) {
    std::mt19937 random(seed);
    for (uint32_t i = 0; i < rows * scales; ++i) {
      scale_codes.push_back(static_cast<uint32_t>(scale == Format::ue4m3 ? 0x38 + random() % 16
                                                                         : 125 + random() % 5));
    }
    for (uint32_t i = 0; i < rows * k; ++i) {
      const float value = static_cast<float>(random() % 9) - 4;
      const float factor = decode(scale, scale_codes[i * scales / k]);
      codes.push_back(encode(element, value));
      scaled.push_back(static_cast<double>(value) * static_cast<double>(factor));
    }
  }

  template <class Fragment, uint32_t kWords>
  void put_elements(const Fragment& cute, uint32_t shift,
                    uint32_t (&words)[kMmaLanes][kWords]) const {
    const uint32_t bits = 256 / k;
    for (uint32_t lane = 0; lane < kMmaLanes; ++lane) {
      for (uint32_t i = 0; i < kWords * 32 / bits; ++i) {
        const MmaPlace place = cute(lane, i);
        words[lane][i * bits / 32] |= codes[place.row * k + place.column]
                                      << (i * bits % 32 + shift);
      }
    }
  }
  /// Values of a block share a byte.
  template <class Fragment>
  void put_scales(const Fragment& cute, uint32_t (&words)[kMmaLanes]) const {
    for (uint32_t lane = 0; lane < kMmaLanes; ++lane) {
      for (uint32_t i = 0; i < k; ++i) {
        const MmaPlace place = cute(lane, i);
        const uint32_t block = place.column * scales / k;
        words[lane] |= scale_codes[place.row * scales + block] << 8 * block;
      }
    }
  }
};

/// As fp4_shift_A and fp4_shift_B move elements within bytes.
template <class Traits>
constexpr uint32_t shift_of(Format element) {
  return Traits::kK == 32 && element == Format::e2m1 ? 2 : 0;
}

/// Lanes that a product's selectors tell apart have the same scales by CuTe's layouts (modes of
/// stride 0), so that the sums are those of any.
template <class Traits>
void expect_products(uint32_t scales, Format element_a, Format element_b) {
  const ScaledMma form = {.a = element_a, .b = element_b, .scales = scales};
  const Operand a(element_a, scale_format_of(form), kMmaRows, Traits::kK, scales, 1);
  const Operand b(element_b, scale_format_of(form), kMmaColumns, Traits::kK, scales, 2);
  ScaledMmaFragments fragments = {};
  a.put_elements(Traits::kA, shift_of<Traits>(element_a), fragments.values.a);
  b.put_elements(Traits::kB, shift_of<Traits>(element_b), fragments.values.b);
  a.put_scales(Traits::kScalesA, fragments.scales_a);
  b.put_scales(Traits::kScalesB, fragments.scales_b);
  for (uint32_t threads = 0; threads < 8; ++threads) {
    ScaledMma mma = form;
    mma.thread_a = threads / 4;
    mma.thread_b = threads % 4;
    ScaledMmaFragments f = fragments;
    scaled_mma(mma, f);
    for (uint32_t i = 0; i < kMmaLanes * 4; ++i) {
      const MmaPlace place = kSums(i / 4, i % 4);
      double sum = 0;
      for (uint32_t k = 0; k < Traits::kK; ++k) {
        sum += a.scaled[place.row * Traits::kK + k] * b.scaled[place.column * Traits::kK + k];
      }
      EXPECT_EQ(static_cast<double>(f.values.d[i / 4][i % 4]), sum)
          << scales << " scales, threads " << mma.thread_a << ", " << mma.thread_b;
    }
  }
}

TEST(MmaLayouts, ProductsTakeScalesWhereCuteHasThem) {
  expect_products<Packed>(4, Format::e2m1, Format::e2m1);
  expect_products<Packed>(2, Format::e2m1, Format::e2m1);
  expect_products<Bytes>(1, Format::e4m3, Format::e3m2);
  expect_products<Bytes>(1, Format::e2m1, Format::e5m2);
}

}  // namespace
}  // namespace blockscale::emulator::meaning
