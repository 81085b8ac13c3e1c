// compare(): two checkpoints, value by value.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <span>

#include "blockscale/convert.h"
#include "blockscale/parallel.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/numbers.h"
#include "models/checkpoint/rows.h"
#include "models/text.h"

namespace blockscale {
namespace {

using models::MatrixShape;
using models::RowRange;
using models::StoredCheckpoint;

constexpr std::int64_t kPieceElements = std::int64_t{1} << 18;

/// The larger; a NaN stays, whichever it is.
template <class T>
T larger(T x, T y) {
  return y <= x || x != x ? x : y;
}

/// Sums over one piece, or over pieces combined in their order. Wider than double, so that squares
/// of f64 neither overflow nor vanish.
struct Sums {
  long double squares = 0;        // of a
  long double error_squares = 0;  // of a - b
  long double errors = 0;         // |a - b|
  long double max_error = 0;
  long double count = 0;

  void add(const Sums& other) {
    squares += other.squares;
    error_squares += other.error_squares;
    errors += other.errors;
    max_error = larger(max_error, other.max_error);
    count += other.count;
  }
  bool is_finite() const { return std::isfinite(squares) && std::isfinite(error_squares); }
};

/// Fixed lanes, so that the compiler may use vectors and the result stays the same. Not finite
/// where a value is not: `sums_of_any` then tells what is equal.
Sums sums_of(const float* a, const float* b, std::int64_t count) {
  constexpr int kLanes = 8;
  double squares[kLanes] = {};
  double error_squares[kLanes] = {};
  double errors[kLanes] = {};
  double largest[kLanes] = {};
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const int lanes = static_cast<int>(std::min<std::int64_t>(kLanes, count - i));
    for (int lane = 0; lane < lanes; ++lane) {
      const double x = a[i + lane];
      const double error = std::fabs(x - double{b[i + lane]});
      squares[lane] += x * x;
      error_squares[lane] += error * error;
      errors[lane] += error;
      largest[lane] = larger(largest[lane], error);
    }
  }
  Sums sums;
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.add({squares[lane], error_squares[lane], errors[lane], largest[lane], 0});
  }
  sums.count = static_cast<double>(count);
  return sums;
}

/// Numbers of one dtype, one behind the other.
struct Numbers {
  const std::byte* data = nullptr;
  DType dtype = DType::F32;
  std::int64_t first = 0;
};

/// Equal infinities differ by 0, as do two NaN, and neither counts among the squares.
Sums sums_of_any(const Numbers& a, const Numbers& b, std::int64_t count) {
  constexpr std::int64_t kStep = 1024;
  std::array<long double, kStep> x;
  std::array<long double, kStep> y;
  Sums sums;
  for (std::int64_t i = 0; i < count; i += kStep) {
    const auto step = static_cast<std::size_t>(std::min(kStep, count - i));
    models::widen(a.dtype, a.data, a.first + i, std::span(x).first(step));
    models::widen(b.dtype, b.data, b.first + i, std::span(y).first(step));
    for (std::size_t j = 0; j < step; ++j) {
      const bool equal = x[j] == y[j] || (std::isnan(x[j]) && std::isnan(y[j]));
      const long double error = equal ? 0 : std::fabs(x[j] - y[j]);
      sums.add({equal && !std::isfinite(x[j]) ? 0 : x[j] * x[j], error * error, error, error, 1});
    }
  }
  return sums;
}

void finish(const Sums& sums, TensorComparison& comparison) {
  comparison.signal = static_cast<double>(sums.squares);
  comparison.noise = static_cast<double>(sums.error_squares);
  comparison.sqnr_db =
      sums.error_squares == 0
          ? std::numeric_limits<double>::infinity()
          : static_cast<double>(10 * std::log10(sums.squares / sums.error_squares));
  comparison.status = sums.error_squares == 0             ? ComparisonStatus::equal
                      : std::isfinite(comparison.sqnr_db) ? ComparisonStatus::differs
                                                          : ComparisonStatus::ruined;
  comparison.max_error = static_cast<double>(sums.max_error);
  comparison.mean_error = sums.count == 0 ? 0.0 : static_cast<double>(sums.errors / sums.count);
}

void finish_not_compared(TensorComparison& comparison) {
  comparison.status = ComparisonStatus::not_compared;
  comparison.sqnr_db = comparison.signal = comparison.noise = comparison.max_error =
      comparison.mean_error = std::numeric_limits<double>::quiet_NaN();
}

