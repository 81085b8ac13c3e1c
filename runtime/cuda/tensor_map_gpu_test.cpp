// Tensor maps on a GPU: encoded by the driver through the cache, given to a kernel that is
// launched, and read by TMA. runtime/cuda/tensor_map_emulated_test.cpp runs the same kernel without
// a GPU.
#include "runtime/cuda/tensor_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "models/testing.h"
#include "runtime/cuda/measure.h"
#include "runtime/kernels/kernel.h"
#include "tests/gpu.h"
#include "tests/tensor_boxes_case.h"

namespace blockscale::runtime {
namespace {

using test::TensorBoxesCase;

class TensorMapOnGpu : public test::OnHopper {
 protected:
  void SetUp() override {
    OnHopper::SetUp();
    if (IsSkipped()) return;
    const std::vector<float> elements = TensorBoxesCase::matrix();
    matrix_ = DeviceBuffer(elements.size() * sizeof elements[0]);
    matrix_.copy_from_host(elements.data(), matrix_.bytes());
    out_ = DeviceBuffer(TensorBoxesCase::kOutWords * sizeof(std::uint32_t));
  }

  /// Launches the kernel with this map and compares what it wrote.
  void expect_boxes(const TensorBoxesCase& c, const TensorMap& map) {
    const DeviceStream stream;
    out_.fill(0xA5);
    launch(set_.get(0, 90), TensorBoxesCase::kShape, stream.handle(), c.params(map, out_.data()));
    stream.wait();
    std::vector<std::uint32_t> out(TensorBoxesCase::kOutWords);
    out_.copy_to_host(out.data(), out_.bytes());
    c.expect(out);
  }

  test::ScratchFolder folder_;
  KernelStore store_{test::tensor_boxes_sources(), [](const std::string&) { return ""; },
                     KernelCache(folder_.path())};
  KernelSet set_{{test::tensor_boxes_spec()}, store_};
  DeviceBuffer matrix_;
  DeviceBuffer out_;
};

TEST_F(TensorMapOnGpu, BoxesAreLoadedAndFilledWhereTheyAreOutside) {
  TensorMapCache cache;
  for (const TensorBoxesCase& c : test::kTensorBoxesCases) {
    expect_boxes(c, cache.get(c.description(matrix_.data())));
    if (HasFailure()) return;
  }
  EXPECT_EQ(cache.encoded(), std::size(test::kTensorBoxesCases));
}

TEST_F(TensorMapOnGpu, ASecondMapOfTheSameOperandIsTheFirst) {
  TensorMapCache cache;
  const TensorBoxesCase c = test::kTensorBoxesCases[0];
  const TensorMap first = cache.get(c.description(matrix_.data()));
  const TensorMap again = cache.get(c.description(matrix_.data()));
  EXPECT_EQ(cache.encoded(), 1u);
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_EQ(std::memcmp(&first, &again, sizeof first), 0);
  expect_boxes(c, again);

  const std::vector<float> elements = TensorBoxesCase::matrix();
  DeviceBuffer elsewhere(matrix_.bytes());  // another operand, of the same shape
  elsewhere.copy_from_host(elements.data(), elsewhere.bytes());
  matrix_.fill(0xA5);
  expect_boxes(c, cache.get(c.description(elsewhere.data())));
  EXPECT_EQ(cache.encoded(), 2u);
}

}  // namespace
}  // namespace blockscale::runtime
