// Correct programs with mma.sync: no report under any schedule, and the product of a plain loop.
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "core/format.h"
#include "device/emulator/meaning/mma.h"
#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/atomic.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/mma.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {
namespace {

using ptx::MmaElement;

constexpr uint32_t kWarps = 3;   // 16 rows of A each, the same B
constexpr uint32_t kBlocks = 4;  // of k, a product each
constexpr uint32_t kRows = 16 * kWarps, kColumns = 8, kRowWords = 8 * kBlocks;

constexpr Format format_of(MmaElement element) {
  return meaning::kMmaFormats[static_cast<std::size_t>(element)];
}
constexpr uint32_t bits_of(MmaElement element) {
  return static_cast<uint32_t>(format_traits(format_of(element)).bits);
}

/// Rows of 32 bytes for each of kBlocks, as words and as numbers.
struct Matrix {
  uint32_t bits;
  uint32_t k;
  std::vector<uint32_t> words;
  std::vector<float> values;

  template <class Random>
  Matrix(MmaElement element, uint32_t rows, const Random& random)
      : bits(bits_of(element)), k(32 * kRowWords / bits), words(rows * kRowWords) {
    for (uint32_t i = 0; i < rows * k; ++i) put(element, i, random());
  }
  void put(MmaElement element, uint32_t i, float value) {
    const uint32_t code = encode(format_of(element), value);
    const uint32_t shift = i * bits % 32, mask = ((1u << bits) - 1) << shift;
    words[i * bits / 32] = (words[i * bits / 32] & ~mask) | code << shift;
    if (values.size() <= i) values.resize(i + 1);
    values[i] = decode(format_of(element), code);
  }
};

// Where element `i` of a lane's fragments is, by the formulas of the PTX ISA.

struct Place {
  uint32_t row, k;
};
Place isa_place_of_a(uint32_t bits, uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  if (bits == 16) {
    const bool upper = i < 2 || (4 <= i && i < 6);
    return {upper ? group : group + 8, in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)};
  }
  const bool upper = i < 4 || (8 <= i && i < 12);
  return {upper ? group : group + 8, in_group * 4 + (i & 3) + (i < 8 ? 0 : 16)};
}
Place isa_place_of_b(uint32_t bits, uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  if (bits == 16) return {group, in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)};
  return {group, in_group * 4 + (i & 3) + (i < 4 ? 0 : 16)};
}
Place isa_place_of_d(uint32_t lane, uint32_t i) {
  const uint32_t group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

TEST(CorrectMma, PlacesAreThoseOfThePtxIsa) {
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (const uint32_t bits : {8u, 16u}) {
      const uint32_t in_word = 32 / bits;
      for (uint32_t i = 0; i < 4 * in_word; ++i) {
        const auto word = meaning::mma_place_of_a(lane, i / in_word);
        const Place place = isa_place_of_a(bits, lane, i);
        EXPECT_EQ(place.row, word.row);
        EXPECT_EQ(place.k, word.column * 8 / bits + i % in_word);
      }
      for (uint32_t i = 0; i < 2 * in_word; ++i) {
        const auto word = meaning::mma_place_of_b(lane, i / in_word);
        const Place place = isa_place_of_b(bits, lane, i);
        EXPECT_EQ(place.row, word.row);
        EXPECT_EQ(place.k, word.column * 8 / bits + i % in_word);
      }
    }
    for (uint32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(isa_place_of_d(lane, i).row, meaning::mma_place_of_d(lane, i).row);
      EXPECT_EQ(isa_place_of_d(lane, i).k, meaning::mma_place_of_d(lane, i).column);
    }
  }
}

/// D begins as 1, 2, ... and is added to once for each block of k.
template <MmaElement kElement>
void multiply(const uint32_t* a, const uint32_t* b, float* out) {
  const uint32_t warp = device::warp_index(), lane = ptx::laneid();
  const uint32_t row = lane / 4, word = lane % 4;
  ptx::MmaAccumulator d;
  for (uint32_t i = 0; i < 4; ++i) d.value[i] = static_cast<float>(4 * ptx::tid_x() + i + 1);
  for (uint32_t block = 0; block < kBlocks; ++block) {
    const uint32_t* const a_row = a + (16 * warp + row) * kRowWords + 8 * block + word;
    const uint32_t* const b_row = b + row * kRowWords + 8 * block + word;
    const ptx::MmaFragmentA a_words = {
        {ptx::ld_global(a_row), ptx::ld_global(a_row + 8 * kRowWords), ptx::ld_global(a_row + 4),
         ptx::ld_global(a_row + 8 * kRowWords + 4)}};
    const ptx::MmaFragmentB b_words = {{ptx::ld_global(b_row), ptx::ld_global(b_row + 4)}};
    ptx::mma_sync_m16n8<kElement>(d, a_words, b_words);
  }
  for (uint32_t i = 0; i < 4; ++i) ptx::st_global(out + 4 * ptx::tid_x() + i, d.value[i]);
}

