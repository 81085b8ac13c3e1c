#include "models/convert/files/other_files.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "models/json_file.h"
#include "models/safetensors/index_file.h"
#include "models/safetensors/source_path.h"

namespace blockscale::models {
namespace {

namespace fs = std::filesystem;

struct LeftBehind {
  const char* pattern;  // of names; one that ends with a slash is of folders
  const char* reason;
};

constexpr const char* kOtherIndex = "an index of other weights: a folder has one";
constexpr const char* kBeside = "weights that are not part of the checkpoint";
constexpr const char* kOtherWeights = "the same weights in another format";
constexpr const char* kExport = "the model exported for another runtime";
constexpr const char* kTraining = "the state of a training run";

/// What holds weights that contradict the converted ones, or costs their size again.
constexpr LeftBehind kLeftBehind[] = {
    {"*.safetensors", kBeside},
    {"original/", "the publisher's own layout of the weights"},  // Llama, gpt-oss
    {"optimizer.*", kTraining},                                  // transformers' Trainer: .pt, .bin
    {"optimizer_*/", kTraining},                                 // FSDP: optimizer_0/
    {"scheduler.pt", kTraining},                                 // transformers' Trainer
    {"rng_state*.pth", kTraining},                               // transformers' Trainer
    {"training_args.bin", kTraining},                            // transformers' Trainer
    {"global_step*/", kTraining},                                // DeepSpeed
    {"checkpoint-*/", kTraining},                                // transformers' Trainer
    {"*.bin", kOtherWeights},  // PyTorch, as transformers named them
    {"*.bin.index.json", kOtherWeights},
    {"*.pth", kOtherWeights},          // PyTorch
    {"*.pt", kOtherWeights},           // PyTorch
    {"*.ckpt", kOtherWeights},         // PyTorch Lightning, TensorFlow
    {"*.ckpt.index", kOtherWeights},   // TensorFlow
    {"*.ckpt.data-*", kOtherWeights},  // TensorFlow
    {"*.h5", kOtherWeights},           // Keras
    {"*.msgpack", kOtherWeights},      // Flax
    {"*.msgpack.index.json", kOtherWeights},
    {"*.ot", kOtherWeights},    // rust-bert
    {"*.gguf", kOtherWeights},  // llama.cpp
    {"*.ggml", kOtherWeights},  // llama.cpp, before 2023
    {"onnx/", kExport},
    {"*.onnx", kExport},
    {"*.onnx_data*", kExport},
    {"openvino/", kExport},
    {"coreml/", kExport},
    {"*.mlpackage/", kExport},
    {"*.tflite", kExport},
    {"*.engine", kExport},  // TensorRT
};

/// Why a file or folder of this name stays behind; null if it does not.
const char* reason_to_leave(const std::string& name, bool is_folder) {
  const std::string marked = is_folder ? name + "/" : name;
  for (const LeftBehind& entry : kLeftBehind) {
    const bool of_folders = std::string_view(entry.pattern).ends_with('/');
    if (of_folders == is_folder && ::fnmatch(entry.pattern, marked.c_str(), FNM_CASEFOLD) == 0) {
      return entry.reason;
    }
  }
  return nullptr;
}

/// What is no part of a model: histories, caches and what conversions left.
bool is_hidden(const std::string& name) {
  return name == ".git" || name == ".cache" || is_temporary_name(name) ||
         (name.starts_with('.') && name.ends_with(".blockscale-partial"));
}

std::uint64_t bytes_below(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_regular_file(error)) bytes += entry->file_size(error);
  }
  return bytes;
}

class OpenedFile {
 public:
  /// A FIFO is not waited for.
  explicit OpenedFile(const fs::path& path)
      : path_(path), value_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)) {
    if (value_ < 0) throw_io(path, "open", errno);
  }
  OpenedFile(const OpenedFile&) = delete;
  OpenedFile& operator=(const OpenedFile&) = delete;
  ~OpenedFile() { ::close(value_); }
  struct stat status() const {
    struct stat status;
    if (::fstat(value_, &status) != 0) throw_io(path_, "find", errno);
    return status;
  }
  int get() const { return value_; }

 private:
  const fs::path& path_;
  int value_;
};

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

class Listing {
 public:
  Listing(const TensorStore& source, const std::set<std::string>& written, bool copy_all)
      : home_(source.folder()), index_(source.index()), written_(written), copy_all_(copy_all) {
    for (const SafetensorsFile& file : source.files()) {
      own_.insert(file.path().filename().string());
    }
    own_.insert(index_.filename().string());
    read_modules();
  }

  OtherFiles run() {
    visit(home_, "", false);
    return std::move(files_);
  }

