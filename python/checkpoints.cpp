// Checkpoint, convert and compare.
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>

#include "blockscale/convert.h"
#include "module.h"

namespace blockscale::python {
namespace {

using ByteArray = nb::ndarray<nb::numpy, const std::uint8_t>;

/// Bytes of a mapping as an array that keeps the checkpoint open.
ByteArray mapped_array(const Checkpoint& checkpoint, const void* data,
                       std::initializer_list<std::size_t> shape) {
  auto* owner = new Checkpoint(checkpoint);
  const nb::capsule capsule(owner, [](void* p) noexcept { delete static_cast<Checkpoint*>(p); });
  return ByteArray(data, shape, capsule);
}

const CheckpointTensor& require_tensor(const Checkpoint& checkpoint, const std::string& name) {
  const CheckpointTensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) throw nb::key_error(name.c_str());
  return *tensor;
}

/// Part, name, dtype, shape and layout.
using NamedPart =
    std::tuple<std::string, std::string, std::string, std::vector<std::int64_t>, ScaleLayout>;
/// Of each tensor that a dialect stores for the weight of a layer, by its name within the layer.
std::vector<NamedPart> named_parts(Dialect dialect, Recipe recipe,
                                   const std::vector<std::int64_t>& shape,
                                   Activations activations) {
  const std::string layer = "layer.";
  std::vector<NamedPart> result;
  for (const StoredPart& part :
       stored_parts(dialect, recipe, layer + "weight", shape, activations)) {
    result.emplace_back(part.part, part.info.name.substr(layer.size()),
                        std::string(dtype_name(part.info.dtype)), part.info.shape, part.layout);
  }
  return result;
}

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

/// What the Python half needs to build a ScaledTensor over the mapping; arrays are flat bytes.
nb::dict scaled_parts(const Checkpoint& checkpoint, const std::string& name) {
  const ScaledTensorView view =
      resolved(checkpoint.view(require_tensor(checkpoint, name)), name.c_str());
  nb::dict parts;
  parts["recipe"] = view.recipe;
  parts["layout"] = view.layout;
  parts["sense"] = view.sense;
  parts["shape"] = nb::make_tuple(view.batch, view.rows, view.k);
  parts["values"] = mapped_array(checkpoint, view.values,
                                 {size(view.batch), size(view.rows), size(view.value_row_stride)});
  const std::int64_t bytes = scale_bytes(view.recipe, view.layout, view.rows, view.k, view.batch);
  parts["scales"] = mapped_array(checkpoint, view.scales, {size(bytes)});
  if (view.tensor_scale != nullptr) {
    const std::size_t count = view.tensor_scale_batch_stride == 0 ? 1 : size(view.batch);
    parts["tensor_scale"] = mapped_array(checkpoint, view.tensor_scale, {count * sizeof(float)});
  }
  return parts;
}

/// Stored bytes of a plain tensor and the name of its dtype in the file.
nb::tuple plain_parts(const Checkpoint& checkpoint, const std::string& name) {
  (void)require_tensor(checkpoint, name);
  const TensorStore::Entry* entry = checkpoint.store().find(name);
  if (entry == nullptr) throw nb::key_error(name.c_str());
  const std::span<const std::byte> data = checkpoint.store().data(*entry);
  return nb::make_tuple(mapped_array(checkpoint, data.data(), {data.size()}),
                        std::string(dtype_name(entry->info.dtype)), entry->info.shape);
}

/// `plan_weights` of tensors by name, dtype and shape.
std::vector<PlannedWeight> planned_weights(
    const std::vector<std::tuple<std::string, std::string, std::vector<std::int64_t>>>& tensors,
    const std::string& config, const ConvertOptions& options) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, dtype, shape] : tensors) {
    infos.push_back({name, dtype_from_name(dtype).value(), shape});
    infos.back().bytes = tensor_bytes(infos.back().dtype, shape);
  }
  return plan_weights(infos, config, options);
}

