// core/ compiles for the GPU: with NVRTC, which has no C++ library, and with nvcc where it is.
//
// NVRTC is $BLOCKSCALE_NVRTC or the installed toolkit's, and the test says that it is skipped where
// there is none. No GPU is needed.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace blockscale {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Loads the library beside `nvrtc` that it opens by its bare name: one that is loaded is found.
void load_builtins(const std::filesystem::path& nvrtc) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(nvrtc.parent_path(), none)) {
    if (!entry.path().filename().string().starts_with("libnvrtc-builtins.so.")) continue;
    dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

/// The functions of NVRTC that the test calls; prototypes are those of nvrtc.h.
class Nvrtc {
 public:
  Nvrtc() {
    const char* named = std::getenv("BLOCKSCALE_NVRTC");
    for (const char* path : {named, "libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.13"}) {
      if (path == nullptr || path[0] == '\0') continue;
      load_builtins(path);
      library_ = dlopen(path, RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) break;
    }
    if (library_ == nullptr) return;
    load(create_, "nvrtcCreateProgram");
    load(destroy_, "nvrtcDestroyProgram");
    load(compile_, "nvrtcCompileProgram");
    load(log_size_, "nvrtcGetProgramLogSize");
    load(log_, "nvrtcGetProgramLog");
    load(ptx_size_, "nvrtcGetPTXSize");
    load(ptx_, "nvrtcGetPTX");
  }

  bool found() const { return library_ != nullptr; }

  struct Result {
    bool compiled = false;
    std::string log;
    std::string ptx;
  };

  Result compile(const std::string& source) const {
    const std::string include = std::string("--include-path=") + BLOCKSCALE_SOURCE_DIR;
    const char* const options[] = {"--std=c++20", "--gpu-architecture=compute_90a",
                                   include.c_str()};
    void* program = nullptr;
    Result result;
    EXPECT_EQ(create_(&program, source.c_str(), "core.cu", 0, nullptr, nullptr), 0);
    result.compiled = compile_(program, 3, options) == 0;
    result.log = text(program, log_size_, log_);
    if (result.compiled) result.ptx = text(program, ptx_size_, ptx_);
    destroy_(&program);
    return result;
  }

 private:
  using Size = int (*)(void*, std::size_t*);
  using Text = int (*)(void*, char*);

  template <class Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    ASSERT_NE(function, nullptr) << name;
  }

  static std::string text(void* program, Size size_of, Text text_of) {
    std::size_t size = 0;  // with the terminating zero
    size_of(program, &size);
    std::string result(size, '\0');
    text_of(program, result.data());
    return result.c_str();
  }

  void* library_ = nullptr;  // stays open: NVRTC does not unload cleanly
  int (*create_)(void**, const char*, const char*, int, const char* const*,
                 const char* const*) = nullptr;
  int (*destroy_)(void**) = nullptr;
  int (*compile_)(void*, int, const char* const*) = nullptr;
  Size log_size_ = nullptr, ptx_size_ = nullptr;
  Text log_ = nullptr, ptx_ = nullptr;
};

/// #include lines of every header of core/ but those of tests.
std::string include_all_of_core() {
  std::string result;
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(BLOCKSCALE_SOURCE_DIR) / "core")) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".h" || name.find("_test_") != std::string::npos) continue;
    result += "#include \"core/" + name + "\"\n";
    ++count;
  }
  EXPECT_GE(count, 6);
  return result;
}

