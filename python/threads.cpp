// Whose threads do the work of the CPU: the pool's own, or those of torch. torch's OpenMP threads
// spin for milliseconds behind each of its operators, on the cores that the pool's would need.
#include <dlfcn.h>
#include <link.h>

#include <string>
#include <string_view>

#include "blockscale/parallel.h"
#include "module.h"

namespace blockscale::python {
namespace {

/// GNU's entry of a parallel region, which LLVM's and Intel's OpenMP have too: fn(data) on so many
/// threads.
using OpenMpParallel = void(void (*fn)(void*), void* data, unsigned threads, unsigned flags);
OpenMpParallel* openmp_parallel = nullptr;

/// A library of OpenMP that the process has loaded; empty if there is none. Of several, one that
/// stands for GNU's too.
std::string openmp_library() {
  std::string found;
  const auto look = [](dl_phdr_info* info, std::size_t, void* to) {
    const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    const std::string_view name = path.substr(path.rfind('/') + 1);
    auto& best = *static_cast<std::string*>(to);
    const bool is_llvm = name.starts_with("libomp") || name.starts_with("libiomp5");
    if (is_llvm || (best.empty() && name.starts_with("libgomp"))) best = path;
    return 0;
  };
  dl_iterate_phdr(look, &found);
  return found;
}

/// Whether the work of the CPU is done by OpenMP's threads from now on.
bool share_openmp_threads() {
  const std::string library = openmp_library();
  if (library.empty()) return false;
  void* const handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  openmp_parallel = reinterpret_cast<OpenMpParallel*>(dlsym(handle, "GOMP_parallel"));
  if (openmp_parallel == nullptr) return false;
  run_parallel_by([](int workers, void (*work)(void*), void* data) {
    openmp_parallel(work, data, static_cast<unsigned>(workers), 0);
  });
  return true;
}

}  // namespace

void bind_threads(nb::module_& module) {
  module.def("share_openmp_threads", &share_openmp_threads);
}

}  // namespace blockscale::python
