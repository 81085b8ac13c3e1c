// compare(): two checkpoints, value by value.
#include <algorithm>
#include <cmath>
#include <limits>

#include "blockscale/convert.h"
#include "blockscale/parallel.h"
#include "models/checkpoint.h"
#include "models/rows.h"

namespace blockscale {
namespace {

using models::MatrixShape;
using models::RowRange;
using models::StoredCheckpoint;

constexpr std::int64_t kPieceElements = std::int64_t{1} << 18;

/// The larger; a NaN stays, whichever it is.
double larger(double x, double y) {
  return y <= x || x != x ? x : y;
}

/// Sums over one piece, or over pieces combined in their order.
struct Sums {
  double squares = 0;        // of a
  double error_squares = 0;  // of a - b
  double errors = 0;         // |a - b|
  double max_error = 0;
  double count = 0;

  void add(const Sums& other) {
    squares += other.squares;
    error_squares += other.error_squares;
    errors += other.errors;
    max_error = larger(max_error, other.max_error);
    count += other.count;
  }
};

/// Fixed lanes, so that the compiler may use vectors and the result stays the same.
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
      // Equal infinities differ by 0.
      const double error = a[i + lane] == b[i + lane] ? 0.0 : std::fabs(x - double{b[i + lane]});
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

void finish(const Sums& sums, TensorComparison& comparison) {
  comparison.sqnr_db = sums.error_squares == 0
                           ? std::numeric_limits<double>::infinity()
                           : 10.0 * std::log10(sums.squares / sums.error_squares);
  comparison.max_error = sums.max_error;
  comparison.mean_error = sums.count == 0 ? 0.0 : sums.errors / sums.count;
}

Sums compare_tensor(const StoredCheckpoint& a, std::size_t tensor_a, const StoredCheckpoint& b,
                    std::size_t tensor_b, int threads, models::ScratchPool& pool) {
  const MatrixShape shape = models::matrix_shape(a.tensors()[tensor_a].shape);
  const std::int64_t step = std::max({1, recipe_traits(a.tensors()[tensor_a].recipe).block_rows,
                                      recipe_traits(b.tensors()[tensor_b].recipe).block_rows});
  // A function of the shape and the recipes only: sums do not depend on the threads.
  const std::int64_t wanted = kPieceElements / std::max<std::int64_t>(1, shape.k) / step * step;
  const std::vector<RowRange> ranges = models::cut_rows(shape, std::max(step, wanted));
  std::vector<Sums> pieces(ranges.size());
  parallel_for(static_cast<std::int64_t>(ranges.size()), 1, threads,
               [&](std::int64_t i, std::int64_t) {
                 const RowRange& range = ranges[static_cast<std::size_t>(i)];
                 models::ScratchPool::Lease scratch(pool);
                 const MatrixView x = read_rows(a, tensor_a, range, true, (*scratch).rows[0]);
                 const MatrixView y = read_rows(b, tensor_b, range, true, (*scratch).rows[1]);
                 pieces[static_cast<std::size_t>(i)] =
                     sums_of(static_cast<const float*>(x.data), static_cast<const float*>(y.data),
                             range.count * shape.k);
               });
  Sums total;
  for (const Sums& piece : pieces) total.add(piece);
  a.drop(tensor_a);
  b.drop(tensor_b);
  return total;
}

}  // namespace

CompareReport compare(const std::filesystem::path& path_a, const std::filesystem::path& path_b,
                      int threads) {
  if (threads < 0) {
    throw Error(ErrorCode::invalid_argument, "threads",
                "is " + std::to_string(threads) + ", must be 0 (all) or above");
  }
  const auto a = StoredCheckpoint::open(path_a);
  const auto b = StoredCheckpoint::open(path_b);
  models::ScratchPool pool;
  CompareReport report;
  Sums total;
  report.total.name = "total";
  for (std::size_t i = 0; i < a->tensors().size(); ++i) {
    const CheckpointTensor& tensor = a->tensors()[i];
    const CheckpointTensor* other = b->find(tensor.name);
    if (other == nullptr) {
      report.only_a.push_back(tensor.name);
      continue;
    }
    if (other->shape != tensor.shape) {
      report.different_shape.push_back(tensor.name);
      continue;
    }
    if (!StoredCheckpoint::has_view(tensor) || !StoredCheckpoint::has_view(*other)) continue;
    const Sums sums = compare_tensor(*a, i, *b, b->index_of(*other), threads, pool);
    TensorComparison comparison;
    comparison.name = tensor.name;
    comparison.recipe_a = recipe_traits(tensor.recipe).name;
    comparison.recipe_b = recipe_traits(other->recipe).name;
    comparison.shape = tensor.shape;
    comparison.bytes_a = tensor.bytes;
    comparison.bytes_b = other->bytes;
    finish(sums, comparison);
    total.add(sums);
    report.total.bytes_a += comparison.bytes_a;
    report.total.bytes_b += comparison.bytes_b;
    report.tensors.push_back(std::move(comparison));
  }
  for (const CheckpointTensor& tensor : b->tensors()) {
    if (a->find(tensor.name) == nullptr) report.only_b.push_back(tensor.name);
  }
  finish(total, report.total);
  return report;
}

}  // namespace blockscale
