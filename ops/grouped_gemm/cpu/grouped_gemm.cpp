// The CPU's grouped products. Reading order: waves.h (what is multiplied together), multiply_wave
// below, ops/gemm/cpu/products.h; gather.h and results.h for rows that come from or go elsewhere.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "blockscale/system.h"
#include "ops/common/checks.h"
#include "ops/common/simd/requested.h"
#include "ops/gemm/cpu/plan.h"
#include "ops/gemm/cpu/products.h"
#include "ops/gemm/validate.h"
#include "ops/grouped_gemm/cpu/gather.h"
#include "ops/grouped_gemm/cpu/results.h"
#include "ops/grouped_gemm/cpu/waves.h"
#include "ops/grouped_gemm/validate.h"

namespace blockscale {
namespace grouped_gemm_detail {
namespace {

using gemm_detail::OperandMatrix;
using gemm_detail::Piece;

/// Numbers that a wave holds of gathered A, and of D in f32, at most: 16 MiB of D.
constexpr std::int64_t kMostNumbers = std::int64_t{1} << 22;

/// Rows of a wave: all, where none are copied.
std::int64_t most_rows_of_wave(const GroupedGemmArguments& x) {
  const std::int64_t of_a = x.index != nullptr ? x.a.k : 0;
  const std::int64_t of_d = has_rows_in_f32(x) ? x.b.rows : 0;
  const std::int64_t numbers = std::max(of_a, of_d);
  if (numbers == 0) return std::numeric_limits<std::int64_t>::max();
  return std::max<std::int64_t>(1, kMostNumbers / numbers);
}

/// Rows of the largest wave.
std::int64_t largest_of(const std::vector<RowWave>& waves) {
  std::int64_t rows = 0;
  for (const RowWave& wave : waves) rows = std::max(rows, wave.rows);
  return rows;
}

/// The product of a part of a wave, but for where D goes.
Piece piece_of(const GroupedGemmArguments& x, const ScaledTensorView& a, const Part& part,
               Format d_dtype) {
  const std::int64_t g = part.group;
  Piece piece{OperandMatrix(a, g), OperandMatrix(x.b, g)};
  piece.first_row = x.index == nullptr ? part.rows.begin : part.first;
  piece.rows = part.rows.end - part.rows.begin;
  piece.product_rows = part.group_rows;
  piece.batch_invariant = x.batch_invariant;
  const double factor = x.alpha_factors == nullptr ? 1.0 : double{x.alpha_factors[g]};
  piece.epilogue = gemm_detail::epilogue_of(double{x.alpha} * factor, piece.a, piece.b, d_dtype);
  if (x.bias != nullptr) {
    const std::int64_t size = format_traits(x.bias_dtype).bits / 8;
    piece.out.bias = static_cast<const std::uint8_t*>(x.bias) + g * x.b.rows * size;
    piece.out.bias_dtype = x.bias_dtype;
  }
  return piece;
}

/// Rows of D in `rows`, or where that is null in d.
void multiply_wave(const GroupedGemmArguments& x, const ScaledTensorView& a, const RowWave& wave,
                   const RowsInF32* rows, int threads) {
  const Format dtype = rows == nullptr ? x.d.dtype : Format::f32;
  const std::int64_t size = format_traits(dtype).bits / 8;
  std::vector<Piece> pieces;
  pieces.reserve(wave.parts.size());
  for (const Part& part : wave.parts) {
    Piece& piece = pieces.emplace_back(piece_of(x, a, part, dtype));
    if (rows == nullptr) {
      const std::int64_t matrix = is_masked(x) ? part.group : 0;
      piece.out.d = static_cast<std::uint8_t*>(x.d.data) +
                    (matrix * x.d.batch_stride + part.rows.begin * x.d.row_stride) * size;
      piece.out.d_row_stride = x.d.row_stride * size;
    } else {
      piece.out.d = reinterpret_cast<std::uint8_t*>(rows->row(part.first));
      piece.out.d_row_stride = x.b.rows * size;
    }
  }
  gemm_detail::multiply_pieces(pieces, threads);
}

bool is_empty(const GroupedGemmArguments& x) {
  return x.rows == 0 || x.b.rows == 0;
}

/// "1..4 rows" or "from 5 rows on".
std::string text_of_rows(std::int64_t first, std::int64_t last, std::int64_t most) {
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  if (last == most) return "from " + text(first) + (first == 1 ? " row on" : " rows on");
  return (first == last ? text(first) : text(first) + ".." + text(last)) +
         (last == 1 ? " row" : " rows");
}

}  // namespace
}  // namespace grouped_gemm_detail

void grouped_gemm(const GroupedGemmArguments& arguments, const GroupedGemmOptions& options) {
  using namespace grouped_gemm_detail;
  use_requested_simd();
  const GroupedGemmArguments x = validated(arguments);
  checks::check_threads("options.threads", options.threads);
  if (is_empty(x)) return;
  const std::vector<RowWave> waves = row_waves(x, most_rows_of_wave(x));
  const std::int64_t most_rows = largest_of(waves);
  std::optional<GatheredRows> gathered;
  std::optional<RowsInF32> rows;
  if (x.index != nullptr) gathered.emplace(x, most_rows);
  if (has_rows_in_f32(x)) rows.emplace(x, most_rows);
  for (const RowWave& wave : waves) {
    const ScaledTensorView a = gathered ? gathered->gather(x, wave, options.threads) : x.a;
    multiply_wave(x, a, wave, rows ? &*rows : nullptr, options.threads);
    if (rows) rows->store(x, wave, options.threads);
  }
}

std::string describe_grouped_gemm(const GroupedGemmArguments& arguments) {
  using namespace grouped_gemm_detail;
  use_requested_simd();
  const GroupedGemmArguments x = validated(arguments);
  if (is_empty(x)) return "nothing to do\n";
  const Recipe a = x.index == nullptr ? x.a.recipe : recipe_of_gathered(x.a.recipe);
  const auto kernel_of = [&](std::int64_t m) {
    return gemm_detail::cpu_method(m, a, x.b.recipe, x.batch_invariant).kernel;
  };
  std::string text = std::to_string(groups_of(x)) + " groups of up to " + std::to_string(x.rows) +
                     " rows, packed together and multiplied in tasks of " +
                     std::to_string(gemm_detail::kTileColumns) + " columns, on " + simd_target() +
                     gemm_detail::text_of_quantization(product_of_rows(x)) + "\n";
  // Methods differ for few rows only.
  const std::int64_t most = std::min<std::int64_t>(x.rows, gemm_detail::kFewRows + 1);
  for (std::int64_t first = 1, last = 0; first <= most; first = last + 1) {
    last = first;
    while (last < most && kernel_of(last + 1) == kernel_of(first)) ++last;
    const std::int64_t rows = last == most ? x.rows : last;
    text += text_of_rows(first, last, most) + ": " +
            gemm_detail::cpu_plan(rows, x.b.rows, x.a.k)
                .describe(recipe_traits(a).name, recipe_traits(x.b.recipe).name, kernel_of(first)) +
            "\n";
  }
  return text;
}

}  // namespace blockscale
