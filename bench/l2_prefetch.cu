// What different ways of fetching memory into level 2 save whoever reads it later: 8 MiB that
// nobody has touched are fetched, and 15 us later read again by as many thread blocks as there is
// room for, each 128 rows of 512 bytes. docs/performance.md rests on it.
//
//   nvcc -std=c++20 -O2 -gencode arch=compute_90a,code=sm_90a -o l2_prefetch bench/l2_prefetch.cu
//
// Prints one JSON object: for each way the cycles that the reads took, the mean of the thread
// blocks and the median of the repeats, read by loads (128 B a warp and row) and by bulk copies.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include <algorithm>

namespace {

constexpr uint32_t kRows = 512;
constexpr uint32_t kRowBytes = 16384;
constexpr uint32_t kBytes = kRows * kRowBytes;
constexpr uint32_t kTileRows = 128;
constexpr uint32_t kTileRowBytes = 512;
constexpr uint32_t kTiles = kBytes / (kTileRows * kTileRowBytes);
constexpr uint32_t kThreads = 512;
constexpr uint32_t kSets = 24;  // cold to each other: 192 MiB
constexpr int kRepeats = 60;

enum class Way {
  nothing,
  prefetch,               // prefetch.global.L2, a line a thread
  bulk_prefetch,          // cp.async.bulk.prefetch.L2, 2 KiB a thread
  load_of_line,           // ld.global, 4 bytes of each line of 128
  load_of_line_128b,      // the same with .L2::128B
  load_of_all,            // ld.global.cg, 16 bytes a thread, everything
  cp_async_of_all,        // cp.async.cg, likewise
  cp_async_of_line_128b,  // cp.async.ca of 4 bytes with .L2::128B
  bulk_copy,              // cp.async.bulk to shared memory, 512 bytes a thread
  reads,                  // by the kernel that is timed, three times
};
constexpr const char* kNames[] = {"nothing",
                                  "prefetch.global.L2",
                                  "cp.async.bulk.prefetch.L2",
                                  "ld of 4 bytes a line",
                                  "ld.L2::128B of 4 bytes a line",
                                  "ld.cg of all bytes",
                                  "cp.async.cg of all bytes",
                                  "cp.async.ca.L2::128B of 4 bytes a line",
                                  "cp.async.bulk of all bytes",
                                  "the reads themselves"};
constexpr int kWays = 10;

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

__device__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ void make_mbarrier(uint32_t mbarrier, uint32_t bytes) {
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" : : "r"(mbarrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 :
                 : "r"(mbarrier), "r"(bytes)
                 : "memory");
  }
  __syncthreads();
}

__device__ void await_bytes(uint32_t mbarrier) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(mbarrier)
        : "memory");
  }
}

__device__ void bulk_copy(uint32_t to, const uint8_t* from, uint32_t bytes, uint32_t mbarrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(to), "l"(from), "r"(bytes), "r"(mbarrier)
      : "memory");
}

extern __shared__ __align__(128) uint8_t shared[];

/// Calls body(offset) for a thread's share of all bytes, kStep each.
template <uint32_t kStep, class Body>
__device__ void each_share(const Body& body) {
  const uint32_t first = (blockIdx.x * kThreads + threadIdx.x) * kStep;
  for (uint32_t at = first; at < kBytes; at += gridDim.x * kThreads * kStep) body(at);
}

__global__ void __launch_bounds__(kThreads) fetch(const uint8_t* x, Way way, uint32_t* sink) {
  uint32_t seen = 0;
  const uint32_t own = shared_address(shared) + 128 + threadIdx.x * 16;
  switch (way) {
    case Way::prefetch:
      each_share<128>([&](uint32_t at) {
        asm volatile("prefetch.global.L2 [%0];" : : "l"(x + at));
      });
      break;
    case Way::bulk_prefetch:
      each_share<2048>([&](uint32_t at) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], 2048;" : : "l"(x + at));
      });
      break;
    case Way::load_of_line:
      each_share<128>([&](uint32_t at) {
        uint32_t word;
        asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(x + at));
        seen ^= word;
      });
      break;
    case Way::load_of_line_128b:
      each_share<128>([&](uint32_t at) {
        uint32_t word;
        asm volatile("ld.global.L2::128B.b32 %0, [%1];" : "=r"(word) : "l"(x + at));
        seen ^= word;
      });
      break;
    case Way::load_of_all:
      each_share<16>([&](uint32_t at) {
        const uint4 words = __ldcg(reinterpret_cast<const uint4*>(x + at));
        seen ^= words.x ^ words.y ^ words.z ^ words.w;
      });
      break;
    case Way::cp_async_of_all:
      each_share<16>([&](uint32_t at) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(own), "l"(x + at));
      });
      asm volatile("cp.async.wait_all;" : : : "memory");
      break;
    case Way::cp_async_of_line_128b:
      each_share<128>([&](uint32_t at) {
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4;" : : "r"(own), "l"(x + at));
      });
      asm volatile("cp.async.wait_all;" : : : "memory");
      break;
    case Way::bulk_copy: {
      // Shared memory holds 64 KiB of copies, one share of each of 128 threads.
      const uint32_t mbarrier = shared_address(shared);
      if (blockIdx.x >= kTiles) break;
      make_mbarrier(mbarrier, kTileRows * kTileRowBytes);
      if (threadIdx.x < kTileRows) {
        const uint32_t piece = blockIdx.x * kTileRows + threadIdx.x;
        bulk_copy(mbarrier + 128 + threadIdx.x * kTileRowBytes, x + piece * kTileRowBytes,
                  kTileRowBytes, mbarrier);
      }
      await_bytes(mbarrier);
      break;
    }
    default: break;
  }
  if (seen == 0x12345678u) *sink = seen;  // so that loads have a use
}

