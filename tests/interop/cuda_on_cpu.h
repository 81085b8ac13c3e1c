// What CUDA source needs to be compiled by a C++ compiler and run on the CPU, as far as LightX2V's
// quantizers go: lightx2v_kernels.py rewrites launches and inline PTX into Launch and ptx, below.
// The threads of a block take turns, each up to its next shuffle. Types and conversions of float
// formats are those of NVIDIA's headers, which have a form for the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <torch/library.h>
#include <torch/types.h>
#include <ucontext.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace on_cpu {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;

struct Thread {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool finished = false;
  unsigned shuffles = 0;
  uint64_t offered[2] = {};  // to its last two shuffles
};

inline std::vector<Thread>* threads = nullptr;  // of the block that runs
inline ucontext_t scheduler;
inline const std::function<void()>* body = nullptr;
inline std::exception_ptr failure;

inline void run_thread() {
  try {
    (*body)();
  } catch (...) {
    failure = std::current_exception();
  }
  (*threads)[threadIdx.x].finished = true;
}

inline void run_block(unsigned count) {
  std::vector<Thread> block(count);
  threads = &block;
  for (Thread& thread : block) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, run_thread, 0);
  }
  const auto running = [](const Thread& thread) { return !thread.finished; };
  while (std::any_of(block.begin(), block.end(), running)) {
    for (unsigned i = 0; i < count; ++i) {
      if (block[i].finished) continue;
      threadIdx = {i, 0, 0};
      swapcontext(&scheduler, &block[i].context);
      if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    }
  }
}

/// Launch(grid, block, shared bytes, stream, kernel)(arguments...); dimension x only.
template <class... Parameters>
struct Launch {
  Launch(dim3 grid, dim3 block, size_t, cudaStream_t, void (*kernel)(Parameters...))
      : grid(grid), block(block), kernel(kernel) {}

  template <class... Arguments>
  void operator()(Arguments... arguments) const {
    const std::function<void()> call = [&] { kernel(arguments...); };
    body = &call;
    gridDim = grid;
    blockDim = block;
    for (unsigned i = 0; i < grid.x; ++i) {
      blockIdx = {i, 0, 0};
      run_block(block.x);
    }
  }

  dim3 grid, block;
  void (*kernel)(Parameters...);
};

// A device with few multiprocessors, so that blocks have several rows each.
inline int cudaGetDevice(int* device) {
  return *device = 0;
}
inline int cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return 0;
}

inline float reciprocal(float x) {  // rcp.approx.ftz is at most one unit in the last place off this
  if (std::fabs(x) < FLT_MIN) return std::copysign(INFINITY, x);
  const float result = 1 / x;
  return std::fabs(result) < FLT_MIN ? std::copysign(0.0F, x) : result;
}

/// cvt.rn.satfinite.TYPE.f32 d, high, low: the bits and how many.
inline std::pair<uint64_t, unsigned> convert_pair(const std::string& type, float high, float low) {
  const float2 pair = {low, high};
  if (type == "e2m1x2") return {__nv_cvt_float2_to_fp4x2(pair, __NV_E2M1, cudaRoundNearest), 8};
  if (type == "e3m2x2") return {__nv_cvt_float2_to_fp6x2(pair, __NV_E3M2, cudaRoundNearest), 16};
  if (type == "e4m3x2") return {__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3), 16};
  throw std::invalid_argument("no conversion to " + type);
}

/// Runs inline PTX: %0 is the result, %1 and further ones are inputs.
template <class Result>
void ptx(Result& result, const char* text, std::initializer_list<float> inputs) {
  std::map<std::string, std::pair<uint64_t, unsigned>> registers;
  const auto input = [&](const std::string& name) {
    return inputs.begin()[std::stoul(name.substr(1)) - 1];
  };
  std::string all = text;
  for (char& c : all) {
    if (std::strchr(",{}", c) != nullptr) c = ' ';
  }
  std::istringstream statements(all);
  for (std::string statement; std::getline(statements, statement, ';');) {
    std::istringstream words(statement);
    std::string instruction, to;
    if (!(words >> instruction >> to) || instruction == ".reg") continue;
    const std::vector<std::string> from{std::istream_iterator<std::string>(words), {}};
    const std::string cvt = "cvt.rn.satfinite.";
    if (instruction.starts_with(cvt) && instruction.ends_with(".f32")) {
      const std::string type = instruction.substr(cvt.size(), instruction.size() - cvt.size() - 4);
      registers[to] = convert_pair(type, input(from.at(0)), input(from.at(1)));
    } else if (instruction == "mov.b32" || instruction == "mov.b64") {
      uint64_t packed = 0;
      unsigned width = 0;
      for (const std::string& name : from) {
        const auto& [bits, bit_width] = registers.at(name);
        packed |= bits << width;
        width += bit_width;
      }
      if (width != 8 * sizeof(Result)) throw std::invalid_argument(instruction);
      std::memcpy(&result, &packed, sizeof(Result));
    } else if (instruction == "rcp.approx.ftz.f32") {
      const float value = reciprocal(input(from.at(0)));
      static_assert(sizeof(Result) >= sizeof(value));
      std::memcpy(&result, &value, sizeof(value));
    } else {
      throw std::invalid_argument("no PTX instruction " + instruction);
    }
  }
}

}  // namespace on_cpu

template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  using namespace on_cpu;
  const unsigned me = threadIdx.x;
  const unsigned lane = (me % kWarp) ^ static_cast<unsigned>(mask);
  Thread& thread = (*threads)[me];
  const unsigned turn = thread.shuffles++;
  std::memcpy(&thread.offered[turn % 2], &value, sizeof(T));
  swapcontext(&thread.context, &scheduler);
  const unsigned other = me / kWarp * kWarp + lane;
  if (other >= threads->size() || (*threads)[other].shuffles <= turn) {
    throw std::logic_error("a shuffle with a thread that takes no part in it");
  }
  std::memcpy(&value, &(*threads)[other].offered[turn % 2], sizeof(T));
  return value;
}

namespace at::cuda {

struct CUDAGuard {
  explicit CUDAGuard(char) {}
};

inline cudaStream_t getCurrentCUDAStream(c10::DeviceIndex) {
  return nullptr;
}

}  // namespace at::cuda

#define CHECK_CUDA_SUCCESS(call) on_cpu::call
#define __launch_bounds__(...)
