// The layer on the CPU: the calls of ops/moe/layer.h, one after the other.
#include <algorithm>
#include <string>

#include "blockscale/moe.h"
#include "ops/common/simd/requested.h"
#include "ops/gemm/cpu/memory.h"
#include "ops/moe/cpu/steps.h"
#include "ops/moe/layer.h"
#include "ops/moe/validate.h"

namespace blockscale {
namespace moe_detail {
namespace {

bool is_empty(const MoeArguments& x) {
  return x.y.rows == 0 || x.y.columns == 0;
}

/// Rows of experts are never added in another order here.
MoeArguments in_order(MoeArguments x) {
  x.deterministic = true;
  return x;
}

/// Tokens of each part but the last.
std::int64_t most_tokens(const MoeArguments& x, const MoeOptions& options) {
  return tokens_of_part(x.x.rows, options.workspace_limit, [&](std::int64_t tokens) {
    return part_bytes(x, tokens, Gather::product);
  });
}

}  // namespace

void run_part(const LayerPart& part, int threads) {
  if (part.scales) join_scales(*part.scales, threads);
  if (part.sort) moe_sort(*part.sort, threads);
  if (part.weigh) weigh(*part.weigh, threads);
  const auto quantize_tokens = [threads](const std::optional<QuantizeRows>& of) {
    QuantizeOptions quantization;
    quantization.threads = threads;
    if (of) blockscale::quantize(of->x, of->out, quantization);
  };
  quantize_tokens(part.quantize);
  if (part.shared) {
    quantize_tokens(part.shared->quantize);
    GemmOptions dense;
    dense.threads = threads;
    gemm(part.shared->up, dense);
    gemm(part.shared->down, dense);
  }
  GroupedGemmOptions products;
  products.threads = threads;
  grouped_gemm(part.up, products);
  grouped_gemm(part.down, products);
  finalize(part.finalize, threads);
}

}  // namespace moe_detail

void moe(const MoeArguments& arguments, const MoeOptions& options) {
  using namespace moe_detail;
  use_requested_simd();
  const MoeArguments x = in_order(validated(arguments, options));
  if (is_empty(x)) return;
  const std::int64_t most = most_tokens(x, options);
  const auto workspace = gemm_detail::allocate<std::uint8_t>(part_bytes(x, most, Gather::product));
  for (std::int64_t first = 0; first < x.x.rows; first += most) {
    LayerPart part =
        part_of(x, first, std::min(most, x.x.rows - first), workspace.get(), Gather::product);
    if (first == 0) check_part(part);
    if (first != 0) part.scales.reset();  // they are joined
    run_part(part, options.threads);
  }
}

std::string describe_moe(const MoeArguments& arguments, const MoeOptions& options) {
  using namespace moe_detail;
  use_requested_simd();
  const MoeArguments x = in_order(validated(arguments, options));
  if (is_empty(x)) return "nothing to do\n";
  const std::int64_t most = most_tokens(x, options);
  const LayerPart part = part_of(x, 0, most, kNoMemory, Gather::product);
  check_part(part);
  std::string text = std::to_string(x.x.rows) + " tokens, " + std::to_string(x.top_k) +
                     " experts each, of " + std::to_string(experts_of(x)) + " here";
  if (most < x.x.rows) text += ", in parts of " + std::to_string(most) + " tokens";
  text += "; " + std::to_string(part_bytes(x, most, Gather::product)) + " bytes of memory\n";
  if (part.scales) text += "scales of gates and ups are joined\n";
  text += "entries are sorted by expert\n";
  if (part.weigh) text += "rows of x are multiplied by their weights\n";
  if (part.quantize) {
    text += std::string("x is quantized to ") + recipe_traits(activations_of(x)).name + "\n";
  }
  if (part.shared) {
    text += "first product of shared experts: " + describe_gemm(part.shared->up);
    text += "\nsecond product of shared experts: " + describe_gemm(part.shared->down) + "\n";
  }
  text += "first product: " + describe_grouped_gemm(part.up);
  text += "second product: " + describe_grouped_gemm(part.down);
  return text +
         (part.finalize.weights == nullptr ? "rows of a token are"
                                           : "rows of a token are weighted and") +
         " added up in the order of its experts\n";
}

}  // namespace blockscale
