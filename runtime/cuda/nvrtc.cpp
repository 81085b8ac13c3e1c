#include "runtime/cuda/nvrtc.h"

#include <memory>
#include <mutex>
#include <system_error>

#include "blockscale/error.h"

namespace blockscale::runtime {
namespace {

constexpr const char* kNvrtcName = "libnvrtc.so.13";
constexpr int kOldestMajor = 13;
constexpr int kSuccess = 0;
constexpr int kCompilationError = 6;  // NVRTC_ERROR_COMPILATION
constexpr std::size_t kBuildIdDigits = 12;
// Where there is a driver, NVRTC keeps results in the driver's compute cache, without their log.
constexpr const char* kNoCache = "--no-cache";

/// NVRTC opens libnvrtc-builtins.so.13.0 by its bare name. One that lies beside it but outside the
/// loader's folders (a PyPI package has no RPATH) is found if it is open already.
void open_builtins(const std::filesystem::path& nvrtc) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(nvrtc.parent_path(), none)) {
    if (!entry.path().filename().string().starts_with("libnvrtc-builtins.so.")) continue;
    const DynamicLibrary kept_open(entry.path());
  }
}

std::unique_ptr<const Nvrtc> find_nvrtc() {
  if (const std::string named = environment("BLOCKSCALE_NVRTC"); !named.empty()) {
    return std::make_unique<const Nvrtc>(named);
  }
  std::string tried;
  for (const auto& path : Nvrtc::search_paths()) {
    std::error_code ignored;
    if (path.has_parent_path() && !std::filesystem::exists(path, ignored)) continue;
    try {
      return std::make_unique<const Nvrtc>(path);
    } catch (const Error& error) {
      tried += (tried.empty() ? "" : "; ") + std::string(error.what());
    }
  }
  throw Error(
      ErrorCode::not_found, kNvrtcName,
      "NVRTC 13 is needed to compile a kernel that the kernel pack lacks, and was not found: "
      "pip install nvidia-cuda-nvrtc, or set BLOCKSCALE_NVRTC to its path (" +
          tried + ")");
}

}  // namespace

const Nvrtc& Nvrtc::instance() {
  static std::mutex mutex;
  static std::unique_ptr<const Nvrtc> found;
  const std::lock_guard lock(mutex);
  if (found == nullptr) found = find_nvrtc();
  return *found;
}

std::vector<std::filesystem::path> Nvrtc::search_paths() {
  std::vector<std::filesystem::path> paths = {kNvrtcName};
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string root = environment(variable); !root.empty()) {
      paths.push_back(std::filesystem::path(root) / "lib64" / kNvrtcName);
    }
  }
  for (const char* root : {"/usr/local/cuda", "/usr/local/cuda-13.0", "/usr/local/cuda-13"}) {
    paths.push_back(std::filesystem::path(root) / "lib64" / kNvrtcName);
  }
  // site-packages/blockscale/_native.so and site-packages/blockscale/bin/blockscale.
  const std::filesystem::path folder = own_folder();
  for (const auto& packages : {folder.parent_path(), folder.parent_path().parent_path()}) {
    paths.push_back(packages / "nvidia/cu13/lib" / kNvrtcName);
  }
  return paths;
}

Nvrtc::Nvrtc(const std::filesystem::path& path) {
  if (path.has_parent_path()) open_builtins(path);
  library_ = DynamicLibrary(path);
  if (!library_.is_open()) throw Error(ErrorCode::not_found, path.string(), library_.problem());
  open_builtins(library_.path());
  load_functions();
  int major = 0, minor = 0;
  check(get_version_(&major, &minor), "nvrtcVersion");
  const std::string number = std::to_string(major) + "." + std::to_string(minor);
  if (major < kOldestMajor) {
    throw Error(ErrorCode::unsupported, path.string(),
                "is NVRTC " + number + "; 13.0 or newer is needed");
  }
  version_ = "NVRTC " + number + " " + library_.build_id().substr(0, kBuildIdDigits);
}

void Nvrtc::load_functions() {
  const auto load = [&](auto& function, const char* name) {
    if (!library_.load(name, function)) {
      throw Error(ErrorCode::unsupported, library_.path().string(),
                  std::string("has no function ") + name + ", so it is not NVRTC");
    }
  };
  load(error_string_, "nvrtcGetErrorString");
  load(get_version_, "nvrtcVersion");
  load(create_, "nvrtcCreateProgram");
  load(destroy_, "nvrtcDestroyProgram");
  load(compile_, "nvrtcCompileProgram");
  load(log_size_, "nvrtcGetProgramLogSize");
  load(log_, "nvrtcGetProgramLog");
  load(cubin_size_, "nvrtcGetCUBINSize");
  load(cubin_, "nvrtcGetCUBIN");
  load(ptx_size_, "nvrtcGetPTXSize");
  load(ptx_, "nvrtcGetPTX");
}

void Nvrtc::check(int status, std::string_view function) const {
  if (status == kSuccess) return;
  const char* const text = error_string_(status);
  throw Error(ErrorCode::device, std::string(function),
              "NVRTC failed with error " + std::to_string(status) +
                  (text == nullptr ? "" : ": " + std::string(text)));
}

template <class Size, class Get>
std::string Nvrtc::read(Program program, Size size_of, Get get, std::string_view function) const {
  std::size_t size = 0;
  check(size_of(program, &size), function);
  std::string bytes(size, '\0');
  if (size > 0) check(get(program, bytes.data()), function);
  return bytes;
}

Nvrtc::Result Nvrtc::compile(const std::string& name, const std::string& source,
                             std::span<const Header> headers,
                             std::span<const std::string> flags) const {
  std::vector<const char*> texts, names, options;
  for (const Header& header : headers) {
    texts.push_back(header.text.c_str());
    names.push_back(header.name.c_str());
  }
  for (const std::string& flag : flags) options.push_back(flag.c_str());
  options.push_back(kNoCache);

  Program program = nullptr;
  check(create_(&program, source.c_str(), name.c_str(), static_cast<int>(headers.size()),
                texts.data(), names.data()),
        "nvrtcCreateProgram");
  const auto destroy = [this](Program* owned) { destroy_(owned); };
  const std::unique_ptr<Program, decltype(destroy)> owner(&program, destroy);

  Result result;
  const int status = compile_(program, static_cast<int>(options.size()), options.data());
  result.log = read(program, log_size_, log_, "nvrtcGetProgramLog").c_str();  // up to its zero
  result.compiled = status == kSuccess;
  if (!result.compiled) {
    if (status != kCompilationError && result.log.empty()) check(status, "nvrtcCompileProgram");
    return result;
  }
  const std::string cubin = read(program, cubin_size_, cubin_, "nvrtcGetCUBIN");
  const auto bytes = std::as_bytes(std::span(cubin));
  result.cubin.assign(bytes.begin(), bytes.end());
  result.ptx = read(program, ptx_size_, ptx_, "nvrtcGetPTX").c_str();
  return result;
}

}  // namespace blockscale::runtime
