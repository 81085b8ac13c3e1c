#include "runtime/kernels/kernel_sources.h"

#include <algorithm>
#include <set>

#include "blockscale/error.h"
#include "runtime/kernels/embedded_sources.h"

namespace blockscale::runtime {
namespace {

constexpr std::string_view kBlank = " \t";

std::string_view without_leading_blank(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text;
}

/// Removes `word` from the front of `text`; false if it does not stand there.
bool take(std::string_view& text, std::string_view word) {
  text = without_leading_blank(text);
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

std::string_view SourceTree::text(std::string_view path) const {
  const auto found = files_.find(path);
  if (found == files_.end()) {
    throw Error(ErrorCode::not_found, std::string(path),
                "is not among the kernel sources of this library");
  }
  return found->second;
}

std::vector<std::string_view> SourceTree::closure(std::string_view path) const {
  (void)text(path);
  std::set<std::string_view> reached = {files_.find(path)->first};
  std::vector<std::string_view> pending = {*reached.begin()};
  while (!pending.empty()) {
    const std::string_view file = pending.back();
    pending.pop_back();
    for (const std::string_view target : quoted_includes(text(file))) {
      const auto found = files_.find(target);
      if (found != files_.end() && reached.insert(found->first).second) {
        pending.push_back(found->first);
      }
    }
  }
  return {reached.begin(), reached.end()};
}

const SourceTree& embedded_sources() {
  static const SourceTree tree = [] {
    SourceTree result;
    for (const EmbeddedSource& file : embedded_source_files()) result.add(file.path, file.text);
    return result;
  }();
  return tree;
}

std::vector<std::string_view> quoted_includes(std::string_view text) {
  std::vector<std::string_view> targets;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!take(line, "#") || !take(line, "include") || !take(line, "\"")) continue;
    const std::size_t quote = line.find('"');
    if (quote != std::string_view::npos) targets.push_back(line.substr(0, quote));
  }
  return targets;
}

std::vector<std::string> compile_flags(const KernelSpec& spec) {
  return {
      "--std=c++20", "--gpu-architecture=" + spec.architecture,
      "--fmad=false",        // fma only where the source says so: docs/numerics.md
      "--ptxas-options=-v",  // registers and spills, in the log
  };
}

Hash128 source_hash(const KernelSpec& spec, const SourceTree& tree) {
  Hasher hasher;
  const auto flags = compile_flags(spec);
  hasher.add(flags.size());
  for (const std::string& flag : flags) hasher.add(flag);
  hasher.add(translation_unit(spec));
  // What was accepted under another rule is neither kept in a pack nor found in the cache.
  if (spec.allows_local_memory) hasher.add("local memory is allowed");
  for (const std::string_view path : tree.closure(spec.header)) {
    hasher.add(path).add(tree.text(path));
  }
  return hasher.finish();
}

}  // namespace blockscale::runtime
