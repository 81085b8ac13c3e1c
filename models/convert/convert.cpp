// convert(): options, staging, shards, publication. The work itself is in plan.cpp (what) and
// run.cpp (how).
#include "blockscale/convert.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "blockscale/files.h"
#include "blockscale/hash.h"
#include "models/convert/checks/readability.h"
#include "models/convert/files/destination.h"
#include "models/convert/files/mistral_params.h"
#include "models/convert/files/other_files.h"
#include "models/convert/files/staging.h"
#include "models/convert/plan.h"
#include "models/convert/run.h"
#include "models/text.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using models::Json;
using models::Plan;

[[noreturn]] void refuse(const char* argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

void check_options(const ConvertOptions& options) {
  if (options.shard_bytes == 0) refuse("shard_bytes", "is 0, must be above 0");
  if (options.memory_bytes == 0) refuse("memory_bytes", "is 0, must be above 0");
  if (options.threads < 0) {
    refuse("threads", "is " + std::to_string(options.threads) + ", must be 0 (all) or above");
  }
  if (!std::isfinite(options.fp8_amax_floor) || options.fp8_amax_floor < 0) {
    refuse("fp8_amax_floor",
           "is " + std::to_string(options.fp8_amax_floor) + ", must be finite and at least 0");
  }
  if (options.mx_scale_mode && static_cast<int>(*options.mx_scale_mode) > 3) {
    refuse("mx_scale_mode", "is no mode, must be floor, ceil, even or even_e2m1");
  }
  if (options.activations && static_cast<int>(*options.activations) > 2) {
    refuse("activations", "is no choice, must be none, dynamic or static");
  }
  if (static_cast<int>(options.scales) > 2) {
    refuse("scales", "is no choice, must be amax, mse or weighted");
  }
  if (static_cast<int>(options.unused_inputs) > 1) {
    refuse("unused_inputs", "is no choice, must be drop or one");
  }
  if (options.experts_layout && static_cast<int>(*options.experts_layout) > 1) {
    refuse("experts_layout", "is no layout, must be out_in or in_out");
  }
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// What shows that a source file is not the one it was.
Json source_files(const TensorStore& store) {
  Json files = Json::array();
  for (const SafetensorsFile& file : store.files()) {
    std::string tensors;
    for (const TensorInfo& info : file.tensors()) {
      tensors += info.name + "|" + std::string(dtype_name(info.dtype));
      for (const std::int64_t size : info.shape) tensors += "," + std::to_string(size);
      tensors += "\n";
    }
    std::error_code error;
    const auto modified = fs::last_write_time(file.path(), error);
    const std::uintmax_t bytes = error ? 0 : fs::file_size(file.path(), error);
    if (error) throw_io(file.path(), "find", error.value());
    files.push_back({{"name", file.path().filename().string()},
                     {"bytes", bytes},
                     {"modified", modified.time_since_epoch().count()},
                     {"tensors", hash_bytes(tensors)}});
  }
  return files;
}

/// What the result depends on: a run that is resumed must have the same.
Json identity_of(const Plan& plan, const ConvertOptions& options) {
  Json map = Json::array();
  for (const auto& [glob, recipe] : options.map) map.push_back({glob, recipe_traits(recipe).name});
  const TensorStore& store = plan.source->store();
  const std::string configuration =
      text_of(store.folder() / "config.json") + text_of(store.folder() / "hf_quant_config.json");
  return {
      {"version", 1},
      {"recipe", recipe_traits(options.recipe).name},
      {"dialect", plan.destination->name},
      {"include", options.include},
      {"exclude", options.exclude},
      {"map", map},
      {"experts_layout",
       options.experts_layout ? Json(static_cast<int>(*options.experts_layout)) : Json()},
      {"share_tensor_scales", options.share_tensor_scales},
      {"activation_scales",
       options.activation_scales ? Json(hash_bytes(text_of(*options.activation_scales))) : Json()},
      {"scales", static_cast<int>(options.scales)},
      {"calibration",
       options.calibration ? Json(hash_bytes(text_of(*options.calibration))) : Json()},
      {"mx_scale_mode",
       options.mx_scale_mode ? Json(static_cast<int>(*options.mx_scale_mode)) : Json()},
      {"activations", options.activations ? Json(activations_name(*options.activations)) : Json()},
      {"unused_inputs", static_cast<int>(options.unused_inputs)},
      {"fp8_amax_floor", options.fp8_amax_floor},
      {"shard_bytes", options.shard_bytes},
      {"allow_nonfinite", options.allow_nonfinite},
      {"configuration", hash_bytes(configuration)},
      {"copy_all", options.copy_all},
      {"source", source_files(store)}};
}

ConvertReport report_of(const Plan& plan) {
  ConvertReport report;
  report.source_dialect = plan.source->dialect().dialect;
  report.dialect = plan.destination->dialect;
  report.source_bytes = plan.source_bytes;
  report.bytes = plan.bytes;
  report.warnings = plan.warnings;
  report.activations = plan.activations;
  for (const models::PlannedTensor& planned : plan.tensors) {
    const CheckpointTensor& tensor = plan.source->tensors()[planned.source];
    report.tensors.push_back({tensor.name, tensor.recipe, tensor.form, planned.recipe,
                              planned.converted, planned.reason, planned.rule, tensor.bytes,
                              planned.bytes, std::nullopt});
  }
  return report;
}

/// Everything that a conversion makes, and where.
struct Output {
  fs::path target;
  bool is_file = false;
  models::OtherFiles others;
  std::map<std::string, std::string> configurations;  // by name
  mode_t mode = 0666;                                 // of shards and configurations

  std::set<std::string> paths(const Plan& plan) const {
    std::set<std::string> paths;
    for (const models::PlannedShard& shard : plan.shards) paths.insert(shard.file);
    for (const models::OtherFile& file : others.copied) paths.insert(file.path);
    for (const auto& [name, text] : configurations) paths.insert(name);
    return paths;
  }
};

Output output_of(const Plan& plan, const fs::path& target, bool copy_all) {
  Output output;
  output.target = target;
  const TensorStore& store = plan.source->store();
  output.is_file = !store.is_folder();
  output.mode = models::inherited_mode(store);
  if (output.is_file) return output;
  std::set<std::string> written;
  if (!plan.all_verbatim) {
    written = {"config.json", "hf_quant_config.json"};
    if (models::mistral_params(*plan.source)) written.insert(models::kMistralParams);
  }
  for (const models::PlannedShard& shard : plan.shards) written.insert(shard.file);
  output.others = models::list_other_files(store, written, copy_all);
  output.configurations = models::configuration_files(plan, output.others.needs_index);
  models::check_will_be_read(plan, output.configurations);
  return output;
}

/// Bytes that are still to be written.
std::uint64_t missing_bytes(const Plan& plan, const Output& output,
                            const std::vector<bool>& finished) {
  std::uint64_t bytes = 0;
  const auto add = [&](std::uint64_t file) { bytes += (file + 4095) / 4096 * 4096; };
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    if (!finished[shard]) add(models::file_bytes(plan.shards[shard]));
  }
  for (const models::OtherFile& file : output.others.copied) {
    add(static_cast<std::uint64_t>(file.status.st_size));
  }
  for (const auto& [name, text] : output.configurations) add(text.size());
  return bytes;
}

/// Whoever reads the result meets no surprise that we could have met.
void check_readable(const fs::path& folder) {
  try {
    (void)models::StoredCheckpoint::open(folder);
  } catch (const Error& error) {
    throw Error(ErrorCode::unsupported, "destination",
                std::string("would not be readable: ") + error.what());
  }
}

void build(const Plan& plan, const Output& output, models::ConvertRun& run,
           models::Staging& staging, ConvertReport& report) {
  const TensorStore& source = plan.source->store();
  std::vector<bool> finished;
  for (const auto& shard : plan.shards) finished.push_back(staging.is_finished(shard.file));
  models::check_space(staging.result(), missing_bytes(plan, output, finished), output.target);
  const Json before = source_files(source);
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    if (finished[shard]) {
      run.skip_shard(shard);
      ++report.shards_reused;
      continue;
    }
    run.run_shard(shard, staging.result(), output.mode);
    staging.record(plan.shards[shard].file);
  }
  for (const auto& [tensor, errors] : run.scale_errors()) {
    report.tensors[tensor].error_ratio = errors.amax > 0 ? errors.chosen / errors.amax : 1.0;
  }
  for (const auto& [tensor, blocks] : run.blocks()) {
    report.exact_blocks += blocks.exact;
    report.blocks += blocks.all;
    report.tensors[tensor].reason = "codes of " + std::to_string(blocks.exact) + " of " +
                                    std::to_string(blocks.all) +
                                    " blocks copied, as e4m3 holds their scales";
  }
  models::copy_other_files(source, output.others.copied, staging.result());
  for (const auto& [name, text] : output.configurations) {
    write_file_atomically(staging.result(), name, text, output.mode);
  }
  if (source_files(source) != before) {
    throw Error(ErrorCode::io, source.folder().string(), "changed during the conversion");
  }
  if (!output.is_file) check_readable(staging.result().path());
}

