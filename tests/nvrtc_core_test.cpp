// core/ compiles for the GPU: with NVRTC, which has no C++ library, and with nvcc where it is.
//
// No GPU is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/find_nvrtc.h"

namespace blockscale {
namespace {

using testing::HasSubstr;
using testing::Not;

class CoreOnTheGpu : public test::WithNvrtc {
 protected:
  runtime::Nvrtc::Result compile(const std::string& source) const {
    const std::vector<std::string> flags = {"--std=c++20", "--gpu-architecture=compute_90a",
                                            std::string("--include-path=") + BLOCKSCALE_SOURCE_DIR};
    return nvrtc_->compile("core.cu", source, {}, flags);
  }
};

/// #include lines of every header of core/ but those of tests and of other headers (-inl.h).
std::string include_all_of_core() {
  std::string result;
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(BLOCKSCALE_SOURCE_DIR) / "core")) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".h") || name.ends_with("-inl.h")) continue;
    if (name.find("_test_") != std::string::npos) continue;
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

extern "C" __global__ void functions(float x, float y, float z, int64_t column, float* out) {
  const GatedColumns columns = gated_columns(GateOrder::up_first, 64, column);
  out[columns.gate] = math::gelu_tanh(x);
  out[columns.up] = math::gelu_erf(x);
  out[2] = math::swiglu(x, y);
  out[3] = math::modulate(x, y, z);
  out[4] = math::rms_norm(x, math::reciprocal_sqrt(y), z);
  out[5] = math::clamped_swiglu(x, y, {7, z, 1 / z, 1});
}

extern "C" __global__ void either_gelu(float x, math::GeluTail tail, float* out) {
  *out = math::gelu(x, tail);
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

TEST_F(CoreOnTheGpu, CompilesWithNvrtc) {
  const runtime::Nvrtc::Result result = compile(kernels());
  ASSERT_TRUE(result.compiled) << result.log;
  EXPECT_EQ(result.log, "");
}

TEST_F(CoreOnTheGpu, NvrtcHasNoStandardLibraryToLeanOn) {
  const runtime::Nvrtc::Result result = compile("#include <cstdint>\n" + kernels());
  EXPECT_FALSE(result.compiled);
  EXPECT_THAT(result.log, HasSubstr("cstdint"));
}

TEST_F(CoreOnTheGpu, LayoutsBecomePlainArithmetic) {
  const runtime::Nvrtc::Result result = compile(kernels());
  ASSERT_TRUE(result.compiled) << result.log;
  const std::string offsets = body_of(result.ptx, "offsets");
  for (const char* costly : {"call", ".local", "div.", "rem.", "bra", "setp"}) {
    EXPECT_THAT(offsets, Not(HasSubstr(costly)));
  }
  EXPECT_THAT(body_of(result.ptx, "dispatched"), Not(HasSubstr("call")));
}

TEST_F(CoreOnTheGpu, FunctionsRoundEveryStep) {
  const runtime::Nvrtc::Result result = compile(kernels());
  ASSERT_TRUE(result.compiled) << result.log;
  const std::string functions = body_of(result.ptx, "functions");
  for (const char* loose : {".approx", ".ftz", "mad.f32", ".local"}) {
    EXPECT_THAT(functions, Not(HasSubstr(loose)));
  }
  for (const char* used : {"fma.rn.f32", "rcp.rn.f32", "sqrt.rn.f32"}) {
    EXPECT_THAT(functions, HasSubstr(used));
  }
}

/// Coefficients become constants, or are read where the kernel has its parameters.
TEST_F(CoreOnTheGpu, ActivationsAreStraightLines) {
  const runtime::Nvrtc::Result result = compile(kernels());
  ASSERT_TRUE(result.compiled) << result.log;
  EXPECT_THAT(body_of(result.ptx, "functions"), Not(HasSubstr("ld.global")));
  const std::string gelu = body_of(result.ptx, "either_gelu");
  for (const char* costly : {".local", "ld.global", "div.", "rcp.", "ex2.", "call", "bra"}) {
    EXPECT_THAT(gelu, Not(HasSubstr(costly)));
  }
}

TEST(CoreWithNvcc, Compiles) {
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
