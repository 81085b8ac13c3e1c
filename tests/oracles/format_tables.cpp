// Writes what core/format.h makes of every code and of many inputs, for oracles in other languages
// (tests/python/test_formats.py): format_tables FOLDER.
//
//   inputs.u32               f32 bits: every bf16 and f16, every rounding boundary +-2, random ones
//   NAME.decode.f32          value of every code
//   NAME.saturate.u32        code of each input; NAME.propagate.u32 with Overflow::propagate
//   ue8m0.up.saturate.u32    and ue8m0.down: codes of |input|
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/format.h"
#include "core/format_test_oracle.h"

namespace blockscale {
namespace {

constexpr Format kEncoded[] = {Format::e2m1, Format::e2m3,  Format::e3m2, Format::e4m3,
                               Format::e5m2, Format::ue4m3, Format::f16,  Format::bf16};

class Folder {
 public:
  explicit Folder(std::filesystem::path path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
  }

  void write(const std::string& name, const std::vector<std::uint32_t>& words) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.exceptions(std::ios::badbit | std::ios::failbit);
    file.write(reinterpret_cast<const char*>(words.data()),
               static_cast<std::streamsize>(words.size() * sizeof words[0]));
  }

 private:
  std::filesystem::path path_;
};

std::vector<std::uint32_t> make_inputs() {
  std::vector<std::uint32_t> inputs;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    inputs.push_back(oracle::bits_of(decode<Format::bf16>(code)));
    inputs.push_back(oracle::bits_of(decode<Format::f16>(code)));
  }
  for (const Format format : kEncoded) {
    if (format_traits(format).bits > 8) continue;
    const oracle::Rounding rounding(format);
    for (const std::uint32_t boundary : rounding.first()) {
      for (std::uint32_t near = 0; near < 5; ++near) {
        inputs.push_back(boundary + near - 2);
        inputs.push_back((boundary + near - 2) ^ oracle::kSign);
      }
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1'000'000; ++i) inputs.push_back(static_cast<std::uint32_t>(random()));
  return inputs;
}

void write_tables(const Folder& folder) {
  const std::vector<std::uint32_t> inputs = make_inputs();
  std::vector<std::uint32_t> codes(inputs.size());
  const auto write_codes = [&](const std::string& name, auto encode_one) {
    std::transform(inputs.begin(), inputs.end(), codes.begin(),
                   [&](std::uint32_t bits) { return encode_one(oracle::float_of(bits)); });
    folder.write(name + ".u32", codes);
  };
  folder.write("inputs.u32", inputs);
  for (int i = 0; i < kFormatCount; ++i) {
    const Format format = static_cast<Format>(i);
    if (format == Format::f32) continue;
    const FormatTraits traits = format_traits(format);
    std::vector<std::uint32_t> values(std::size_t{1} << traits.bits);
    for (std::uint32_t code = 0; code < values.size(); ++code) {
      values[code] = oracle::bits_of(decode(format, code));
    }
    folder.write(std::string(traits.name) + ".decode.f32", values);
  }
  for (const auto& [suffix, overflow] :
       {std::pair{".saturate", Overflow::saturate}, std::pair{".propagate", Overflow::propagate}}) {
    const Overflow mode = overflow;
    for (const Format format : kEncoded) {
      write_codes(std::string(format_traits(format).name) + suffix,
                  [=](float x) { return encode(format, x, mode); });
    }
    write_codes(std::string("ue8m0.up") + suffix,
                [=](float x) { return encode_ue8m0(x, ScaleRounding::up, mode); });
    write_codes(std::string("ue8m0.down") + suffix,
                [=](float x) { return encode_ue8m0(x, ScaleRounding::toward_zero, mode); });
  }
}

}  // namespace
}  // namespace blockscale

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: format_tables FOLDER\n");
    return 2;
  }
  blockscale::write_tables(blockscale::Folder(argv[1]));
  return 0;
}
