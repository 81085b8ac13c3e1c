// Planted bugs in copies of boxes of tensors.
#include <stdexcept>

#include "device/emulator/test/planted_copy_test_support.h"
#include "device/ptx/tensor_copy.h"

namespace blockscale::emulator {
namespace {

TensorMapDescription matrix(void* data, uint64_t columns, uint64_t rows) {
  TensorMapDescription d;
  d.address = reinterpret_cast<uint64_t>(data);
  d.sizes[0] = columns;
  d.sizes[1] = rows;
  d.strides[0] = columns * 4;
  d.box[0] = 32;
  d.box[1] = 8;
  d.element_strides[0] = d.element_strides[1] = 1;
  d.rank = 2;
  d.element = TensorMapElement::u32;
  return d;
}

TEST(PlantedTensor, TensorIsLargerThanItsBuffer) {
  Mark bug;
  Memory memory;
  const TensorMap map = encode_tensor_map(matrix(memory.in, 32, 33));  // 32 rows are there
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() != 0) return;
                    ptx::mbarrier_arrive_expect_tx(full(), 1024);
                    ptx::cp_async_bulk_tensor_shared_global<2>(stage(0), &map, {{0, 28}}, full(),
                                                               bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::out_of_bounds, bug,
                 {"cp_async_bulk_tensor_shared_global", "128 bytes at offset 4096 of 'in'"});
}

TEST(PlantedTensor, RankOfTheMapIsAnother) {
  Mark bug;
  Memory memory;
  const TensorMap map = encode_tensor_map(matrix(memory.in, 32, 32));
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() != 0) return;
                    ptx::cp_async_bulk_tensor_shared_global<3>(stage(0), &map, {{0, 0, 0}}, full(),
                                                               bug.here());
                  }},
                 FindingKind::invalid_operand, bug, {"of rank 3, not one of rank 2"});
}

TEST(PlantedTensor, BoxIsMisaligned) {
  Mark bug;
  Memory memory;
  const TensorMap map = encode_tensor_map(matrix(memory.in, 32, 32));
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() != 0) return;
                    ptx::mbarrier_arrive_expect_tx(full(), 1024);
                    ptx::cp_async_bulk_tensor_shared_global<2>(stage(0) + 64, &map, {{0, 0}},
                                                               full(), bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::misaligned, bug, {"the shared address", "multiple of 128"});
}

TEST(PlantedTensor, BoxStartsWithinSixteenBytes) {
  Mark bug;
  Memory memory;
  const TensorMap map = encode_tensor_map(matrix(memory.in, 32, 32));
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    init_barriers(1);
                    if (ptx::tid_x() != 0) return;
                    ptx::mbarrier_arrive_expect_tx(full(), 1024);
                    ptx::cp_async_bulk_tensor_shared_global<2>(stage(0), &map, {{-1, 0}}, full(),
                                                               bug.here());
                    device::mbarrier_wait(full(), 0);
                  }},
                 FindingKind::misaligned, bug, {"coordinate 0, in bytes,", "multiple of 16"});
}

TEST(PlantedTensor, StoreAtANegativeCoordinate) {
  Mark bug;
  Memory memory;
  const TensorMap map = encode_tensor_map(matrix(memory.out, 32, 32));
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    ptx::st_shared(stage(0) + 16 * ptx::tid_x(), Four{});
                    ptx::fence_proxy_async_shared();
                    ptx::barrier_sync_all();
                    if (ptx::tid_x() != 0) return;
                    ptx::cp_async_bulk_tensor_global_shared<2>(&map, {{0, -1}}, stage(0),
                                                               bug.here());
                  }},
                 FindingKind::invalid_operand, bug, {"coordinate 1 is -1", "0 or above"});
}

// The last chunk of 16 bytes is written whole: 8 bytes behind the tensor and its buffer.
TEST(PlantedTensor, StoreOfARaggedRowWithoutRoomBehindIt) {
  Mark bug;
  Memory memory;
  TensorMapDescription d = matrix(memory.out, 1022, 1);
  d.rank = 1;
  const TensorMap map = encode_tensor_map(d);
  expect_planted({kTwoWarps,
                  {buffer("out", memory.out, 1022 * 4, BufferUse::output)},
                  [&] {
                    ptx::st_shared(stage(0) + 16 * ptx::tid_x(), Four{});
                    ptx::fence_proxy_async_shared();
                    ptx::barrier_sync_all();
                    if (ptx::tid_x() != 0) return;
                    ptx::cp_async_bulk_tensor_global_shared<1>(&map, {{992}}, stage(0), bug.here());
                  }},
                 FindingKind::out_of_bounds, bug,
                 {"128 bytes at offset 3968 of 'out' (4088 bytes)"});
}

TEST(PlantedTensor, ReductionThatTheElementsLack) {
  Mark bug;
  Memory memory;
  TensorMapDescription d = matrix(memory.out, 32, 32);
  d.element = TensorMapElement::f32;
  const TensorMap map = encode_tensor_map(d);
  expect_planted({kTwoWarps, memory.buffers(),
                  [&] {
                    if (ptx::tid_x() != 0) return;
                    ptx::cp_reduce_async_bulk_tensor_global_shared<ptx::TensorReduce::max, 2>(
                        &map, {{0, 0}}, stage(0), bug.here());
                  }},
                 FindingKind::invalid_operand, bug, {"no such reduction"});
}

TEST(PlantedTensor, MapsThatTheEncoderRefuses) {
  Memory memory;
  const auto refused = [&](const char* text, const auto& change) {
    TensorMapDescription d = matrix(memory.in, 32, 32);
    change(d);
    expect_refused(d, text);
  };
  refused("strides[0] is 100", [](auto& d) { d.strides[0] = 100; });
  refused("box[1] is 257", [](auto& d) { d.box[1] = 257; });
  refused("sizes[0] is 0", [](auto& d) { d.sizes[0] = 0; });
  refused("rank is 6", [](auto& d) { d.rank = 6; });
  refused("multiple of 16", [](auto& d) { d.address += 8; });
  refused("a multiple of 16 bytes, not 8", [](auto& d) { d.box[0] = 2; });
  refused("the swizzle's 64", [](auto& d) { d.swizzle = TensorMapSwizzle::bytes_64; });
  refused("element_strides[1] is 9", [](auto& d) { d.element_strides[1] = 9; });
  refused("floating-point", [](auto& d) { d.fill = TensorMapFill::nan; });
  refused("there is no such type", [](auto& d) { d.element = static_cast<TensorMapElement>(16); });
}

}  // namespace
}  // namespace blockscale::emulator
