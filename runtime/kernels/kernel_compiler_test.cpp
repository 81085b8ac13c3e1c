#include "runtime/kernels/kernel_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"
#include "tests/find_nvrtc.h"
#include "tests/sample_kernel.h"

namespace blockscale::runtime {
namespace {

using test::expect_invalid;
using test::sample_sources;
using test::sample_spec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(KernelSpec, BecomesOneGlobalFunction) {
  EXPECT_EQ(translation_unit(sample_spec(2)), R"(#include "sample/kernel.cuh"
static_assert(sizeof(sample::ScaleParameters) == 24, "host and device disagree about the parameters");
extern "C" __global__ void __launch_bounds__(128, 1)
sample_scale_2(const __grid_constant__ sample::ScaleParameters parameters) {
  sample::scale<2>(parameters);
}
)");
}

TEST(KernelSpec, NamesWhatIsWrong) {
  const auto expect_refused = [](const char* reason, auto change) {
    KernelSpec spec = sample_spec();
    change(spec);
    expect_invalid("kernel " + spec.name, reason, [&] { translation_unit(spec); });
  };
  expect_refused("C identifier", [](KernelSpec& spec) { spec.name = "has-dash"; });
  expect_refused("C identifier", [](KernelSpec& spec) { spec.name = "9lives"; });
  expect_refused("header", [](KernelSpec& spec) { spec.header = "a\"\n#include \"b"; });
  expect_refused("parameter struct", [](KernelSpec& spec) { spec.parameters.clear(); });
  expect_refused("function to call", [](KernelSpec& spec) { spec.call.clear(); });
  expect_refused("parameter_bytes is 0", [](KernelSpec& spec) { spec.parameter_bytes = 0; });
  expect_refused("threads is 1025", [](KernelSpec& spec) { spec.threads = 1025; });
  expect_refused("architecture is 'compute_90'",
                 [](KernelSpec& spec) { spec.architecture = "compute_90"; });
}

TEST(KernelSources, IncludesAreQuotedLines) {
  EXPECT_THAT(
      quoted_includes("#include \"a.h\"\n  #\tinclude \"b/c.h\" // x\n// #include \"no.h\"\n"
                      "#include <system>\n#include \"last\""),
      ElementsAre("a.h", "b/c.h", "last"));
  EXPECT_THAT(quoted_includes("#include \"open\n"), ElementsAre());
  EXPECT_THAT(quoted_includes(""), ElementsAre());
}

TEST(KernelSources, ClosureFollowsIncludesAndCycles) {
  SourceTree tree;
  tree.add("a", "#include \"b\"\n#include \"absent\"\n#include \"c\"\n");
  tree.add("b", "#include \"c\"\n");
  tree.add("c", "#include \"a\"\n");
  tree.add("d", "");
  EXPECT_THAT(tree.closure("a"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(tree.closure("d"), ElementsAre("d"));
  test::expect_error(ErrorCode::not_found, "absent", "not among the kernel sources",
                     [&] { tree.closure("absent"); });
}

TEST(KernelSources, TheLibraryCarriesCoreAndEveryIncludeOfIt) {
  const SourceTree& tree = embedded_sources();
  for (const char* file : {"core/config.h", "core/format.h", "core/launch_shape.h"}) {
    EXPECT_TRUE(tree.contains(file)) << file;
  }
  for (const auto& [path, text] : tree.files()) {
    EXPECT_THAT(std::string(path), Not(HasSubstr("_test")));
    EXPECT_FALSE(path.starts_with("device/emulator/"));
    for (const std::string_view target : quoted_includes(text)) {
      EXPECT_TRUE(tree.contains(target) || target.starts_with("device/emulator/"))
          << path << " includes " << target;
    }
  }
}

TEST(KernelSources, HashChangesWithEverythingThatIsCompiled) {
  const Hash128 hash = source_hash(sample_spec(), sample_sources());
  EXPECT_EQ(hash, source_hash(sample_spec(), sample_sources()));
  KernelSpec other = sample_spec();
  other.min_blocks_per_multiprocessor = 2;
  EXPECT_NE(hash, source_hash(other, sample_sources()));
  other = sample_spec();
  other.allows_local_memory = true;
  EXPECT_NE(hash, source_hash(other, sample_sources()));
  other = sample_spec();
  other.architecture = "sm_100f";
  EXPECT_NE(hash, source_hash(other, sample_sources()));
  const std::string header = std::string(test::kSampleParameters) + "// a comment\n";
  EXPECT_NE(hash, source_hash(sample_spec(), sample_sources(test::kSampleKernel, header)));
  SourceTree deep = sample_sources();
  const std::string config = std::string(deep.text("core/config.h")) + "\n";
  deep.add("core/config.h", config);  // included by what the kernel includes
  EXPECT_NE(hash, source_hash(sample_spec(), deep));
  SourceTree wider = sample_sources();
  wider.add("core/format.h", "changed");  // not included
  EXPECT_EQ(hash, source_hash(sample_spec(), wider));
}

constexpr const char* kLog =
    "k.cu(6): warning #177-D: variable \"unused\" was declared but never referenced\n"
    "ptxas info    : 4 bytes gmem\n"
    "ptxas info    : Compiling entry function 'foo' for 'sm_90a'\n"
    "ptxas info    : Function properties for foo\n"
    "ptxas         .     16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
    "ptxas info    : Used 75 registers, used 1 barriers, 400 bytes smem\n"
    "ptxas info    : Compile time = 11.644 ms\n\n";

TEST(KernelCompiler, ReadsPtxasLog) {
  const KernelResources expected{
      .registers = 75, .spill_bytes = 20, .stack_bytes = 16, .static_shared_bytes = 400};
  EXPECT_EQ(resources_in_log(kLog, "foo"), expected);
  EXPECT_EQ(warnings_in_log(kLog),
            "k.cu(6): warning #177-D: variable \"unused\" was declared but never referenced\n");
  EXPECT_THROW(resources_in_log("", "foo"), Error);
  EXPECT_THROW(resources_in_log("ptxas info : Used 7 registers", "foo"), Error);
  EXPECT_THROW(resources_in_log("Used x registers\n bytes stack frame", "foo"), Error);
}

TEST(KernelCompiler, RefusesEachKindOfLocalMemory) {
  KernelSpec spec = sample_spec();
  EXPECT_NO_THROW(check_local_memory(spec, {.registers = 255, .static_shared_bytes = 400}, "log"));
  const KernelResources spills = {.registers = 32, .spill_bytes = 8};  // without a stack
  const KernelResources stack = {.registers = 32, .stack_bytes = 16};
  EXPECT_THAT([&] { check_local_memory(spec, spills, "log"); },
              ThrowsMessage<Error>(HasSubstr("0 bytes of stack, 8 bytes spilled")));
  EXPECT_THAT([&] { check_local_memory(spec, stack, "log"); },
              ThrowsMessage<Error>(HasSubstr("16 bytes of stack, 0 bytes spilled")));
  spec.allows_local_memory = true;
  EXPECT_NO_THROW(check_local_memory(spec, spills, "log"));
}

class KernelCompilerWithNvrtc : public test::WithNvrtc {
 protected:
  CompiledKernel compile(const KernelSpec& spec, std::string_view kernel = test::kSampleKernel) {
    return compile_kernel(spec, sample_sources(kernel), *nvrtc_);
  }
  std::string log_of_failure(const KernelSpec& spec, std::string_view kernel) {
    try {
      compile(spec, kernel);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::compile_failed);
      EXPECT_EQ(error.argument(), "kernel " + spec.name);
      return error.what();
    }
    ADD_FAILURE() << "it compiled";
    return {};
  }
};

TEST_F(KernelCompilerWithNvrtc, MakesACubinForEachArchitecture) {
  for (const char* architecture : {"sm_90a", "sm_100f", "sm_120f"}) {
    KernelSpec spec = sample_spec();
    spec.architecture = architecture;
    const CompiledKernel kernel = compile(spec);
    EXPECT_EQ(kernel.name, spec.name);
    EXPECT_EQ(kernel.compiler, nvrtc_->version());
    EXPECT_EQ(kernel.source, source_hash(spec, sample_sources()));
    EXPECT_THAT(kernel.flags, HasSubstr("--fmad=false"));
    ASSERT_GT(kernel.cubin.size(), 4u);
    EXPECT_EQ(std::to_integer<int>(kernel.cubin[1]), 'E');
    EXPECT_GE(kernel.resources.registers, 8u);
    EXPECT_LE(kernel.resources.registers, 64u);
    EXPECT_EQ(kernel.resources.spill_bytes + kernel.resources.stack_bytes, 0u);
  }
}

/// Also of wrappers that no kernel uses yet.
TEST_F(KernelCompilerWithNvrtc, EveryEmbeddedHeaderCompilesByItself) {
  const SourceTree& tree = embedded_sources();
  std::vector<Nvrtc::Header> headers;
  for (const auto& [path, text] : tree.files()) {
    headers.push_back({std::string(path), std::string(text)});
  }
  for (const char* architecture : {"sm_90a", "sm_100f"}) {
    const std::vector<std::string> flags = {"--std=c++20",
                                            std::string("--gpu-architecture=") + architecture};
    for (const auto& [path, text] : tree.files()) {
      if (path.ends_with("-inl.h")) continue;  // included within another header only
      const std::string source = "#include \"" + std::string(path) + "\"\n";
      const auto result = nvrtc_->compile("header.cu", source, headers, flags);
      EXPECT_TRUE(result.compiled) << path << " for " << architecture << "\n" << result.log;
      EXPECT_EQ(result.log, "") << path << " for " << architecture;
    }
  }
}

TEST_F(KernelCompilerWithNvrtc, RaisesWithTheLog) {
  const std::string broken = std::string(test::kSampleKernel) + "int f() { return undeclared; }\n";
  const std::string log = log_of_failure(sample_spec(), broken);
  EXPECT_THAT(log, HasSubstr("does not compile with NVRTC 13"));
  EXPECT_THAT(log, HasSubstr("sample/kernel.cuh"));
  EXPECT_THAT(log, HasSubstr("\"undeclared\" is undefined"));
}

TEST_F(KernelCompilerWithNvrtc, KeepsSourceLinesOnRequest) {
  const CompiledKernel plain = compile(sample_spec());
  const CompiledKernel lines =
      compile_kernel(sample_spec(), sample_sources(), *nvrtc_, LineInfo::yes);
  EXPECT_EQ(lines.source, plain.source);  // the same code
  EXPECT_EQ(lines.resources, plain.resources);
  EXPECT_GT(lines.cubin.size(), plain.cubin.size());
  EXPECT_THAT(lines.flags, HasSubstr("--generate-line-info"));
  EXPECT_THAT(plain.flags, Not(HasSubstr("--generate-line-info")));
}

TEST_F(KernelCompilerWithNvrtc, ChecksTheSizeOfTheParameters) {
  KernelSpec spec = sample_spec();
  spec.parameter_bytes += 8;
  EXPECT_THAT(log_of_failure(spec, test::kSampleKernel), HasSubstr("host and device disagree"));
}

TEST_F(KernelCompilerWithNvrtc, RefusesWarnings) {
  const std::string warns =
      std::string(test::kSampleKernel) + "__device__ inline void f() { int unused; }\n";
  EXPECT_THAT(log_of_failure(sample_spec(), warns), HasSubstr("compiles with warnings"));
}

TEST_F(KernelCompilerWithNvrtc, RefusesLocalMemoryUnlessAllowed) {
  KernelSpec spec = sample_spec();
  EXPECT_THAT(log_of_failure(spec, test::kLocalMemoryKernel), HasSubstr("uses local memory"));
  spec.allows_local_memory = true;
  EXPECT_GE(compile(spec, test::kLocalMemoryKernel).resources.stack_bytes, 256u);
}

/// As `blockscale kernels build` compiles each kernel of the pack.
TEST_F(KernelCompilerWithNvrtc, RefusesSpillsUnlessAllowed) {
  KernelSpec spec = sample_spec();
  EXPECT_EQ(compile(spec, test::kSpillingKernel).resources.spill_bytes, 0u);
  spec.threads = 1024;
  spec.min_blocks_per_multiprocessor = 2;  // 32 registers a thread
  const std::string log = log_of_failure(spec, test::kSpillingKernel);
  EXPECT_THAT(log, HasSubstr("uses local memory"));
  EXPECT_THAT(log, Not(HasSubstr(" 0 bytes spilled")));
  spec.allows_local_memory = true;
  EXPECT_GE(compile(spec, test::kSpillingKernel).resources.spill_bytes, 2 * 4u * 32);
}

}  // namespace
}  // namespace blockscale::runtime
