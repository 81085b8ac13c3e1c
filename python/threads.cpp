// Whose threads do the work of the CPU: the pool's own, or those of torch. torch's OpenMP threads
// spin for milliseconds behind each of its operators, on the cores that the pool's would need.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>

#include "blockscale/parallel.h"
#include "module.h"

namespace blockscale::python {
namespace {

/// GNU's entry of a parallel region, which LLVM's and Intel's OpenMP have too: fn(data) on so many
/// threads.
using OpenMpParallel = void(void (*fn)(void*), void* data, unsigned threads, unsigned flags);

/// Of the OpenMP that torch calls.
struct OpenMp {
  OpenMpParallel* parallel = nullptr;
  int (*max_threads)() = nullptr;  // torch.set_num_threads of the calling thread
};
OpenMp openmp;

/// Finds it as torch's library does: what was loaded before all else, or what that library names.
bool find_openmp() {
  void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return false;
  const auto find = [torch](const char* name) {
    void* const preloaded = dlsym(RTLD_DEFAULT, name);
    return preloaded != nullptr ? preloaded : dlsym(torch, name);
  };
  openmp.parallel = reinterpret_cast<OpenMpParallel*>(find("GOMP_parallel"));
  openmp.max_threads = reinterpret_cast<int (*)()>(find("omp_get_max_threads"));
  return openmp.parallel != nullptr && openmp.max_threads != nullptr;
}

/// Whether the work of the CPU is done by torch's OpenMP threads from now on. Processes that are
/// forked have the pool's own: GNU's OpenMP would wait there for threads that are not there.
bool share_openmp_threads() {
  static const bool is_shared = [] {
    if (!find_openmp()) return false;
    run_parallel_by([](int workers, void (*work)(void*), void* data) {
      const int threads = std::min(workers, openmp.max_threads());
      openmp.parallel(work, data, static_cast<unsigned>(std::max(1, threads)), 0);
    });
    pthread_atfork(nullptr, nullptr, [] { run_parallel_by(nullptr); });
    return true;
  }();
  return is_shared;
}

}  // namespace

void bind_threads(nb::module_& module) {
  module.def("share_openmp_threads", &share_openmp_threads);
}

}  // namespace blockscale::python
