// SPDX-License-Identifier: Apache-2.0
// Writes the JSON of `inspect` as it goes: a checkpoint of many ranks has millions of chunks.
#include <ostream>
#include <string>
#include <vector>

#include "formats/bytes/base/json_writer.h"
#include "tools/base/reading.h"
#include "tools/text/value_text.h"
#include "tools/verbs/contents/inspect.h"

namespace fsdp::cli {
namespace {

using formats::Json;
using formats::JsonWriter;

void numbers(JsonWriter& json, std::span<const std::int64_t> values) {
  json.begin_array();
  for (const std::int64_t value : values) json.number(value);
  json.end_array();
}

void key_and_path(JsonWriter& json, const std::string& key, const formats::KeyPath& path) {
  json.key("key").text(key).key("path").begin_array();
  for (const formats::PathStep& step : path) {
    if (const auto* name = std::get_if<std::string>(&step)) {
      json.text(*name);
    } else {
      json.number(std::get<std::int64_t>(step));
    }
  }
  json.end_array();
}

void chunk(JsonWriter& json, const formats::Index& index, const formats::ChunkList& chunks,
           std::size_t number) {
  const formats::BoxView box = chunks.box(number);
  const formats::Location& place = chunks.location(number);
  json.begin_object().key("offset");
  numbers(json, box.offset);
  json.key("shape");
  numbers(json, box.size);
  json.key("file").text(index.files[place.file].name);
  json.member("begin", place.offset).member("length", place.length).end_object();
}

void tensor(JsonWriter& json, const formats::Index& index, const formats::TensorEntry& entry) {
  json.begin_object();
  key_and_path(json, entry.key, entry.path);
  json.key("dtype").text(formats::torch_name(entry.dtype)).key("shape");
  numbers(json, entry.shape);
  json.member("bytes", entry.bytes()).key("chunks").begin_array();
  for (std::size_t c = 0; c < entry.chunks.size(); ++c) chunk(json, index, entry.chunks, c);
  json.end_array().end_object();
}

// A value as text: it takes less memory than a Json.
struct Shown {
  std::string type;
  std::string json;
};

}  // namespace

void print_inspect_json(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                        std::ostream& out) {
  const formats::Index& index = checkpoint.index();
  const auto& d = checkpoint.description();
  // Values are read before anything is printed: one that cannot be read must not leave half an
  // object behind.
  const bool read = reads_values(options, checkpoint);
  std::vector<Shown> values;
  if (read) {
    for (const formats::ValueEntry& entry : index.values) {
      const formats::Value value = read_value(checkpoint, entry);
      values.push_back({type_name(value), formats::to_text(value_json(value))});
    }
  }
  JsonWriter json([&](std::string_view text) { out << text; });
  json.begin_object().member("schema", "fsdp-ckpt/inspect/1").member("path", options.common.path);
  json.member("format", d.format).member("layout", d.layout);
  json.member("version", d.version ? Json(*d.version) : Json());
  // No format records the version of PyTorch that wrote it.
  json.member("torch_version", Json()).member("ranks", d.ranks).key("files").begin_array();
  for (const formats::FileEntry& file : index.files) {
    json.value(
        Json::Object{{"name", file.name}, {"bytes", file.bytes ? Json(*file.bytes) : Json()}});
  }
  std::uint64_t numel = 0;
  json.end_array().key("tensors").begin_array();
  for (const formats::TensorEntry& entry : index.tensors) {
    tensor(json, index, entry);
    numel += entry.numel();
  }
  json.end_array().member("values_read", read).key("values").begin_array();
  for (std::size_t v = 0; v < index.values.size(); ++v) {
    json.begin_object();
    key_and_path(json, index.values[v].key, index.values[v].path);
    if (read) json.key("type").text(values[v].type).key("value").written(values[v].json);
    json.end_object();
  }
  Json::Object totals{{"tensors", index.tensors.size()},
                      {"parameters", numel},
                      {"bytes", tensor_bytes(index)},
                      {"values", index.values.size()}};
  json.end_array().member("totals", std::move(totals)).end_object();
}

}  // namespace fsdp::cli
