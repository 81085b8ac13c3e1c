#include "ops/gemm/cpu/products.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "blockscale/parallel.h"
#include "ops/common/float_environment.h"

namespace blockscale::gemm_detail {
namespace {

/// A band of a piece: packed, then multiplied in tasks.
struct Band {
  const Piece* piece = nullptr;
  const CpuMethod* method = nullptr;
  CpuPlan plan;
  PackedBand packed;
  // Where its steps of packing and its tasks begin among those that run together.
  std::int64_t first_step = 0;
  std::int64_t first_task = 0;

  std::int64_t steps() const { return ceil_div(packed.rows, method->packed_rows); }
  std::int64_t row_tasks() const { return ceil_div(packed.rows, plan.task_rows); }
  std::int64_t tasks() const { return row_tasks() * ceil_div(piece->b.rows, kTileColumns); }
};

CpuPlan plan_of(const Piece& piece) {
  return cpu_plan(piece.product_rows, piece.b.rows, piece.a.k);
}
const CpuMethod& method_of(const Piece& piece) {
  return cpu_method(piece.product_rows, piece.a.recipe, piece.b.recipe, piece.batch_invariant);
}

/// Takes memory for bands of `most_rows` rows.
void prepare_band(const Piece& piece, std::int64_t most_rows, const Memory& memory, Band& band) {
  band.piece = &piece;
  band.method = &method_of(piece);
  band.plan = plan_of(piece);
  band.packed.is_batch_invariant = piece.batch_invariant;
  band.packed.memory = memory;
  band.packed.most_rows = most_rows;
  band.method->take(band.packed, most_rows, piece.a.k, piece.a.recipe, piece.b.recipe);
}

/// Rows of the band: `rows` of its piece, from its row `first` on.
void set_rows(std::int64_t first, std::int64_t rows, Band& band) {
  PackedBand& packed = band.packed;
  packed.first_row = packed.integers.first_row = packed.pairs.first_row =
      band.piece->first_row + first;
  packed.rows = packed.pairs.rows = rows;
  packed.is_decoded = false;
}

void pack_step(Band& band, std::int64_t step) {
  const std::int64_t begin = step * band.method->packed_rows;
  const std::int64_t end = std::min(band.packed.rows, begin + band.method->packed_rows);
  band.method->pack(band.piece->a, band.piece->b.recipe, begin, end, band.packed);
}

void multiply_task(Band& band, std::int64_t index, const Slots& slots) {
  const std::int64_t row_tasks = band.row_tasks();
  Task task;
  task.row_begin = index % row_tasks * band.plan.task_rows;
  task.row_end = std::min(band.packed.rows, task.row_begin + band.plan.task_rows);
  task.column_begin = index / row_tasks * kTileColumns;
  task.columns = std::min(kTileColumns, band.piece->b.rows - task.column_begin);
  if (slots.is_empty()) {
    std::uint8_t* const scratch = thread_scratch(task_scratch_bytes(band.plan.task_rows));
    run_task(*band.piece, band.packed, *band.method, task, scratch);
  } else {
    const Slots::Use slot(slots);
    run_task(*band.piece, band.packed, *band.method, task, slot.data());
  }
}

/// The band that item `index` of all of them belongs to, where those of each begin at its `first`.
Band& band_of(std::span<Band> bands, std::int64_t Band::* first, std::int64_t index) {
  const auto behind =
      std::upper_bound(bands.begin(), bands.end(), index,
                       [=](std::int64_t i, const Band& band) { return i < band.*first; });
  return *(behind - 1);
}

/// Packs and multiplies bands together: nobody waits for the end of one of them.
void run_bands(std::span<Band> bands, int threads, const Slots& slots) {
  std::int64_t steps = 0, tasks = 0;
  for (Band& band : bands) {
    band.first_step = steps;
    band.first_task = tasks;
    steps += band.steps();
    tasks += band.tasks();
  }
  const auto pack = [&](std::int64_t index, std::int64_t) {
    const DefaultFloatEnvironment environment;
    Band& band = band_of(bands, &Band::first_step, index);
    pack_step(band, index - band.first_step);
  };
  parallel_for(steps, 1, threads, std::cref(pack));
  const auto end = [&](std::int64_t index, std::int64_t) {
    const DefaultFloatEnvironment environment;
    Band& band = bands[static_cast<std::size_t>(index)];
    band.method->end(band.piece->a, band.piece->b.recipe, band.packed);
  };
  parallel_for(std::ssize(bands), 1, threads, std::cref(end));
  const auto multiply = [&](std::int64_t index, std::int64_t) {
    const DefaultFloatEnvironment environment;
    Band& band = band_of(bands, &Band::first_task, index);
    multiply_task(band, index - band.first_task, slots);
  };
  parallel_for(tasks, 1, threads, std::cref(multiply));
}

/// Bands that are packed at the same time, and the memory of all that were.
class Wave {
 public:
  explicit Wave(int threads) : threads_(threads) {}

