// The layout algebra: sizes, offsets, inverses, tiling and printing, as constants and at run time.
#include "core/layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/layout_print.h"

namespace blockscale {
namespace {

template <class Value>
std::string text(const Value& value, Notation notation = Notation::plain) {
  std::string result;
  const auto sink = [&result](char c) { result += c; };
  print(value, notation, sink);
  return result;
}

// ((2,3),4):((1,10),100), once known to the compiler, once at run time
constexpr auto kStatic = make_layout(make_tuple(make_tuple(Int<2>{}, Int<3>{}), Int<4>{}),
                                     make_tuple(make_tuple(Int<1>{}, Int<10>{}), Int<100>{}));
constexpr auto kDynamic =
    make_layout(make_tuple(make_tuple(int64_t{2}, int64_t{3}), int64_t{4}),
                make_tuple(make_tuple(int64_t{1}, int64_t{10}), int64_t{100}));

TEST(Layout, StaticIntegersStayTypes) {
  static_assert(decltype(size(kStatic))::value == 24);
  static_assert(decltype(cosize(kStatic))::value == 1 + 20 + 300 + 1);
  static_assert(decltype(kStatic(Int<23>{}))::value == 321);
  static_assert(decltype(kStatic(make_tuple(Int<1>{}, Int<2>{}), Int<3>{}))::value == 321);
  static_assert(decltype(ceil_div(Int<5>{}, Int<4>{}))::value == 2);
  static_assert(sizeof(kStatic(std::int64_t{1})) == 8);
}

TEST(Layout, LinearIndexRunsLeftmostFirst) {
  static_assert(size(kDynamic) == 24);
  static_assert(cosize(kDynamic) == 322);
  int index = 0;
  for (int c = 0; c < 4; ++c) {
    for (int b = 0; b < 3; ++b) {
      for (int a = 0; a < 2; ++a, ++index) {
        const int expected = a + 10 * b + 100 * c;
        EXPECT_EQ(kStatic(index), expected);
        EXPECT_EQ(kDynamic(index), expected);
        EXPECT_EQ(kDynamic(make_tuple(a, b), c), expected);
        EXPECT_EQ(kDynamic(a + 2 * b, c), expected);
        EXPECT_EQ(
            text(coordinate(index, kDynamic.shape)),
            "((" + std::to_string(a) + "," + std::to_string(b) + ")," + std::to_string(c) + ")");
      }
    }
  }
  EXPECT_EQ(kDynamic(24), 400);  // the last mode has no end
}

TEST(Layout, FilterZerosKeepsOneCoordinateForEachElement) {
  constexpr auto kBroadcast = make_layout(
      make_tuple(make_tuple(Int<128>{}, int64_t{2}), make_tuple(int64_t{16}, int64_t{8})),
      make_tuple(make_tuple(Int<0>{}, int64_t{8}), make_tuple(Int<0>{}, Int<1>{})));
  static_assert(size(kBroadcast) == 128 * 2 * 16 * 8);
  static_assert(cosize(kBroadcast) == 16);
  static_assert(size(filter_zeros(kBroadcast)) == 16);
  static_assert(cosize(filter_zeros(kBroadcast)) == 16);
  EXPECT_EQ(text(filter_zeros(kBroadcast)), "((1,2),(1,8)):((0,8),(0,1))");
  EXPECT_EQ(kBroadcast(255, 127), 8 + 7);
}

TEST(Layout, EmptyLayoutsSpanNothing) {
  const auto empty =
      make_layout(make_tuple(int64_t{0}, int64_t{3}), make_tuple(int64_t{1}, int64_t{5}));
  EXPECT_EQ(size(empty), 0);
  EXPECT_EQ(cosize(empty), 0);
  EXPECT_FALSE(is_invertible(empty));
}

/// inverse and coordinate undo a layout, over its whole memory, padding included.
template <class Shape, class Stride>
void check_inverse(const Layout<Shape, Stride>& layout) {
  const auto compact = filter_zeros(layout);
  ASSERT_TRUE(is_invertible(layout)) << text(layout);
  std::vector<std::int64_t> index_of(static_cast<std::size_t>(cosize(layout)), -1);
  for (std::int64_t index = 0; index < size(compact); ++index) {
    index_of[static_cast<std::size_t>(compact(index))] = index;
  }
  for (std::size_t offset = 0; offset < index_of.size(); ++offset) {
    const auto at = static_cast<std::int64_t>(offset);
    ASSERT_EQ(inverse(compact, at), index_of[offset]) << text(layout) << " at " << offset;
    const std::int64_t in_layout = inverse(layout, at);
    if (index_of[offset] < 0) {
      ASSERT_EQ(in_layout, -1);
    } else {
      ASSERT_EQ(layout(in_layout), at);
      ASSERT_EQ(layout(coordinate(in_layout, layout.shape)), at);
    }
  }
  EXPECT_EQ(inverse(compact, cosize(layout)), -1);
}

TEST(Layout, InverseOverAllOfMemory) {
  check_inverse(kStatic);
  check_inverse(kDynamic);
  // padded lines, broadcasts, extents of 1 with the strides of others, modes in any order
  check_inverse(make_layout(make_tuple(make_tuple(Int<4>{}, 7), make_tuple(3, 5)),
                            make_tuple(make_tuple(Int<0>{}, 1), make_tuple(Int<0>{}, 9))));
  check_inverse(make_layout(make_tuple(5, 1, 4, 1), make_tuple(4, 20, 1, 20)));
  check_inverse(make_layout(make_tuple(1, 1), make_tuple(512, 1024)));
  check_inverse(make_layout(Int<6>{}, Int<3>{}));
  static_assert(inverse(kStatic, 121) == 1 + 2 * 2 + 6 * 1);
  static_assert(inverse(kStatic, 2) == -1);
}

TEST(Layout, InverseIsRefusedWhereModesOverlap) {
  static_assert(!is_invertible(make_layout(make_tuple(3, 2), make_tuple(2, 3))));
  static_assert(!is_invertible(make_layout(make_tuple(2, 2), make_tuple(1, 1))));
  static_assert(is_invertible(make_layout(make_tuple(2, 2), make_tuple(1, 2))));
}

TEST(Layout, TileToShapeRepeatsInTheGivenOrder) {
  const auto atom = make_layout(make_tuple(Int<2>{}, Int<3>{}), make_tuple(Int<3>{}, Int<1>{}));
  EXPECT_EQ(text(tile_to_shape(atom, make_tuple(5, 7), make_tuple(Int<1>{}, Int<2>{}))),
            "((2,3),(3,3)):((3,6),(1,18))");
  EXPECT_EQ(text(tile_to_shape(atom, make_tuple(5, 7), make_tuple(Int<2>{}, Int<1>{}))),
            "((2,3),(3,3)):((3,18),(1,6))");
  EXPECT_EQ(
      text(tile_to_shape(atom, make_tuple(4, 3, 2), make_tuple(Int<3>{}, Int<1>{}, Int<2>{}))),
      "((2,2),(3,1),(1,2)):((3,12),(1,6),(0,6))");
  const auto fixed =
      tile_to_shape(atom, make_tuple(Int<5>{}, Int<7>{}), make_tuple(Int<2>{}, Int<1>{}));
  EXPECT_EQ(text(fixed, Notation::cutlass), "((_2,_3),(_3,_3)):((_3,_18),(_1,_6))");
  check_inverse(fixed);
}

TEST(Layout, AppendModeAddsBatchesAndStages) {
  const auto staged = append_mode(kStatic, Int<4>{}, cosize(kStatic));
  EXPECT_EQ(text(staged, Notation::cutlass), "((_2,_3),_4,_4):((_1,_10),_100,_322)");
  EXPECT_EQ(text(mode<0>(staged)), "(2,3):(1,10)");
  EXPECT_EQ(staged(1, 1, 3), 1 + 100 + 3 * 322);
}

TEST(Layout, Prints) {
  EXPECT_EQ(text(kStatic), "((2,3),4):((1,10),100)");
  EXPECT_EQ(text(kStatic, Notation::cutlass), "((_2,_3),_4):((_1,_10),_100)");
  EXPECT_EQ(text(kDynamic, Notation::cutlass), "((2,3),4):((1,10),100)");
  EXPECT_EQ(text(make_layout(Int<8>{}, 1234567890123)), "8:1234567890123");
  EXPECT_EQ(text(make_tuple()), "()");
}

}  // namespace
}  // namespace blockscale
