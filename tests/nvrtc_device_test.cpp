// Every wrapper of device/ptx compiles for the GPU: the golden programs, which use them all
// (tests/device_wrappers_test.cpp), with NVRTC and no CUDA header. No GPU is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "runtime/kernels/kernel_compiler.h"
#include "runtime/kernels/kernel_sources.h"
#include "tests/find_nvrtc.h"
#include "tests/tensor_boxes_case.h"

namespace blockscale {
namespace {

const std::filesystem::path kRoot = BLOCKSCALE_SOURCE_DIR;

std::string text_of(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// All programs, and one instance of each operation and each kind of tensor copy, as one kernel.
constexpr std::string_view kEverything = R"(#pragma once
#include "device/golden/hopper_programs.h"
#include "device/golden/tensor_programs.h"
namespace everything {
using namespace blockscale;
using namespace blockscale::golden;

template <class... Programs>
BLOCKSCALE_DEVICE void run_all(TypeList<Programs...>*, const ProgramParams& p) {
  (Programs::run(p), ...);
}
template <class... Operations>
BLOCKSCALE_DEVICE uint64_t sum_unary(TypeList<Operations...>*, uint32_t a) {
  return (uint64_t{0} + ... + Operations::apply(a));
}
template <class... Operations>
BLOCKSCALE_DEVICE uint64_t sum_random(TypeList<Operations...>*, uint64_t i) {
  return (uint64_t{0} + ... + random_term<Operations>(i));
}
template <TensorMode kMode>
BLOCKSCALE_DEVICE void each_rank(const ProgramParams& p) {
  TensorProgram<1, kMode>::run(p);
  TensorProgram<2, kMode>::run(p);
  TensorProgram<3, kMode>::run(p);
  TensorProgram<4, kMode>::run(p);
  TensorProgram<5, kMode>::run(p);
}

template <int>
BLOCKSCALE_DEVICE void run(const ProgramParams& p) {
  run_all(static_cast<Programs*>(nullptr), p);
  each_rank<TensorMode::multicast>(p);
  each_rank<TensorMode::multicast_once>(p);
  each_rank<TensorMode::load>(p);
  each_rank<TensorMode::store>(p);
  each_rank<TensorMode::add>(p);
  each_rank<TensorMode::min>(p);
  each_rank<TensorMode::max>(p);
  each_rank<TensorMode::inc>(p);
  each_rank<TensorMode::dec>(p);
  each_rank<TensorMode::bit_and>(p);
  each_rank<TensorMode::bit_or>(p);
  each_rank<TensorMode::bit_xor>(p);
  const uint64_t sum = sum_unary(static_cast<UnaryOperations*>(nullptr), p.box_bytes) +
                       sum_random(static_cast<RandomOperations*>(nullptr), p.box_offset);
  ptx::st_global(reinterpret_cast<uint64_t*>(p.out), sum);
}
}  // namespace everything
)";

// The programs that are Hopper's alone, and products of each width.
constexpr std::string_view kHopper = R"(#pragma once
#include "device/golden/hopper_programs.h"
namespace hopper {
using namespace blockscale;
using namespace blockscale::golden;

template <class... Programs>
BLOCKSCALE_DEVICE void run_all(TypeList<Programs...>*, const ProgramParams& p) {
  (Programs::run(p), ...);
}
template <int kN>
BLOCKSCALE_DEVICE void multiply(const ProgramParams& p) {
  using enum ptx::WgmmaElement;
  ptx::WgmmaAccumulator<kN> d;
  ptx::WgmmaFragmentA a;
  for (int i = 0; i < 4; ++i) a.set(i, p.in[i]);
  const auto b = ptx::wgmma_descriptor(device::shared_base(), TensorMapSwizzle::bytes_128);
  ptx::wgmma_fence(d, a);
  ptx::wgmma_mma_async<e4m3, e5m2>(d, b, b, false);
  ptx::wgmma_mma_async<bf16, bf16>(d, a, b, true);
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>(d, a);
  for (int i = 0; i < kN / 2; ++i) ptx::st_global(p.out + i, bit_cast<uint32_t>(d.get(i)));
}

template <int kProgram>
BLOCKSCALE_DEVICE void run(const ProgramParams& p) {
  if constexpr (kProgram == 0) {
    run_all(static_cast<HopperPrograms*>(nullptr), p);
  } else {
    multiply<kProgram>(p);
    multiply<kProgram + 8>(p);
    multiply<kProgram + 16>(p);
    multiply<kProgram + 24>(p);
  }
}
}  // namespace hopper
)";

constexpr std::string_view kBlackwell = R"(#pragma once
#include "device/ptx/sm100/convert.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/sm100/packed.h"
namespace blackwell {
using namespace blockscale;
struct Parameters {
  const float* x;
  uint32_t* out;
};
template <int>
BLOCKSCALE_DEVICE void run(const Parameters& p) {
  const float hi = ptx::ld_global(p.x), lo = ptx::ld_global(p.x + 1);
  uint32_t sum = ptx::cvt_rn_satfinite_e2m1x2_f32(hi, lo);
  sum += ptx::cvt_rn_satfinite_e2m3x2_f32(hi, lo) + ptx::cvt_rn_satfinite_e3m2x2_f32(hi, lo);
  sum += ptx::cvt_rz_satfinite_ue8m0x2_f32(hi, lo) + ptx::cvt_rp_satfinite_ue8m0x2_f32(hi, lo);
  sum += ptx::cvt_rn_f16x2_e2m1x2(static_cast<uint8_t>(sum));
  const uint16_t codes = static_cast<uint16_t>(sum);
  sum += ptx::cvt_rn_f16x2_e2m3x2(codes) + ptx::cvt_rn_f16x2_e3m2x2(codes);
  sum += ptx::cvt_rn_bf16x2_ue8m0x2(codes);
  const ptx::F32x2 pair = ptx::fma_rn_f32x2(
      {{hi, lo}}, {{lo, hi}}, ptx::add_rn_f32x2({{hi, hi}}, ptx::mul_rn_f32x2({{lo, hi}}, {{lo, lo}})));
  sum += bit_cast<uint32_t>(pair.at[0]) ^ bit_cast<uint32_t>(pair.at[1]);
  ptx::st_global(p.out, sum);
}
}  // namespace blackwell
)";