  void add(const Piece& piece, std::int64_t first, std::int64_t rows) {
    const std::int64_t bytes =
        band_bytes(rows, piece.a.k, piece.a.recipe, piece.b.recipe, method_of(piece));
    if (!parts_.empty() && is_full(bytes)) run();
    parts_.push_back({&piece, first, rows, bytes});
    bytes_ += bytes;
    tasks_ += ceil_div(piece.b.rows, kTileColumns);
  }
  void run() {
    if (size_ < bytes_) {
      memory_.reset();
      memory_ = allocate<std::uint8_t>(bytes_);
      size_ = bytes_;
    }
    std::vector<Band> bands(parts_.size());
    std::uint8_t* next = memory_.get();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      prepare_band(*parts_[i].piece, parts_[i].rows, Memory(next), bands[i]);
      set_rows(parts_[i].first, parts_[i].rows, bands[i]);
      next += parts_[i].bytes;
    }
    run_bands(bands, threads_, Slots());
    parts_.clear();
    bytes_ = tasks_ = 0;
  }

 private:
  /// 16 MiB of packed A, and as much that a method may need later, and seldom does.
  static constexpr std::int64_t kMostBytes = std::int64_t{32} << 20;
  // A wave ends earlier, while what was packed still lies in caches next to threads, if each has
  // so many tasks that it hardly waits for the others (64 groups of 4 rows gain 5 %).
  static constexpr std::int64_t kBytesOfThread = std::int64_t{512} << 10;
  static constexpr std::int64_t kTasksOfThread = 32;

  /// Whether a band of `bytes` more belongs to the next wave.
  bool is_full(std::int64_t bytes) const {
    const std::int64_t all = bytes_ + bytes, threads = effective_threads(threads_);
    return all > kMostBytes ||
           (all > threads * kBytesOfThread && tasks_ >= threads * kTasksOfThread);
  }

  struct Part {
    const Piece* piece;
    std::int64_t first, rows;  // of the piece
    std::int64_t bytes;
  };
  int threads_;
  std::vector<Part> parts_;
  std::int64_t bytes_ = 0;
  std::int64_t tasks_ = 0;
  Array<std::uint8_t> memory_;
  std::int64_t size_ = 0;
};

}  // namespace

Epilogue epilogue_of(double alpha, const OperandMatrix& a, const OperandMatrix& b, Format d_dtype) {
  const auto factor = [](const OperandMatrix& operand) {
    return TensorFactor{operand.tensor_scale, operand.sense == TensorScaleSense::divisor};
  };
  Epilogue epilogue;
  epilogue.alpha = alpha;
  epilogue.a_scale = factor(a);
  epilogue.b_scale = factor(b);
  epilogue.d_dtype = d_dtype;
  epilogue.combine();
  return epilogue;
}

std::int64_t band_bytes(std::int64_t rows, std::int64_t k, Recipe a, Recipe b,
                        const CpuMethod& method) {
  PackedBand band;
  band.memory = Memory(nullptr);
  band.most_rows = rows;
  method.take(band, rows, k, a, b);
  method.take_rest(band, rows, k);
  return band.memory.taken();
}

void multiply_piece(const Piece& piece, int threads, const Memory& memory, const Slots& slots) {
  Band band;
  const std::int64_t most_rows = plan_of(piece).band_rows;
  prepare_band(piece, most_rows, memory, band);
  for (std::int64_t first = 0; first < piece.rows; first += most_rows) {
    set_rows(first, std::min(most_rows, piece.rows - first), band);
    run_bands({&band, 1}, threads, slots);
  }
}

void multiply_pieces(std::span<const Piece> pieces, int threads) {
  Wave wave(threads);
  for (const Piece& piece : pieces) {
    const std::int64_t most_rows = plan_of(piece).band_rows;
    for (std::int64_t first = 0; first < piece.rows; first += most_rows) {
      wave.add(piece, first, std::min(most_rows, piece.rows - first));
    }
  }
  wave.run();
}

}  // namespace blockscale::gemm_detail
