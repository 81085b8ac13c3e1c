#include <gtest/gtest.h>

#include "blockscale/device.h"
#include "tests/expect_error.h"

namespace blockscale::cuda {
namespace {

TEST(Chip, HasTheNamesThatPeopleUse) {
  EXPECT_EQ(chip_named("H200"), Chip());
  EXPECT_EQ(chip_named("NVIDIA H20").multiprocessors, 78);
  EXPECT_EQ(chip_named("H20").multiprocessors, 78);
  EXPECT_EQ(chip_named("B300").architecture, 103);
  EXPECT_EQ(chip_named("RTX PRO 6000").architecture, 120);
  EXPECT_EQ(chip_named("GB10").shared_bytes, 99 << 10);
  for (const Chip& chip : known_chips()) EXPECT_EQ(&chip_named(chip.name), &chip);
  for (const char* const name : {"", "NVIDIA", "h200", "H2"}) {
    test::expect_invalid("chip", "must be of one of NVIDIA H200, ",
                         [&] { (void)chip_named(name); });
  }
}

}  // namespace
}  // namespace blockscale::cuda
