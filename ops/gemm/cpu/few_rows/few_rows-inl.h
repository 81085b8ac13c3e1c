// Few rows of A (a GEMV at one): rows of B are read as they lie, once, and nothing is written but
// D.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp.
//
// A is brought into the lane order of chunk-inl.h once. For each row of B and each chunk of k, the
// products of codes and A are summed in every lane, then multiplied with the scale of the lane's
// block and added to the lane's sum. A span of k is summed so in f32; then the lanes are added up,
// in f64 from there on. Four rows of B are gone through together, so that their sums hide each
// other's latency, and the four that follow are prefetched.

#if defined(BLOCKSCALE_OPS_GEMM_FEW_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_FEW_ROWS_INL_H_
#undef BLOCKSCALE_OPS_GEMM_FEW_ROWS_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_FEW_ROWS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ops/gemm/cpu/operand.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/task.h"
#include "ops/gemm/cpu/value_range.h"
// These are toggled per target as this file is.
#include "ops/gemm/cpu/panels/chunk-inl.h"
#include "ops/gemm/cpu/panels/panel-inl.h"
#include "ops/gemm/cpu/panels/span_factors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Scratch of multiply_span: a sum a lane for each element of a tile.
inline constexpr std::int64_t kLaneSums = kTileColumns * kFewRows * kLanes;

#if BLOCKSCALE_HAS_CHUNKS

/// Rows of A that share what is decoded of B: their sums fill the vector registers.
inline constexpr int kMaxGroupRows = kMaxPanelRows >= 14 ? 8 : 4;
/// Rows of B that one step goes through, and how far ahead they are fetched.
inline constexpr int kGroupColumns = 4;
inline constexpr int kAhead = 2 * kGroupColumns;

/// Calls `body` with the chunks of an element format known at run time.
template <class Body>
auto with_chunk(Format element, const Body& body) {
  switch (element) {
    case Format::e2m1: return body.template operator()<Chunk<Format::e2m1>>();
    case Format::e2m3: return body.template operator()<Chunk<Format::e2m3>>();
    case Format::e3m2: return body.template operator()<Chunk<Format::e3m2>>();
    case Format::e5m2: return body.template operator()<Chunk<Format::e5m2>>();
    default: return body.template operator()<Chunk<Format::e4m3>>();
  }
}

/// Rows of B that one call of the kernel goes through.
template <int kRows>
inline constexpr int kTogether = kRows == 1 || (kRows <= 4 && kMaxGroupRows == 8) ? 4 : 2;

/// Where the scales of a chunk's lanes are: the factors of chunk c begin at (c << left) >> right.
struct LaneScales {
  int left = 0;
  int right = 0;
  alignas(64) std::int32_t block_of_lane[16] = {};

  template <class C>
  static LaneScales of(const RecipeTraits& t) {
    LaneScales scales;
    const int block = t.block_k;
    if (block == 0) {
      scales.right = 62;
    } else if (block >= C::kCodes) {
      while (C::kCodes << scales.right < block) ++scales.right;
    } else {
      while (block << scales.left < C::kCodes) ++scales.left;
      for (int lane = 0; lane < kLanes; ++lane) {
        scales.block_of_lane[lane] = C::element(0, lane) / block;
      }
    }
    return scales;
  }
};

/// A row of B over a span.
struct RowOfB {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* next = nullptr;  // of a row to prefetch
  const std::uint8_t* last = nullptr;  // the chunk that is not whole, filled up with zeros, or null
  const float* factors = nullptr;
};

/// Chunks of a span: whole ones, and perhaps one that is not.
struct ChunkRange {
  std::int64_t begin = 0;
  std::int64_t whole = 0;  // end of the whole ones
  std::int64_t end = 0;
};

