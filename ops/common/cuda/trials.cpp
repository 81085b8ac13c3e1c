#include "ops/common/cuda/trials.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "runtime/cuda/driver.h"
#include "runtime/hash.h"
#include "runtime/kernels/kernel_cache.h"
#include "runtime/kernels/kernel_store.h"

namespace blockscale::cuda {
namespace {

constexpr const char *kPassed = "passed", *kFailed = "failed";  // first words of files

/// Of a kernel's code, wherever it was compiled, and its use, on devices of a name.
std::string file_name(const runtime::KernelSpec& spec, const Trial& trial, const Chip& chip) {
  const auto code = runtime::KernelStore::instance().image(spec).cubin;
  runtime::Hasher hasher;
  hasher.add(chip.name).add(runtime::hash_bytes(code)).add(trial.use);
  return hexadecimal(hasher.finish()) + ".trial";
}

std::optional<bool> read_verdict(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  if (word == kPassed) return true;
  if (word == kFailed) return false;
  return std::nullopt;
}

void write_verdict(const std::filesystem::path& path, bool passed, const std::string& about) {
  if (path.empty()) return;
  try {
    const std::filesystem::path folder = path.parent_path();
    std::filesystem::create_directories(folder.parent_path());
    (void)::mkdir(folder.c_str(), 0700);  // for the user alone, as code lies there too
    write_file_atomically(path, std::string(passed ? kPassed : kFailed) + " " + about + "\n");
  } catch (const std::exception& error) {
    spdlog::debug("what a trial found is not kept: {}", error.what());
  }
}

}  // namespace

Trials& Trials::instance() {
  static Trials& trials = *[] {
    const auto cache = runtime::KernelCache::of_user();
    return new Trials(cache.problem().empty() ? cache.folder() : std::filesystem::path());
  }();
  return trials;
}

bool Trials::passed(const Trial& trial, int device, void* stream) {
  const Chip& chip = devices().at(static_cast<std::size_t>(device));
  const runtime::KernelSpec& spec = trial.kernels->spec(trial.kernel, chip.architecture);
  const std::lock_guard lock(mutex_);
  const std::string name = spec.name + trial.use;
  const auto known = verdicts_.find({device, name});
  if (known != verdicts_.end()) return known->second;

  std::filesystem::path path;
  if (!folder_.empty()) path = folder_ / file_name(spec, trial, chip);
  std::optional<bool> verdict = read_verdict(path);
  std::string why = "it failed its trial before (" + path.string() + ")";
  if (!verdict) {
    const DeviceScope scope(device);  // a thread may have no context, and no stream then
    if (runtime::is_capturing(stream)) return false;
    const runtime::RelaxedCapture relaxed(runtime::driver());
    try {
      verdict = trial.agrees(trial.kernel);
      why = "its product of a trial has other bits than theirs";
      write_verdict(path, *verdict, name + " on " + chip.name);
    } catch (const Error& error) {  // perhaps of the device, not of the kernel: not kept in a file
      verdict = false;
      why = error.what();
    }
  }
  if (!*verdict) {
    spdlog::warn("plain kernels take the place of {} on {}: {}", name, chip.name, why);
  }
  return verdicts_[{device, name}] = *verdict;
}

const Chip& plain_chip(int device) {
  static const auto& chips = *[] {
    auto* const plain = new std::vector<Chip>(devices().begin(), devices().end());
    for (Chip& chip : *plain) chip.plain_only = true;
    return plain;
  }();
  return chips.at(static_cast<std::size_t>(device));
}

}  // namespace blockscale::cuda
