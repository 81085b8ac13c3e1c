// Scale layouts: what the field's documents print, and offsets, counts and inverses against
// arithmetic written out here, for every layout, granularity, leading stride and ragged edge.
#include "core/scale_layout.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/layout_print.h"

namespace blockscale {
namespace {

template <class Value>
std::string text(const Value& value, Notation notation = Notation::cutlass) {
  std::string result;
  const auto sink = [&result](char c) { result += c; };
  print(value, notation, sink);
  return result;
}

/// CUTLASS's global layout of the MN-major scales of one operand, batch included, as
/// tile_atom_to_shape_SFA and _SFB deduce it for SM90.
template <class RowBlock>
auto cutlass_global(int rows, int k, RowBlock row_block) {
  const int grid_rows = (rows + row_block - 1) / row_block;
  const int grid_columns = (k + 127) / 128;
  const auto matrix = make_scale_layout<ScaleLayout::mn_major>(grid_rows, grid_columns, row_block,
                                                               Int<128>{}, grid_rows);
  return append_batch<ScaleLayout::mn_major>(matrix, 1, size(filter_zeros(matrix)));
}

/// Its layout in shared memory for a 128 x 128 tile.
template <class RowBlock>
auto cutlass_tile(RowBlock row_block) {
  const auto grid_rows = ceil_div(Int<128>{}, row_block);
  return make_scale_layout<ScaleLayout::mn_major>(grid_rows, Int<1>{}, row_block, Int<128>{},
                                                  grid_rows);
}

// The document on SM90 blockwise and groupwise scaling, at (M, N, K) = (256, 512, 1024). It writes
// the batch strides as products: 2*8, 4*8, 256*8.
TEST(CutlassSm90, GlobalLayouts) {
  EXPECT_EQ(text(cutlass_global(256, 1024, Int<128>{})),
            "((_128,2),(_128,8),1):((_0,_1),(_0,2),16)");
  EXPECT_EQ(text(cutlass_global(512, 1024, Int<128>{})),
            "((_128,4),(_128,8),1):((_0,_1),(_0,4),32)");
  EXPECT_EQ(text(cutlass_global(256, 1024, Int<1>{})),
            "((_1,256),(_128,8),1):((_0,_1),(_0,256),2048)");
}

TEST(CutlassSm90, FilteredForms) {
  EXPECT_EQ(text(filter_zeros(cutlass_global(256, 1024, Int<1>{}))),
            "((_1,256),(_1,8),1):((_0,_1),(_0,256),2048)");
  EXPECT_EQ(text(filter_zeros(cutlass_global(512, 1024, Int<128>{}))),
            "((_1,4),(_1,8),1):((_0,_1),(_0,4),32)");
}

TEST(CutlassSm90, SharedMemoryAtomsAndStages) {
  const auto blockwise = cutlass_tile(Int<128>{});
  const auto groupwise = cutlass_tile(Int<1>{});
  EXPECT_EQ(text(blockwise), "((_128,_1),(_128,_1)):((_0,_1),(_0,_1))");
  EXPECT_EQ(text(groupwise), "((_1,_128),(_128,_1)):((_0,_1),(_0,_128))");
  const auto staged = [](const auto& atom) {
    return append_mode(atom, Int<4>{}, size(filter_zeros(atom)));
  };
  EXPECT_EQ(text(staged(blockwise)), "((_128,_1),(_128,_1),_4):((_0,_1),(_0,_1),_1)");
  EXPECT_EQ(text(staged(groupwise)), "((_1,_128),(_128,_1),_4):((_0,_1),(_0,_128),_128)");
}

// The document on scale tensors in CuTeDSL: the atom, and tile_to_shape over (M, K, L) in the order
// (2, 1, 3), for A of (M, K, 1).
TEST(CuteDsl, AtomAndTensors) {
  const auto atom = scale_atom<ScaleLayout::swizzled_128x4>(Int<16>{});
  EXPECT_EQ(text(atom, Notation::plain), "((32,4),(16,4)):((16,4),(0,1))");
  const struct {
    int m, k;
    const char* sfa_tensor;
  } examples[] = {
      {128, 64, "(((32,4),1),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,512))"},
      {128, 128, "(((32,4),1),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,1024))"},
      {256, 64, "(((32,4),2),((16,4),1),(1,1)):(((16,4),512),((0,1),512),(0,1024))"},
      {256, 128, "(((32,4),2),((16,4),2),(1,1)):(((16,4),1024),((0,1),512),(0,2048))"},
  };
  for (const auto& e : examples) {
    const auto tiled =
        tile_to_shape(atom, make_tuple(e.m, e.k, 1), make_tuple(Int<2>{}, Int<1>{}, Int<3>{}));
    EXPECT_EQ(text(tiled, Notation::plain), e.sfa_tensor);
    EXPECT_EQ(size(tiled), e.m * e.k);

    constexpr ScaleLayout kLayout = ScaleLayout::swizzled_128x4;
    const std::int64_t leading = default_leading_stride(kLayout, e.m, e.k / 16);
    const auto matrix = make_scale_layout<kLayout>(e.m, e.k / 16, Int<1>{}, Int<16>{}, leading);
    const auto batched = append_batch<kLayout>(matrix, 1, cosize(matrix));
    EXPECT_EQ(text(batched, Notation::plain), e.sfa_tensor);
  }
}

// The document on LightX2V: [numMTiles, numKTiles, 32 (mTile), 4 (mTile), 4 (kTile)], row-major.
TEST(LightX2V, FiveDimensionalOffset) {
  for (const int k_blocks : {1, 4, 5, 12}) {
    const std::int64_t k_tiles = (k_blocks + 3) / 4;
    for (int row = 0; row < 300; ++row) {
      for (int k_block = 0; k_block < k_blocks; ++k_block) {
        const std::int64_t outer_m = row % 32, inner_m = row % 128 / 32, m_tile = row / 128;
        const std::int64_t inner_k = k_block % 4, k_tile = k_block / 4;
        const std::int64_t expected =
            (((m_tile * k_tiles + k_tile) * 32 + outer_m) * 4 + inner_m) * 4 + inner_k;
        ASSERT_EQ(scale_offset(ScaleLayout::swizzled_128x4, row, k_block, k_tiles), expected);
      }
    }
  }
}

// The document on TensorRT-LLM: a_sf is [K//128, M], transposed from the usual [M, K//128], f32.
TEST(TensorRtLlm, TransposedScales) {
  constexpr int kM = 7, kBlocks = 5;
  float usual[kM][kBlocks], transposed[kBlocks][kM];
  for (int m = 0; m < kM; ++m) {
    for (int k = 0; k < kBlocks; ++k)
      usual[m][k] = transposed[k][m] = static_cast<float>(m * 16 + k);
  }
  const auto layout =
      make_scale_layout<ScaleLayout::mn_major>(kM, kBlocks, Int<1>{}, Int<128>{}, kM);
  const auto rows =
      make_scale_layout<ScaleLayout::row_major>(kM, kBlocks, Int<1>{}, Int<128>{}, kBlocks);
  for (int m = 0; m < kM; ++m) {
    for (int k = 0; k < kBlocks * 128; ++k) {
      EXPECT_EQ((&transposed[0][0])[layout(m, k)], (&usual[0][0])[rows(m, k)]);
      EXPECT_EQ((&transposed[0][0])[layout(m, k)], usual[m][k / 128]);
    }
  }
}

/// The layouts as arithmetic, from the comments of the enumerators.
std::int64_t offset_by_hand(ScaleLayout layout, std::int64_t i, std::int64_t j,
                            std::int64_t leading) {
  switch (layout) {
    case ScaleLayout::row_major: return i * leading + j;
    case ScaleLayout::mn_major: return j * leading + i;
    case ScaleLayout::swizzled_128x4:
      return (i / 128 * leading + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
    case ScaleLayout::swizzled_8x4: return (i / 8 * leading + j / 4) * 32 + i % 8 * 4 + j % 4;
  }
  return -1;
}

struct Grid {
  std::int64_t rows, columns, padding;  // padding: added to the leading stride of strided layouts
};
constexpr Grid kGrids[] = {{1, 1, 0},   {1, 9, 3},    {7, 4, 0},   {8, 5, 2},  {9, 3, 1},
                           {128, 4, 0}, {129, 13, 6}, {300, 1, 0}, {31, 8, 0}, {257, 17, 40}};

std::int64_t leading_of(ScaleLayout layout, const Grid& grid) {
  const std::int64_t packed = default_leading_stride(layout, grid.rows, grid.columns);
  return is_swizzled(layout) ? packed : packed + grid.padding;
}

class EveryLayout : public testing::TestWithParam<ScaleLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, EveryLayout,
                         testing::Values(ScaleLayout::row_major, ScaleLayout::mn_major,
                                         ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4),
                         [](const auto& layout) { return scale_layout_traits(layout.param).name; });

TEST_P(EveryLayout, OffsetsCountsAndInversesOfGrids) {
  const ScaleLayout layout = GetParam();
  for (const Grid& grid : kGrids) {
    const std::int64_t leading = leading_of(layout, grid);
    const std::int64_t count = scale_count(layout, grid.rows, grid.columns, leading);
    std::vector<bool> used(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < grid.rows; ++i) {
      for (std::int64_t j = 0; j < grid.columns; ++j) {
        const std::int64_t offset = scale_offset(layout, i, j, leading);
        ASSERT_EQ(offset, offset_by_hand(layout, i, j, leading));
        ASSERT_LT(offset, count);
        ASSERT_FALSE(used[static_cast<std::size_t>(offset)]) << "two scales in one place";
        used[static_cast<std::size_t>(offset)] = true;
        const ScaleCoordinate at =
            scale_coordinate(layout, offset, grid.rows, grid.columns, leading);
        ASSERT_EQ(at.i, i);
        ASSERT_EQ(at.j, j);
      }
    }
    for (std::int64_t offset = 0; offset < count; ++offset) {
      if (used[static_cast<std::size_t>(offset)]) continue;
      EXPECT_EQ(scale_coordinate(layout, offset, grid.rows, grid.columns, leading).i, -1);
    }
    const ScaleLayoutTraits& t = scale_layout_traits(layout);
    if (is_swizzled(layout)) {
      EXPECT_EQ(count % (t.tile_rows * t.tile_k), 0);
      EXPECT_GE(count, grid.rows * grid.columns);
    } else {
      EXPECT_TRUE(used.back());
    }
    EXPECT_GE(default_batch_stride(layout, grid.rows, grid.columns, leading), count);
  }
  EXPECT_EQ(scale_count(layout, 0, 4, 4), 0);
  EXPECT_EQ(scale_count(layout, 4, 0, 4), 0);
}

/// Element coordinates, block granularities known to the compiler or not, batches.
template <ScaleLayout L, class RowBlock, class KBlock>
void check_elements(RowBlock row_block, KBlock k_block) {
  const std::int64_t rows = 2 * row_block + 3, k = 5 * k_block + 1;  // ragged
  const std::int64_t grid_rows = ceil_div(rows, row_block), grid_columns = ceil_div(k, k_block);
  const std::int64_t leading = leading_of(L, {grid_rows, grid_columns, 11});
  const auto matrix = make_scale_layout<L>(grid_rows, grid_columns, row_block, k_block, leading);
  const std::int64_t batch_stride = default_batch_stride(L, grid_rows, grid_columns, leading);
  const auto batched = append_batch<L>(matrix, std::int64_t{3}, batch_stride);
  EXPECT_GE(size(mode<0>(matrix)), rows);
  EXPECT_GE(size(mode<1>(matrix)), k);
  EXPECT_EQ(cosize(matrix), scale_count(L, grid_rows, grid_columns, leading));
  EXPECT_TRUE(is_invertible(batched));
  for (std::int64_t batch = 0; batch < 3; ++batch) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < k; ++column) {
        ASSERT_EQ(
            batched(row, column, batch),
            batch * batch_stride + offset_by_hand(L, row / row_block, column / k_block, leading));
      }
    }
  }
}

