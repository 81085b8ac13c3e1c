// A kernel pack whose code the fake driver takes.
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/testing.h"
#include "runtime/kernels/kernel_pack.h"
#include "runtime/kernels/kernel_sources.h"
#include "runtime/kernels/kernel_spec.h"
#include "tests/fake_libcuda.h"

namespace blockscale::test {

/// While it lives, BLOCKSCALE_KERNELS names a folder with packs of all of `specs`.
class FakePack {
 public:
  explicit FakePack(const std::vector<runtime::KernelSpec>& specs) {
    std::map<std::string, std::vector<runtime::CompiledKernel>> kernels;
    for (const runtime::KernelSpec& spec : specs) {
      runtime::CompiledKernel kernel;
      kernel.name = spec.name;
      kernel.architecture = spec.architecture;
      kernel.compiler = "NVRTC of the test";
      kernel.source = source_hash(spec, runtime::embedded_sources());
      kernel.cubin = fake_cubin(spec.name);
      kernels[spec.architecture].push_back(std::move(kernel));
    }
    for (const auto& [architecture, packed] : kernels) {
      runtime::write_pack(folder_ / runtime::pack_file_name(architecture), packed);
    }
    setenv("BLOCKSCALE_KERNELS", folder_.path().c_str(), 1);
  }
  ~FakePack() { unsetenv("BLOCKSCALE_KERNELS"); }
  FakePack(const FakePack&) = delete;
  FakePack& operator=(const FakePack&) = delete;

 private:
  ScratchFolder folder_;
};

}  // namespace blockscale::test