 private:
  /// sentence-transformers names folders that are parts of the model, such as 2_Dense, in
  /// modules.json: everything in them goes along.
  void read_modules() {
    const fs::path path = home_ / "modules.json";
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return;
    check_contained(path, home_);
    const nlohmann::json modules = read_json_file(path);
    if (!modules.is_array()) return;
    for (const nlohmann::json& module : modules) {
      if (module.is_object() && module.contains("path") && module["path"].is_string()) {
        modules_.insert(module["path"].get<std::string>());
      }
    }
  }

  void leave(const std::string& path, std::uint64_t bytes, const std::string& reason) {
    files_.not_copied.push_back({path, bytes, reason});
  }

  /// `whole`: weights go along as well.
  void visit(const fs::path& folder, const std::string& prefix, bool whole) {
    for (const std::string& name : Folder::open(folder).names()) {
      const bool top = prefix.empty();
      if (is_hidden(name) || (top && own_.contains(name))) continue;
      const std::string path = prefix + name;
      const fs::path full = folder / name;
      std::error_code error;
      const bool is_link = fs::is_symlink(fs::symlink_status(full, error));
      const bool is_folder = fs::is_directory(full, error);
      const char* const reason = whole ? nullptr : reason_to_leave(name, is_folder);
      if (top && !is_folder && name.ends_with(kIndexSuffix)) {
        if (!are_equal_indices(full, index_)) leave_file(path, full, kOtherIndex);
      } else if (reason != nullptr && !copy_all_) {
        if (is_folder) leave(path + "/", bytes_below(full), reason);
        if (!is_folder) leave_file(path, full, reason);
      } else if (top && written_.contains(name)) {
        if (reason != nullptr) leave_file(path, full, "the result has a file of this name");
      } else {
        if (is_link) check_contained(full, home_);
        if (is_folder && is_link) continue;  // it lies in the folder, so it is copied as itself
        if (is_folder) visit(full, path + "/", whole || copy_all_ || modules_.contains(path));
        if (!is_folder) take(path, full, top && name.ends_with(".safetensors"));
      }
    }
  }

  void leave_file(const std::string& path, const fs::path& full, const std::string& reason) {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(full, error);
    leave(path, error ? 0 : bytes, reason);
  }

  void take(const std::string& path, const fs::path& full, bool weights) {
    std::error_code error;
    if (const auto type = fs::status(full, error); !error && !fs::is_regular_file(type)) {
      leave(path, 0, "is no regular file");
      return;
    }
    const struct stat status = OpenedFile(full).status();
    files_.needs_index = files_.needs_index || weights;
    files_.copied.push_back({path, status});
  }

  const fs::path home_;
  const fs::path index_;  // empty: none
  const std::set<std::string>& written_;
  const bool copy_all_;
  std::set<std::string> own_;  // the source: its safetensors files and their index
  std::set<std::string> modules_;
  OtherFiles files_;
};

void copy_file(const fs::path& from, const struct stat& listed, const Folder& folder,
               const std::string& name) {
  constexpr std::uint64_t kBuffer = std::uint64_t{4} << 20;
  const auto changed = [&] {
    throw Error(ErrorCode::io, from.string(), "changed during the conversion");
  };
  const OpenedFile file(from);
  if (!is_same(file.status(), listed)) changed();
  const auto size = static_cast<std::uint64_t>(listed.st_size);
  AtomicFile copy(folder, name, size, (listed.st_mode & 0777) | 0600);
  std::vector<std::byte> buffer(std::min(size, kBuffer));
  for (std::uint64_t done = 0; done < size;) {
    const ssize_t got = ::read(file.get(), buffer.data(), std::min(size - done, kBuffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io(from, "read", errno);
    if (got == 0) changed();
    copy.write(done, std::span(buffer).first(static_cast<std::size_t>(got)));
    done += static_cast<std::uint64_t>(got);
  }
  if (!is_same(file.status(), listed)) changed();
  copy.publish();
}

}  // namespace

OtherFiles list_other_files(const TensorStore& source, const std::set<std::string>& written,
                            bool copy_all) {
  return Listing(source, written, copy_all).run();
}

void copy_other_files(const TensorStore& source, const std::vector<OtherFile>& files,
                      const Folder& destination) {
  for (const OtherFile& file : files) {
    Folder folder = destination;
    std::string_view rest = file.path;
    for (std::size_t slash = rest.find('/'); slash != std::string_view::npos;
         slash = rest.find('/')) {
      const std::string name(rest.substr(0, slash));
      (void)folder.make_folder(name);
      folder = folder.open_folder(name);
      rest.remove_prefix(slash + 1);
    }
    copy_file(source.folder() / file.path, file.status, folder, std::string(rest));
  }
}

}  // namespace blockscale::models
