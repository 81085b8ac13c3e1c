#include "blockscale/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

namespace blockscale {

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
  // More threads than the machine has would gain nothing, and TBB warns on stderr.
  oneapi::tbb::task_arena arena(std::min(workers, effective_threads(0)));
  arena.execute([&] {
    oneapi::tbb::parallel_for(std::int64_t{0}, pieces, run_piece,
                              oneapi::tbb::simple_partitioner());
  });
}

}  // namespace blockscale
