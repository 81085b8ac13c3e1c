// Divisor against division.
#include "core/divisor.h"

#include <gtest/gtest.h>

#include <random>

namespace blockscale {
namespace {

void check(std::uint32_t n, const Divisor& d) {
  ASSERT_EQ(d.quotient(n), n / d.divisor) << n << " / " << d.divisor;
  ASSERT_EQ(d.remainder(n), n % d.divisor) << n << " / " << d.divisor;
}

TEST(Divisor, OfEverySmallNumberAndThoseNextToPowersOfTwo) {
  constexpr std::uint32_t kLargest = 0x7FFFFFFF;
  std::mt19937 random(7);
  const auto check_divisor = [&](std::uint32_t d) {
    const Divisor divisor(d);
    for (std::uint32_t n = 0; n < 40; ++n) {
      check(n, divisor);
      check(kLargest - n, divisor);
      check(random() & kLargest, divisor);
      const std::uint32_t multiple = kLargest / d * (n % 3 + 1) / 3 * d;
      check(multiple, divisor);
      if (multiple > 0) check(multiple - 1, divisor);
    }
  };
  for (std::uint32_t d = 1; d < 3000; ++d) check_divisor(d);
  for (int bit = 11; bit < 31; ++bit) {
    for (std::uint32_t step = 0; step < 5; ++step) check_divisor((1u << bit) + step - 2);
  }
  check_divisor(kLargest);
  for (int i = 0; i < 3000; ++i) check_divisor((random() & kLargest) | 1);
}

TEST(Divisor, IsOneByDefault) {
  EXPECT_EQ(Divisor().quotient(123), 123u);
  EXPECT_EQ(Divisor().remainder(123), 0u);
}

}  // namespace
}  // namespace blockscale
