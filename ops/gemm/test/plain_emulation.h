// What a launch of a random product may touch, for the emulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/test/plain_problem.h"

namespace blockscale::test {

inline std::vector<emulator::Buffer> buffers_of(PlainOperands& operands) {
  const GemmArguments& x = operands.arguments();
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  std::vector<emulator::Buffer> buffers = {
      emulator::buffer("a", operands.a_values().at(), operands.a_values().bytes(),
                       emulator::BufferUse::input),
      emulator::buffer("b", operands.b_values().at(), operands.b_values().bytes(),
                       emulator::BufferUse::input),
      emulator::buffer("a scales", x.a.scales, bytes(extent_of_scales(x.a)),
                       emulator::BufferUse::input),
      emulator::buffer("b scales", x.b.scales, bytes(extent_of_scales(x.b)),
                       emulator::BufferUse::input),
      emulator::buffer("d", operands.d().bytes().data(), operands.d().bytes().size(),
                       emulator::BufferUse::output),
      emulator::input("c", operands.c().bytes()),
      emulator::input("bias", operands.bias().bytes()),
      emulator::input("gate", operands.gate().bytes()),
      emulator::buffer("factor", &operands.factor(), sizeof(float), emulator::BufferUse::input)};
  for (const auto& [name, view] : {std::pair{"a tensor scale", x.a}, {"b tensor scale", x.b}}) {
    if (view.tensor_scale == nullptr) continue;
    const std::int64_t count = (view.batch - 1) * view.tensor_scale_batch_stride + 1;
    buffers.push_back(
        emulator::buffer(name, view.tensor_scale, bytes(count * 4), emulator::BufferUse::input));
  }
  std::erase_if(buffers, [](const emulator::Buffer& b) { return b.bytes == 0; });
  return buffers;
}

}  // namespace blockscale::test
