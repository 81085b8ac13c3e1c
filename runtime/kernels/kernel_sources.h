// The sources that kernels are compiled from: they travel inside the library, as text.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/hash.h"
#include "runtime/kernels/kernel_spec.h"

namespace blockscale::runtime {

/// Files by the path that `#include "..."` names them with, which is the one from the root of the
/// source tree. Texts are not copied.
class SourceTree {
 public:
  void add(std::string_view path, std::string_view text) { files_.insert_or_assign(path, text); }

  bool contains(std::string_view path) const { return files_.contains(path); }
  /// Throws not_found if the file is not in the tree.
  std::string_view text(std::string_view path) const;

  /// `path` and all that it includes, directly or not, sorted. An include counts wherever it
  /// stands, in a branch that is not taken too; one that names no file of the tree does not (the
  /// host's headers, the emulator).
  std::vector<std::string_view> closure(std::string_view path) const;

  const std::map<std::string_view, std::string_view, std::less<>>& files() const { return files_; }

 private:
  std::map<std::string_view, std::string_view, std::less<>> files_;
};

/// core/, device/ without the emulator, and the kernels of ops/ with what they include, as they
/// were when the library was built (cmake/BlockscaleKernelSources.cmake).
const SourceTree& embedded_sources();

/// The targets of `#include "..."` lines, in order.
std::vector<std::string_view> quoted_includes(std::string_view text);

/// NVRTC's options for this kernel: those that decide its code.
std::vector<std::string> compile_flags(const KernelSpec& spec);

/// Says what is compiled: the generated source, the texts of `spec.header`'s closure, the flags,
/// and whether the result may use local memory. The compiler's version is not in it.
Hash128 source_hash(const KernelSpec& spec, const SourceTree& tree);

}  // namespace blockscale::runtime
