// Multiplies activations by weights that are kept as NVFP4, and shows what that costs.
#include <blockscale/gemm.h>
#include <blockscale/quantize.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

/// A [rows, columns] matrix of the values f(0), f(1), ...
template <class Function>
std::vector<float> filled(int rows, int columns, Function f) {
  std::vector<float> values(static_cast<std::size_t>(rows) * columns);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = f(static_cast<float>(i));
  return values;
}

/// 10 log10(sum exact^2 / sum (exact - x)^2)
double sqnr_db(const std::vector<float>& exact, const std::vector<float>& x) {
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    signal += static_cast<double>(exact[i]) * exact[i];
    noise += std::pow(static_cast<double>(exact[i]) - x[i], 2);
  }
  return 10 * std::log10(signal / noise);
}

}  // namespace

int main() {
  using namespace blockscale;
  constexpr int m = 4, n = 64, k = 128;
  const std::vector<float> x = filled(m, k, [](float i) { return std::sin(0.1f * i); });
  const std::vector<float> w = filled(n, k, [](float i) { return std::cos(0.07f * i); });
  std::vector<float> y(m * n), exact(m * n);

  const MatrixView weights{w.data(), Format::f32, n, k};
  const MatrixView activations{x.data(), Format::f32, m, k};
  const ScaledTensor quantized = quantize(weights, Recipe::nvfp4);  // 4.5 bits a weight

  GemmArguments arguments;  // y = x w^T
  arguments.a = as_scaled(activations);
  arguments.b = quantized.view();
  arguments.d = {y.data(), Format::f32, m, n};
  gemm(arguments);

  arguments.b = as_scaled(weights);
  arguments.d.data = exact.data();
  gemm(arguments);
  std::printf("NVFP4: %d instead of %zu bytes, SQNR of the product %.1f dB\n",
              static_cast<int>(value_bytes(Recipe::nvfp4, n, k) +
                               scale_bytes(Recipe::nvfp4, ScaleLayout::row_major, n, k)),
              w.size() * sizeof(float), sqnr_db(exact, y));
  return sqnr_db(exact, y) > 15 ? 0 : 1;
}