/// One tensor of a checkpoint.
struct Side {
  const StoredCheckpoint& checkpoint;
  std::size_t index;

  const CheckpointTensor& tensor() const { return checkpoint.tensors()[index]; }
  bool has_view() const { return StoredCheckpoint::has_view(tensor()); }
  bool has_numbers() const { return tensor().quantized || models::has_numbers(tensor().dtype); }
  std::span<const std::byte> bytes() const {
    return checkpoint.store().data(*checkpoint.parts(index).values);
  }
  std::string recipe() const {
    const bool has_recipe = has_view() && checkpoint.parts(index).integers.bits == 0;
    return has_recipe ? recipe_traits(tensor().recipe).name
                      : std::string(dtype_name(tensor().dtype));
  }
};

/// These rows as f32.
Numbers rows_as_f32(const Side& side, const RowRange& range, std::vector<std::byte>& buffer) {
  const MatrixView rows = read_rows(side.checkpoint, side.index, range, true, buffer);
  return {static_cast<const std::byte*>(rows.data)};
}

Numbers rows_of_any(const Side& side, const MatrixShape& shape, const RowRange& range,
                    std::vector<std::byte>& buffer) {
  if (side.tensor().quantized) return rows_as_f32(side, range, buffer);
  return {side.bytes().data(), side.tensor().dtype,
          (range.batch * shape.rows + range.begin) * shape.k};
}

Sums compare_rows(const Side& a, const Side& b, const MatrixShape& shape, const RowRange& range,
                  models::Scratch& scratch) {
  const std::int64_t count = range.count * shape.k;
  if (!a.has_view() || !b.has_view()) {
    return sums_of_any(rows_of_any(a, shape, range, scratch.rows[0]),
                       rows_of_any(b, shape, range, scratch.rows[1]), count);
  }
  const Numbers x = rows_as_f32(a, range, scratch.rows[0]);
  const Numbers y = rows_as_f32(b, range, scratch.rows[1]);
  const Sums sums = sums_of(reinterpret_cast<const float*>(x.data),
                            reinterpret_cast<const float*>(y.data), count);
  return sums.is_finite() ? sums : sums_of_any(x, y, count);
}

Sums compare_values(const Side& a, const Side& b, int threads, models::ScratchPool& pool) {
  const MatrixShape shape = models::matrix_shape(a.tensor().shape);
  const std::int64_t step = std::max({1, recipe_traits(a.tensor().recipe).block_rows,
                                      recipe_traits(b.tensor().recipe).block_rows});
  // A function of the shape and the recipes only: sums do not depend on the threads.
  const std::int64_t wanted = kPieceElements / std::max<std::int64_t>(1, shape.k) / step * step;
  const std::vector<RowRange> ranges = models::cut_rows(shape, std::max(step, wanted));
  std::vector<Sums> pieces(ranges.size());
  parallel_for(static_cast<std::int64_t>(ranges.size()), 1, threads,
               [&](std::int64_t i, std::int64_t) {
                 const auto piece = static_cast<std::size_t>(i);
                 models::ScratchPool::Lease scratch(pool);
                 pieces[piece] = compare_rows(a, b, shape, ranges[piece], *scratch);
               });
  Sums total;
  for (const Sums& piece : pieces) total.add(piece);
  return total;
}

/// Whether two tensors that cannot be read as numbers hold the same all the same.
bool same_bytes(const Side& a, const Side& b) {
  return !a.tensor().quantized && !b.tensor().quantized && a.tensor().dtype == b.tensor().dtype &&
         std::ranges::equal(a.bytes(), b.bytes());
}

/// Fills what there is to say of one tensor, and adds its sums to `total` if it was converted.
TensorComparison compare_tensor(const Side& a, const Side& b, int threads,
                                models::ScratchPool& pool, Sums& total) {
  TensorComparison comparison;
  comparison.name = a.tensor().name;
  comparison.recipe_a = a.recipe();
  comparison.recipe_b = b.recipe();
  comparison.shape = a.tensor().shape;
  comparison.bytes_a = a.tensor().bytes;
  comparison.bytes_b = b.tensor().bytes;
  if (a.has_numbers() && b.has_numbers()) {
    const Sums sums = compare_values(a, b, threads, pool);
    finish(sums, comparison);
    comparison.converted =
        comparison.recipe_a != comparison.recipe_b || comparison.status != ComparisonStatus::equal;
    if (comparison.converted) total.add(sums);
  } else if (same_bytes(a, b)) {
    finish({}, comparison);
  } else {
    finish_not_compared(comparison);
  }
  a.checkpoint.drop(a.index);
  b.checkpoint.drop(b.index);
  return comparison;
}

