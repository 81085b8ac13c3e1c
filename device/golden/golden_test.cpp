// The emulator against what a GPU recorded: every wrapper, bit for bit. README.md.
#include "device/golden/golden_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/emulator/emulator.h"
#include "device/golden/hopper_programs.h"
#include "device/golden/tensor_cases.h"

namespace blockscale::golden {
namespace {

const std::string kPath = BLOCKSCALE_SOURCE_DIR "/device/golden/data/h200.golden";

/// Programs that wait for the next recording; what is recorded is struck off here.
const std::set<std::string> kUnrecorded = {};

const GoldenFile& golden() {
  static const GoldenFile file = read_golden(kPath);
  return file;
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(std::filesystem::exists(kPath))
        << kPath << " is missing: device/golden/README.md says how a GPU writes it";
  }
};

struct alignas(128) Memory {
  std::array<uint32_t, kInWords> in;
  std::array<uint32_t, kOutWords> out;
};

/// Runs a program as record.cu does, and compares what it leaves.
template <class Program>
void compare_program(ProgramParams params, Memory& memory, const std::string& name,
                     uint32_t words) {
  params.in = memory.in.data();
  params.out = memory.out.data();
  // In order, elect.sync names the lowest lane of its mask, as the GPU does.
  const emulator::Report report = emulator::launch(
      Program::kShape, {emulator::input("in", memory.in), emulator::in_out("out", memory.out)},
      emulator::in_order(), [&] { Program::run(params); });
  EXPECT_TRUE(report.ok()) << name << ": " << report.text();
  const auto expected = golden().words.find(name);
  if (kUnrecorded.contains(name)) {
    EXPECT_EQ(expected, golden().words.end()) << name << " is recorded: strike it off kUnrecorded";
    return;
  }
  ASSERT_NE(expected, golden().words.end()) << name << " is not recorded: record anew";
  ASSERT_EQ(expected->second.size(), words) << name;
  int shown = 0;
  for (uint32_t i = 0; i < words; ++i) {
    if (memory.out[i] == expected->second[i]) continue;
    ADD_FAILURE() << name << " word " << i << std::hex << ": emulator 0x" << memory.out[i]
                  << ", GPU 0x" << expected->second[i];
    if (++shown == 8) break;
  }
}

std::unique_ptr<Memory> make_memory() {
  auto memory = std::make_unique<Memory>();
  for (uint32_t i = 0; i < kInWords; ++i) memory->in[i] = static_cast<uint32_t>(mix(i + 1));
  memory->out.fill(kOutFill);
  return memory;
}

TEST_F(Golden, Programs) {
  for_each(AllPrograms{}, [&](auto* program) {
    using Program = std::remove_pointer_t<decltype(program)>;
    const auto memory = make_memory();
    compare_program<Program>({}, *memory, std::string("program/") + Program::kName, kOutWords);
  });
}

/// Parameters and map of a case. Throws std::invalid_argument if the map is refused.
ProgramParams params_of(const TensorCase& c, Memory& memory) {
  const void* tensor = is_load(c.mode) ? memory.in.data() : memory.out.data();
  ProgramParams params = {};
  params.map = emulator::encode_tensor_map(description_of(c, reinterpret_cast<uint64_t>(tensor)));
  params.in = memory.in.data();
  params.out = memory.out.data();
  std::copy_n(c.coordinates, 5, params.coordinates);
  params.box_bytes = box_bytes(c);
  params.box_offset = c.box_offset;
  return params;
}

emulator::Report run_tensor(const TensorCase& c, Memory& memory, const emulator::Options& options) {
  const ProgramParams params = params_of(c, memory);
  emulator::Report report;
  visit_program(c, [&](auto* program) {
    using Program = std::remove_pointer_t<decltype(program)>;
    report = emulator::launch(
        Program::kShape, {emulator::input("in", memory.in), emulator::in_out("out", memory.out)},
        options, [&] { Program::run(params); });
  });
  return report;
}

TEST_F(Golden, TensorCopies) {
  for (const TensorCase& c : kTensorCases) {
    const std::string name = std::string("tensor/") + c.name;
    const auto memory = make_memory();
    if (golden().refused.contains(name)) {  // by the driver, or by the GPU
      bool refused = false;
      try {
        refused = !run_tensor(c, *memory, emulator::in_order()).ok();
      } catch (const std::invalid_argument&) {
        refused = true;
      }
      EXPECT_TRUE(refused) << name << ": " << golden().refused.at(name);
      continue;
    }
    const ProgramParams params = params_of(c, *memory);
    visit_program(c, [&](auto* program) {
      using Program = std::remove_pointer_t<decltype(program)>;
      compare_program<Program>(params, *memory, name, Program::kWords);
    });
  }
}

/// Sum of hash terms of the inputs from `first` on.
using Sum = uint64_t (*)(uint64_t first, uint64_t count);

template <class Operation>
uint64_t sum_unary(uint64_t first, uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = first; i < first + count; ++i) {
    sum += hash_term(i, Operation::apply(static_cast<uint32_t>(i)));
  }
  return sum;
}

template <class Operation>
uint64_t sum_random(uint64_t first, uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = first; i < first + count; ++i) sum += random_term<Operation>(i);
  return sum;
}

/// Compares the hashes of the chunks that `chosen` names.
void compare_hashes(const std::string& name, uint64_t inputs, uint64_t chunk,
                    const std::function<bool(std::size_t)>& chosen, Sum sum) {
  const auto expected = golden().hashes.find(name);
  ASSERT_NE(expected, golden().hashes.end()) << name << " is not recorded: record anew";
  chunk = std::min(chunk, inputs);
  ASSERT_EQ(expected->second.size(), inputs / chunk) << name;
  for (std::size_t i = 0; i < inputs / chunk; ++i) {
    if (!chosen(i)) continue;
    EXPECT_EQ(sum(i * chunk, chunk), expected->second[i])
        << name << ", inputs 0x" << std::hex << i * chunk << " to 0x" << (i + 1) * chunk - 1;
  }
}