/// Boxes, gathered rows, bulk copies, and ldmatrix of narrow elements.
constexpr std::string_view kBlackwellCopies = R"(#pragma once
#include "device/pipeline/stages.h"
#include "device/ptx/barrier.h"
#include "device/ptx/bulk_copy.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/sm100/ldmatrix.h"
#include "device/ptx/sm100/tensor_copy.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/tensor_copy.h"
namespace blackwell_copies {
using namespace blockscale;
struct alignas(64) Parameters {
  TensorMap map;
  const uint32_t* in;
  uint32_t* out;
};
template <int kBits, int kCount>
BLOCKSCALE_DEVICE uint32_t load() {
  const auto f = ptx::ldmatrix_b8x16<kBits, kCount>(device::shared_base());
  uint32_t sum = 0;
  for (int i = 0; i < kCount; ++i) sum += f.value[i];
  return sum;
}
template <int>
BLOCKSCALE_DEVICE void run(const Parameters& p) {
  const device::StageRing ring = {device::shared_base() + 8192, 1};
  if (ptx::tid_x() == 0) {
    ring.init<1>(1, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(ring.full(0), 4096 + 512 + 256);
    ptx::cp_async_bulk_tensor_shared_global<2>(device::shared_base(), &p.map, {{128, 8}},
                                               ring.full(0));
    ptx::cp_async_bulk_shared_global(device::shared_base() + 4096, p.in, 512, ring.full(0));
    ptx::cp_async_bulk_tensor_shared_global_gather4(device::shared_base() + 5120, &p.map, 128,
                                                    {5, 0, 7, 2}, ring.full(0));
  }
  ptx::barrier_sync_all();
  ring.wait_full(device::StagePlace{});
  ptx::st_global(p.out, load<4, 1>() + load<4, 2>() + load<4, 4>() + load<6, 1>() + load<6, 2>() +
                            load<6, 4>());
}
}  // namespace blackwell_copies
)";

