// One kernel of the finite list: what is compiled ahead into the kernel pack, as data.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace blockscale::runtime {

/// A kernel is one instantiation of a function template of `header`, which takes its parameters as
/// one struct by value. The `__global__` function around it is generated (`translation_unit`).
struct KernelSpec {
  std::string name;            // unique, a C identifier, says the configuration
  std::string header;          // "ops/quantize/kernels/entry.cuh", as it is included
  std::string call;            // "blockscale::quantize_kernel<blockscale::QuantizeConfig{...}>"
  int threads = 0;             // a block; launches must agree
  bool fewer_threads = false;  // launches may have fewer
  int min_blocks_per_multiprocessor = 1;
  std::string architecture = "sm_90a";
  bool allows_local_memory = false;  // else spills and a stack in local memory fail the build; a
                                     // part of source_hash, so that withdrawing it compiles anew

  // Set by with_parameters:
  std::string parameters = {};      // "blockscale::QuantizeParams", the same struct on the host
  std::size_t parameter_bytes = 0;  // its size on the host; the device's is checked to be equal
};

/// The kernel of `spec` with its parameters: `with_parameters<QuantizeParams>({.name = ...},
/// "blockscale::QuantizeParams")`.
template <class Parameters>
KernelSpec with_parameters(KernelSpec spec, std::string name) {
  static_assert(std::is_trivially_copyable_v<Parameters> && sizeof(Parameters) <= 4096);
  spec.parameters = std::move(name);
  spec.parameter_bytes = sizeof(Parameters);
  return spec;
}

/// `specs` for each of these architectures: those of one kernel follow one another, as KernelSet
/// wants them.
std::vector<KernelSpec> for_architectures(const std::vector<KernelSpec>& specs,
                                          std::span<const char* const> architectures);
/// Likewise of one, behind `specs`.
void add_for_architectures(const KernelSpec& spec, std::span<const char* const> architectures,
                           std::vector<KernelSpec>& specs);

/// The source that is compiled for this kernel. Throws invalid_argument, naming the kernel, if the
/// description is not well formed.
std::string translation_unit(const KernelSpec& spec);

}  // namespace blockscale::runtime
