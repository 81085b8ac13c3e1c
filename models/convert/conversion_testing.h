// A conversion of a small model, for tests of what happens around one.
#pragma once

#include <gtest/gtest.h>

#include "models/convert/files/staging.h"
#include "models/convert/testing.h"

namespace blockscale::test {

/// A checkpoint of mixtral at `plain_`, which run() converts to NVFP4 at `out_`.
class SmallConversion : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(work_);
    write_checkpoint(plain_, small_model(), {{"model_type", "mixtral"}});
    options_ = options_for({Recipe::nvfp4, Dialect::compressed_tensors});
  }
  ConvertReport run() const { return convert(plain_, out_, options_); }

  ScratchFolder folder_;
  const std::filesystem::path plain_ = folder_ / "plain";
  const std::filesystem::path work_ = folder_ / "work";
  const std::filesystem::path out_ = work_ / "out";
  const std::filesystem::path staging_ = models::staging_folder(out_);
  ConvertOptions options_;
};

}  // namespace blockscale::test
