#include "ops/common/cuda/trials.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "blockscale/error.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/measure.h"
#include "runtime/files/file_lock.h"
#include "runtime/hash.h"
#include "runtime/kernels/kernel_cache.h"
#include "runtime/kernels/kernel_store.h"
#include "runtime/log.h"

namespace blockscale::cuda {
namespace {

// First words of files, of one length, so that one is written over another.
constexpr std::string_view kTrying = "trying", kPassed = "passed", kFailed = "failed";
constexpr std::size_t kWordLength = 6;

struct Verdict {
  bool passed;
  std::string why;  // not
};

/// Of a kernel's code, wherever it was compiled, and its use, on devices of a name.
std::string file_name(const runtime::KernelSpec& spec, const Trial& trial, const Chip& chip) {
  const auto code = runtime::KernelStore::instance().image(spec).cubin;
  runtime::Hasher hasher;
  hasher.add(chip.name).add(runtime::hash_bytes(code)).add(trial.use);
  return hexadecimal(hasher.finish()) + ".trial";
}

std::optional<Verdict> verdict_of(std::string_view word, const std::filesystem::path& path) {
  if (word == kPassed) return Verdict{true, {}};
  if (word == kFailed) return Verdict{false, "it failed its trial before (" + path.string() + ")"};
  return std::nullopt;
}

std::optional<Verdict> read_verdict(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return verdict_of(word, path);
}

/// The file of a kernel's verdict, which one process at a time has. Where it cannot be had, nothing
/// is kept. It is removed unless a verdict was kept or found.
class VerdictFile {
 public:
  VerdictFile(std::filesystem::path path, std::chrono::milliseconds longest_wait)
      : path_(std::move(path)), lock_(made(path_), longest_wait) {}
  ~VerdictFile() {
    std::error_code ignored;
    if (lock_.is_held() && !is_kept_) std::filesystem::remove(path_, ignored);
  }
  VerdictFile(const VerdictFile&) = delete;
  VerdictFile& operator=(const VerdictFile&) = delete;

  /// What others have found by now, or that they try and hang or have died of it.
  std::optional<Verdict> read() {
    if (lock_.is_of_another()) {
      return Verdict{false, "another process is at its trial (" + path_.string() + ")"};
    }
    std::string word(kWordLength, ' ');
    if (!lock_.is_held() || ::pread(lock_.descriptor(), word.data(), kWordLength, 0) < 0) {
      return std::nullopt;
    }
    std::optional<Verdict> verdict = verdict_of(word, path_);
    if (word == kTrying) {
      verdict = Verdict{
          false, "a process ended at its trial; without " + path_.string() + " it is tried again"};
    }
    is_kept_ = verdict.has_value();
    return verdict;
  }
  void begin(const std::string& about) const { write(kTrying, about); }
  void keep(bool passed, const std::string& about) {
    is_kept_ = true;
    write(passed ? kPassed : kFailed, about);
  }

 private:
  static const std::filesystem::path& made(const std::filesystem::path& path) {
    const std::filesystem::path folder = path.parent_path();
    std::error_code ignored;
    std::filesystem::create_directories(folder.parent_path(), ignored);
    (void)::mkdir(folder.c_str(), 0700);  // for the user alone, as code lies there too
    return path;
  }

  /// On the disk, so that it is there if the machine stops.
  void write(std::string_view word, const std::string& about) const {
    if (!lock_.is_held()) return;
    const std::string text = std::string(word) + " " + about + "\n";
    const auto bytes = static_cast<::ssize_t>(text.size());
    if (::pwrite(lock_.descriptor(), text.data(), text.size(), 0) != bytes ||
        ::ftruncate(lock_.descriptor(), bytes) != 0 || ::fsync(lock_.descriptor()) != 0) {
      runtime::log()->debug("what a trial found is not kept: {} cannot be written", path_.string());
    }
  }

  std::filesystem::path path_;
  runtime::FileLock lock_;
  bool is_kept_ = false;
};

/// Whether the current device takes work: after a kernel's fault its context takes none.
bool is_working() {
  try {
    runtime::DeviceStream().wait();
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Tries a kernel on the current device.
Verdict verdict_on(const Trial& trial, const std::string& about, VerdictFile& file) {
  const bool was_working = is_working();
  file.begin(about);
  try {
    const bool agrees = trial.agrees(trial.kernel);
    file.keep(agrees, about);
    return {agrees, "its product of a trial has other bits than theirs"};
  } catch (const Error& error) {
    // Perhaps of the device, not of the kernel, which is not kept then.
    if (was_working && !is_working()) file.keep(false, about);
    return {false, error.what()};
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
  std::optional<Verdict> verdict = read_verdict(path);
  if (!verdict) {
    const DeviceScope scope(device);  // a thread may have no context, and no stream then
    if (runtime::is_capturing(stream)) return false;
    const runtime::RelaxedCapture relaxed(runtime::driver());
    VerdictFile file(path, longest_wait_);
    verdict = file.read();
    if (!verdict) verdict = verdict_on(trial, name + " on " + chip.name, file);
  }
  if (!verdict->passed) {
    runtime::log()->warn("plain kernels take the place of {} on {}: {}", name, chip.name,
                         verdict->why);
  }
  return verdicts_[{device, name}] = verdict->passed;
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
