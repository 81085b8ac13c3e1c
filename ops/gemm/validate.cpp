#include "ops/gemm/validate.h"

#include <cstdint>
#include <string>

#include "ops/common/checks.h"
#include "ops/common/overlap.h"

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
    {Operand::mxfp8, Operand::mxfp6},           {Operand::mxfp8, Operand::mxfp4},
    {Operand::mxfp8, Operand::nvfp4},           {Operand::fp8_tensor, Operand::nvfp4},
    {Operand::fp8_row, Operand::nvfp4},         {Operand::fp8_block, Operand::nvfp4},
};

}  // namespace

bool gemm_supports(Recipe a, Recipe b) {
  if (a == b || is_plain(a)) return true;
  for (const OperandPair& pair : kMixedPairs) {
    if (operand_of(a) == pair.a && operand_of(b) == pair.b) return true;
  }
  return false;
}

namespace gemm_detail {
namespace {

[[noreturn]] void fail(const char* argument, const std::string& message) {
  checks::fail(argument, "", message);
}

void check_equal(const char* argument, std::int64_t value, std::int64_t expected,
                 const char* meaning) {
  if (value == expected) return;
  fail(argument,
       "is " + std::to_string(value) + ", must be " + std::to_string(expected) + ", " + meaning);
}

void check_batch(const char* argument, std::int64_t value, std::int64_t batch) {
  if (value == batch || value == 1) return;
  fail(argument, checks::is_but(value, std::to_string(batch) + ", the batch of d, or 1"));
}

void check_bias(const GemmArguments& x) {
  if (x.bias == nullptr) return;
  const Format dtype = x.bias_dtype;
  if (dtype != Format::f32 && dtype != Format::f16 && dtype != Format::bf16) {
    const int value = static_cast<int>(dtype);
    const std::string name =
        value < kFormatCount ? format_traits(dtype).name : std::to_string(value);
    fail("bias_dtype", "is " + name + ", must be f32, f16 or bf16");
  }
  checks::check_pointer("bias", "", x.bias, false,
                        static_cast<std::size_t>(format_traits(dtype).bits / 8));
}

/// body(argument, its memory) of all that a product reads beside C.
template <class Body>
void for_each_input(const GemmArguments& x, const Body& body) {
  body("a.values", values_of(x.a));
  body("a.scales", scales_of(x.a));
  body("a.tensor_scale", tensor_scales_of(x.a));
  body("b.values", values_of(x.b));
  body("b.scales", scales_of(x.b));
  body("b.tensor_scale", tensor_scales_of(x.b));
  if (x.bias != nullptr) {
    const std::int64_t size = format_traits(x.bias_dtype).bits / 8;
    body("bias", line_of(x.bias, x.d.columns * size));
  }
  if (x.alpha_factor != nullptr) body("alpha_factor", line_of(x.alpha_factor, sizeof(float)));
}

void check_aliasing(const GemmArguments& x) {
  const MemoryLines d = lines_of(MatrixView(x.d));
  for_each_input(x, [&](const char* argument, const MemoryLines& memory) {
    if (overlap(d, memory)) fail("d.data", std::string("overlaps ") + argument + ", must not");
  });
  if (x.beta == 0.0f) return;
  const bool same_elements = x.c.data == x.d.data && x.c.dtype == x.d.dtype &&
                             x.c.batch == x.d.batch &&
                             (x.d.rows <= 1 || x.c.row_stride == x.d.row_stride) &&
                             (x.d.batch <= 1 || x.c.batch_stride == x.d.batch_stride);
  if (!same_elements && overlap(d, lines_of(x.c))) {
    fail("d.data",
         "overlaps c.data, must not unless both have the same start, dtype, strides and batch");
  }
}

}  // namespace

GemmArguments validated(const GemmArguments& arguments, const GemmOptions& options) {
  GemmArguments x = arguments;
  x.a = resolved(arguments.a, "a");
  x.b = resolved(arguments.b, "b");
  x.d = resolved(arguments.d, "d");
  if (!gemm_supports(x.a.recipe, x.b.recipe)) {
    throw Error(ErrorCode::unsupported, "b.recipe",
                std::string("is ") + recipe_traits(x.b.recipe).name + " with a.recipe " +
                    recipe_traits(x.a.recipe).name +
                    ": no such pair (docs/numerics.md lists the pairs)");
  }
  check_equal("b.k", x.b.k, x.a.k, "the k of a");
  check_equal("d.rows", x.d.rows, x.a.rows, "the rows of a");
  check_equal("d.columns", x.d.columns, x.b.rows, "the rows of b");
  check_batch("a.batch", x.a.batch, x.d.batch);
  check_batch("b.batch", x.b.batch, x.d.batch);
  check_bias(x);
  checks::check_pointer("alpha_factor", "", x.alpha_factor, false, alignof(float));
  if (x.beta != 0.0f) {
    x.c = resolved(arguments.c, "c");
    check_equal("c.rows", x.c.rows, x.d.rows, "the rows of d");
    check_equal("c.columns", x.c.columns, x.d.columns, "the columns of d");
    check_batch("c.batch", x.c.batch, x.d.batch);
  }
  if (options.threads < 0) {
    fail("options.threads", checks::is_but(options.threads, "0 (all) or more"));
  }
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
  const MemoryLines workspace = line_of(options.workspace, needed);
  const auto check_apart = [&](const char* argument, const MemoryLines& memory) {
    if (!overlap(workspace, memory)) return;
    fail("options.workspace", std::string("overlaps ") + argument + ", must not");
  };
  for_each_input(x, check_apart);
  check_apart("d.data", lines_of(MatrixView(x.d)));
  if (x.beta != 0.0f) check_apart("c.data", lines_of(x.c));
}

}  // namespace gemm_detail
}  // namespace blockscale