/// Adds the products of these chunks to `sums`: (row of B, row of A, lane).
template <class C, int kRows>
void multiply_rows(const RowOfB* b, const LaneScales& scales, const ChunkRange& range,
                   const float* a, float* HWY_RESTRICT sums) {
  const FloatTag df;
  constexpr int kB = kTogether<kRows>;
  const auto block_of_lane = hn::SetTableIndices(df, scales.block_of_lane);
  using Codes = std::array<const std::uint8_t*, kB>;
  const auto step = [&](const Codes& codes, std::int64_t c) HWY_ATTR {
    const float* const a_chunk = a + c * (kRows * C::kVectors * kLanes);
    hn::Vec<FloatTag> partial[kB][kRows];
    const auto chunks = [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) HWY_ATTR {
      return std::array<C, kB>{C(codes[kIndex])...};
    }(std::make_index_sequence<kB>());
    const auto add_vector = [&]<int kVector>() HWY_ATTR {
      hn::Vec<FloatTag> values[kB];
      HWY_UNROLL(4)
      for (int n = 0; n < kB; ++n)
        values[n] = chunks[static_cast<std::size_t>(n)].template vector<kVector>();
      HWY_UNROLL(8)
      for (int m = 0; m < kRows; ++m) {
        const auto x = hn::Load(df, a_chunk + (m * C::kVectors + kVector) * kLanes);
        HWY_UNROLL(4)
        for (int n = 0; n < kB; ++n) {
          partial[n][m] =
              kVector == 0 ? hn::Mul(values[n], x) : hn::MulAdd(values[n], x, partial[n][m]);
        }
      }
    };
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) HWY_ATTR {
      (add_vector.template operator()<kIndex>(), ...);
    }(std::make_integer_sequence<int, C::kVectors>());
    const std::int64_t first_factor = c << scales.left >> scales.right;
    HWY_UNROLL(4)
    for (int n = 0; n < kB; ++n) {
      const auto factor =
          hn::TableLookupLanes(hn::LoadU(df, b[n].factors + first_factor), block_of_lane);
      HWY_UNROLL(8)
      for (int m = 0; m < kRows; ++m) {
        float* const sum = sums + (n * kRows + m) * kLanes;
        hn::Store(hn::MulAdd(partial[n][m], factor, hn::Load(df, sum)), df, sum);
      }
    }
  };
  Codes codes;
  for (std::int64_t c = range.begin; c < range.whole; ++c) {
    HWY_UNROLL(4)
    for (std::size_t n = 0; n < kB; ++n) {
      codes[n] = b[n].codes + c * C::kBytes;
      prefetch_to_level_2(b[n].next + c * C::kBytes);
    }
    step(codes, c);
  }
  if (range.whole < range.end) {
    for (std::size_t n = 0; n < kB; ++n) codes[n] = b[n].last;
    step(codes, range.whole);
  }
}
/// kGroupColumns rows of B times kRows rows of A.
template <class C, int kRows>
void multiply_group(const RowOfB* b, const LaneScales& scales, const ChunkRange& range,
                    const float* a, float* sums) {
  for (int n = 0; n < kGroupColumns; n += kTogether<kRows>) {
    multiply_rows<C, kRows>(b + n, scales, range, a, sums + n * kRows * kLanes);
  }
}

/// multiply_group for 1..kMaxGroupRows rows.
using MultiplyGroup = void (*)(const RowOfB*, const LaneScales&, const ChunkRange&, const float*,
                               float*);
template <class C, int... kIndex>
constexpr std::array<MultiplyGroup, sizeof...(kIndex)> multiply_group_table(
    std::integer_sequence<int, kIndex...>) {
  return {multiply_group<C, kIndex + 1>...};
}
template <class C>
inline constexpr auto kMultiplyGroup =
    multiply_group_table<C>(std::make_integer_sequence<int, kMaxGroupRows>());

/// C::element, as indices.
template <class C>
struct LaneOrder {
  alignas(64) std::int32_t element[C::kVectors][kLanes];

  constexpr LaneOrder() : element() {
    for (int v = 0; v < C::kVectors; ++v) {
      for (int lane = 0; lane < kLanes; ++lane) element[v][lane] = C::element(v, lane);
    }
  }
};
template <class C>
inline constexpr LaneOrder<C> kLaneOrder{};

/// Rows of A in lane order: (group of rows, chunk, row of the group, vector, lane). What is beyond
/// k is 0.
template <class C>
void arrange_rows_as(PackedBand& band, std::int64_t k) {
  const RowGroups groups(band.rows, kMaxGroupRows);
  const std::int64_t chunks = ceil_div(k, C::kCodes);
  band.arranged = band.memory.take<float>(chunks * C::kCodes * band.rows);
  float* out = band.arranged.get();
  for (std::int64_t g = 0; g < groups.count; ++g) {
    for (std::int64_t c = 0; c < chunks; ++c) {
      for (std::int64_t r = groups.begin(g); r < groups.end(g); ++r) {
        const std::int64_t first = c * C::kCodes;
        const float* const from = band.row(first / kSlab, r) + first % kSlab;
        const std::int64_t count = std::min<std::int64_t>(C::kCodes, k - first);
        const float* source = from;
        alignas(64) float last[C::kCodes] = {};
        if (count < C::kCodes) {
          std::copy(from, from + count, last);
          source = last;
        }
        for (int v = 0; v < C::kVectors; ++v, out += kLanes) {
          const auto elements = hn::Load(hn::RebindToSigned<FloatTag>(), kLaneOrder<C>.element[v]);
          hn::Store(hn::GatherIndex(FloatTag(), source, elements), FloatTag(), out);
        }
      }
    }
  }
}