/// The totals, and the order in which a reader needs the tensors.
void finish_report(const Sums& total, CompareReport& report) {
  report.total.name = "total";
  bool all_compared = true;
  for (const TensorComparison& tensor : report.tensors) {
    all_compared &= tensor.status != ComparisonStatus::not_compared;
    if (!tensor.converted) continue;
    ++report.converted;
    report.total.bytes_a += tensor.bytes_a;
    report.total.bytes_b += tensor.bytes_b;
  }
  report.total.converted = report.converted > 0;
  if (report.converted > 0 || all_compared) {
    finish(total, report.total);
  } else {
    finish_not_compared(report.total);
  }
  std::ranges::stable_partition(report.tensors, [](const TensorComparison& tensor) {
    return tensor.status == ComparisonStatus::ruined;
  });
}

/// Which tensors of either checkpoint are compared: all, or those that patterns match.
class Choice {
 public:
  Choice(const StoredCheckpoint& a, const StoredCheckpoint& b,
         const std::vector<std::string>& patterns) {
    if (patterns.empty()) return;
    std::set<std::string> names;
    for (const StoredCheckpoint* checkpoint : {&a, &b}) {
      for (const CheckpointTensor& tensor : checkpoint->tensors()) names.insert(tensor.name);
    }
    chosen_ = matching_weights({names.begin(), names.end()}, patterns, "tensors");
  }

  bool has(const std::string& name) const {
    return chosen_.empty() || std::ranges::binary_search(chosen_, name);
  }

 private:
  std::vector<std::string> chosen_;  // sorted; none: all
};

[[noreturn]] void fail_nothing_in_common(const StoredCheckpoint& a, const std::string& name_a,
                                         const StoredCheckpoint& b, const std::string& name_b) {
  const auto content = [](const StoredCheckpoint& checkpoint) -> std::string {
    const std::size_t count = checkpoint.tensors().size();
    if (count == 0) return "no tensor";
    const std::string first = quote(checkpoint.tensors().front().name);
    return count == 1 ? first : std::to_string(count) + " tensors, such as " + first;
  };
  throw Error(ErrorCode::invalid_argument, name_b,
              "has no tensor of the same name and shape as one of " + name_a +
                  ", so there is nothing to compare: it has " + content(b) + ", the other " +
                  content(a));
}

}  // namespace

const char* comparison_status_name(ComparisonStatus status) {
  switch (status) {
    case ComparisonStatus::equal: return "equal";
    case ComparisonStatus::differs: return "differs";
    case ComparisonStatus::ruined: return "ruined";
    case ComparisonStatus::not_compared: break;
  }
  return "not_compared";
}

CompareReport compare(const std::filesystem::path& path_a, const std::filesystem::path& path_b,
                      int threads, const std::vector<std::string>& tensors) {
  if (threads < 0) {
    throw Error(ErrorCode::invalid_argument, "threads",
                "is " + std::to_string(threads) + ", must be 0 (all) or above");
  }
  const auto a = StoredCheckpoint::open(path_a);
  const auto b = StoredCheckpoint::open(path_b);
  const Choice choice(*a, *b, tensors);
  models::ScratchPool pool;
  CompareReport report;
  Sums total;
  for (std::size_t i = 0; i < a->tensors().size(); ++i) {
    const CheckpointTensor& tensor = a->tensors()[i];
    const CheckpointTensor* other = b->find(tensor.name);
    if (!choice.has(tensor.name)) continue;
    if (other == nullptr) {
      report.only_a.push_back(tensor.name);
    } else if (other->shape != tensor.shape) {
      report.different_shape.push_back(tensor.name);
    } else {
      report.tensors.push_back(
          compare_tensor({*a, i}, {*b, b->index_of(*other)}, threads, pool, total));
    }
  }
  for (const CheckpointTensor& tensor : b->tensors()) {
    if (a->find(tensor.name) == nullptr && choice.has(tensor.name)) {
      report.only_b.push_back(tensor.name);
    }
  }
  if (report.tensors.empty() && !tensors.empty()) {
    throw Error(ErrorCode::invalid_argument, "tensors",
                "none that was chosen is in both checkpoints and of one shape");
  }
  if (report.tensors.empty()) {
    fail_nothing_in_common(*a, path_a.string(), *b, path_b.string());
  }
  finish_report(total, report);
  return report;
}

}  // namespace blockscale