TEST(ScaleLayouts, ElementCoordinates) {
  check_elements<ScaleLayout::row_major>(Int<1>{}, Int<128>{});
  check_elements<ScaleLayout::row_major>(Int<64>{}, Int<128>{});
  check_elements<ScaleLayout::row_major>(5, 3);
  check_elements<ScaleLayout::mn_major>(Int<1>{}, Int<128>{});
  check_elements<ScaleLayout::mn_major>(Int<32>{}, std::int64_t{128});
  check_elements<ScaleLayout::mn_major>(std::int64_t{128}, Int<128>{});
  check_elements<ScaleLayout::mn_major>(7, 10);
  check_elements<ScaleLayout::swizzled_128x4>(Int<1>{}, Int<16>{});
  check_elements<ScaleLayout::swizzled_128x4>(Int<1>{}, std::int64_t{32});
  check_elements<ScaleLayout::swizzled_128x4>(Int<1>{}, 128);
  check_elements<ScaleLayout::swizzled_8x4>(Int<1>{}, Int<16>{});
  check_elements<ScaleLayout::swizzled_8x4>(Int<1>{}, Int<32>{});
}

TEST(ScaleLayouts, AreConstants) {
  static_assert(scale_offset(ScaleLayout::swizzled_128x4, 133, 7, 2) == 1024 + 5 * 16 + 512 + 3);
  static_assert(scale_offset<ScaleLayout::mn_major>(3, 2, 100) == 203);
  static_assert(scale_count(ScaleLayout::swizzled_8x4, 9, 5, 2) == 2 * 2 * 32);
  static_assert(kScaleLayouts[2].tile_rows == 128 && kScaleLayouts[2].tile_k == 4);
  static_assert(kScaleLayouts[3].tile_rows == 8 && kScaleLayouts[3].tile_k == 4);
  for (int i = 0; i < kScaleLayoutCount; ++i) {
    EXPECT_EQ(static_cast<int>(kScaleLayouts[i].layout), i);
  }
}

}  // namespace
}  // namespace blockscale
