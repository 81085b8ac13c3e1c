// The keys that a dialect's configuration may hold, as data. A key that says how weights are to be
// read and that is not known here, or has a value that is not, is refused, never ignored.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/dialects/dialect.h"

namespace blockscale::models {

enum class KeyValue : std::uint8_t {
  any,      // changes no weight, or is read elsewhere
  unused,   // must say nothing: false, "", [] or {}
  one_of,   // one of `of`, a JSON array
  object,   // an object of the kind `of`
  objects,  // an object of named objects of the kind `of`
};

/// One key of one kind of object. Every key may also be null, which says nothing.
struct KnownKey {
  const char* kind;
  const char* key;
  KeyValue value;
  const char* of = "";
};

/// Where `config` describes how its weights are quantized: "quantization_config" and the older
/// "compression_config", of the model or (multimodal ones) of a part of it. By path, nearest to the
/// top first. Pointers go into `config`.
std::vector<std::pair<std::string, const Json*>> find_quantization(const Json& config);

/// Removes what `find_quantization` finds, and a `quantization` with a quant_algo: they would
/// contradict what is written.
void erase_quantization(Json& config);

/// Checks `object`, of the kind `kind` and called `path` in messages, and what is nested in it.
/// Throws unsupported naming the key, or corrupt_file where an object must be and is none.
void check_keys(const Json& object, const char* kind, std::span<const KnownKey> known,
                const std::string& path, const SourceConfig& config);

}  // namespace blockscale::models
