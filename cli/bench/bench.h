// What the commands of `blockscale bench` share.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/device.h"
#include "command.h"
#include "output.h"

namespace blockscale::cli {

int parse_repeats(const std::string& text);
std::int64_t parse_size(const std::string& text);

/// Where results go: as text or, with `json`, as JSON on standard output; as JSON into a file too,
/// if `path` is not empty.
struct BenchOutput {
  bool json = false;
  std::string path;
};
void add_output(CLI::App& command, BenchOutput& output);
ExitCode print_result(const Json& json, const std::string& text, const BenchOutput& output);

using RecipePair = std::pair<Recipe, Recipe>;
/// "RECIPE" for both sides, or "RECIPE_A:RECIPE_B".
RecipePair parse_pair(const std::string& text);
/// One pair of each kind that has kernels for GPUs.
std::vector<RecipePair> usual_cuda_pairs();

/// Of `bench peaks`, and beside the products of `bench gemm`.
Json peaks_json(const CpuPeaks& peaks);
/// What the CPU's products ran with: threads, the instruction set, and `peaks`.
Json cpu_json(int threads, const CpuPeaks& peaks);

/// What benchmarks of products share: --pair, whose default are pairs of each kind; --repeats,
/// of each `what`; --device and --plan.
void add_pairs(CLI::App& command, std::vector<RecipePair>& pairs);
void add_product_repeats(CLI::App& command, int& repeats, const std::string& what);
void add_device_and_plan(CLI::App& command, bool& cuda, bool& plan);

/// --chip, of plans: the chip of that name, else the default one.
void add_chip(CLI::App& command, std::string& name);
cuda::Chip chip_of(const std::string& name);

void add_quantize(CLI::App& bench, Action& action);
void add_dequantize(CLI::App& bench, Action& action);
void add_copy(CLI::App& bench, Action& action);
void add_gemm_bench(CLI::App& bench, Action& action);
void add_grouped_gemm_bench(CLI::App& bench, Action& action);
void add_moe_bench(CLI::App& bench, Action& action);
void add_peaks(CLI::App& bench, Action& action);

}  // namespace blockscale::cli
