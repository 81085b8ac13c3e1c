// cuda::quantize on a GPU, of every 16-bit number: every byte equal to the CPU's. Skipped, and says
// so, without one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/quantize/test/every_number.h"
#include "ops/quantize/test/gpu_support.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using test::Case;
using test::check;
using test::layouts_of;
using test::scaled_recipes;
using test::size_of;

/// Of these the test of numbers in positions is made; needs no GPU.
TEST(EveryNumber, IsInEveryPositionOfItsBlocks) {
  for (const Format dtype : {Format::bf16, Format::f16}) {
    test::expect_every_number(test::every_number(dtype));
  }
}

class CudaGpuEveryNumber : public test::OnGpu {
 protected:
  /// Bytes of the first `rows`.
  static std::vector<std::uint8_t> bytes_of(const std::vector<std::uint16_t>& numbers,
                                            std::int64_t rows) {
    std::vector<std::uint8_t> bytes(size_of(rows * test::kNumbers * 2));
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    return bytes;
  }
  static Case case_of(Recipe recipe, Format dtype, std::int64_t rows) {
    Case c{recipe, dtype};
    c.rows = rows;
    c.k = test::kNumbers;
    c.layout = layouts_of(recipe).back();
    return c;
  }
};

/// Of blocks of 16, 32 and 128 along k. Of blocks of several rows a number is in every row and in
/// every column: of each row in one column, which differs from row to row.
TEST_F(CudaGpuEveryNumber, IsTakenInEveryPosition) {
  constexpr std::int64_t kRows = 3 * test::kLongestBlock;
  for (const Format dtype : {Format::bf16, Format::f16}) {
    const std::vector<std::uint16_t> numbers = test::every_number(dtype);
    ASSERT_EQ(numbers.size(), size_of(kRows * test::kNumbers));
    test::expect_every_number(numbers);
    const std::vector<std::uint8_t> elements = bytes_of(numbers, kRows);
    for (const Recipe recipe : scaled_recipes()) {
      for (const MxScaleMode mode : {MxScaleMode::ceil, MxScaleMode::floor, MxScaleMode::even}) {
        const bool mx = recipe_traits(recipe).family == Family::mx;
        if (!mx && mode != MxScaleMode::ceil) continue;
        Case c = case_of(recipe, dtype, kRows);
        c.options.mx_scale_mode = mode;
        check(c, elements);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

/// One scale for all numbers leaves most of them 0: here scales of all sizes are given, for eight
/// rows, in each of which a number has another position.
TEST_F(CudaGpuEveryNumber, IsTakenWithScalesOfAllSizes) {
  constexpr std::int64_t kRows = 8;
  for (const Format dtype : {Format::bf16, Format::f16}) {
    const std::vector<std::uint8_t> elements = bytes_of(test::every_number(dtype), kRows);
    for (const Recipe recipe :
         {Recipe::nvfp4, Recipe::fp8_row, Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2}) {
      // Codes of e4m3 and block scales of NVFP4 span 18 powers of two.
      for (int exponent = -124; exponent <= 124; exponent += 8) {
        if (dtype == Format::f16 && std::abs(exponent) > 48) continue;
        Case c = case_of(recipe, dtype, kRows);
        c.options.scale_source = ScaleSource::given;
        c.given = std::ldexp(1.1f, exponent);
        check(c, elements);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

}  // namespace
}  // namespace blockscale
