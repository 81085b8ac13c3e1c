#include "ops/gemm/validate.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ops/common/checks.h"
#include "ops/gemm/call_memory.h"

namespace blockscale {
namespace {

/// Recipes that pair alike.
enum class Operand : std::uint8_t {
  plain,
  fp8_tensor,
  fp8_row,
  fp8_block,
  mxfp8,
  mxfp6,
  mxfp4,
  nvfp4,
};

constexpr Operand operand_of(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  switch (t.family) {
    case Family::plain: return Operand::plain;
    case Family::nvfp4: return Operand::nvfp4;
    case Family::fp8:
      return t.block_k != 0      ? Operand::fp8_block
             : t.block_rows != 0 ? Operand::fp8_row
                                 : Operand::fp8_tensor;
    case Family::mx: break;
  }
  const int bits = format_traits(t.element).bits;
  return bits == 8 ? Operand::mxfp8 : bits == 6 ? Operand::mxfp6 : Operand::mxfp4;
}

struct OperandPair {
  Operand a;
  Operand b;
};

/// Pairs of different recipes, A first. A recipe always pairs with itself.
constexpr OperandPair kMixedPairs[] = {
    {Operand::fp8_tensor, Operand::fp8_tensor},  // e4m3 x e5m2
    {Operand::fp8_block, Operand::fp8_block},    // any blocks and kinds of scale
    {Operand::fp8_block, Operand::fp8_row},     {Operand::fp8_block, Operand::fp8_tensor},
    {Operand::mxfp8, Operand::mxfp6},           {Operand::mxfp8, Operand::mxfp4},
    {Operand::mxfp8, Operand::nvfp4},
};

/// B's of FP8 A beside those above.
constexpr Operand kWeightsOfFp8[] = {Operand::mxfp8, Operand::mxfp6, Operand::mxfp4,
                                     Operand::nvfp4};

}  // namespace

bool gemm_supports(Recipe a, Recipe b) {
  if (a == b || is_plain(a)) return true;
  for (const OperandPair& pair : kMixedPairs) {
    if (operand_of(a) == pair.a && operand_of(b) == pair.b) return true;
  }
  if (recipe_traits(a).family != Family::fp8) return false;
  return std::find(std::begin(kWeightsOfFp8), std::end(kWeightsOfFp8), operand_of(b)) !=
         std::end(kWeightsOfFp8);
}

namespace gemm_detail {
namespace {

using checks::check_equal;
using checks::fail;

void check_batch(const char* argument, std::int64_t value, std::int64_t batch) {
  if (value == batch || value == 1) return;
  fail(argument, checks::is_but(value, std::to_string(batch) + ", the batch of d, or 1"));
}

}  // namespace

void check_pair(Recipe a, Recipe b) {
  if (gemm_supports(a, b)) return;
  throw Error(ErrorCode::unsupported, "b.recipe",
              std::string("is ") + recipe_traits(b).name + " with a.recipe " +
                  recipe_traits(a).name + ": no such pair (docs/numerics.md lists the pairs)");
}

void check_bias(const void* bias, Format dtype, const char* argument, const char* dtype_argument) {
  if (bias == nullptr) return;
  if (dtype != Format::f32 && dtype != Format::f16 && dtype != Format::bf16) {
    const int value = static_cast<int>(dtype);
    const std::string name =
        value < kFormatCount ? format_traits(dtype).name : std::to_string(value);
    fail(dtype_argument, "is " + name + ", must be f32, f16 or bf16");
  }
  checks::check_pointer(argument, "", bias, false,
                        static_cast<std::size_t>(format_traits(dtype).bits / 8));
}

bool has_chunks(const MutableMatrixView& d) {
  const std::int64_t size = format_traits(d.dtype).bits / 8;
  return reinterpret_cast<std::uintptr_t>(d.data) % 16 == 0 && d.columns * size % 16 == 0 &&
         (d.rows <= 1 || d.row_stride * size % 16 == 0) &&
         (d.batch <= 1 || d.batch_stride * size % 16 == 0);
}

namespace {

/// Whether C's elements are D's: each is read before it is written.
bool is_in_place(const GemmArguments& x) {
  return x.c.data == x.d.data && x.c.dtype == x.d.dtype && x.c.batch == x.d.batch &&
         x.c.columns == x.d.columns && (x.d.rows <= 1 || x.c.row_stride == x.d.row_stride) &&
         (x.d.batch <= 1 || x.c.batch_stride == x.d.batch_stride);
}

/// Throws if `written`, memory of argument `name`, shares a byte with other memory of the call.
void check_apart(const GemmArguments& x, std::string_view name, const MemoryLines& written) {
  for_each_memory(x, [&](std::string_view other, Access, const void*, const auto& lines) {
    const bool is_c_of_d = other == "c.data" && name == "d.data";
    if (other == name || (is_c_of_d && is_in_place(x)) || !overlap(written, lines())) return;
    fail(std::string(name).c_str(),
         "overlaps " + std::string(other) + ", must not" +
             (is_c_of_d ? " unless both have the same start, dtype, strides and batch" : ""));
  });
}

void check_aliasing(const GemmArguments& x) {
  for_each_memory(x, [&](std::string_view name, Access access, const void*, const auto& lines) {
    if (access == Access::writes) check_apart(x, name, lines());
  });
}

/// check(), whose errors name what lies in `quantized`.
template <class Check>
auto check_quantized(const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    const std::string_view text = error.what();
    throw Error(error.code(), "quantized." + error.argument(),
                text.substr(error.argument().size() + 2));
  }
}

const char* name_of(const QuantizeInput& transform) {
  return kInputTransformNames[static_cast<int>(quantize_detail::transform_of(transform))];
}

/// What follows a product looks at no more than a column, or two.
void check_kind(const char* argument, const QuantizeInput& transform) {
  if (!std::holds_alternative<Modulate>(transform) && !std::holds_alternative<RmsNorm>(transform)) {
    return;
  }
  throw Error(ErrorCode::unsupported, argument,
              std::string("is ") + name_of(transform) + ", must be Identity, Gelu, Silu or Swiglu");
}

/// What one scale is for is a part of a row, which epilogues hold, or all of it.
void check_quantization(const QuantizedResult& quantized) {
  const RecipeTraits& t = recipe_traits(quantized.out.recipe);
  const bool is_fp8_of_rows = t.family == Family::fp8 && t.block_rows == 1;
  if (!is_fp8_of_rows && t.recipe != Recipe::mxfp8_e4m3 && t.recipe != Recipe::nvfp4) {
    throw Error(ErrorCode::unsupported, "quantized.out.recipe",
                std::string("is ") + t.name +
                    ", must be fp8_1x128, fp8_1x128_pow2, fp8_1x128_ue8m0, fp8_row, mxfp8_e4m3 or "
                    "nvfp4");
  }
  const QuantizeOptions& options = quantized.options;
  if (t.tensor_scale && options.scale_source == ScaleSource::dynamic) {
    throw Error(ErrorCode::unsupported, "quantized.options.scale_source",
                "is dynamic, must be given: a tensor scale would follow from all of D");
  }
  if (!t.tensor_scale && options.scale_source == ScaleSource::given) {
    throw Error(ErrorCode::unsupported, "quantized.options.scale_source",
                std::string("is given, must be dynamic for ") + t.name +
                    ": scales follow from D, but for a tensor scale");
  }
  if (options.scale_choice != ScaleChoice::amax) {
    throw Error(ErrorCode::unsupported, "quantized.options.scale_choice",
                "is not amax, which a product's results must take");
  }
  check_kind("quantized.options.input", options.input);
}

}  // namespace

void resolve_result(GemmArguments& x) {
  if (!x.quantized) {
    x.d = resolved(x.d, "d");
    return;
  }
  x.quantized->out = check_quantized([&] { return resolved(x.quantized->out, "out"); });
  check_quantization(*x.quantized);
  x.d = {nullptr, Format::f32, x.a.rows, x.b.rows, x.b.rows};
  x.d.batch = x.quantized->out.batch;
  x.d.batch_stride = checks::product("quantized", "out", x.d.rows, x.d.columns);
}

bool is_transformed(const GemmArguments& x) {
  return !std::holds_alternative<Identity>(x.transform);
}

std::int64_t numbers_before_transform(const GemmArguments& x) {
  return x.d.batch * x.d.rows * x.b.rows;
}

GemmArguments before_transform(const GemmArguments& x, float* numbers) {
  GemmArguments product = x;
  product.transform = Identity{};
  product.quantized.reset();
  product.d = {numbers, Format::f32, x.d.rows, x.b.rows, x.b.rows};
  product.d.batch = x.d.batch;
  product.d.batch_stride = x.d.rows * x.b.rows;
  return product;
}

quantize_detail::FusedInput transform_of_result(const GemmArguments& x) {
  MatrixView sums = {nullptr, Format::f32, x.d.rows, x.b.rows, x.b.rows};
  sums.batch = x.d.batch;
  try {
    return quantize_detail::validated(sums, x.transform, x.d.columns, "d.columns");
  } catch (const Error& error) {
    constexpr std::string_view kInput = "options.input.";
    const std::string& name = error.argument();
    const std::string_view message = std::string_view(error.what()).substr(name.size() + 2);
    if (name.starts_with(kInput)) {
      throw Error(error.code(), "transform." + name.substr(kInput.size()), message);
    }
    throw Error(error.code(), name == "x.columns" ? "b.rows" : name, message);
  }
}

quantize_detail::QuantizeArguments quantization_of(const GemmArguments& validated) {
  return check_quantized([&] {
    return quantize_detail::validated_shape(validated.d, validated.quantized->out,
                                            validated.quantized->options);
  });
}

std::string text_of_quantization(const GemmArguments& validated) {
  if (!validated.quantized) {
    return is_transformed(validated) ? std::string(", then ") + name_of(validated.transform) : "";
  }
  const QuantizeInput& input = validated.quantized->options.input;
  std::string text = ", then ";
  if (!std::holds_alternative<Identity>(input)) text += name_of(input) + std::string(" and ");
  return text + recipe_traits(validated.quantized->out.recipe).name;
}

namespace {

/// Columns of D, and what they are made of.
void check_transform(const GemmArguments& x) {
  if (!is_transformed(x)) return check_equal("d.columns", x.d.columns, x.b.rows, "the rows of b");
  if (x.quantized) {
    fail("transform", std::string("is ") + name_of(x.transform) +
                          ", must be Identity with `quantized`, whose options have an input");
  }
  check_kind("transform", x.transform);
  if (!std::holds_alternative<Swiglu>(x.transform)) {
    check_equal("d.columns", x.d.columns, x.b.rows, "the rows of b");
  }
  (void)transform_of_result(x);
}

}  // namespace

void check_result(const GemmArguments& x, const char* meaning_of_rows) {
  check_transform(x);
  if (!x.quantized) return;
  check_equal("quantized.out.rows", x.quantized->out.rows, x.a.rows, meaning_of_rows);
  (void)quantization_of(x);
}

GemmArguments validated(const GemmArguments& arguments, const GemmOptions& options) {
  GemmArguments x = arguments;
  x.a = resolved(arguments.a, "a");
  x.b = resolved(arguments.b, "b");
  resolve_result(x);
  check_pair(x.a.recipe, x.b.recipe);
  check_equal("b.k", x.b.k, x.a.k, "the k of a");
  check_equal("d.rows", x.d.rows, x.a.rows, "the rows of a");
  check_result(x, "the rows of a");
  check_batch("a.batch", x.a.batch, x.d.batch);
  check_batch("b.batch", x.b.batch, x.d.batch);
  check_bias(x.bias, x.bias_dtype);
  check_bias(x.gate, x.gate_dtype, "gate", "gate_dtype");
  if (x.gate != nullptr && x.quantized) fail("gate", "is given, must not be with `quantized`");
  checks::check_pointer("alpha_factor", "", x.alpha_factor, false, alignof(float));
  if (x.beta != 0.0f) {
    x.c = resolved(arguments.c, "c");
    check_equal("c.rows", x.c.rows, x.d.rows, "the rows of d");
    check_equal("c.columns", x.c.columns, x.b.rows, "the rows of b");
    check_batch("c.batch", x.c.batch, x.d.batch);
  }
  checks::check_threads("options.threads", options.threads);
  check_aliasing(x);
  return x;
}

void check_workspace(const GemmArguments& x, const GemmOptions& options, std::int64_t needed) {
  constexpr std::uintptr_t kAlignment = 64;
  if (reinterpret_cast<std::uintptr_t>(options.workspace) % kAlignment != 0) {
    fail("options.workspace", "must be aligned to 64 bytes");
  }
  if (options.workspace_bytes < needed) {
    fail("options.workspace_bytes",
         checks::is_but(options.workspace_bytes, std::to_string(needed) + " or more"));
  }
  check_apart(x, "options.workspace", line_of(options.workspace, needed));
}

}  // namespace gemm_detail
}  // namespace blockscale
