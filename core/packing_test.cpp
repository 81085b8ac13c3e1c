// Packing: known bytes, single elements among neighbours, whole rows.
#include "core/packing.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace blockscale {
namespace {

TEST(Packing, FourBitsLowNibbleFirst) {
  const std::uint8_t codes[] = {0x1, 0x2, 0xF, 0x8};
  std::uint8_t row[2] = {0xFF, 0xFF};
  pack_codes<Format::e2m1>(codes, 4, row);
  EXPECT_EQ(row[0], 0x21);
  EXPECT_EQ(row[1], 0x8F);
}

TEST(Packing, SixBitsFourInThreeBytes) {
  const std::uint8_t codes[] = {0x01, 0x02, 0x03, 0x3F};
  std::uint8_t row[3] = {0xFF, 0xFF, 0xFF};
  pack_codes<Format::e3m2>(codes, 4, row);
  // 0x3F << 18 | 0x03 << 12 | 0x02 << 6 | 0x01 = 0xFC3081, little-endian
  EXPECT_EQ(row[0], 0x81);
  EXPECT_EQ(row[1], 0x30);
  EXPECT_EQ(row[2], 0xFC);
}

constexpr bool packs_in_constant_expressions() {
  const uint8_t codes[] = {5, 6, 7};
  uint8_t row[2] = {};
  uint8_t back[3] = {};
  pack_codes<Format::e2m1>(codes, 3, row);
  unpack_codes<Format::e2m1>(row, 3, back);
  return row[0] == 0x65 && row[1] == 0x07 && back[0] == 5 && back[1] == 6 && back[2] == 7;
}
static_assert(packs_in_constant_expressions());

/// Random codes come back, through whole rows and through single elements in any order; bytes
/// behind the row and codes beside the stored one stay.
template <Format F>
void check_round_trip() {
  constexpr int kBits = format_traits(F).bits;
  constexpr std::uint32_t kMask = (1u << kBits) - 1;
  std::mt19937 random(static_cast<unsigned>(F));
  for (int count = 0; count <= 65; ++count) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
    for (auto& code : codes) code = static_cast<std::uint8_t>(random() & kMask);
    const auto bytes = static_cast<std::size_t>(packed_bytes(F, count));
    EXPECT_EQ(bytes, static_cast<std::size_t>(count * kBits + 7) / 8);
    std::vector<std::uint8_t> row(bytes + 1, 0xA5);
    pack_codes<F>(codes.data(), count, row.data());
    EXPECT_EQ(row.back(), 0xA5);

    std::vector<std::uint8_t> back(codes.size());
    unpack_codes<F>(row.data(), count, back.data());
    EXPECT_EQ(back, codes);
    for (int index = 0; index < count; ++index) {
      const std::size_t at = static_cast<std::size_t>((index * 29) % count);
      codes[at] = static_cast<std::uint8_t>(random() & kMask);
      store_code<F>(row.data(), static_cast<int64_t>(at), codes[at] | 0xF00u);  // high bits ignored
      EXPECT_EQ(load_code<F>(row.data(), static_cast<int64_t>(at)), codes[at]);
    }
    unpack_codes<F>(row.data(), count, back.data());
    EXPECT_EQ(back, codes);
    EXPECT_EQ(row.back(), 0xA5);
  }
}

TEST(Packing, RoundTrips) {
  check_round_trip<Format::e2m1>();
  check_round_trip<Format::e2m3>();
  check_round_trip<Format::e3m2>();
  check_round_trip<Format::e4m3>();
  check_round_trip<Format::e5m2>();
  check_round_trip<Format::ue8m0>();
  check_round_trip<Format::ue4m3>();
}

TEST(Packing, WideCodesAreLittleEndian) {
  std::uint8_t row[8] = {};
  store_code<Format::bf16>(row, 1, 0x1234);
  EXPECT_EQ(row[2], 0x34);
  EXPECT_EQ(row[3], 0x12);
  EXPECT_EQ(load_code<Format::bf16>(row, 1), 0x1234u);
  store_code<Format::f32>(row, 1, 0x89ABCDEFu);
  EXPECT_EQ(load_code<Format::f32>(row, 1), 0x89ABCDEFu);
  EXPECT_EQ(row[7], 0x89);
}

}  // namespace
}  // namespace blockscale