/// Runs `convert` on another thread, so that this one (which holds Python's signal handling) can
/// react to Ctrl-C and call `progress` with the GIL.
class ConversionRun {
 public:
  ConversionRun(std::filesystem::path source, std::filesystem::path destination,
                ConvertOptions options)
      : options_(std::move(options)) {
    options_.progress = [this](const ConvertProgress& progress) {
      const std::lock_guard lock(mutex_);
      latest_ = progress;
      return !stop_;
    };
    future_ = std::async(std::launch::async,
                         [this, from = std::move(source), to = std::move(destination)] {
                           return convert(from, to, options_);
                         });
  }

  /// False once the conversion has ended.
  bool wait() {
    const nb::gil_scoped_release release;
    return future_.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready;
  }

  std::optional<ConvertProgress> take_progress() {
    const std::lock_guard lock(mutex_);
    return std::exchange(latest_, std::nullopt);
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }

  ConvertReport result() { return future_.get(); }

 private:
  ConvertOptions options_;
  std::mutex mutex_;
  std::optional<ConvertProgress> latest_;
  bool stop_ = false;
  std::future<ConvertReport> future_;
};

ConvertReport run_conversion(const std::filesystem::path& source,
                             const std::filesystem::path& destination,
                             const ConvertOptions& options, nb::object progress) {
  ConversionRun run(source, destination, options);
  const auto report_progress = [&] {
    const std::optional<ConvertProgress> latest = run.take_progress();
    if (latest && !progress.is_none()) {
      progress(latest->source_bytes_done, latest->source_bytes_total, latest->tensor);
    }
  };
  try {
    while (run.wait()) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      report_progress();
    }
  } catch (const nb::python_error& error) {
    run.stop();
    while (run.wait()) {
    }
    // The library's text says what stays and how to go on.
    if (error.matches(PyExc_KeyboardInterrupt)) (void)run.result();
    throw;
  }
  report_progress();
  return run.result();
}

/// "'a.weight'": as Python writes a text.
std::string quoted(const std::string& text) {
  return nb::cast<std::string>(nb::repr(nb::cast(text)));
}

const char* name_of(Recipe recipe) {
  return recipe_traits(recipe).name;
}

/// "plain -> modelopt, 1000 -> 300 bytes".
template <class T>
std::string change(const T& from, const T& to) {
  if constexpr (std::is_arithmetic_v<T>) {
    return change(std::to_string(from), std::to_string(to)) + " bytes";
  } else {
    return std::string(from) + " -> " + std::string(to);
  }
}

std::string repr(const ConvertedTensor& t) {
  const std::string fate =
      t.converted ? change(name_of(t.source_recipe), name_of(t.recipe)) : "kept: " + t.reason;
  return "ConvertedTensor(" + quoted(t.name) + ", " + fate + ", " +
         change(t.source_bytes, t.bytes) + ")";
}

std::string repr(const NotCopied& file) {
  return "NotCopied(" + quoted(file.path) + ", " + std::to_string(file.bytes) +
         " bytes: " + file.reason + ")";
}

std::string repr(const ConvertReport& report) {
  const auto converted = std::ranges::count_if(report.tensors, &ConvertedTensor::converted);
  return "ConvertReport(" + std::to_string(converted) + " of " +
         std::to_string(report.tensors.size()) + " tensors converted, " +
         change(dialect_name(report.source_dialect), dialect_name(report.dialect)) + ", " +
         change(report.source_bytes, report.bytes) + ")";
}

/// "SQNR 20.43 dB", or the status where that is no number.
std::string sqnr_text(const TensorComparison& t) {
  if (t.status != ComparisonStatus::differs) return comparison_status_name(t.status);
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "SQNR %.2f dB", t.sqnr_db);
  return text.data();
}

std::string repr(const TensorComparison& t) {
  return "TensorComparison(" + quoted(t.name) + ", " + change(t.recipe_a, t.recipe_b) + ", " +
         sqnr_text(t) + ")";
}

std::string repr(const CompareReport& report) {
  return "CompareReport(" + std::to_string(report.converted) + " of " +
         std::to_string(report.tensors.size()) + " tensors converted, " + sqnr_text(report.total) +
         ")";
}

