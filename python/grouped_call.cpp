#include "grouped_call.h"

#include <cstdint>
#include <optional>

#include "beside.h"

namespace blockscale::python {
namespace {

constexpr const char* kOneForEachGroup = "one for each group of b";
constexpr const char* kOneMoreThanGroups = "one more than there are groups";

/// D, or what it is quantized into.
void set_result(GroupedCall& call, nb::handle out, const GroupedCallOptions& options,
                const Place& place) {
  GroupedGemmArguments& to = call.arguments;
  call.input = input_argument(options.transform, place);
  if (options.quantization.is_none()) {
    call.out = output_array("out", out[0], place);
    to.d = matrix_view("out", call.out, nb::cast<Format>(out[1]));
    to.transform = call.input.input;
  } else {
    call.quantized = scaled_argument("out", out, Access::write, place);
    to.quantized = quantized_result(call.quantized, options.quantization, call.input);
  }
}

}  // namespace

GroupedCallOptions::GroupedCallOptions(const nb::tuple& o)
    : alpha(o[0]),
      lengths(o[1]),
      bias(o[2]),
      index(o[3]),
      destinations(o[4]),
      weights(o[5]),
      add(o[6]),
      transform(o[7]),
      quantization(o[8]),
      expected_rows(o[9]),
      batch_invariant(o[10]),
      threads(o[11]) {}

GroupedCall grouped_call(nb::handle a, nb::handle b, nb::handle offsets, nb::handle out,
                         const GroupedCallOptions& options, const Place& place) {
  GroupedCall call{.a = operand_argument("a", a, place), .b = operand_argument("b", b, place)};
  GroupedGemmArguments& to = call.arguments;
  to.a = call.a.view;
  to.b = call.b.view;
  const std::int64_t groups = to.b.batch;
  if (!offsets.is_none()) {
    call.offsets = input_array("offsets", offsets, place);
    to.offsets = numbers_in<std::int32_t>("offsets", call.offsets);
    // The last one is of no use beside lengths.
    const bool has_begins = !options.lengths.is_none() && call.offsets.size() == groups;
    if (!has_begins) check_count("offsets", call.offsets, groups + 1, kOneMoreThanGroups);
  }
  to.lengths =
      numbers_argument<std::int32_t>(offsets.is_none() ? "counts" : "lengths", options.lengths,
                                     groups, kOneForEachGroup, place, call.lengths);
  if (const std::optional<float> alpha = exact_float(options.alpha)) {
    to.alpha = *alpha;
  } else {
    to.alpha_factors = numbers_argument<float>("alpha", options.alpha, groups, kOneForEachGroup,
                                               place, call.alpha_factors);
  }
  if (!options.bias.is_none()) {
    const BiasShape shape = {"(groups, N)", groups, to.b.rows, "the rows of b"};
    to.bias = bias_argument("bias", options.bias, shape, place, call.bias);
    to.bias_dtype = nb::cast<Format>(options.bias[1]);
  }
  to.rows = to.a.rows;
  if (!options.index.is_none()) {
    call.index = input_array("index", options.index, place);
    to.index = numbers_in<std::int32_t>("index", call.index);
    to.rows = call.index.size();
  }
  constexpr const char* kOneForEachRow = "one for each row of the product";
  to.destinations = numbers_argument<std::int32_t>("destinations", options.destinations, to.rows,
                                                   kOneForEachRow, place, call.destinations);
  to.weights = numbers_argument<float>("weights", options.weights, to.rows, kOneForEachRow, place,
                                       call.weights);
  to.adds = nb::cast<bool>(options.add);
  to.expected_rows = nb::cast<std::int64_t>(options.expected_rows);
  to.batch_invariant = nb::cast<bool>(options.batch_invariant);
  set_result(call, out, options, place);
  call.threads = nb::cast<int>(options.threads);
  return call;
}

KGroupedCall k_grouped_call(nb::handle a, nb::handle b, nb::handle offsets, nb::handle out,
                            const nb::tuple& options, const Place& place) {
  KGroupedCall call{.a = operand_argument("a", a, place), .b = operand_argument("b", b, place)};
  KGroupedGemmArguments& to = call.arguments;
  to.a = call.a.view;
  to.b = call.b.view;
  call.out = output_array("out", out[0], place);
  to.d = matrix_view("out", call.out, nb::cast<Format>(out[1]));
  to.offsets = numbers_argument<std::int32_t>("offsets", offsets, to.d.batch + 1,
                                              kOneMoreThanGroups, place, call.offsets);
  to.alpha = nb::cast<float>(options[0]);
  to.adds = nb::cast<bool>(options[1]);
  call.threads = nb::cast<int>(options[2]);
  return call;
}

}  // namespace blockscale::python
