// blockscale inspect --layout: one line of CuTe notation.
#include <array>
#include <string>
#include <string_view>

#include "arguments.h"
#include "blockscale/layout.h"
#include "command.h"
#include "inspect.h"
#include "output.h"
#include "text.h"

namespace blockscale::cli {
namespace {

/// What one scale of a tensor covers: as given, else as the recipe has it.
Shape block_of(const LayoutRequest& request, const Shape& tensor) {
  Shape block{request.rows_per_scale.value_or(1), request.group.value_or(0)};
  if (request.recipe) {
    const RecipeTraits& traits = recipe_traits(*request.recipe);
    if (traits.family == Family::plain) {
      throw UsageError(std::string("--recipe ") + traits.name + " has no scales");
    }
    if (!request.rows_per_scale) {
      block.rows = traits.block_rows == 0 ? tensor.rows : traits.block_rows;
    }
    if (!request.group) block.k = traits.block_k == 0 ? tensor.k : traits.block_k;
  }
  if (block.k == 0) throw UsageError("--layout needs --recipe or --group, such as --group 16");
  return block;
}

OperandMajor parse_major(std::string_view text) {
  if (text == "k") return OperandMajor::k;
  if (text == "mn") return OperandMajor::mn;
  throw ParseError("'" + std::string(text) + "' is no order of coordinates; choose k or mn");
}

}  // namespace

void add_layout_options(CLI::App& app, LayoutRequest& request) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  const auto positive = [](const std::string& text) { return parse_integer(text, 1, kLargest); };
  const auto stride = [](const std::string& text) { return parse_integer(text, 0, kLargest); };
  add_parsed(
      app, "--layout", "L", request.layout, parse_scale_layout,
      help_text("Print this scale layout, alone on a line: " + comma_list(scale_layout_names())));
  add_parsed(app, "--shape", "RxK", request.shape, parse_shape,
             "Rows and k of the matrix whose scales they are, such as 256x128");
  add_parsed(app, "--recipe", "R", request.recipe, parse_recipe,
             "Recipe that says what one scale covers, in place of the next two");
  add_parsed(app, "--group", "G", request.group, positive, "Consecutive k that share a scale");
  add_parsed(app, "--rows-per-scale", "N", request.rows_per_scale, positive,
             "Rows that share a scale. Default: 1");
  add_parsed(app, "--leading-stride", "N", request.leading_stride, stride,
             help_text("Scales between rows of scales (row_major) or between k blocks (mn_major). "
                       "Default: 0, packed"));
  add_parsed(app, "--batch", "B", request.batch, positive, "Matrices in the batch. Default: 1");
  add_parsed(app, "--major", "M", request.major, parse_major,
             help_text("Order of coordinates: k (row, k, batch), or mn (k, row, batch), as CUTLASS "
                       "writes the scales of an MN-major operand. Default: k"));
}

ExitCode inspect_layout(const LayoutRequest& request, bool json) {
  if (!request.layout || !request.shape) {
    throw UsageError("--layout needs --shape, such as --shape 256x128");
  }
  const Shape block = block_of(request, *request.shape);
  const std::int64_t leading_stride = request.leading_stride.value_or(0);
  const std::int64_t batch = request.batch.value_or(1);
  const OperandMajor major = request.major.value_or(OperandMajor::k);
  const std::string text =
      describe_scale_layout(*request.layout, request.shape->rows, request.shape->k, block.rows,
                            block.k, leading_stride, batch, Notation::plain, major);
  if (!json) {
    print(text + "\n");
    return ExitCode::success;
  }
  print_json({{"layout", scale_layout_traits(*request.layout).name},
              {"rows", request.shape->rows},
              {"k", request.shape->k},
              {"rows_per_scale", block.rows},
              {"group", block.k},
              {"leading_stride", leading_stride},
              {"batch", batch},
              {"major", major == OperandMajor::mn ? "mn" : "k"},
              {"cute", text}});
  return ExitCode::success;
}

}  // namespace blockscale::cli
