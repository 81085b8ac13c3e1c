// What the two halves of `inspect` share with each other and with other commands.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "blockscale/convert.h"
#include "blockscale/layout.h"
#include "exit_code.h"
#include "units.h"

namespace blockscale::cli {

/// The recipe's name of a quantized or plain tensor; the dtype's ("I64") of others.
std::string stored_as(const CheckpointTensor& tensor);

/// `inspect --layout L --shape RxK ...`
struct LayoutRequest {
  std::optional<ScaleLayout> layout;
  std::optional<Shape> shape;
  std::optional<Recipe> recipe;
  std::optional<std::int64_t> group;
  std::optional<std::int64_t> rows_per_scale;
  std::optional<std::int64_t> leading_stride;
  std::optional<std::int64_t> batch;
  std::optional<OperandMajor> major;

  /// Whether anything but the layout itself was given.
  bool has_details() const {
    return shape || recipe || group || rows_per_scale || leading_stride || batch || major;
  }
};

void add_layout_options(CLI::App& app, LayoutRequest& request);
ExitCode inspect_layout(const LayoutRequest& request, bool json);

}  // namespace blockscale::cli