/// Chunks of k over which a group of rows of A stays in a level-1 cache, beside what passes
/// through.
template <class C>
std::int64_t chunks_in_level_1(std::int64_t rows) {
  constexpr std::int64_t kElements = 4096;  // 16 KiB
  return std::max<std::int64_t>(1, kElements / C::kCodes / rows);
}

/// The sum of the blocks of four lanes.
template <class D>
HWY_INLINE auto sum_of_blocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return sum_of_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// The lanes of each of four sums, added up.
HWY_INLINE auto sum_lanes(hn::Vec<FloatTag> s0, hn::Vec<FloatTag> s1, hn::Vec<FloatTag> s2,
                          hn::Vec<FloatTag> s3) {
  const FloatTag df;
  const hn::RepartitionToWide<FloatTag> dw;
  const auto s01 = hn::Add(hn::InterleaveLower(df, s0, s1), hn::InterleaveUpper(df, s0, s1));
  const auto s23 = hn::Add(hn::InterleaveLower(df, s2, s3), hn::InterleaveUpper(df, s2, s3));
  const auto low = hn::InterleaveLower(dw, hn::BitCast(dw, s01), hn::BitCast(dw, s23));
  const auto high = hn::InterleaveUpper(dw, hn::BitCast(dw, s01), hn::BitCast(dw, s23));
  return sum_of_blocks(df, hn::Add(hn::BitCast(df, low), hn::BitCast(df, high)));
}

/// Adds the lanes of each of four sums to four columns of a tile.
HWY_INLINE void add_lanes(hn::Vec<FloatTag> s0, hn::Vec<FloatTag> s1, hn::Vec<FloatTag> s2,
                          hn::Vec<FloatTag> s3, double* tile) {
  const auto four = sum_lanes(s0, s1, s2, s3);
  const hn::Rebind<double, hn::DFromV<decltype(four)>> dd;
  hn::Store(hn::Add(hn::Load(dd, tile), hn::PromoteTo(dd, four)), dd, tile);
}

/// The same of all sums of a group of rows of A, (column, row, lane), a multiple of four columns.
inline void add_all_lanes(std::int64_t rows, std::int64_t columns, const float* sums,
                          double* tile) {
  const FloatTag df;
  const std::int64_t pitch = rows * kLanes;
  for (std::int64_t n = 0; n < columns; n += 4) {
    for (std::int64_t m = 0; m < rows; ++m) {
      const float* const from = sums + (n * rows + m) * kLanes;
      add_lanes(hn::Load(df, from), hn::Load(df, from + pitch), hn::Load(df, from + 2 * pitch),
                hn::Load(df, from + 3 * pitch), tile + m * kTileColumns + n);
    }
  }
}

/// Four rows of B over a span, one group of them after the other; rows beyond `end` repeat the last
/// one.
template <class C>
class GroupOfB {
 public:
  GroupOfB(const OperandMatrix& b, std::int64_t end, std::int64_t begin, std::int64_t count)
      : first_(b.values + row_bytes(b.recipe, begin)),
        stride_(b.value_row_stride),
        last_row_(end - 1),
        last_of_all_(b.rows - 1),
        whole_bytes_(whole_chunks(count) * C::kBytes),
        bytes_(static_cast<std::size_t>(row_bytes(b.recipe, count) - whole_bytes_)) {}

  /// Rows [row, row + kGroupColumns).
  HWY_INLINE void move_to(std::int64_t row) {
    for (int i = 0; i < kGroupColumns; ++i) {
      const std::int64_t r = std::min(row + i, last_row_);
      const std::uint8_t* const codes = first_ + r * stride_;
      rows_[i].codes = codes;
      rows_[i].next = first_ + std::min(r + kAhead, last_of_all_) * stride_;
      rows_[i].last = last_[i];
      if (bytes_ != 0) {
        std::memset(last_[i], 0, sizeof(last_[i]));
        std::memcpy(last_[i], codes + whole_bytes_, bytes_);
      }
    }
  }
  void take_factors(const SpanFactors& factors, std::int64_t row) {
    for (int i = 0; i < kGroupColumns; ++i) {
      rows_[i].factors = factors.row(std::min(row + i, last_row_));
    }
  }