/// Products of every pair of elements, and every selector of scales.
constexpr std::string_view kScaledMma = R"(#pragma once
#include "device/ptx/global_memory.h"
#include "device/ptx/sm120/mma.h"
namespace scaled_mma {
using namespace blockscale;
using ptx::ScaleSelector;
struct Parameters {
  const uint32_t* in;
  float* out;
};
struct Operands {
  ptx::MmaFragmentA a;
  ptx::MmaFragmentB b;
  uint32_t scales_a, scales_b;
};

template <Format kA, Format... kB>
BLOCKSCALE_DEVICE void multiply_by(ptx::MmaAccumulator& d, const Operands& x) {
  ptx::MmaAccumulatorF16 in_f16 = {{x.scales_a, x.scales_b}};
  (ptx::mma_sync_m16n8k32_f8f6f4<kA, kB>(in_f16, x.a, x.b), ...);
  d.value[0] += bit_cast<float>(in_f16.value[0] ^ in_f16.value[1]);
  (ptx::mma_sync_m16n8k32_f8f6f4<kA, kB>(d, x.a, x.b), ...);
  (ptx::mma_sync_m16n8k32_mxf8f6f4<kA, kB>(d, x.a, x.b, x.scales_a, x.scales_b), ...);
}
template <Format... kA>
BLOCKSCALE_DEVICE void multiply_pairs(ptx::MmaAccumulator& d, const Operands& x) {
  (multiply_by<kA, Format::e2m1, Format::e2m3, Format::e3m2, Format::e4m3, Format::e5m2>(d, x), ...);
}

template <int kThreadA, int kThreadB>
BLOCKSCALE_DEVICE void select(ptx::MmaAccumulator& d, const Operands& x) {
  constexpr ScaleSelector kA[] = {{0, kThreadA}, {1, kThreadA}, {2, kThreadA}, {3, kThreadA}};
  constexpr ScaleSelector kB[] = {{0, kThreadB}, {1, kThreadB}, {2, kThreadB}, {3, kThreadB}};
  constexpr Format kE = Format::e4m3;
  ptx::mma_sync_m16n8k32_mxf8f6f4<kE, kE, kA[0], kB[3]>(d, x.a, x.b, x.scales_a, x.scales_b);
  ptx::mma_sync_m16n8k32_mxf8f6f4<kE, kE, kA[1], kB[2]>(d, x.a, x.b, x.scales_a, x.scales_b);
  ptx::mma_sync_m16n8k32_mxf8f6f4<kE, kE, kA[2], kB[1]>(d, x.a, x.b, x.scales_a, x.scales_b);
  ptx::mma_sync_m16n8k32_mxf8f6f4<kE, kE, kA[3], kB[0]>(d, x.a, x.b, x.scales_a, x.scales_b);
  ptx::mma_sync_m16n8k64_mxf4nvf4<2, kA[0], kB[2]>(d, x.a, x.b, x.scales_a, x.scales_b);
  ptx::mma_sync_m16n8k64_mxf4nvf4<2, kA[2], kB[0]>(d, x.a, x.b, x.scales_a, x.scales_b);
  ptx::mma_sync_m16n8k64_mxf4nvf4<4, kA[0], kB[0]>(d, x.a, x.b, x.scales_a, x.scales_b);
}

template <int>
BLOCKSCALE_DEVICE void run(const Parameters& p) {
  Operands x;
  for (int i = 0; i < 4; ++i) x.a.value[i] = ptx::ld_global(p.in + i);
  for (int i = 0; i < 2; ++i) x.b.value[i] = ptx::ld_global(p.in + 4 + i);
  x.scales_a = ptx::ld_global(p.in + 6);
  x.scales_b = ptx::ld_global(p.in + 7);
  ptx::MmaAccumulator d = {};
  multiply_pairs<Format::e2m1, Format::e2m3, Format::e3m2, Format::e4m3, Format::e5m2>(d, x);
  select<0, 0>(d, x);
  select<0, 1>(d, x);
  select<0, 2>(d, x);
  select<0, 3>(d, x);
  select<1, 0>(d, x);
  select<1, 1>(d, x);
  select<1, 2>(d, x);
  select<1, 3>(d, x);
  for (int i = 0; i < 4; ++i) ptx::st_global(p.out + i, d.value[i]);
}
}  // namespace scaled_mma
)";

using NvrtcDevice = test::WithNvrtc;

