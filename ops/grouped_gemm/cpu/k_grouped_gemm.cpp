// Products whose k is divided into groups, on the CPU: a group may begin and end anywhere in a
// block of scales, so its k are decoded to f32 and multiplied as such.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "blockscale/parallel.h"
#include "ops/common/checks.h"
#include "ops/common/float_environment.h"
#include "ops/common/simd/requested.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/gemm/cpu/products.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale {
namespace grouped_gemm_detail {
namespace {

using gemm_detail::OperandMatrix;
using gemm_detail::Piece;

/// Some k of a group, decoded: A's rows and then B's, of `end - begin` numbers each.
struct KPart {
  std::int64_t group = 0;
  std::int64_t begin = 0, end = 0;
  bool is_first = true;    // of its group
  std::int64_t first = 0;  // numbers of the wave before it
};

/// Parts that are decoded and multiplied together, no two of one group.
struct KWave {
  std::vector<KPart> parts;
  std::int64_t numbers = 0;
};

/// Numbers of a wave at most: 64 MiB. A part is no less than kSpan of k: sums of spans are added up
/// in D's f32, as they are in f64 within a product.
constexpr std::int64_t kMostInWave = std::int64_t{1} << 24;

std::vector<KWave> k_waves(const KGroupedGemmArguments& x) {
  const std::int64_t rows = x.a.rows + x.b.rows;
  const std::int64_t most =
      std::max(gemm_detail::kSpan, kMostInWave / rows / gemm_detail::kSpan * gemm_detail::kSpan);
  std::vector<KWave> waves(1);
  for (std::int64_t g = 0; g < x.d.batch; ++g) {
    const GroupRows k = group_rows(x.offsets[g], x.offsets[g + 1], x.a.k);
    for (std::int64_t begin = k.begin; begin < k.end; begin += most) {
      const std::int64_t end = std::min(k.end, begin + most);
      const std::int64_t numbers = (end - begin) * rows;
      const bool is_first = begin == k.begin;
      if (!is_first || waves.back().numbers + numbers > kMostInWave) waves.emplace_back();
      KWave& wave = waves.back();
      wave.parts.push_back({g, begin, end, is_first, wave.numbers});
      wave.numbers += numbers;
    }
  }
  return waves;
}

void decode_wave(const KGroupedGemmArguments& x, const KWave& wave, float* numbers, int threads) {
  constexpr std::int64_t kRows = 8;  // that are decoded at a time
  const OperandMatrix a(x.a, 0), b(x.b, 0);
  const std::int64_t steps_of_a = ceil_div(a.rows, kRows);
  const std::int64_t steps = steps_of_a + ceil_div(b.rows, kRows);
  const auto decode = [&](std::int64_t index, std::int64_t) {
    const DefaultFloatEnvironment environment;
    const KPart& part = wave.parts[static_cast<std::size_t>(index / steps)];
    const std::int64_t step = index % steps;
    const std::int64_t count = part.end - part.begin;
    const bool is_a = step < steps_of_a;
    const OperandMatrix& operand = is_a ? a : b;
    const std::int64_t first = (is_a ? step : step - steps_of_a) * kRows;
    float* const out = numbers + part.first + (is_a ? first : a.rows + first) * count;
    gemm_detail::decode_values(operand, first, std::min(kRows, operand.rows - first), part.begin,
                               count, out);
  };
  parallel_for(std::ssize(wave.parts) * steps, 1, threads, std::cref(decode));
}

ScaledTensorView f32_view(const float* values, std::int64_t rows, std::int64_t k) {
  ScaledTensorView view;
  view.rows = rows;
  view.k = k;
  view.values = values;
  view.value_row_stride = k * static_cast<std::int64_t>(sizeof(float));
  return view;
}

Piece piece_of(const KGroupedGemmArguments& x, const KPart& part, const float* numbers) {
  const std::int64_t k = part.end - part.begin;
  const float* const a = numbers + part.first;
  Piece piece{OperandMatrix(f32_view(a, x.a.rows, k), 0),
              OperandMatrix(f32_view(a + x.a.rows * k, x.b.rows, k), 0)};
  piece.rows = piece.product_rows = x.a.rows;
  piece.epilogue = gemm_detail::epilogue_of(double{x.alpha}, OperandMatrix(x.a, 0),
                                            OperandMatrix(x.b, 0), Format::f32);
  constexpr std::int64_t kSize = sizeof(float);
  piece.out.d = reinterpret_cast<std::uint8_t*>(static_cast<float*>(x.d.data) +
                                                part.group * x.d.batch_stride);
  piece.out.d_row_stride = x.d.row_stride * kSize;
  if (x.adds || !part.is_first) {
    piece.epilogue.beta = 1.0;
    piece.out.c = piece.out.d;
    piece.out.c_row_stride = piece.out.d_row_stride;
  }
  return piece;
}

/// D of groups that have no k.
void clear_empty_groups(const KGroupedGemmArguments& x, int threads) {
  const auto clear = [&](std::int64_t g, std::int64_t) {
    const GroupRows k = group_rows(x.offsets[g], x.offsets[g + 1], x.a.k);
    if (k.begin < k.end) return;
    for (std::int64_t r = 0; r < x.d.rows; ++r) {
      float* const row = static_cast<float*>(x.d.data) + g * x.d.batch_stride + r * x.d.row_stride;
      std::fill(row, row + x.d.columns, 0.0f);
    }
  };
  parallel_for(x.d.batch, 1, threads, std::cref(clear));
}

}  // namespace
}  // namespace grouped_gemm_detail

void k_grouped_gemm(const KGroupedGemmArguments& arguments, const GroupedGemmOptions& options) {
  using namespace grouped_gemm_detail;
  use_requested_simd();
  const KGroupedGemmArguments x = validated(arguments);
  checks::check_threads("options.threads", options.threads);
  if (x.d.rows == 0 || x.d.columns == 0) return;
  if (!x.adds) clear_empty_groups(x, options.threads);
  const std::vector<KWave> waves = k_waves(x);
  std::int64_t most_numbers = 0;
  for (const KWave& wave : waves) most_numbers = std::max(most_numbers, wave.numbers);
  const auto numbers = gemm_detail::allocate<float>(most_numbers);
  for (const KWave& wave : waves) {
    decode_wave(x, wave, numbers.get(), options.threads);
    std::vector<Piece> pieces;
    pieces.reserve(wave.parts.size());
    for (const KPart& part : wave.parts) pieces.push_back(piece_of(x, part, numbers.get()));
    gemm_detail::multiply_pieces(pieces, options.threads);
  }
}

}  // namespace blockscale
