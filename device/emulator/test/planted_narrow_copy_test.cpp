// Planted bugs in copies of elements of 4 and 6 bits, in those that gather rows, and in
// ldmatrix_b8x16.
#include <stdexcept>

#include "device/emulator/test/narrow_copy_test_support.h"
#include "device/ptx/ldmatrix.h"

namespace blockscale::emulator {
namespace {

constexpr LaunchShape kOneWarp = {.block = {32}, .dynamic_shared_bytes = 1024 + 16 * 128};

/// What `kernel(map, tensor)` of the tensor's elements, in boxes of so many rows, does is found.
template <class Kernel>
void expect_finding(TensorMapElement element, FindingKind kind, const Mark& bug,
                    const std::string& text, const Kernel& kernel,
                    uint32_t box_rows = NarrowTensor::kBoxRows) {
  const NarrowTensor tensor(element);
  TensorMapDescription description = tensor.description();
  description.box[1] = box_rows;
  const TensorMap map = encode_tensor_map(description);
  for (const Options& options : {in_order(), random_order(1)}) {
    const Report report = launch(kOneWarp, tensor.buffers(), compiled_for(120, options),
                                 [&] { kernel(map, tensor); });
    SCOPED_TRACE(report.text());
    ASSERT_FALSE(report.ok());
    EXPECT_STREQ(name_of(report.findings.front().kind), name_of(kind));
    EXPECT_TRUE(report.has(kind, bug.at().file_name(), bug.at().line()));
    EXPECT_THAT(report.findings.front().text, testing::HasSubstr(text));
  }
}

// The box spans twice as many bytes as it brings.
TEST(PlantedNarrowCopy, BytesOfGapsAreExpected) {
  Mark bug;
  expect_finding(TensorMapElement::u4x16_align16b, FindingKind::transaction_bytes, bug, "1024",
                 [&](const TensorMap& map, const NarrowTensor& tensor) {
                   init_barriers(1);
                   if (ptx::tid_x() == 0) {
                     ptx::mbarrier_arrive_expect_tx(full(), 2 * tensor.box_bytes());
                     ptx::cp_async_bulk_tensor_shared_global<2>(stage(0), &map, {{0, 0}}, full());
                   }
                   device::mbarrier_wait(full(), 0, bug.here());
                 });
}

TEST(PlantedNarrowCopy, AGapIsRead) {
  Mark bug;
  expect_finding(TensorMapElement::u6x16_align16b, FindingKind::uninitialized_read, bug,
                 "at offset 1036", [&](const TensorMap& map, const NarrowTensor& tensor) {
                   load_box(map, 0, 0, tensor.box_bytes());
                   (void)ptx::ld_shared<Four>(stage(0), bug.here());
                 });
}

TEST(PlantedNarrowCopy, AGapIsReadByTheOtherLdmatrix) {
  Mark bug;
  expect_finding(TensorMapElement::u4x16_align16b, FindingKind::uninitialized_read, bug,
                 "nobody has written", [&](const TensorMap& map, const NarrowTensor& tensor) {
                   load_box(map, 0, 0, tensor.box_bytes());
                   (void)ptx::ldmatrix<1>(stage(0) + 128 * (ptx::laneid() % 8), bug.here());
                 });
}

// Six bits of elements of four: the last are read from the gap.
TEST(PlantedNarrowCopy, LdmatrixOfAnotherWidth) {
  Mark bug;
  expect_finding(TensorMapElement::u4x16_align16b, FindingKind::uninitialized_read, bug,
                 "ldmatrix_b8x16", [&](const TensorMap& map, const NarrowTensor& tensor) {
                   load_box(map, 0, 0, tensor.box_bytes());
                   (void)ptx::ldmatrix_b8x16<6, 2>(stage(0) + 128 * (ptx::laneid() % 16),
                                                   bug.here());
                 });
}

TEST(PlantedNarrowCopy, BoxStartsWithinARowOfGaps) {
  Mark bug;
  expect_finding(TensorMapElement::u6x16_align16b, FindingKind::misaligned, bug, "coordinate 0",
                 [&](const TensorMap& map, const NarrowTensor& tensor) {
                   load_box(map, 64, 0, tensor.box_bytes(), bug.here());
                 });
}

TEST(PlantedNarrowCopy, BoxIsStored) {
  Mark bug;
  expect_finding(TensorMapElement::u4x16_packed, FindingKind::invalid_operand, bug,
                 "are loaded alone", [&](const TensorMap& map, const NarrowTensor&) {
                   if (ptx::tid_x() != 0) return;
                   ptx::cp_async_bulk_tensor_global_shared<2>(&map, {{0, 0}}, stage(0), bug.here());
                 });
}

TEST(PlantedNarrowCopy, RowsAreGatheredByABoxOfFour) {
  Mark bug;
  expect_finding(
      TensorMapElement::u4x16_packed, FindingKind::invalid_operand, bug, "one row, not 4",
      [&](const TensorMap& map, const NarrowTensor&) {
        load_rows(map, {0, 5, 7, 2}, 4 * 64, bug.here());
      },
      4);
}

TEST(PlantedNarrowCopy, GatheredRowsOutsideTheTensorAreNotCounted) {
  Mark bug;
  constexpr int32_t kPast = NarrowTensor::kRows;
  expect_finding(
      TensorMapElement::u4x16_packed, FindingKind::transaction_bytes, bug,
      "128 bytes more than expected",
      [&](const TensorMap& map, const NarrowTensor&) {
        load_rows(map, {0, kPast, 7, kPast}, 2 * 64, bug.here());
      },
      1);
}

TEST(PlantedNarrowCopy, MapsThatTheEncoderRefuses) {
  const auto refused = [](TensorMapElement element, const char* text, const auto& change) {
    const NarrowTensor tensor(element);
    TensorMapDescription d = tensor.description();
    change(d);
    expect_refused(d, text);
  };
  using enum TensorMapElement;
  refused(u4x16_align16b, "box[0] is 64; elements with gaps need 128",
          [](auto& d) { d.box[0] = 64; });
  refused(u6x16_align16b, "sizes[0] is 192; a multiple of 128", [](auto& d) { d.sizes[0] = 192; });
  refused(u6x16_align16b, "a multiple of 32", [](auto& d) { d.strides[0] += 16; });
  refused(u6x16_align16b, "a multiple of 32", [](auto& d) { d.address += 16; });
  refused(u4x16_align16b, "have none, or 128 bytes",
          [](auto& d) { d.swizzle = TensorMapSwizzle::bytes_64; });
  refused(u4x16_packed, "sizes[0] is 255; a multiple of 2", [](auto& d) { d.sizes[0] = 255; });
  refused(u4x16_packed, "a multiple of 16 bytes, not 8", [](auto& d) { d.box[0] = 16; });
}

}  // namespace
}  // namespace blockscale::emulator
