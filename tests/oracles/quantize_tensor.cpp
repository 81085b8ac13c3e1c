// Quantizes one matrix for oracles in other languages (tests/python/test_quantize.py):
// quantize_tensor RECIPE MODE DTYPE ROWS K IN OUT
//
// IN holds packed row-major numbers of DTYPE (f32, f16, bf16). OUT gets the packed values, then the
// scales, row_major, then the tensor scale (a divisor, f32) where the recipe has one.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "blockscale/quantize.h"

namespace blockscale {
namespace {

Recipe recipe_named(const std::string& name) {
  for (const RecipeTraits& t : kRecipes) {
    if (t.name == name) return t.recipe;
  }
  throw std::invalid_argument("no recipe " + name);
}

MxScaleMode mode_named(const std::string& name) {
  if (name == "floor") return MxScaleMode::floor;
  if (name == "even") return MxScaleMode::even;
  if (name == "even_e2m1") return MxScaleMode::even_e2m1;
  if (name == "ceil") return MxScaleMode::ceil;
  throw std::invalid_argument("no mode " + name);
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 7) {
    throw std::invalid_argument("expected RECIPE MODE DTYPE ROWS K IN OUT");
  }
  const Recipe recipe = recipe_named(arguments[0]);
  QuantizeOptions options;
  options.mx_scale_mode = mode_named(arguments[1]);
  const Format dtype = recipe_traits(recipe_named(arguments[2])).element;
  const std::int64_t rows = std::stoll(arguments[3]);
  const std::int64_t k = std::stoll(arguments[4]);
  std::ifstream in(arguments[5], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  if (static_cast<std::int64_t>(bytes.size()) != rows * k * format_traits(dtype).bits / 8) {
    throw std::invalid_argument(arguments[5] + " has not the size of the matrix");
  }
  const ScaledTensor tensor =
      quantize(MatrixView{bytes.data(), dtype, rows, k}, recipe, ScaleLayout::row_major, options);
  const ScaledTensorView view = tensor.view();
  std::ofstream out(arguments[6], std::ios::binary);
  out.exceptions(std::ios::badbit | std::ios::failbit);
  out.write(static_cast<const char*>(view.values), value_bytes(recipe, rows, k));
  out.write(static_cast<const char*>(view.scales),
            scale_bytes(recipe, ScaleLayout::row_major, rows, k));
  if (view.tensor_scale != nullptr) {
    out.write(reinterpret_cast<const char*>(view.tensor_scale), sizeof(float));
  }
}

}  // namespace
}  // namespace blockscale

int main(int count, char** arguments) {
  try {
    blockscale::run({arguments + 1, arguments + count});
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quantize_tensor: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