std::string repr(const WeightInputs& inputs) {
  std::string text = std::string("WeightInputs(") + activations_name(inputs.activations);
  if (inputs.activations != Activations::none) text += std::string(", ") + name_of(inputs.recipe);
  return text + ")";
}

std::string repr(const CheckpointTensor& t) {
  const bool named =
      t.quantized || t.dtype == DType::F32 || t.dtype == DType::F16 || t.dtype == DType::BF16;
  std::string shape;
  for (const std::int64_t size : t.shape)
    shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return "TensorInfo(" + quoted(t.name) + ", " +
         (named ? name_of(t.recipe) : std::string(dtype_name(t.dtype))) + ", [" + shape + "], " +
         std::to_string(t.bytes) + " bytes)";
}

/// A type of results, with its __repr__.
template <class T>
nb::class_<T> bind_result(nb::module_& module, const char* name, const char* doc) {
  return nb::class_<T>(module, name, doc).def("__repr__", [](const T& t) { return repr(t); });
}

void bind_reports(nb::module_& module) {
  bind_result<ConvertedTensor>(module, "ConvertedTensor", "What became of one tensor.")
      .def_ro("name", &ConvertedTensor::name)
      .def_ro("source_recipe", &ConvertedTensor::source_recipe)
      .def_ro("recipe", &ConvertedTensor::recipe)
      .def_ro("converted", &ConvertedTensor::converted)
      .def_ro("reason", &ConvertedTensor::reason, "Why it was kept, or what else was done.")
      .def_ro("rule", &ConvertedTensor::rule, "The option and pattern that chose that.")
      .def_ro("source_bytes", &ConvertedTensor::source_bytes)
      .def_ro("bytes", &ConvertedTensor::bytes)
      .def_ro("error_ratio", &ConvertedTensor::error_ratio,
              "Searched scales: squared error over that of min-max scales; None of others.");
  bind_result<NotCopied>(module, "NotCopied", "A file, or folder/, that was left behind, and why.")
      .def_ro("path", &NotCopied::path)
      .def_ro("bytes", &NotCopied::bytes)
      .def_ro("reason", &NotCopied::reason);
  bind_result<ConvertReport>(module, "ConvertReport", "Result of a conversion; sizes in bytes.")
      .def_ro("source_dialect", &ConvertReport::source_dialect)
      .def_ro("dialect", &ConvertReport::dialect)
      .def_ro("tensors", &ConvertReport::tensors)
      .def_ro("activations", &ConvertReport::activations,
              "How inputs are quantized and why, a line for each recipe.")
      .def_ro("warnings", &ConvertReport::warnings)
      .def_ro("source_bytes", &ConvertReport::source_bytes)
      .def_ro("bytes", &ConvertReport::bytes)
      .def_ro("exact_blocks", &ConvertReport::exact_blocks,
              "Of `blocks`: MXFP4 that became NVFP4 without loss.")
      .def_ro("blocks", &ConvertReport::blocks, "Of MXFP4 that became NVFP4.")
      .def_ro("shards_reused", &ConvertReport::shards_reused)
      .def_ro("partial_discarded", &ConvertReport::partial_discarded)
      .def_ro("not_copied", &ConvertReport::not_copied)
      .def_ro("disk_bytes", &ConvertReport::disk_bytes, "That all files of the result need.")
      .def_ro("free_bytes", &ConvertReport::free_bytes, "Of a dry run: what the disk has free.")
      .def_ro("seconds", &ConvertReport::seconds);
  bind_result<TensorComparison>(module, "TensorComparison",
                                "Difference of one tensor: sqnr_db = 10 log10(sum a^2 / sum "
                                "(a - b)^2), errors absolute, sizes in bytes.")
      .def_ro("name", &TensorComparison::name)
      .def_ro("recipe_a", &TensorComparison::recipe_a)
      .def_ro("recipe_b", &TensorComparison::recipe_b)
      .def_ro("shape", &TensorComparison::shape)
      .def_prop_ro(
          "status",
          [](const TensorComparison& t) { return std::string(comparison_status_name(t.status)); },
          "\"equal\", \"differs\", \"ruined\" (sqnr_db is NaN or -inf) or \"not_compared\".")
      .def_ro("converted", &TensorComparison::converted,
              "Whether recipe, dtype or values differ: counts in the total.")
      .def_ro("sqnr_db", &TensorComparison::sqnr_db)
      .def_ro("signal", &TensorComparison::signal, "Sum of a^2.")
      .def_ro("noise", &TensorComparison::noise, "Sum of (a - b)^2.")
      .def_ro("max_error", &TensorComparison::max_error)
      .def_ro("mean_error", &TensorComparison::mean_error)
      .def_ro("bytes_a", &TensorComparison::bytes_a)
      .def_ro("bytes_b", &TensorComparison::bytes_b);
  bind_result<CompareReport>(module, "CompareReport",
                             "Differences of two checkpoints: tensors, the ruined ones first; the "
                             "total over the `converted` ones; names that count nowhere.")
      .def_ro("tensors", &CompareReport::tensors)
      .def_ro("converted", &CompareReport::converted)
      .def_ro("total", &CompareReport::total)
      .def_ro("only_a", &CompareReport::only_a)
      .def_ro("only_b", &CompareReport::only_b)
      .def_ro("different_shape", &CompareReport::different_shape);
}

