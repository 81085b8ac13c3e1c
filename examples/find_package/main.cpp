#include <blockscale/gemm.h>
#include <blockscale/quantize.h>

#include <cmath>
#include <cstdio>
#include <vector>

// Multiplies bf16-like activations by weights stored as NVFP4, with only find_package(blockscale).
int main() {
  constexpr int kRows = 4, kOutputs = 64, kDepth = 128;  // M, N, K
  std::vector<float> activations(kRows * kDepth), weights(kOutputs * kDepth);
  for (int i = 0; i < kRows * kDepth; ++i) activations[i] = std::sin(0.1f * i);
  for (int i = 0; i < kOutputs * kDepth; ++i) weights[i] = std::cos(0.07f * i);

  namespace bs = blockscale;
  const bs::MatrixView a{activations.data(), bs::Format::f32, kRows, kDepth};
  const bs::MatrixView w{weights.data(), bs::Format::f32, kOutputs, kDepth};
  const bs::ScaledTensor quantized = bs::quantize(w, bs::Recipe::nvfp4);

  std::vector<float> product(kRows * kOutputs);
  bs::GemmArguments arguments;
  arguments.a = bs::as_scaled(a);
  arguments.b = quantized.view();
  arguments.d = {product.data(), bs::Format::f32, kRows, kOutputs};
  bs::gemm(arguments);

  // What NVFP4 costs here, against the product with the f32 weights.
  double error = 0, size = 0;
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kOutputs; ++n) {
      double exact = 0;
      for (int k = 0; k < kDepth; ++k) {
        exact += static_cast<double>(activations[m * kDepth + k]) * weights[n * kDepth + k];
      }
      error += std::pow(product[m * kOutputs + n] - exact, 2);
      size += exact * exact;
    }
  }
  const double decibels = 10 * std::log10(size / error);
  std::printf("%d x %d x %d: SQNR of the product %.1f dB\n", kRows, kOutputs, kDepth, decibels);
  return decibels > 15 && std::isfinite(decibels) ? 0 : 1;
}
