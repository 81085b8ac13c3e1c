// Random elements for tests on a GPU, of which there are many: made in blocks, on all cores.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "blockscale/parallel.h"
#include "core/format.h"
#include "ops/quantize/test/gpu_support.h"

namespace blockscale::test {

/// As random as 64 bits are (splitmix64).
inline std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

/// Makes elements of a dtype. Matrix b of a batch is of kind b % 4: numbers of 2^-12 to 2^4; blocks
/// of any size, each of numbers of eight powers of two; the same, but of blocks that one scale for
/// all of them leaves some codes; any bits. A quarter of the numbers have seven bits of fraction,
/// so that ties are met in f32 too.
class RandomBlocks {
 public:
  RandomBlocks(Format dtype, std::uint64_t seed)
      : dtype_(dtype),
        seed_(mixed(seed)),
        fraction_bits_(dtype == Format::f32    ? 23
                       : dtype == Format::bf16 ? 7
                                               : 10),
        bias_(dtype == Format::f16 ? 15 : 127),
        fields_(dtype == Format::f16 ? 31 : 255) {}

  /// The bits of element `index`, which lies in a block of this number.
  std::uint32_t operator()(int kind, std::uint64_t index, std::uint64_t block) const {
    const std::uint64_t random = mixed(seed_ ^ index);
    const auto low = static_cast<std::uint32_t>(random);
    if (kind == 3) return low;
    const std::uint64_t of_block = mixed(~seed_ ^ block);
    const auto draw = static_cast<int>(random >> 32 & 0xFFFF);
    int exponent = 0;
    switch (kind) {
      case 0: exponent = bias_ - 12 + draw % 16; break;
      case 1: exponent = static_cast<int>(of_block % fields_) - draw % 8; break;
      default: exponent = bias_ + 2 - static_cast<int>(of_block % 12) - draw % 8; break;
    }
    if (exponent < 0) exponent = 0;
    std::uint32_t fraction = low & ((1u << fraction_bits_) - 1);
    if (dtype_ == Format::f32 && random >> 62 == 0) fraction &= ~0xFFFFu;
    const auto sign = static_cast<std::uint32_t>(random >> 48 & 1);
    const int sign_bit = format_traits(dtype_).bits - 1;
    return sign << sign_bit | static_cast<std::uint32_t>(exponent) << fraction_bits_ | fraction;
  }

 private:
  Format dtype_;
  std::uint64_t seed_;
  int fraction_bits_, bias_;
  std::uint64_t fields_;  // of exponents of finite numbers
};

/// Packed elements for a case, in the blocks of its recipe.
inline std::vector<std::uint8_t> random_blocks(const Case& c, std::uint64_t seed) {
  const RecipeTraits& t = recipe_traits(c.recipe);
  const std::int64_t size = element_bytes(c.dtype), columns = columns_of(c);
  const std::int64_t block_k = t.block_k == 0 ? 128 : t.block_k;
  const std::int64_t block_rows = t.block_rows == 0 ? 1 : t.block_rows;
  std::vector<std::uint8_t> x(size_of(c.batch * c.rows * columns * size));
  const RandomBlocks elements(c.dtype, seed);
  parallel_for(c.batch * c.rows, 8, 0, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t line = begin; line < end; ++line) {
      const std::int64_t matrix = line / c.rows, row = line % c.rows;
      const std::int64_t blocks = (matrix * c.rows + row / block_rows) * columns;
      for (std::int64_t i = 0; i < columns; ++i) {
        const std::int64_t index = line * columns + i;
        const std::uint32_t bits =
            elements(static_cast<int>(matrix % 4), static_cast<std::uint64_t>(index),
                     static_cast<std::uint64_t>(blocks + i / block_k));
        std::memcpy(x.data() + index * size, &bits, size_of(size));
      }
    }
  });
  return x;
}

}  // namespace blockscale::test
