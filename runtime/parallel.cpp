#include "blockscale/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

namespace blockscale {
namespace {

std::atomic<ParallelRunner> shared_runner = nullptr;

/// Pieces that threads of others take one by one.
template <class RunPiece>
class SharedPieces {
 public:
  SharedPieces(std::int64_t count, const RunPiece& run_piece)
      : count_(count), run_piece_(run_piece) {}

  void run(ParallelRunner runner, int workers) {
    runner(workers, [](void* pieces) { static_cast<SharedPieces*>(pieces)->work(); }, this);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void work() noexcept {
    try {
      for (std::int64_t i = next_++; i < count_; i = next_++) run_piece_(i);
    } catch (...) {
      next_ = count_;
      const std::scoped_lock lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  std::int64_t count_;
  const RunPiece& run_piece_;
  std::atomic<std::int64_t> next_ = 0;
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void run_parallel_by(ParallelRunner runner) {
  shared_runner = runner;
}

int effective_threads(int threads) {
  return threads > 0 ? threads : std::max(1, oneapi::tbb::info::default_concurrency());
}

void parallel_for(std::int64_t count, std::int64_t grain, int threads,
                  const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  const std::int64_t step = std::max<std::int64_t>(1, grain);
  const std::int64_t pieces = (count - 1) / step + 1;
  const auto run_piece = [&](std::int64_t piece) {
    const std::int64_t begin = piece * step;
    body(begin, count - begin < step ? count : begin + step);
  };
  const int workers = effective_threads(threads);
  if (workers == 1 || pieces == 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) run_piece(piece);
    return;
  }
  if (const ParallelRunner runner = shared_runner) {
    return SharedPieces(pieces, run_piece).run(runner, std::min(workers, effective_threads(0)));
  }
  const auto run_all = [&] {
    oneapi::tbb::parallel_for(std::int64_t{0}, pieces, run_piece,
                              oneapi::tbb::simple_partitioner());
  };
  // An arena costs microseconds to make, so all of the machine's threads go without. More would
  // gain nothing, and TBB warns on stderr.
  if (workers >= effective_threads(0)) {
    run_all();
  } else {
    oneapi::tbb::task_arena arena(workers);
    arena.execute(run_all);
  }
}

}  // namespace blockscale
