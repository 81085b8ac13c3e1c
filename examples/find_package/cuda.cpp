// A linear layer on a GPU: activations are quantized there, then multiplied by FP8 weights with a
// scale for each 128 x 128 of them. Without a GPU it says so.
#include <blockscale/cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct Free {
  void operator()(void* pointer) const { (void)cudaFree(pointer); }
};

/// Memory of the GPU.
using DeviceMemory = std::unique_ptr<void, Free>;

DeviceMemory allocate(std::int64_t bytes) {
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, static_cast<std::size_t>(bytes)));
  return DeviceMemory(pointer);
}

DeviceMemory copied(const std::vector<float>& values) {
  DeviceMemory memory = allocate(static_cast<std::int64_t>(values.size() * sizeof(float)));
  check(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(float),
                   cudaMemcpyHostToDevice));
  return memory;
}

/// `count` numbers from -1 to 1.
std::vector<float> noise(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(generator() * 0x1p-31 - 1);
  return values;
}

/// Memory for a quantized matrix, and the view of it.
struct Quantized {
  DeviceMemory values, scales;
  blockscale::MutableScaledTensorView view;

  Quantized(blockscale::Recipe recipe, std::int64_t rows, std::int64_t k)
      : values(allocate(blockscale::value_bytes(recipe, rows, k))),
        scales(allocate(
            blockscale::scale_bytes(recipe, blockscale::ScaleLayout::row_major, rows, k))) {
    view.recipe = recipe;
    view.rows = rows;
    view.k = k;
    view.values = values.get();
    view.scales = scales.get();
  }
};

/// Largest error of a layer's results, over the root of the mean square of what they should be.
double run() {
  using namespace blockscale;
  constexpr std::int64_t m = 64, n = 256, k = 512;
  const std::vector<float> x = noise(m * k, 1), w = noise(n * k, 2);
  std::vector<float> y(m * n);
  const DeviceMemory x_there = copied(x), w_there = copied(w), y_there = copied(y);

  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  const cuda::Execution execution{stream};
  Quantized a(Recipe::fp8_1x128, m, k), b(Recipe::fp8_128x128, n, k);
  cuda::quantize({w_there.get(), Format::f32, n, k}, b.view, {}, execution);  // once
  cuda::quantize({x_there.get(), Format::f32, m, k}, a.view, {}, execution);  // for each call
  GemmArguments arguments;                                                    // y = x w^T
  arguments.a = a.view;
  arguments.b = b.view;
  arguments.d = {y_there.get(), Format::f32, m, n};
  cuda::gemm(arguments, execution);
  check(cudaStreamSynchronize(stream));
  check(cudaStreamDestroy(stream));
  check(cudaMemcpy(y.data(), y_there.get(), y.size() * sizeof(float), cudaMemcpyDeviceToHost));

  std::printf("%s", cuda::describe_gemm(arguments).c_str());
  double largest = 0, squares = 0;
  for (std::int64_t i = 0; i < m * n; ++i) {
    double exact = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      exact += double{x[static_cast<std::size_t>(i / n * k + j)]} *
               w[static_cast<std::size_t>(i % n * k + j)];
    }
    largest = std::max(largest, std::abs(y[static_cast<std::size_t>(i)] - exact));
    squares += exact * exact;
  }
  return largest / std::sqrt(squares / (m * n));
}

}  // namespace

int main() {
  try {
    const double error = run();
    std::printf("largest error %.3f of a typical result\n", error);
    return error < 0.5 ? 0 : 1;
  } catch (const std::exception& error) {
    if (int count = 0; cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      std::printf("no GPU: %s\n", error.what());
      return 0;
    }
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
