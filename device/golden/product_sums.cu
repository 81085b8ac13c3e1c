// How a Hopper adds up products: which bits of e4m3 products survive a wgmma, as a table, and which
// rules of meaning/product_sums.h explain what each instruction leaves. README.md says how to run
// it.
#include <bit>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/golden/product_sum_cases.h"
#include "device/ptx/barrier.h"
#include "device/ptx/fence.h"
#include "device/ptx/mma.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/sm90/wgmma.h"
#include "device/ptx/special_registers.h"

namespace blockscale::golden {
namespace {

constexpr std::uint32_t kRowBytes = 128;  // of one row: a span of the swizzle, four products' k
constexpr std::uint32_t kRowsOfA = 64, kRowsOfB = 8;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

/// Instructions whose sums are asked for.
enum class Instruction { wgmma_e4m3, wgmma_f16, wgmma_bf16, mma_e4m3, mma_f16, mma_bf16 };
constexpr Instruction kInstructions[] = {Instruction::wgmma_e4m3, Instruction::wgmma_f16,
                                         Instruction::wgmma_bf16, Instruction::mma_e4m3,
                                         Instruction::mma_f16,    Instruction::mma_bf16};
constexpr const char* kInstructionNames[] = {"wgmma e4m3",    "wgmma f16",    "wgmma bf16",
                                             "mma.sync e4m3", "mma.sync f16", "mma.sync bf16"};
constexpr Format kFormats[] = {Format::e4m3, Format::f16, Format::bf16,
                               Format::e4m3, Format::f16, Format::bf16};

/// What a block needs of a case: all rows of A, and of B, are the same.
struct Operands {
  std::uint32_t a[kRowBytes / 4], b[kRowBytes / 4];
  float old;
  std::uint32_t count;
};

template <ptx::WgmmaElement kElement, int kCount>
BLOCKSCALE_DEVICE void multiply(ptx::WgmmaAccumulator<kRowsOfB>& d) {
  const ptx::SharedAddress s = device::shared_base();
  ptx::wgmma_fence(d);
  BLOCKSCALE_UNROLL
  for (std::uint32_t k = 0; k < kCount; ++k) {
    ptx::wgmma_mma_async<kElement, kElement>(
        d, ptx::wgmma_descriptor(s + 32 * k, TensorMapSwizzle::bytes_128),
        ptx::wgmma_descriptor(s + kRowsOfA * kRowBytes + 32 * k, TensorMapSwizzle::bytes_128),
        true);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>(d);
}

/// Block i sums case i. `differ` counts threads whose values are not those of thread 0.
template <ptx::WgmmaElement kElement>
__global__ void __launch_bounds__(128, 1)
    sum_products(const Operands* operands, float* sums, std::uint32_t* differ) {
  const Operands& x = operands[blockIdx.x];
  const ptx::SharedAddress s = device::shared_base();
  constexpr std::uint32_t kWords = kRowBytes / 4;
  for (std::uint32_t i = threadIdx.x; i < (kRowsOfA + kRowsOfB) * kWords; i += 128) {
    const std::uint32_t row = i / kWords, word = i % kWords;
    const std::uint32_t chunk = word / 4 ^ row % 8;  // the swizzle of 128 bytes
    ptx::st_shared(s + row * kRowBytes + chunk * 16 + word % 4 * 4,
                   row < kRowsOfA ? x.a[word] : x.b[word]);
  }
  ptx::fence_proxy_async_shared();
  ptx::barrier_sync_all();
  ptx::WgmmaAccumulator<kRowsOfB> d;
  BLOCKSCALE_UNROLL
  for (int i = 0; i < 4; ++i) d.set(i, x.old);
  if (x.count == 1) {
    multiply<kElement, 1>(d);
  } else {
    multiply<kElement, SumCase::kMostInstructions>(d);
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = d.get(0);
  __syncthreads();
  const std::uint32_t first = __float_as_uint(sums[blockIdx.x]);
  for (int i = 0; i < 4; ++i) {
    if (__float_as_uint(d.get(i)) != first) atomicAdd(differ, 1u);
  }
}

/// The same by a warp's products of registers.
template <ptx::MmaElement kElement>
__global__ void __launch_bounds__(32, 1)
    sum_products_of_warp(const Operands* operands, float* sums, std::uint32_t* differ) {
  const Operands& x = operands[blockIdx.x];
  ptx::MmaAccumulator d = {{x.old, x.old, x.old, x.old}};
  for (std::uint32_t i = 0; i < x.count; ++i) {
    const std::uint32_t first = 8 * i + threadIdx.x % 4;
    ptx::mma_sync_m16n8<kElement>(d, {{x.a[first], x.a[first], x.a[first + 4], x.a[first + 4]}},
                                  {{x.b[first], x.b[first + 4]}});
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = d.value[0];
  const float first = __shfl_sync(0xFFFFFFFFu, d.value[0], 0);
  for (int i = 0; i < 4; ++i) {
    if (__float_as_uint(d.value[i]) != __float_as_uint(first)) atomicAdd(differ, 1u);
  }
}

void launch(Instruction instruction, unsigned cases, const Operands* in, float* out,
            std::uint32_t* differ) {
  constexpr std::uint32_t kBytes = (kRowsOfA + kRowsOfB) * kRowBytes;
  switch (instruction) {
    case Instruction::wgmma_e4m3:
      sum_products<ptx::WgmmaElement::e4m3><<<cases, 128, kBytes>>>(in, out, differ);
      break;
    case Instruction::wgmma_f16:
      sum_products<ptx::WgmmaElement::f16><<<cases, 128, kBytes>>>(in, out, differ);
      break;
    case Instruction::wgmma_bf16:
      sum_products<ptx::WgmmaElement::bf16><<<cases, 128, kBytes>>>(in, out, differ);
      break;
    case Instruction::mma_e4m3:
      sum_products_of_warp<ptx::MmaElement::e4m3><<<cases, 32>>>(in, out, differ);
      break;
    case Instruction::mma_f16:
      sum_products_of_warp<ptx::MmaElement::f16><<<cases, 32>>>(in, out, differ);
      break;
    case Instruction::mma_bf16:
      sum_products_of_warp<ptx::MmaElement::bf16><<<cases, 32>>>(in, out, differ);
      break;
  }
}

/// Codes as they lie in memory.
void pack(const SumCase::Codes& codes, Format format, std::uint32_t (&words)[kRowBytes / 4]) {
  const std::uint32_t per_word = 32 / static_cast<std::uint32_t>(format_traits(format).bits);
  for (std::uint32_t i = 0; i < kRowBytes / 4; ++i) {
    words[i] = 0;
    for (std::uint32_t j = 0; j < per_word; ++j) {
      words[i] |= std::uint32_t{codes[per_word * i + j]} << (32 / per_word * j);
    }
  }
}

/// What the GPU makes of cases.
std::vector<float> sums_of(const std::vector<SumCase>& cases,
                           Instruction instruction = Instruction::wgmma_e4m3) {
  std::vector<Operands> operands(cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    pack(cases[i].a, cases[i].format, operands[i].a);
    pack(cases[i].b, cases[i].format, operands[i].b);
    operands[i].old = cases[i].old;
    operands[i].count = cases[i].count;
  }
  Operands* in = nullptr;
  float* out = nullptr;
  std::uint32_t* differ = nullptr;
  check(cudaMalloc(&in, operands.size() * sizeof(Operands)), "cudaMalloc");
  check(cudaMalloc(&out, cases.size() * 4), "cudaMalloc");
  check(cudaMalloc(&differ, 4), "cudaMalloc");
  check(cudaMemset(differ, 0, 4), "cudaMemset");
  check(cudaMemcpy(in, operands.data(), operands.size() * sizeof(Operands), cudaMemcpyHostToDevice),
        "operands");
  launch(instruction, static_cast<unsigned>(cases.size()), in, out, differ);
  check(cudaGetLastError(), "launch");
  std::vector<float> sums(cases.size());
  check(cudaMemcpy(sums.data(), out, sums.size() * 4, cudaMemcpyDeviceToHost), "sums");
  std::uint32_t different = 0;
  check(cudaMemcpy(&different, differ, 4, cudaMemcpyDeviceToHost), "differ");
  if (different != 0) std::printf("%u values differ between rows or columns\n", different);
  check(cudaFree(in), "cudaFree");
  check(cudaFree(out), "cudaFree");
  check(cudaFree(differ), "cudaFree");
  return sums;
}

constexpr int kLarge = 16;  // the exponent of the large term; small ones have kLarge - distance
constexpr int kFarthest = 28;

/// The largest distance at which a term that `add_small` adds to `base` still shows; -1: none.
template <class AddSmall>
int reach(const SumCase& base, double large, const AddSmall& add_small) {
  std::vector<SumCase> cases;
  for (int distance = 0; distance <= kFarthest; ++distance) {
    add_small(cases.emplace_back(base), distance);
  }
  const std::vector<float> sums = sums_of(cases);
  int farthest = -1;
  for (int i = 0; i <= kFarthest; ++i) {
    if (static_cast<double>(sums[static_cast<std::size_t>(i)]) != large) farthest = i;
  }
  return farthest;
}

/// sum - 2^kLarge, in units of the last bit that is kept.
double rest_of(const SumCase& c, int bits) {
  return std::ldexp(static_cast<double>(sums_of({c})[0]) - std::ldexp(1.0, kLarge), bits - kLarge);
}

/// The table: which bits survive beside a term of 2^16.
void print_table() {
  const double large = std::ldexp(1.0, kLarge);
  SumCase product, old;
  product.set_power(0, kLarge);
  old.old = static_cast<float>(large);
  std::printf("farthest power of two below 2^16 that shows, by its place in k (1 to 31):\n ");
  int bits = 0;
  for (std::uint32_t k = 1; k < SumCase::kMostProducts; ++k) {
    bits = reach(product, large, [k](SumCase& c, int d) { c.set_power(k, kLarge - d); });
    std::printf(" %d", bits);
  }
  SumCase last;
  last.set_power(31, kLarge);
  std::printf("\nthe large product at 31, a small one at 0: %d\n",
              reach(last, large, [](SumCase& c, int d) { c.set_power(0, kLarge - d); }));
  std::printf("old value large, product small: %d\n",
              reach(old, large, [](SumCase& c, int d) { c.set_power(0, kLarge - d); }));
  std::printf("product large, old value small: %d\n", reach(product, large, [](SumCase& c, int d) {
                c.old = std::ldexp(1.0f, kLarge - d);
              }));
  SumCase chain = product;
  chain.count = SumCase::kMostInstructions;
  std::printf("large product in the first of four instructions, small one in the last: %d\n",
              reach(chain, large, [](SumCase& c, int d) { c.set_power(96, kLarge - d); }));
  SumCase wide;
  wide.a[0] = wide.b[0] = 0x77;  // 1.875 * 2^7, whose square is 3.5 * 2^14
  const double square = std::ldexp(1.875 * 1.875, 14);
  std::printf("below 3.5 * 2^14 a product that shows, counted from 2^14: %d\n",
              reach(wide, square, [](SumCase& c, int d) { c.set_power(1, 14 - d); }));
  std::printf("in units of the last bit kept beside 2^16:\n");
  const auto with = [&](int distance, std::uint32_t count, bool negative) {
    SumCase c = product;
    for (std::uint32_t k = 1; k <= count; ++k) c.set_power(k, kLarge - distance, negative);
    return rest_of(c, bits);
  };
  std::printf("  + 1/2: %g, - 1/2: %g, - 1: %g, - 1/4: %g\n", with(bits + 1, 1, false),
              with(bits + 1, 1, true), with(bits, 1, true), with(bits + 2, 1, true));
  std::printf("  31 times + 1/2: %g, 31 times - 1/2: %g, 31 times + 1: %g\n",
              with(bits + 1, 31, false), with(bits + 1, 31, true), with(bits, 31, false));
  SumCase mixed = product;
  mixed.set_power(1, kLarge - bits);
  mixed.a[1] |= 4;  // 1.5 times
  std::printf("  + 1.5: %g\n", rest_of(mixed, bits));
  SumCase precise;
  precise.old = 1 + 0x1p-23f;
  std::printf("an old value of 1 + 2^-23 behind products of zero is 1 + %g * 2^-23\n",
              std::ldexp(static_cast<double>(sums_of({precise})[0]) - 1, 23));
}

int run() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "no GPU");
  std::printf("%s\n", properties.name);
  print_table();
  for (const Instruction instruction : kInstructions) {
    const auto index = static_cast<std::size_t>(instruction);
    const std::vector<SumCase> cases = random_sum_cases(32768, kFormats[index]);
    const std::vector<float> results = sums_of(cases, instruction);
    std::printf("%s: rules, by how many of %zu random cases they get wrong:\n",
                kInstructionNames[index], cases.size());
    for (const RuleScore& s : best_sum_rules(cases, results, 8)) {
      std::printf("%7zu  %s\n", s.wrong, text_of(s.rule).c_str());
    }
  }
  return 0;
}

}  // namespace
}  // namespace blockscale::golden

int main() {
  try {
    return blockscale::golden::run();
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