/// What stays of a conversion that did not end, and how to go on; follows the text of its error.
std::string kept_text(const Plan& plan, const Output& output, const models::Staging& staging) {
  return "; " + std::to_string(staging.finished_shards()) + " of " +
         std::to_string(plan.shards.size()) +
         (plan.shards.size() == 1 ? " file is finished" : " files are finished") + " and kept in " +
         models::staging_folder(output.target).string() + "; resume continues it";
}

/// The text of an error without the argument, which it starts with.
std::string message_of(const Error& error) {
  return std::string(error.what()).substr(error.argument().size() + 2);
}

/// Builds and publishes. What was stopped, found the disk full or something in the destination's
/// place can be resumed; what failed otherwise leaves nothing behind.
void build_and_publish(const Plan& plan, const Output& output, bool overwrite,
                       models::ConvertRun& run, models::Staging& staging, ConvertReport& report) {
  try {
    models::check_vacant(output.target, output.is_file, overwrite);
    build(plan, output, run, staging, report);
    if (overwrite) models::check_vacant(output.target, output.is_file, true);
    staging.publish(overwrite);
  } catch (const NoSpaceError& error) {
    if (staging.finished_shards() == 0) {
      staging.discard();
      throw;
    }
    throw NoSpaceError(error.code(), error.argument(),
                       message_of(error) + kept_text(plan, output, staging));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) {
      throw Error(error.code(), error.argument(),
                  message_of(error) + kept_text(plan, output, staging));
    }
    const bool in_the_way =
        error.code() == ErrorCode::already_exists || error.code() == ErrorCode::invalid_argument;
    if (!in_the_way || staging.finished_shards() == 0) staging.discard();
    throw;
  } catch (...) {
    staging.discard();
    throw;
  }
}

}  // namespace