TEST_F(Golden, RandomOperands) {
  for_each(RandomOperations{}, [&](auto* operation) {
    using Operation = std::remove_pointer_t<decltype(operation)>;
    compare_hashes(
        std::string("random/") + Operation::kName, kRandomInputs, kRandomChunk,
        [](std::size_t) { return true; }, sum_random<Operation>);
  });
}

/// Days since 1970 in UTC when it is first asked, or what BLOCKSCALE_GOLDEN_DAY says, to repeat
/// another day's test.
std::size_t day() {
  static const std::size_t today = [] {
    const char* const named = std::getenv("BLOCKSCALE_GOLDEN_DAY");
    if (named == nullptr) return static_cast<std::size_t>(std::time(nullptr)) / (24 * 60 * 60);
    char* end = nullptr;
    const unsigned long number = std::strtoul(named, &end, 10);
    if (end == named || *end != 0) {
      throw std::invalid_argument(std::string("BLOCKSCALE_GOLDEN_DAY is '") + named +
                                  "', must be a number");
    }
    return static_cast<std::size_t>(number);
  }();
  return today;
}

constexpr std::size_t kDays = 64;  // until all chunks were compared

// Chunks of f32: zeros and the smallest subnormals, 0.5 to 2, infinity and NaNs, and -4 to -2^-125;
// one in kDays of all, others each day; with BLOCKSCALE_EXHAUSTIVE=1 all 2^32 inputs.
bool chosen_chunk(std::size_t chunk) {
  static const bool exhaustive = std::getenv("BLOCKSCALE_EXHAUSTIVE") != nullptr;
  return exhaustive || chunk == 0x00 || chunk == 0x3F || chunk == 0x7F || chunk == 0xC0 ||
         chunk % kDays == day() % kDays;
}

/// A unary operation as a value.
struct Unary {
  const char* name;
  int input_bits;
  Sum sum;

  friend void PrintTo(const Unary& unary, std::ostream* out) { *out << unary.name; }
};

std::vector<Unary> all_unary() {
  std::vector<Unary> all;
  for_each(UnaryOperations{}, [&](auto* operation) {
    using Operation = std::remove_pointer_t<decltype(operation)>;
    all.push_back({Operation::kName, Operation::kInputBits, sum_unary<Operation>});
  });
  return all;
}

class GoldenUnary : public Golden, public testing::WithParamInterface<Unary> {};

TEST_P(GoldenUnary, AllInputs) {
  const Unary& u = GetParam();
  SCOPED_TRACE("BLOCKSCALE_GOLDEN_DAY=" + std::to_string(day() % kDays) + " repeats this");
  compare_hashes(std::string("unary/") + u.name, uint64_t{1} << u.input_bits, kUnaryChunk,
                 chosen_chunk, u.sum);
}

INSTANTIATE_TEST_SUITE_P(Every, GoldenUnary, testing::ValuesIn(all_unary()),
                         [](const auto& unary) { return std::string(unary.param.name); });

// What is recorded is what the programs are: nothing is left from an older list.
TEST_F(Golden, FileHoldsNothingElse) {
  std::set<std::string> known;
  const auto add = [&](const char* group) {
    return [&known, group](auto* type) {
      known.insert(std::string(group) + std::remove_pointer_t<decltype(type)>::kName);
    };
  };
  for_each(AllPrograms{}, add("program/"));
  for_each(RandomOperations{}, add("random/"));
  for_each(UnaryOperations{}, add("unary/"));
  for (const TensorCase& c : kTensorCases) known.insert(std::string("tensor/") + c.name);
  const auto expect_known = [&](const auto& recorded) {
    for (const auto& [name, value] : recorded) EXPECT_TRUE(known.contains(name)) << name;
  };
  expect_known(golden().words);
  expect_known(golden().hashes);
  expect_known(golden().refused);
}

// Without a GPU's word for it: every program runs in the emulator without a finding, in any order.
TEST(GoldenPrograms, AreCorrect) {
  for_each(AllPrograms{}, [&](auto* program) {
    using Program = std::remove_pointer_t<decltype(program)>;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const auto memory = make_memory();
      ProgramParams params = {};
      params.in = memory->in.data();
      params.out = memory->out.data();
      const emulator::Report report = emulator::launch(
          Program::kShape,
          {emulator::input("in", memory->in), emulator::in_out("out", memory->out)},
          seed == 0 ? emulator::in_order() : emulator::random_order(seed),
          [&] { Program::run(params); });
      EXPECT_TRUE(report.ok()) << Program::kName << ": " << report.text();
    }
  });
}

/// What the recording has as an illegal instruction.
bool stops_the_gpu(const TensorCase& c) {
  const bool aligned = int64_t{c.coordinates[0]} * bytes_of(c.element) % 16 == 0;
  const bool negative = std::any_of(c.coordinates, c.coordinates + c.rank,
                                    [](int32_t coordinate) { return coordinate < 0; });
  return !aligned || (negative && !is_load(c.mode)) ||
         (c.mode == TensorMode::bit_xor && c.element == TensorMapElement::s64);
}

TEST(GoldenPrograms, TensorCopiesAreCorrect) {
  for (const TensorCase& c : kTensorCases) {
    const auto memory = make_memory();
    const emulator::Report report = run_tensor(c, *memory, emulator::random_order(1));
    EXPECT_EQ(report.ok(), !stops_the_gpu(c)) << c.name << ": " << report.text();
  }
}

}  // namespace
}  // namespace blockscale::golden
