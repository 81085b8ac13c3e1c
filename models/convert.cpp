// convert(): options, staging, shards, publication. The work itself is in convert_plan.cpp (what)
// and convert_run.cpp (how).
#include "blockscale/convert.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>

#include "blockscale/files.h"
#include "models/convert_plan.h"
#include "models/convert_run.h"
#include "models/other_files.h"
#include "models/staging.h"
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
  if (options.mx_scale_mode && static_cast<int>(*options.mx_scale_mode) > 2) {
    refuse("mx_scale_mode", "is no mode, must be floor, ceil or even");
  }
  if (options.experts_layout && static_cast<int>(*options.experts_layout) > 1) {
    refuse("experts_layout", "is no layout, must be out_in or in_out");
  }
}

bool is_within(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

/// The destination without links, "." and trailing slashes.
fs::path normal_destination(const fs::path& destination) {
  if (destination.empty()) refuse("destination", "is empty, must name a file or folder");
  const fs::path named = destination.has_filename() ? destination : destination.parent_path();
  std::error_code error;
  fs::path result = fs::weakly_canonical(fs::absolute(named), error);
  if (error) throw_io(destination, "find", error.value());
  if (!result.has_filename()) refuse("destination", quote(result.string()) + " names no folder");
  if (!fs::is_directory(result.parent_path(), error)) {
    throw Error(ErrorCode::not_found, "destination",
                "its folder " + quote(result.parent_path().string()) + " does not exist");
  }
  return result;
}

void check_destination(const TensorStore& source, const fs::path& destination) {
  const fs::path home = fs::canonical(source.folder());
  if (!source.is_folder()) {
    if (destination == home / source.files()[0].path().filename()) {
      refuse("destination", "is the source itself, must be another file");
    }
    return;
  }
  if (is_within(destination, home)) {
    refuse("destination",
           quote(destination.string()) + " lies in the source, must be a folder outside of it");
  }
  if (is_within(home, destination)) {
    refuse("destination", quote(destination.string()) + " holds the source, must not");
  }
}

/// Refuses a destination that is there, or that `overwrite` should not replace.
void check_vacant(const fs::path& destination, bool is_file, bool overwrite) {
  std::error_code ignored;
  const fs::file_status status = fs::symlink_status(destination, ignored);
  if (!fs::exists(status)) return;
  const auto fail = [&](const std::string& message) {
    throw Error(ErrorCode::already_exists, destination.string(), message);
  };
  if (!overwrite) fail("exists; overwrite replaces it");
  const bool folder = fs::is_directory(status);
  if (folder == is_file) {
    fail(folder ? "is a folder, a file was to be written"
                : "is a file, a folder was to be written");
  }
  if (!folder || fs::is_empty(destination, ignored)) return;
  const fs::directory_iterator entries(destination, ignored);
  const bool is_checkpoint = std::any_of(begin(entries), end(entries), [](const auto& entry) {
    return entry.path().extension() == ".safetensors";
  });
  if (!is_checkpoint) fail("is a folder without safetensors files; overwrite does not replace it");
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// What the result depends on: a run that is resumed must have the same.
Json identity_of(const Plan& plan, const ConvertOptions& options) {
  Json map = Json::array();
  for (const auto& [glob, recipe] : options.map) map.push_back({glob, recipe_traits(recipe).name});
  Json files = Json::array();
  const TensorStore& store = plan.source->store();
  for (const SafetensorsFile& file : store.files()) {
    std::string tensors;
    for (const TensorInfo& info : file.tensors()) {
      tensors += info.name + "|" + std::string(dtype_name(info.dtype));
      for (const std::int64_t size : info.shape) tensors += "," + std::to_string(size);
      tensors += "\n";
    }
    files.push_back({{"name", file.path().filename().string()},
                     {"bytes", file.file_bytes()},
                     {"modified", fs::last_write_time(file.path()).time_since_epoch().count()},
                     {"tensors", models::hash_bytes(tensors)}});
  }
  const std::string configuration =
      text_of(store.folder() / "config.json") + text_of(store.folder() / "hf_quant_config.json");
  return {{"version", 1},
          {"recipe", recipe_traits(options.recipe).name},
          {"dialect", plan.destination->name},
          {"include", options.include},
          {"exclude", options.exclude},
          {"map", map},
          {"experts_layout",
           options.experts_layout ? Json(static_cast<int>(*options.experts_layout)) : Json()},
          {"share_tensor_scales", options.share_tensor_scales},
          {"activation_scales", options.activation_scales
                                    ? Json(models::hash_bytes(text_of(*options.activation_scales)))
                                    : Json()},
          {"mx_scale_mode", static_cast<int>(plan.mx_scale_mode)},
          {"fp8_amax_floor", options.fp8_amax_floor},
          {"shard_bytes", options.shard_bytes},
          {"allow_nonfinite", options.allow_nonfinite},
          {"configuration", models::hash_bytes(configuration)},
          {"source", files}};
}

ConvertReport report_of(const Plan& plan) {
  ConvertReport report;
  report.source_dialect = plan.source->dialect().dialect;
  report.dialect = plan.destination->dialect;
  report.source_bytes = plan.source_bytes;
  report.bytes = plan.bytes;
  report.warnings = plan.warnings;
  for (const models::PlannedTensor& planned : plan.tensors) {
    const CheckpointTensor& tensor = plan.source->tensors()[planned.source];
    report.tensors.push_back({tensor.name, tensor.recipe, planned.recipe, planned.converted,
                              planned.reason, tensor.bytes, planned.bytes});
  }
  return report;
}

/// Everything beside the shards.
void write_other_files(const Plan& plan, const fs::path& folder) {
  std::set<std::string> written;
  if (!plan.all_verbatim) written = {"config.json", "hf_quant_config.json"};
  models::copy_other_files(plan.source->store(), written, folder);
  for (const auto& [name, text] : models::configuration_files(plan)) {
    write_file_atomically(folder / name, text);
  }
}

void build(const Plan& plan, const ConvertOptions& options, bool is_file, models::Staging& staging,
           ConvertReport& report) {
  models::ConvertRun run(plan, options);
  for (std::size_t shard = 0; shard < plan.shards.size(); ++shard) {
    const std::string& file = plan.shards[shard].file;
    if (staging.is_finished(file)) {
      run.skip_shard(shard);
      ++report.shards_reused;
      continue;
    }
    run.run_shard(shard, staging.result());
    staging.record(file);
  }
  if (!is_file) write_other_files(plan, staging.result());
}

}  // namespace

ConvertReport convert(const fs::path& source, const fs::path& destination,
                      const ConvertOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  check_options(options);
  const fs::path target = normal_destination(destination);
  const auto checkpoint = models::StoredCheckpoint::open(source);
  const bool is_file = !checkpoint->store().is_folder();
  check_destination(checkpoint->store(), target);
  std::error_code ignored;
  const bool may_be_published =
      options.resume && fs::exists(models::staging_folder(target), ignored);
  if (!may_be_published) check_vacant(target, is_file, options.overwrite);

  const Plan plan =
      models::make_plan(checkpoint, options, is_file ? target.filename().string() : "");
  ConvertReport report = report_of(plan);
  models::Staging staging(target, is_file, identity_of(plan, options), options.resume,
                          options.threads);
  if (staging.was_published()) {
    report.shards_reused = static_cast<int>(plan.shards.size());
    staging.discard();
  } else {
    try {
      check_vacant(target, is_file, options.overwrite);
      build(plan, options, is_file, staging, report);
      staging.publish(options.overwrite);
    } catch (const Error& error) {
      // What was stopped can be resumed; what failed leaves nothing behind.
      if (error.code() != ErrorCode::interrupted) staging.discard();
      throw;
    } catch (...) {
      staging.discard();
      throw;
    }
  }
  report.partial_discarded = staging.discarded();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace blockscale
