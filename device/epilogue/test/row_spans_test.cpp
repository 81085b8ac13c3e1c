// Row spans and row maps of the epilogue that stores tiles: a group's last rows never touch the
// next group's, and rows go where a map says.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/format.h"
#include "device/emulator/test/planted_test_support.h"
#include "device/epilogue/tile_store.cuh"
#include "device/ptx/special_registers.h"

namespace blockscale {
namespace {

using emulator::BufferUse;
using emulator::Mark;

constexpr int kColumns = 64;  // of D, and of a tile
constexpr std::uint16_t kPoison = 0x7FC1;

/// What a warp stores: 16 rows from one on, of a span.
struct Piece {
  std::uint32_t row;
  RowSpan span;
};

/// D[row, column]; exact in bf16.
float value_of(std::uint32_t row, std::uint32_t column) {
  return static_cast<float>((row * 5 + column) % 251) - 100.0f;
}

class RowSpans : public testing::Test {
 protected:
  static constexpr std::uint32_t kRows = 48;  // of D

  RowSpans() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    d_ = storage_.data() + (16 - address % 16) % 16 / 2;
    e_.d.data = reinterpret_cast<std::uint8_t*>(d_);
    e_.d.dtype = Format::bf16;
    e_.d.chunks = true;
    e_.d.row_stride = kColumns;
    e_.keeps_sums = true;
    e_.rows = kRows;
    e_.columns = kColumns;
    TensorMapDescription map;
    map.address = reinterpret_cast<std::uint64_t>(d_);
    map.rank = 3;
    map.element = TensorMapElement::u16;
    map.sizes[0] = kColumns;
    map.sizes[1] = kRows;
    map.sizes[2] = 1;
    map.strides[0] = kColumns * 2;
    map.strides[1] = kRows * kColumns * 2;
    map.box[0] = kColumns;
    map.box[1] = 16;
    map.box[2] = 1;
    map.element_strides[0] = map.element_strides[1] = map.element_strides[2] = 1;
    map.swizzle = TensorMapSwizzle::bytes_128;
    map_ = emulator::encode_tensor_map(map);
  }

  /// A block of one warp for each piece. `buffer_rows` of D may be written.
  template <class RowMap = SameRows>
  emulator::Program program(const std::vector<Piece>& pieces, std::uint32_t buffer_rows, Mark& mark,
                            const RowMap& rows = {}) {
    LaunchShape shape;
    shape.grid = {static_cast<std::uint32_t>(pieces.size())};
    shape.block = {32};
    shape.dynamic_shared_bytes = 2048;
    const SourceLocation at = mark.here();
    return {shape,
            {emulator::buffer("d", d_, buffer_rows * kColumns * 2, BufferUse::output)},
            [this, &pieces, rows, at] {
              const Piece& piece = pieces[ptx::ctaid_x()];
              const std::uint32_t lane = ptx::laneid();
              float sums[kColumns / 2];
              for (std::uint32_t i = 0; i < kColumns / 2; ++i) {
                sums[i] = value_of(piece.row + lane / 4 + i / 2 % 2 * 8,
                                   i / 4 * 8 + lane % 4 * 2 + i % 2);
              }
              using Store = TileStore<kColumns, 128, 1, RowMap>;
              Store(e_, &map_, device::shared_base(), rows)(sums, piece.span, piece.row, 0, at);
              Store::finish();
            }};
  }

  void poison() { storage_.assign(storage_.size(), kPoison); }
  /// The row of the product that lies in D's row, times a weight; none: poison.
  void expect_row(std::uint32_t row, std::int32_t source, float weight = 1) const {
    for (std::uint32_t column = 0; column < kColumns; ++column) {
      const std::uint16_t expected =
          source < 0 ? kPoison
                     : static_cast<std::uint16_t>(encode<Format::bf16>(
                           value_of(static_cast<std::uint32_t>(source), column) * weight));
      ASSERT_EQ(d_[row * kColumns + column], expected) << row << ", " << column;
    }
  }