/// Kernels that use all of core/ with run-time values, and constants that must fold.
std::string kernels() {
  return include_all_of_core() + R"(
using namespace blockscale;

static_assert(encode<Format::e2m1>(5.0f) == 6);
static_assert(scale_offset(ScaleLayout::swizzled_128x4, 133, 7, 2) == 1024 + 80 + 512 + 3);
static_assert(scale_grid(Recipe::nvfp4, 3, 64).columns == 4);
static_assert(inverse(scale_atom<ScaleLayout::swizzled_8x4>(Int<16>{}), 31) == 7 + 8 * 16 * 3);

extern "C" __global__ void formats(int format, unsigned code, float x, float* values,
                                   unsigned* codes) {
  values[0] = decode(static_cast<Format>(format), code);
  values[1] = format_traits(static_cast<Format>(format)).max;
  codes[0] = encode(static_cast<Format>(format), x);
  codes[1] = encode_ue8m0(x, ScaleRounding::up);
  codes[2] = convert<Format::e4m3, Format::bf16>(code);
  codes[3] = static_cast<unsigned>(row_bytes(static_cast<Recipe>(format), code));
}

extern "C" __global__ void packing(const uint8_t* row, int index, uint8_t* out) {
  store_code<Format::e2m3>(out, index, load_code<Format::e2m3>(row, index));
}

extern "C" __global__ void offsets(int64_t i, int64_t j, int64_t leading, int64_t* out) {
  out[0] = scale_offset<ScaleLayout::swizzled_128x4>(i, j, leading);
  out[1] = scale_offset<ScaleLayout::swizzled_8x4>(i, j, leading);
  out[2] = scale_offset<ScaleLayout::mn_major>(i, j, leading);
  const auto tile = make_scale_layout<ScaleLayout::swizzled_128x4>(Int<128>{}, Int<8>{}, Int<1>{},
                                                                   Int<16>{}, Int<2>{});
  const int row = threadIdx.x, k = threadIdx.y;
  out[3] = tile(row, k);
}

extern "C" __global__ void dispatched(int layout, int64_t i, int64_t j, int64_t leading,
                                      int64_t* out) {
  out[0] = scale_offset(static_cast<ScaleLayout>(layout), i, j, leading);
  out[1] = scale_coordinate(static_cast<ScaleLayout>(layout), i, 300, 20, leading).i;
}

struct Buffer {
  char* at;
  __device__ void operator()(char c) { *at++ = c; }
};
extern "C" __global__ void prints(char* out) {
  Buffer buffer{out};
  print(scale_atom<ScaleLayout::swizzled_128x4>(Int<16>{}), Notation::cutlass, buffer);
}
)";
}

/// The body of one kernel in PTX.
std::string body_of(const std::string& ptx, const std::string& kernel) {
  const auto start = ptx.find(".entry " + kernel + "(");
  EXPECT_NE(start, std::string::npos) << kernel;
  return ptx.substr(start, ptx.find("\n}", start) - start);
}

TEST(CoreOnTheGpu, CompilesWithNvrtc) {
  const Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "no libnvrtc: set BLOCKSCALE_NVRTC";
  const Nvrtc::Result result = nvrtc.compile(kernels());
  ASSERT_TRUE(result.compiled) << result.log;
  EXPECT_EQ(result.log, "");
}

TEST(CoreOnTheGpu, NvrtcHasNoStandardLibraryToLeanOn) {
  const Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "no libnvrtc: set BLOCKSCALE_NVRTC";
  const Nvrtc::Result result = nvrtc.compile("#include <cstdint>\n" + kernels());
  EXPECT_FALSE(result.compiled);
  EXPECT_THAT(result.log, HasSubstr("cstdint"));
}

TEST(CoreOnTheGpu, LayoutsBecomePlainArithmetic) {
  const Nvrtc nvrtc;
  if (!nvrtc.found()) GTEST_SKIP() << "no libnvrtc: set BLOCKSCALE_NVRTC";
  const Nvrtc::Result result = nvrtc.compile(kernels());
  ASSERT_TRUE(result.compiled) << result.log;
  const std::string offsets = body_of(result.ptx, "offsets");
  for (const char* costly : {"call", ".local", "div.", "rem.", "bra", "setp"}) {
    EXPECT_THAT(offsets, Not(HasSubstr(costly)));
  }
  EXPECT_THAT(body_of(result.ptx, "dispatched"), Not(HasSubstr("call")));
}

TEST(CoreOnTheGpu, CompilesWithNvcc) {
  const char* found = std::getenv("BLOCKSCALE_NVCC");
  const std::string nvcc = found != nullptr ? found : "/usr/local/cuda/bin/nvcc";
  if (!std::filesystem::exists(nvcc)) GTEST_SKIP() << "no nvcc: set BLOCKSCALE_NVCC";
  const auto folder =
      std::filesystem::temp_directory_path() / ("blockscale-nvcc-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "core.cu") << kernels();
  const std::string command = nvcc + " -std=c++20 -arch=sm_90a -Werror all-warnings -cubin -I" +
                              BLOCKSCALE_SOURCE_DIR + " -o " + (folder / "core.cubin").string() +
                              " " + (folder / "core.cu").string() + " >" +
                              (folder / "log").string() + " 2>&1";
  const int status = std::system(command.c_str());
  std::stringstream log;
  log << std::ifstream(folder / "log").rdbuf();
  EXPECT_EQ(status, 0) << log.str();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace blockscale
