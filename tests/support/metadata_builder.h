// SPDX-License-Identifier: Apache-2.0
// `.metadata` pickles of torch.distributed.checkpoint, spelled opcode by opcode: protocol 2,
// GLOBAL, no memo.  Every field of a tensor, an item or the whole can be set to something
// wrong.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/pickle_stream.h"

namespace fsdp::test {

using Numbers = std::vector<std::int64_t>;

inline std::string integer(std::int64_t value) {  // LONG1
  return "\x8a\x08" + little_endian(static_cast<std::uint64_t>(value), 8);
}
inline std::string none() {
  return "N";
}
inline std::string tuple_of(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string list_of(const std::vector<std::string>& items) {
  std::string all = "](";
  for (const std::string& item : items) all += item;
  return all + "e";
}
inline std::string dict_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string all = "}(";
  for (const auto& [key, value] : entries) all += key + value;
  return all + "u";
}
inline std::string numbers(const Numbers& values) {
  std::vector<std::string> items;
  for (const std::int64_t value : values) items.push_back(integer(value));
  return tuple_of(items);
}
inline std::string call(const std::string& callable, const std::vector<std::string>& args) {
  return callable + tuple_of(args) + "R";
}
// NEWOBJ without arguments, then BUILD.
inline std::string record(std::string_view module, std::string_view name,
                          const std::string& state) {
  return global(module, name) + ")\x81" + state + "b";
}
inline std::string size_of(const Numbers& values) {
  return call(global("torch", "Size"), {numbers(values)});
}

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";

// The place of an item.
struct ItemSpec {
  std::string path = "__0_0.distcp";
  std::int64_t offset = 0;
  std::int64_t length = 1;
  std::string transforms = {};  // opcodes; empty: the field is left out

  std::string opcodes() const {
    std::vector<std::pair<std::string, std::string>> state = {{text("relative_path"), text(path)},
                                                              {text("offset"), integer(offset)},
                                                              {text("length"), integer(length)}};
    if (!transforms.empty()) state.emplace_back(text("transform_descriptors"), transforms);
    return record(kFilesystemModule, "_StorageInfo", dict_of(state));
  }
};

// Returns the key of storage_data: `offset` absent for values.
inline std::string item_key(std::string_view fqn, const std::optional<Numbers>& offset) {
  std::vector<std::pair<std::string, std::string>> state = {{text("fqn"), text(fqn)},
                                                            {text("index"), none()}};
  if (offset) state.emplace_back(text("offset"), size_of(*offset));
  return record(kMetadataModule, "MetadataIndex", dict_of(state));
}

struct ChunkSpec {
  Numbers offsets;
  Numbers sizes;
  ItemSpec item = {};
  bool stored = true;  // false: not in storage_data

  std::string opcodes() const {
    return record(kMetadataModule, "ChunkStorageMetadata",
                  dict_of({{text("offsets"), size_of(offsets)}, {text("sizes"), size_of(sizes)}}));
  }
};

struct TensorSpec {
  std::string key;
  Numbers size;
  std::vector<ChunkSpec> chunks;
  std::string dtype = "float32";
  std::string layout = "torch.strided";
  std::string properties = {};  // opcodes of the state, instead of those from dtype and layout

  std::string opcodes() const {
    const std::string five = tuple_of(
        {global("torch", dtype), call(global("torch.serialization", "_get_layout"), {text(layout)}),
         "\x89", call(global(kMetadataModule, "_MEM_FORMAT_ENCODING"), {integer(0)}), "\x89"});
    std::vector<std::string> all;
    for (const ChunkSpec& chunk : chunks) all.push_back(chunk.opcodes());
    return record(kMetadataModule, "TensorStorageMetadata",
                  dict_of({{text("properties"), record(kMetadataModule, "TensorProperties",
                                                       properties.empty() ? five : properties)},
                           {text("size"), size_of(size)},
                           {text("chunks"), list_of(all)}}));
  }
};

struct ValueSpec {
  std::string key;
  ItemSpec item = {};
  bool stored = true;
};

struct MetadataSpec {
  std::vector<TensorSpec> tensors;
  std::vector<ValueSpec> values;
  std::vector<std::pair<std::string, std::string>> more_entries;  // of state_dict_metadata, opcodes
  std::vector<std::pair<std::string, std::string>> more_items;    // of storage_data, opcodes
  // Opcodes instead of those made from the lists above; empty: those.
  std::string state_dict_metadata;
  std::string storage_data;
  // Opcodes of fields that are left out if empty.
  std::string planner_data;           // None if empty
  bool without_planner_data = false;  // the field is left out
  std::string version;
  std::string storage_meta;

  std::string pickle() const {
    auto entries = more_entries;
    auto items = more_items;
    for (const TensorSpec& tensor : tensors) {
      entries.emplace_back(text(tensor.key), tensor.opcodes());
      for (const ChunkSpec& chunk : tensor.chunks) {
        if (chunk.stored)
          items.emplace_back(item_key(tensor.key, chunk.offsets), chunk.item.opcodes());
      }
    }
    for (const ValueSpec& value : values) {
      entries.emplace_back(text(value.key),
                           global(kMetadataModule, "BytesStorageMetadata") + ")\x81");
      if (value.stored) items.emplace_back(item_key(value.key, std::nullopt), value.item.opcodes());
    }
    std::vector<std::pair<std::string, std::string>> state = {
        {text("state_dict_metadata"),
         state_dict_metadata.empty() ? dict_of(entries) : state_dict_metadata},
        {text("storage_data"), storage_data.empty() ? dict_of(items) : storage_data}};
    if (!without_planner_data)
      state.emplace_back(text("planner_data"), planner_data.empty() ? "N" : planner_data);
    if (!version.empty()) state.emplace_back(text("version"), version);
    if (!storage_meta.empty()) state.emplace_back(text("storage_meta"), storage_meta);
    return proto(2, record(kMetadataModule, "Metadata", dict_of(state)));
  }
};

// Returns planner_data with each key at these paths: {"m.w", {"m", "w"}}, steps as opcodes.
inline std::string planner_data(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& paths) {
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto& [key, steps] : paths) entries.emplace_back(text(key), tuple_of(steps));
  return dict_of(entries);
}

}  // namespace fsdp::test
