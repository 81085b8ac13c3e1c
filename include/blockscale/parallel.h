// The one thread pool (oneTBB) behind every CPU implementation, or that of the program around it.
#pragma once

#include <cstdint>
#include <functional>

namespace blockscale {

/// Threads that `parallel_for` uses for a request of `threads` (0: all of the machine's).
int effective_threads(int threads);

/// Calls `body(begin, end)` over pieces of [0, count) of at most `grain`, on at most
/// `effective_threads(threads)` threads. Pieces always are [i * grain, min(count, (i+1) * grain)),
/// whatever the thread count, so results that depend on a piece are reproducible. The first
/// exception of a body is rethrown. Nested calls are allowed.
void parallel_for(std::int64_t count, std::int64_t grain, int threads,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// Calls work(data) on at most `workers` threads, the caller's among them, and returns when all of
/// them have. One call, by the caller alone, is right as well. `workers` is at most what the
/// machine has, whatever a call asked for, and the same for few pieces as for many: teams of
/// threads that change cost more than threads that find nothing to do.
using ParallelRunner = void (*)(int workers, void (*work)(void* data), void* data);

/// Has the threads of `runner` do the work of parallel_for from now on; null: the pool's own again.
/// For programs that have threads which spin before they sleep, as OpenMP's do: beside those the
/// pool's would share their cores. Nested calls run on the thread that makes them, if `runner` says
/// so; threads of several callers are those that it has.
void run_parallel_by(ParallelRunner runner);

}  // namespace blockscale
