// Bugs planted in the launches of a layer that the emulator runs: each changes y.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "ops/moe/test/layer_emulation.h"
#include "ops/moe/test/layer_problem.h"
#include "tests/chip.h"

namespace blockscale {
namespace {

using test::LayerCase;
using test::LayerPlant;
using test::LayerProblem;
using test::Random;

using Plant = std::pair<const char*, LayerPlant>;

/// `ids`: in place of the layer's own.
template <std::size_t kCount>
void expect_changes(const Plant (&plants)[kCount], const LayerCase& of,
                    const std::vector<std::int32_t>& ids = {}) {
  const auto bytes_with = [&](const LayerPlant& plant) {
    Random random(8);
    LayerProblem problem(random, of);
    if (!ids.empty()) problem.ids() = ids;
    test::emulate(problem, test::chip_of(3), emulator::in_order(), {}, plant);
    return problem.y().bytes();
  };
  const std::vector<std::uint8_t> right = bytes_with([](auto&) {});
  for (const auto& [name, plant] : plants) EXPECT_NE(bytes_with(plant), right) << name;
}

TEST(PlantedMoe, OfSortedEntries) {
  const Plant plants[] = {
      {"no weights", [](auto& part) { part.finalize.params.weights = nullptr; }},
      {"a choice is left out", [](auto& part) { part.finalize.params.top_k = 2; }},
      {"columns beside", [](auto& part) { part.finalize.params.rows -= 8; }},
      {"scales of the rows before", [](auto& part) { part.join_scales->params.block_rows /= 2; }},
      {"rows of other tokens",
       [](auto& part) { part.quantize->steps.at(0).params.x.row_stride = 0; }},
      {"ids of the device before",
       [](auto& part) { ++std::get<SortParams>(part.sort->steps.at(0).params).first_expert; }},
  };
  expect_changes(plants, {.tokens = 4, .inner = 192, .apart = true});
}

TEST(PlantedMoe, OfWeightsOnTheInput) {
  const Plant plants[] = {
      {"another token's x", [](auto& part) { part.weigh->params.top_k = Divisor(3); }},
      {"one token's x", [](auto& part) { part.weigh->params.x.row_stride = 0; }},
      {"weights twice",
       [](auto& part) { part.finalize.params.weights = part.weigh->params.weights; }},
  };
  expect_changes(plants, {.tokens = 5, .top_k = 2, .weights_on_input = true});
}

TEST(PlantedMoe, OfSharedExperts) {
  const Plant plants[] = {
      {"none", [](auto& part) { part.finalize.params.shared_experts = 0; }},
      {"the first one alone", [](auto& part) { part.finalize.params.shared_experts = 1; }},
      {"the first one twice", [](auto& part) { part.finalize.params.shared.batch_stride = 0; }},
      {"one token's rows", [](auto& part) { part.finalize.params.shared.row_stride = 0; }},
  };
  expect_changes(plants, {.tokens = 5, .shared = 2});
}

TEST(PlantedMoe, OfEntriesThatAreNotSorted) {
  const auto up = [](auto& part) -> auto& {
    return std::get<Fp8FewRowsParams>(part.up.steps.front().params);
  };
  const auto down = [](auto& part) -> auto& {
    return std::get<Fp8FewRowsParams>(part.down.steps.front().params);
  };
  const Plant plants[] = {
      {"rows of other tokens", [&](auto& part) { up(part).source.repeats = Divisor(2); }},
      {"a neighbour's gates and ups", [&](auto& part) { ++up(part).order.groups.first_id; }},
      {"ups as gates", [&](auto& part) { up(part).transform.gate_order = GateOrder::up_first; }},
      {"pairs", [&](auto& part) { up(part).transform.gate_group = Divisor(1); }},
      {"gates alone", [&](auto& part) { up(part).is_transformed = false; }},
      {"the gates' scales of ups", [&](auto& part) { up(part).b_scales.row_shift = 8; }},
      {"a neighbour's second matrix", [&](auto& part) { ++down(part).order.groups.first_id; }},
      {"the last expert is elsewhere", [&](auto& part) { --down(part).order.groups.matrices; }},
      {"rows of dropped entries", [](auto& part) { part.finalize.params.experts = 1024; }},
      {"the last expert's rows are dropped", [](auto& part) { --part.finalize.params.experts; }},
  };
  expect_changes(plants, {.tokens = 2, .hidden = 272, .inner = 256, .all_experts = 24},
                 {2, 3, 4, 0, -1, 3});
}

}  // namespace
}  // namespace blockscale