  std::vector<std::uint16_t> storage_ = std::vector<std::uint16_t>(kRows * kColumns + 8, kPoison);
  std::uint16_t* d_ = nullptr;
  LinearEpilogue e_;
  TensorMap map_;
};

TEST_F(RowSpans, LastRowsLeaveTheNextGroupAlone) {
  const RowSpan first = {21, false}, second = {24, false}, third = {40, false};
  const std::vector<Piece> pieces = {{0, first}, {16, first}, {21, second}, {24, third}};
  Mark mark;
  emulator::expect_clean(program(pieces, kRows, mark), [&] {
    for (std::uint32_t row = 0; row < 40; ++row) expect_row(row, static_cast<std::int32_t>(row));
    for (std::uint32_t row = 40; row < kRows; ++row) expect_row(row, -1);
    poison();
  });
}

TEST_F(RowSpans, OfOneGroupEachLeaveTheOthersAlone) {
  for (const std::uint32_t end : {1u, 15u, 16u, 17u, 31u, 33u}) {
    std::vector<Piece> pieces;
    for (std::uint32_t row = 0; row < kRows; row += 16) pieces.push_back({row, {end, false}});
    Mark mark;
    emulator::expect_clean(program(pieces, end, mark), [&] {
      for (std::uint32_t row = 0; row < kRows; ++row) {
        expect_row(row, row < end ? static_cast<std::int32_t>(row) : -1);
      }
      poison();
    });
  }
}

TEST_F(RowSpans, ThatEndTheirMatrixAreStoredByTma) {
  e_.d.row_stride = kColumns;
  const std::vector<Piece> pieces = {{0, {kRows, true}}, {16, {kRows, true}}, {40, {kRows, true}}};
  Mark mark;
  emulator::expect_clean(program(pieces, kRows, mark), [&] {
    for (std::uint32_t row = 40; row < kRows; ++row)
      expect_row(row, static_cast<std::int32_t>(row));
    poison();
  });
}

// The planted bug: a box of 16 rows that crosses the end of a span.
TEST_F(RowSpans, ABoxAcrossASpansEnd) {
  const std::vector<Piece> pieces = {{16, {21, true}}};  // which ends no matrix
  Mark bug;
  emulator::expect_planted(program(pieces, 21, bug), emulator::FindingKind::out_of_bounds, bug,
                           {"of 'd' (2688 bytes)"});
}

TEST_F(RowSpans, RowsGoWhereAMapSays) {
  std::vector<std::int32_t> destinations(32, -1);
  std::vector<float> weights(32);
  for (std::uint32_t row = 0; row < 27; ++row) {
    destinations[row] = row == 5 ? -1 : static_cast<std::int32_t>((row * 7 + 3) % kRows);
    weights[row] = row % 3 == 0 ? 0.5f : 2.0f;
  }
  destinations[30] = 0;  // behind the span
  MappedRows map;
  map.destinations = destinations.data();
  map.weights = weights.data();
  map.rows = kRows;
  const std::vector<Piece> pieces = {{0, {27, false}}, {16, {27, false}}};
  Mark mark;
  emulator::Program mapped = program(pieces, kRows, mark, map);
  mapped.buffers.push_back(emulator::input("destinations", destinations));
  mapped.buffers.push_back(emulator::input("weights", weights));
  emulator::expect_clean(mapped, [&] {
    std::vector<std::int32_t> source(kRows, -1);
    for (std::uint32_t row = 0; row < 27; ++row) {
      if (destinations[row] >= 0) {
        source[static_cast<std::size_t>(destinations[row])] = static_cast<std::int32_t>(row);
      }
    }
    for (std::uint32_t row = 0; row < kRows; ++row) {
      const std::int32_t from = source[row];
      expect_row(row, from, from < 0 ? 1.0f : weights[static_cast<std::size_t>(from)]);
    }
    poison();
  });
}

}  // namespace
}  // namespace blockscale