  /// A chunk that is not whole, or beside which a load reads too much, is copied.
  static std::int64_t whole_chunks(std::int64_t count) {
    return (count - (C::kOverRead == 0 ? 0 : 1)) / C::kCodes;
  }
  const RowOfB* rows() const { return rows_; }

 private:
  const std::uint8_t* first_;
  std::int64_t stride_;
  std::int64_t last_row_;     // of the task
  std::int64_t last_of_all_;  // of B
  std::int64_t whole_bytes_;
  std::size_t bytes_;  // beyond the whole chunks
  RowOfB rows_[kGroupColumns];
  alignas(64) std::uint8_t last_[kGroupColumns][C::kBytes + C::kOverRead];
};

/// Adds the products of k in [begin, begin + count), a span, to the tile, whose rows are all of the
/// chunk's. `sums` is scratch of kLaneSums numbers. False, and nothing done, if f32 might not hold
/// the sums.
template <class C>
bool multiply_span_as(const PackedBand& band, const OperandMatrix& b, const Task& task,
                      const SpanFactors& factors, std::int64_t begin, std::int64_t count,
                      float* sums, double* tile) {
  if (!span_is_safe(band.range, factors.range(), recipe_traits(b.recipe).element)) return false;
  const LaneScales scales = LaneScales::of<C>(recipe_traits(b.recipe));
  const std::int64_t padded = ceil_div(task.columns, std::int64_t{kGroupColumns}) * kGroupColumns;
  std::fill_n(sums, padded * band.rows * kLanes, 0.0f);
  const std::int64_t all_chunks = ceil_div(b.k, C::kCodes);
  const std::int64_t chunks = ceil_div(count, C::kCodes);
  const std::int64_t whole = GroupOfB<C>::whole_chunks(count);
  const RowGroups groups(band.rows, kMaxGroupRows);
  const std::int64_t step = chunks_in_level_1<C>(groups.end(0));
  GroupOfB<C> rows(b, task.column_begin + task.columns, begin, count);
  for (std::int64_t c = 0; c < chunks; c += step) {
    const ChunkRange range{c, std::min(whole, c + step), std::min(chunks, c + step)};
    for (std::int64_t n = 0; n < task.columns; n += kGroupColumns) {
      rows.move_to(task.column_begin + n);
      rows.take_factors(factors, task.column_begin + n);
      for (std::int64_t g = 0; g < groups.count; ++g) {
        const std::int64_t first = groups.begin(g);
        const std::int64_t group_rows = groups.end(g) - first;
        const std::int64_t a = first * all_chunks + begin / C::kCodes * group_rows;
        kMultiplyGroup<C>[static_cast<std::size_t>(group_rows - 1)](
            rows.rows(), scales, range, band.arranged.get() + a * C::kCodes,
            sums + (padded * first + n * group_rows) * kLanes);
      }
    }
  }
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t first = groups.begin(g);
    add_all_lanes(groups.end(g) - first, padded, sums + padded * first * kLanes,
                  tile + first * kTileColumns);
  }
  return true;
}

bool multiply_span(const PackedBand& band, const OperandMatrix& b, const Task& task,
                   const SpanFactors& factors, std::int64_t begin, std::int64_t count, float* sums,
                   double* tile) {
  return with_chunk(recipe_traits(b.recipe).element, [&]<class C>() {
    return multiply_span_as<C>(band, b, task, factors, begin, count, sums, tile);
  });
}

/// Prepares a band of A for multiply_span with B of `recipe`.
void arrange_rows(PackedBand& band, std::int64_t k, Recipe recipe) {
  with_chunk(recipe_traits(recipe).element, [&]<class C>() { arrange_rows_as<C>(band, k); });
}

bool has_few_rows(Recipe recipe) {
  return !is_plain(recipe);
}

#else  // the panels serve any number of rows

bool has_few_rows(Recipe) {
  return false;
}
void arrange_rows(PackedBand&, std::int64_t, Recipe) {}
bool multiply_span(const PackedBand&, const OperandMatrix&, const Task&, const SpanFactors&,
                   std::int64_t, std::int64_t, float*, double*) {
  return false;
}

#endif  // BLOCKSCALE_HAS_CHUNKS

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