ConvertReport convert(const fs::path& source, const fs::path& destination,
                      const ConvertOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_options(options);
  const fs::path target = models::normal_destination(destination);
  const auto checkpoint = models::StoredCheckpoint::open(source);
  const bool is_file = !checkpoint->store().is_folder();
  models::check_apart(target, source, checkpoint->store(), options);
  std::error_code ignored;
  const bool may_be_published =
      options.resume && fs::exists(models::staging_folder(target), ignored);
  if (!may_be_published) models::check_vacant(target, is_file, options.overwrite);

  const Plan plan =
      models::make_plan(checkpoint, options, is_file ? target.filename().string() : "");
  const Output output = output_of(plan, target, options.copy_all);
  ConvertReport report = report_of(plan);
  report.not_copied = output.others.not_copied;
  report.disk_bytes = missing_bytes(plan, output, std::vector<bool>(plan.shards.size(), false));
  if (options.dry_run) {
    report.free_bytes = models::free_space(Folder::open(target.parent_path()));
    return report;
  }
  models::ConvertRun run(plan, options);
  models::Staging staging(target, is_file, identity_of(plan, options), output.paths(plan),
                          options.resume, options.threads);
  if (staging.was_published()) {
    report.shards_reused = static_cast<int>(plan.shards.size());
    staging.discard();
  } else {
    build_and_publish(plan, output, options.overwrite, run, staging, report);
  }
  report.partial_discarded = staging.discarded();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace blockscale