__global__ void wait_a_while() {
  constexpr long long kCycles = 25000;
  const long long start = clock64();
  while (clock64() - start < kCycles) {
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    read(const uint8_t* x, bool by_bulk_copies, uint32_t* cycles, uint32_t* sink) {
  constexpr uint32_t kAcross = kRowBytes / kTileRowBytes;
  const uint8_t* const tile =
      x + blockIdx.x / kAcross * kTileRows * kRowBytes + blockIdx.x % kAcross * kTileRowBytes;
  const uint32_t mbarrier = shared_address(shared);
  make_mbarrier(mbarrier, kTileRows * kTileRowBytes);
  const long long start = clock64();
  uint32_t seen = 0;
  if (by_bulk_copies) {
    if (threadIdx.x < kTileRows) {
      bulk_copy(mbarrier + 128 + threadIdx.x * kTileRowBytes, tile + threadIdx.x * kRowBytes,
                kTileRowBytes, mbarrier);
    }
    await_bytes(mbarrier);
  } else {
    constexpr uint32_t kVectors = kTileRows * kTileRowBytes / 16 / kThreads;
    uint4 words[kVectors];
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t vector = i * kThreads + threadIdx.x;
      const uint32_t row = vector / (kTileRowBytes / 16);
      const uint32_t column = vector % (kTileRowBytes / 16) * 16;
      words[i] = __ldcg(reinterpret_cast<const uint4*>(tile + row * kRowBytes + column));
    }
#pragma unroll
    for (const uint4& w : words) seen ^= w.x ^ w.y ^ w.z ^ w.w;
  }
  if (seen == 0x12345678u) *sink = seen;  // a use of all words, so that they are there
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = static_cast<uint32_t>(clock64() - start);
}

struct Bench {
  uint8_t* x;
  uint32_t* cycles;
  uint32_t* sink;
  int multiprocessors;

  double median_cycles(Way way, bool by_bulk_copies) const {
    constexpr uint32_t kSharedBytes = 128 + kTileRows * kTileRowBytes;
    std::vector<double> means;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const uint8_t* const from = x + size_t{kBytes} * (static_cast<uint32_t>(repeat) % kSets);
      const int times = way == Way::reads ? 3 : 0;
      for (int i = 0; i < times; ++i) {
        read<<<kTiles, kThreads, kSharedBytes>>>(from, by_bulk_copies, cycles, sink);
      }
      fetch<<<multiprocessors, kThreads, kSharedBytes>>>(from, way, sink);
      wait_a_while<<<1, 32>>>();
      read<<<kTiles, kThreads, kSharedBytes>>>(from, by_bulk_copies, cycles, sink);
      std::vector<uint32_t> of_block(kTiles);
      check(cudaMemcpy(of_block.data(), cycles, sizeof(uint32_t) * kTiles, cudaMemcpyDeviceToHost),
            "cudaMemcpy");
      means.push_back(std::accumulate(of_block.begin(), of_block.end(), 0.0) / kTiles);
    }
    std::nth_element(means.begin(), means.begin() + kRepeats / 2, means.end());
    return means[kRepeats / 2];
  }
};

}  // namespace

int main() {
  Bench bench;
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  bench.multiprocessors = device.multiProcessorCount;
  check(cudaMalloc(&bench.x, size_t{kBytes} * kSets), "cudaMalloc");
  check(cudaMalloc(&bench.cycles, sizeof(uint32_t) * kTiles), "cudaMalloc");
  check(cudaMalloc(&bench.sink, sizeof(uint32_t)), "cudaMalloc");
  std::vector<uint32_t> words(size_t{kBytes} / 4);
  std::mt19937 random(1);
  std::generate(words.begin(), words.end(), random);
  for (uint32_t set = 0; set < kSets; ++set) {
    check(cudaMemcpy(bench.x + size_t{kBytes} * set, words.data(), kBytes, cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
  constexpr int kMostShared = 128 + kTileRows * kTileRowBytes;
  check(cudaFuncSetAttribute(fetch, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(read, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared),
        "cudaFuncSetAttribute");
  std::printf("{\"device\": \"%s\", \"bytes\": %u, \"cycles\": [\n", device.name, kBytes);
  for (int i = 0; i < kWays; ++i) {
    const Way way = static_cast<Way>(i);
    std::printf("  {\"fetched by\": \"%s\", \"read by loads\": %.0f, \"by bulk copies\": %.0f}%s\n",
                kNames[i], bench.median_cycles(way, false), bench.median_cycles(way, true),
                i + 1 < kWays ? "," : "");
  }
  std::printf("]}\n");
  check(cudaGetLastError(), "a kernel");
}