/// Runs `multiply` under all schedules and compares with a loop that rounds once for each block.
template <MmaElement kElement>
void expect_product(const Matrix& a, const Matrix& b) {
  std::vector<float> out(32 * 4 * kWarps);
  const uint32_t k = a.k, block_k = a.k / kBlocks;
  expect_clean({{.block = {32 * kWarps}},
                {input("a", a.words), input("b", b.words), output("out", out)},
                [&] { multiply<kElement>(a.words.data(), b.words.data(), out.data()); }},
               [&] {
                 for (uint32_t i = 0; i < out.size(); ++i) {
                   const uint32_t thread = i / 4;
                   const Place place = isa_place_of_d(thread % 32, i % 4);
                   const uint32_t row = 16 * (thread / 32) + place.row, column = place.k;
                   float expected = static_cast<float>(i + 1);
                   for (uint32_t block = 0; block < kBlocks; ++block) {
                     double sum = 0;
                     for (uint32_t j = block * block_k; j < (block + 1) * block_k; ++j) {
                       sum += static_cast<double>(a.values[row * k + j]) *
                              static_cast<double>(b.values[column * k + j]);
                     }
                     expected = static_cast<float>(static_cast<double>(expected) + sum);
                   }
                   if (std::isnan(expected)) expected = std::bit_cast<float>(0x7FFFFFFFu);
                   ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(expected))
                       << "row " << row << " column " << column << ": " << out[i] << " for "
                       << expected;
                 }
                 std::fill(out.begin(), out.end(), -1.0f);
               });
}

template <MmaElement kElement>
void expect_products() {
  std::mt19937 bits(static_cast<uint32_t>(kElement) + 1);
  // All sums are exact; then ones that need rounding.
  const auto small = [&] { return static_cast<float>(bits() % 9) - 4; };
  expect_product<kElement>(Matrix(kElement, kRows, small), Matrix(kElement, kColumns, small));
  const auto wide = [&] {
    return std::ldexp(static_cast<float>(bits() % 4001) - 2000, static_cast<int>(bits() % 13) - 15);
  };
  Matrix a(kElement, kRows, wide), b(kElement, kColumns, wide);
  expect_product<kElement>(a, b);
  // A NaN in one row of A and one of B.
  a.put(kElement, 5 * a.k + 3, std::numeric_limits<float>::quiet_NaN());
  b.put(kElement, 2 * b.k + b.k - 1, std::numeric_limits<float>::quiet_NaN());
  expect_product<kElement>(a, b);
}

TEST(CorrectMma, F16) {
  expect_products<MmaElement::f16>();
}

TEST(CorrectMma, Bf16) {
  expect_products<MmaElement::bf16>();
}

TEST(CorrectMma, E4m3) {
  expect_products<MmaElement::e4m3>();
}

TEST(CorrectMma, E5m2) {
  expect_products<MmaElement::e5m2>();
}

// Two accumulators of a lane, which has other work than its neighbours between the products.
TEST(CorrectMma, LanesComeInAnyOrder) {
  std::vector<float> out(64 * 8);
  std::vector<uint32_t> detours(1);
  const auto kernel = [&] {
    const uint32_t lane = ptx::laneid();
    const ptx::MmaFragmentA a = {{0x38383838, 0x38383838, 0x38383838, 0x38383838}};  // of 1
    const ptx::MmaFragmentB b = {{0x40404040, 0x40404040}};                          // of 2
    ptx::MmaAccumulator d[2] = {};
    for (uint32_t step = 0; step < 6; ++step) {
      for (uint32_t i = 0; i < (lane * 7 + step) % 5; ++i) ptx::red_global_add(detours.data(), 1);
      ptx::mma_sync_m16n8<MmaElement::e4m3>(d[step % 2], a, b);
    }
    for (uint32_t i = 0; i < 8; ++i) {
      ptx::st_global(out.data() + 8 * ptx::tid_x() + i, d[i / 4].value[i % 4]);
    }
  };
  expect_clean({{.block = {64}}, {output("out", out), in_out("detours", detours)}, kernel}, [&] {
    for (const float value : out) ASSERT_EQ(value, 3 * 32 * 2);
  });
}

}  // namespace
}  // namespace blockscale::emulator