runtime::KernelSpec spec_of(const std::string& name, const std::string& architecture) {
  runtime::KernelSpec spec;
  spec.name = "run_" + name;
  spec.header = "test/" + name + ".cuh";
  spec.call = name + "::run<0>";
  spec.threads = 128;
  spec.architecture = architecture;
  return spec;
}

/// Compiles `header`, which may include the golden programs, as kernels of ProgramParams.
class GoldenCompiler {
 public:
  GoldenCompiler(const std::string& name, std::string_view header)
      : name_(name), tree_(runtime::embedded_sources()) {
    for (const char* file :
         {"operations.h", "programs.h", "hopper_programs.h", "tensor_programs.h"}) {
      const std::string path = std::string("device/golden/") + file;
      texts_[path] = text_of(kRoot / path);
    }
    texts_["test/" + name + ".cuh"] = header;
    for (const auto& [path, text] : texts_) tree_.add(path, text);
  }

  runtime::CompiledKernel compile(int program, const runtime::Nvrtc& nvrtc) const {
    runtime::KernelSpec spec = spec_of(name_, "sm_90a");
    spec.call = name_ + "::run<" + std::to_string(program) + ">";
    spec.parameters = "blockscale::golden::ProgramParams";
    spec.parameter_bytes = 192;
    spec.allows_local_memory = true;
    return runtime::compile_kernel(spec, tree_, nvrtc);
  }

 private:
  std::string name_;
  runtime::SourceTree tree_;
  std::map<std::string, std::string> texts_;  // by path; the tree does not copy them
};

TEST_F(NvrtcDevice, EveryWrapperCompilesForHopper) {
  EXPECT_FALSE(GoldenCompiler("everything", kEverything).compile(0, *nvrtc_).cubin.empty());
}

TEST_F(NvrtcDevice, ProductsOfEveryWidthCompileForHopper) {
  const GoldenCompiler compiler("hopper", kHopper);
  EXPECT_FALSE(compiler.compile(0, *nvrtc_).cubin.empty());
  for (int n = 8; n <= 256; n += 32) {
    EXPECT_FALSE(compiler.compile(n, *nvrtc_).cubin.empty()) << n;
  }
}

/// What runtime/cuda/tensor_map_gpu_test.cpp runs.
TEST_F(NvrtcDevice, TensorBoxesCompileForHopper) {
  EXPECT_FALSE(
      runtime::compile_kernel(test::tensor_boxes_spec(), test::tensor_boxes_sources(), *nvrtc_)
          .cubin.empty());
}

/// Whether NVRTC and ptxas take `text`, with a struct Parameters of `bytes`, for an architecture,
/// and make instructions of it and no calls into the system.
bool compiles(const std::string& name, std::string_view text, uint32_t bytes,
              const std::string& architecture, const runtime::Nvrtc& nvrtc) {
  runtime::KernelSpec spec = spec_of(name, architecture);
  runtime::SourceTree tree = runtime::embedded_sources();
  tree.add(spec.header, text);
  spec.parameters = name + "::Parameters";
  spec.parameter_bytes = bytes;
  const auto cubin = runtime::compile_kernel(spec, tree, nvrtc).cubin;
  constexpr std::string_view kCall = "__cuda_syscall";
  const auto is_same = [](std::byte byte, char c) { return static_cast<char>(byte) == c; };
  return !cubin.empty() && std::search(cubin.begin(), cubin.end(), kCall.begin(), kCall.end(),
                                       is_same) == cubin.end();
}

TEST_F(NvrtcDevice, Fp4Fp6AndUe8m0ConversionsCompileForBlackwell) {
  for (const char* architecture : {"sm_100f", "sm_120f"}) {
    EXPECT_TRUE(compiles("blackwell", kBlackwell, 16, architecture, *nvrtc_)) << architecture;
  }
}

TEST_F(NvrtcDevice, CopiesOfNarrowElementsCompileForBlackwell) {
  for (const char* architecture : {"sm_100f", "sm_120f"}) {
    EXPECT_TRUE(compiles("blackwell_copies", kBlackwellCopies, 192, architecture, *nvrtc_))
        << architecture;
  }
}

TEST_F(NvrtcDevice, ProductsThatScaleCompileForSm120) {
  EXPECT_TRUE(compiles("scaled_mma", kScaledMma, 16, "sm_120f", *nvrtc_));
}

}  // namespace
}  // namespace blockscale