void bind_options(nb::module_& module) {
  nb::enum_<Dialect>(module, "Dialect", "How quantized weights are named and described on disk.")
      .value("plain", Dialect::plain, "Not quantized.")
      .value("deepseek", Dialect::deepseek, "FP8 blocks with weight_scale_inv, as DeepSeek-V3's.")
      .value("modelopt", Dialect::modelopt, "NVIDIA ModelOpt's.")
      .value("compressed_tensors", Dialect::compressed_tensors,
             "compressed-tensors', as llm-compressor writes them.")
      .value("gpt_oss", Dialect::gpt_oss, "MXFP4 experts of gpt-oss; read only.")
      .value("lightx2v", Dialect::lightx2v, "LightX2V's, block scales swizzled.")
      .value("torchao", Dialect::torchao, "torchao's flattened tensor classes; read only.")
      .value("comfy", Dialect::comfy, "ComfyUI's, of comfy-kitchen's layouts; read only.");
  nb::enum_<ExpertsLayout>(module, "ExpertsLayout", "How a stack of experts is stored.")
      .value("out_in", ExpertsLayout::out_in, "[experts, outputs, inputs]: can be quantized.")
      .value("in_out", ExpertsLayout::in_out, "[experts, inputs, outputs]: stays plain.");
  nb::enum_<UnusedInputs>(module, "UnusedInputs", "What becomes of input scales of 0.")
      .value("drop", UnusedInputs::drop, "They go, with all others of the recipe.")
      .value("one", UnusedInputs::one, "1 is stored for them.");
  nb::class_<ConvertOptions>(module, "ConvertOptions")
      .def(nb::init<>())
      .def_rw("recipe", &ConvertOptions::recipe)
      .def_rw("dialect", &ConvertOptions::dialect)
      .def_rw("include", &ConvertOptions::include)
      .def_rw("exclude", &ConvertOptions::exclude)
      .def_rw("map", &ConvertOptions::map)
      .def_rw("experts_layout", &ConvertOptions::experts_layout)
      .def_rw("share_tensor_scales", &ConvertOptions::share_tensor_scales)
      .def_rw("activation_scales", &ConvertOptions::activation_scales)
      .def_rw("activations", &ConvertOptions::activations)
      .def_rw("unused_inputs", &ConvertOptions::unused_inputs)
      .def_rw("scales", &ConvertOptions::scales)
      .def_rw("calibration", &ConvertOptions::calibration)
      .def_rw("scale_mode", &ConvertOptions::mx_scale_mode)
      .def_rw("amax_floor", &ConvertOptions::fp8_amax_floor)
      .def_rw("shard_bytes", &ConvertOptions::shard_bytes)
      .def_rw("memory_bytes", &ConvertOptions::memory_bytes)
      .def_rw("threads", &ConvertOptions::threads)
      .def_rw("resume", &ConvertOptions::resume)
      .def_rw("overwrite", &ConvertOptions::overwrite)
      .def_rw("copy_all", &ConvertOptions::copy_all)
      .def_rw("allow_nonfinite", &ConvertOptions::allow_nonfinite)
      .def_rw("dry_run", &ConvertOptions::dry_run);
}

}  // namespace

