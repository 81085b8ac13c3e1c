// What the tests of ComfyUI's checkpoints share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/dialects/swizzled_testing.h"

namespace blockscale::test {

inline Json format(const char* name) {
  return {{"format", name}};
}

/// A checkpoint of ComfyUI, whose header describes its layers.
class ComfyFixture : public DialectTest {
 protected:
  std::filesystem::path file() const { return folder_ / "model" / "model.safetensors"; }

  /// Unless null, `layers` go into the header.
  void write(const std::vector<TestTensor>& tensors, const Json& layers,
             std::map<std::string, std::string> metadata = {{"format", "pt"}}) {
    std::filesystem::remove_all(folder_ / "model");
    std::filesystem::create_directories(folder_ / "model");
    if (!layers.is_null()) {
      metadata["_quantization_metadata"] =
          Json{{"format_version", "1.0"}, {"layers", layers}}.dump();
    }
    write_store(file(), tensors, metadata);
  }
  Checkpoint open(const std::vector<TestTensor>& tensors, const Json& layers) {
    write(tensors, layers);
    return Checkpoint::open(folder_ / "model");
  }
  void expect_refused(ErrorCode code, const std::vector<TestTensor>& tensors, const Json& layers,
                      const std::string& argument, const std::string& reason) {
    SCOPED_TRACE(reason);
    write(tensors, layers);
    std::filesystem::remove_all(folder_ / "out");
    expect_error(code, argument, reason, [&] { Checkpoint::open(folder_ / "model"); });
    expect_error(code, argument, reason, [&] { converted(Recipe::bf16, Dialect::plain); });
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  }
};

}  // namespace blockscale::test
