// The kernel of runtime/cuda/tensor_map_gpu_test.cpp in the emulator.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "device/emulator/emulator.h"
#include "tests/tensor_boxes_case.h"

namespace blockscale {
namespace {

using test::TensorBoxesCase;

TEST(TensorMapEmulated, BoxesAreLoadedAndFilledWhereTheyAreOutside) {
  const std::vector<float> matrix = TensorBoxesCase::matrix();
  for (const TensorBoxesCase& c : test::kTensorBoxesCases) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      std::vector<std::uint32_t> out(TensorBoxesCase::kOutWords, 0xA5A5A5A5);
      const TensorMap map = emulator::encode_tensor_map(c.description(matrix.data()));
      const test::TensorBoxesParams params = c.params(map, out.data());
      const emulator::Report report =
          emulator::launch(TensorBoxesCase::kShape,
                           {emulator::input("matrix", matrix), emulator::output("out", out)},
                           seed == 0 ? emulator::in_order() : emulator::random_order(seed),
                           [&] { test::copy_box<64>(params); });
      ASSERT_TRUE(report.ok()) << report.text();
      c.expect(out);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace blockscale