void bind_checkpoints(nb::module_& module) {
  bind_options(module);
  bind_reports(module);
  bind_result<CheckpointTensor>(module, "TensorInfo", "A weight as the model knows it.")
      .def_ro("name", &CheckpointTensor::name)
      .def_ro("shape", &CheckpointTensor::shape)
      .def_ro("quantized", &CheckpointTensor::quantized)
      .def_ro("column_factors", &CheckpointTensor::column_factors)
      .def_ro("form", &CheckpointTensor::form)
      .def_ro("recipe", &CheckpointTensor::recipe)
      .def_prop_ro("dtype",
                   [](const CheckpointTensor& t) { return std::string(dtype_name(t.dtype)); })
      .def_ro("bytes", &CheckpointTensor::bytes);
  bind_result<WeightInputs>(module, "WeightInputs",
                            "How the inputs of a quantized weight are quantized.")
      .def_ro("activations", &WeightInputs::activations)
      .def_ro("recipe", &WeightInputs::recipe, "What they become; f32: they stay as they are.")
      .def_ro("scales", &WeightInputs::scales,
              "Of static ones: NVFP4's tensor scale in the weight's sense, FP8's scale.");
  nb::class_<Checkpoint>(module, "Checkpoint")
      .def_static("open", &Checkpoint::open, nb::arg("path"),
                  nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("dialect", &Checkpoint::dialect)
      .def_prop_ro("tensors", &Checkpoint::tensors)
      .def("info", &require_tensor, nb::arg("name"), nb::rv_policy::reference_internal)
      .def(
          "problem",
          [](const Checkpoint& checkpoint, const std::string& name) {
            return checkpoint.problem(require_tensor(checkpoint, name));
          },
          nb::arg("name"))
      .def(
          "inputs",
          [](const Checkpoint& checkpoint, const std::string& name) {
            return checkpoint.inputs(require_tensor(checkpoint, name));
          },
          nb::arg("name"))
      .def("scaled_parts", &scaled_parts, nb::arg("name"))
      .def("plain_parts", &plain_parts, nb::arg("name"));
  module.def("convert", &run_conversion, nb::arg("source"), nb::arg("destination"),
             nb::arg("options"), nb::arg("progress").none());
  nb::class_<PlannedWeight>(module, "PlannedWeight")
      .def_ro("name", &PlannedWeight::name)
      .def_ro("recipe", &PlannedWeight::recipe)
      .def_ro("converted", &PlannedWeight::converted)
      .def_ro("reason", &PlannedWeight::reason)
      .def_ro("rule", &PlannedWeight::rule)
      .def_ro("inputs", &PlannedWeight::inputs)
      .def_ro("group", &PlannedWeight::group)
      .def_ro("scale_mode", &PlannedWeight::mx_scale_mode)
      .def_ro("channel_weights", &PlannedWeight::channel_weights)
      .def_ro("channel_means", &PlannedWeight::channel_means);
  module.def("plan_weights", &planned_weights, nb::arg("tensors"), nb::arg("config"),
             nb::arg("options"));
  module.def("stored_parts", &named_parts, nb::arg("dialect"), nb::arg("recipe"), nb::arg("shape"),
             nb::arg("activations"));
  module.def("default_dialect", &default_dialect, nb::arg("recipe"));
  module.def("dialect_can_say", &dialect_can_say, nb::arg("dialect"), nb::arg("recipe"));
  module.def("dialect_sense", &dialect_sense, nb::arg("dialect"));
  module.def("input_recipe", &input_recipe, nb::arg("recipe"), nb::arg("activations"));
  module.def("matching_weights", &matching_weights, nb::arg("weights"), nb::arg("patterns"),
             nb::arg("argument"));
  module.def("read_recipe_file", &read_recipe_file, nb::arg("path"));
  module.def("compare", &compare, nb::arg("a"), nb::arg("b"), nb::arg("threads"),
             nb::arg("tensors"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace blockscale::python
