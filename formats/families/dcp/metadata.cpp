// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/metadata.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/dcp/metadata_tables.h"
#include "formats/families/dcp/names.h"

namespace fsdp::formats::dcp {
namespace {

// Levels of nesting in a state dict; real ones have some ten.
constexpr std::size_t kMaxPathSteps = 256;
// The one version of the folder's structure PyTorch has named so far (2.9 on).
constexpr std::string_view kKnownVersion = "1.0.0";
// PyTorch's layouts of tensors that are not plain arrays.
constexpr std::array<std::string_view, 7> kOtherLayouts = {
    "torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc", "torch.sparse_bsr",
    "torch.sparse_bsc", "torch._mkldnn",    "torch.jagged"};
// More findings of one kind than this add no information.
constexpr std::size_t kMaxFindingsOfAKind = 20;

// Returns the path of a key: ('model', 'layers', 0, 'weight').
std::optional<KeyPath> path_of(const Value& value) {
  if (value.kind() != ValueKind::kTuple && value.kind() != ValueKind::kList) return std::nullopt;
  KeyPath path;
  for (const Value& step : value.items()) {
    if (step.as_string() != nullptr) {
      path.emplace_back(*step.as_string());
    } else if (step.as_int() && *step.as_int() >= 0) {
      path.emplace_back(*step.as_int());
    } else {
      return std::nullopt;
    }
  }
  if (path.empty()) return std::nullopt;
  return path;
}

// Makes an index of the tables: finds the place of each chunk.
class Assembler {
 public:
  Assembler(MetadataTables& tables, std::string name) : t_(tables), name_(std::move(name)) {}

  Metadata run() {
    if (!t_.root.seen) throw Error(ErrorCode::kMetaType, "the pickle holds no Metadata");
    const auto entries = mapping_entries(t_.root.state_dict_metadata);
    if (!entries) throw Error(ErrorCode::kMetaType, "state_dict_metadata is not a dict");
    read_version();
    read_paths();
    group_items();
    for (const std::string& file : t_.files) {
      out_.index.files.push_back({.name = file, .rank = rank_of_data_file(file)});
    }
    out_.index.transforms = t_.transforms;
    std::vector<char> used(t_.keys.size(), 0);
    for (const auto& [key, value] : *entries) {
      const std::string* name = key.as_string();
      if (name == nullptr) throw Error(ErrorCode::kKey, "state_dict_metadata: a key is not text");
      if (name->size() > kMaxKeyBytes) {
        throw Error(ErrorCode::kName, cat("key ", quote(*name), " has ", name->size(),
                                          " bytes, at most ", kMaxKeyBytes));
      }
      const auto number = t_.key_numbers.find(*name);
      if (number != t_.key_numbers.end()) used[number->second] = 1;
      add_entry(
          *name, value,
          number == t_.key_numbers.end() ? std::span<std::uint32_t>() : items_of(number->second));
    }
    for (std::uint32_t key = 0; key < used.size(); ++key) {
      // Plans name keys too; only a key with an item is an orphan.
      if (used[key] == 0 && !items_of(key).empty()) {
        report(ErrorCode::kOrphan, t_.keys[key],
               "an item is stored for a key that state_dict_metadata lacks");
      }
    }
    return std::move(out_);
  }

 private:
  void report(ErrorCode code, const std::string& key, std::string message,
              Finding::Severity severity = Finding::Severity::kDamage) {
    if (++counts_[code] > kMaxFindingsOfAKind) return;
    out_.findings.push_back({.code = code,
                             .message = std::move(message),
                             .file = name_,
                             .key = key,
                             .severity = severity});
  }

  void warn(ErrorCode code, std::string message) {
    out_.findings.push_back(warning(code, std::move(message), name_));
  }

  void read_version() {
    const std::string* version = t_.root.version.as_string();
    if (version == nullptr) return;
    out_.version = *version;
    if (*version != kKnownVersion) {
      warn(ErrorCode::kVersion,
           cat("version is ", quote(*version), ", expected '", kKnownVersion, "'"));
    }
  }

  void read_paths() {
    const auto entries = mapping_entries(t_.root.planner_data);
    out_.nested = entries && !entries->empty();
    if (!entries) {
      // PyTorch's own writers leave None if nothing was flattened; an object comes from a custom
      // planner.
      if (!t_.root.has_planner_data) {
        warn(ErrorCode::kMetaType, "planner_data is missing; keys are not split into paths");
      } else if (!t_.root.planner_data.is_none() && t_.root.planner_data.as_object() == nullptr) {
        warn(ErrorCode::kMetaType, cat("planner_data is ", kind_name(t_.root.planner_data.kind()),
                                       ", expected a dict or None; keys are not split into paths"));
      }
      return;
    }
    for (const auto& [key, value] : *entries) {
      if (key.as_string() != nullptr && value.items().size() > kMaxPathSteps) {
        throw Error(ErrorCode::kLimitDepth,
                    cat(quote(*key.as_string()), ": its path has ", value.items().size(),
                        " steps, at most ", kMaxPathSteps));
      }
      const auto path = path_of(value);
      if (key.as_string() == nullptr || !path) {
        // A custom planner: each key is then a path of one step.
        out_.nested = false;
        paths_.clear();
        return;
      }
      paths_.emplace(*key.as_string(), *path);
    }
  }

  // Sorts the items of storage_data by key, in the order of the stream.
  void group_items() {
    const auto entries = mapping_entries(t_.root.storage_data);
    if (!entries) throw Error(ErrorCode::kMetaType, "storage_data is not a dict");
    begin_.assign(t_.keys.size() + 1, 0);
    for (const auto& [key, value] : *entries) {
      if (!is_record(key, MetadataClass::kMetadataIndex))
        throw Error(ErrorCode::kKey, "storage_data: a key is not a MetadataIndex");
      if (!is_record(value, MetadataClass::kStorageInfo))
        throw Error(ErrorCode::kType, "storage_data: a value is not a _StorageInfo");
      ++begin_[t_.item_keys[key.opaque_payload()].key + 1];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    entry_keys_.resize(entries->size());
    entry_items_.resize(entries->size());
    std::vector<std::uint64_t> at(begin_.begin(), begin_.end() - 1);
    for (const auto& [key, value] : *entries) {
      const std::uint64_t slot = at[t_.item_keys[key.opaque_payload()].key]++;
      entry_keys_[slot] = static_cast<std::uint32_t>(key.opaque_payload());
      entry_items_[slot] = static_cast<std::uint32_t>(value.opaque_payload());
    }
    order_.resize(entries->size());
    std::iota(order_.begin(), order_.end(), 0U);
    t_.root.storage_data = {};
  }

  std::span<std::uint32_t> items_of(std::uint32_t key) {
    return std::span(order_).subspan(begin_[key], begin_[key + 1] - begin_[key]);
  }

  KeyPath path(const std::string& key) const {
    const auto found = paths_.find(key);
    return found == paths_.end() ? KeyPath{key} : found->second;
  }

  void add_entry(const std::string& key, const Value& value, std::span<std::uint32_t> slots) {
    if (is_record(value, MetadataClass::kBytes)) {
      add_value(key, slots);
    } else if (is_record(value, MetadataClass::kTensorStorage)) {
      add_tensor(key, t_.tensors[value.opaque_payload()], slots);
    } else {
      throw Error(ErrorCode::kMetaType,
                  cat("state_dict_metadata: ", quote(key), " is neither a tensor nor bytes"));
    }
  }

  void add_value(const std::string& key, std::span<std::uint32_t> slots) {
    const std::uint32_t* found = nullptr;
    for (const std::uint32_t& slot : slots) {
      if (t_.item_keys[entry_keys_[slot]].has_offset) {
        report(ErrorCode::kOrphan, key, "an item of a tensor is stored under the key of a value");
      } else if (found != nullptr) {
        report(ErrorCode::kKey, key, "two items are stored for one value");
      } else {
        found = &slot;
      }
    }
    if (found == nullptr) {
      report(ErrorCode::kChunkMissing, key, "no item is stored for the value");
      return;
    }
    out_.index.add(ValueEntry{key, path(key), t_.items[entry_items_[*found]]});
  }

  void add_tensor(const std::string& key, const MetadataTables::Tensor& row,
                  std::span<std::uint32_t> slots) {
    TensorEntry tensor;
    tensor.key = key;
    tensor.path = path(key);
    tensor.dtype = t_.properties[row.properties].dtype;
    const auto shape = t_.dims(row.size);
    tensor.shape.assign(shape.begin(), shape.end());
    const auto negative = [](std::int64_t number) { return number < 0; };
    if (std::ranges::any_of(shape, negative)) {
      report(ErrorCode::kBounds, key,
             cat("shape ", shape_text(shape), " has a negative dimension"));
      return;
    }
    in_context([&] { return quote(key); },
               [&] {
                 checked_mul(checked_numel(shape, "number of elements"), item_bytes(tensor.dtype),
                             "number of bytes");
               });
    if (const std::string& layout = t_.properties[row.properties].layout;
        layout != "torch.strided") {
      const bool known = std::ranges::find(kOtherLayouts, layout) != kOtherLayouts.end();
      report(ErrorCode::kUnsupported, key,
             cat("layout is ", quote(layout), ", expected 'torch.strided'"),
             known ? Finding::Severity::kUnknown : Finding::Severity::kDamage);
    }
    tensor.chunks = ChunkList(shape.size());
    tensor.chunks.reserve(row.chunks.size());
    std::vector<char> taken(slots.size(), 0);
    std::vector<std::uint32_t>
        sorted;  // slots by offset, sorted at the first chunk whose hint is wrong
    for (std::size_t i = 0; i < row.chunks.size(); ++i) {
      const MetadataTables::Chunk& chunk = t_.chunks[row.chunks[i]];
      const auto offset = t_.dims(chunk.offset);
      const auto size = t_.dims(chunk.size);
      if (offset.size() != shape.size() || size.size() != shape.size()) {
        report(ErrorCode::kRank, key,
               cat("chunk at ", shape_text(offset), " of size ", shape_text(size),
                   " has another rank than the tensor of shape ", shape_text(shape)));
        continue;
      }
      const auto slot = slot_of(chunk.offset, i, slots, sorted);
      if (!slot) {
        report(ErrorCode::kChunkMissing, key,
               cat("no item is stored for the chunk ", box_text({offset, size})));
        continue;
      }
      taken[*slot] = 1;
      if (std::ranges::any_of(offset, negative) || std::ranges::any_of(size, negative)) {
        report(ErrorCode::kBounds, key,
               cat("chunk at ", shape_text(offset), " of size ", shape_text(size),
                   " has a negative number"));
        continue;
      }
      tensor.chunks.add(offset, size, t_.items[entry_items_[slots[*slot]]]);
    }
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] != 0) continue;
      const MetadataTables::ItemKey& item = t_.item_keys[entry_keys_[slots[i]]];
      report(ErrorCode::kOrphan, key,
             cat("an item is stored at ", shape_text(t_.dims(item.offset)),
                 ", where no chunk begins"));
    }
    out_.index.add(std::move(tensor));
  }

  // Returns the position in `slots` of the item at the chunk's offset.
  std::optional<std::size_t> slot_of(const MetadataDims& offset, std::size_t chunk,
                                     std::span<std::uint32_t> slots,
                                     std::vector<std::uint32_t>& sorted) {
    const auto key_at = [&](std::size_t i) -> const MetadataTables::ItemKey& {
      return t_.item_keys[entry_keys_[slots[i]]];
    };
    // Writers store items in the order of the chunks, or nearly so.
    if (chunk < slots.size() && key_at(chunk).has_offset && t_.same(key_at(chunk).offset, offset))
      return chunk;
    const auto less = [&](std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    };
    if (sorted.empty()) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (key_at(i).has_offset) sorted.push_back(static_cast<std::uint32_t>(i));
      }
      std::ranges::sort(sorted, [&](std::uint32_t a, std::uint32_t b) {
        return less(t_.dims(key_at(a).offset), t_.dims(key_at(b).offset));
      });
    }
    const auto wanted = t_.dims(offset);
    const auto found = std::lower_bound(
        sorted.begin(), sorted.end(), wanted,
        [&](std::uint32_t a, const auto& w) { return less(t_.dims(key_at(a).offset), w); });
    if (found == sorted.end() || !t_.same(key_at(*found).offset, offset)) return std::nullopt;
    return *found;
  }

  MetadataTables& t_;
  std::string name_;
  Metadata out_;
  std::unordered_map<std::string, KeyPath> paths_;
  std::unordered_map<ErrorCode, std::size_t> counts_;
  std::vector<std::uint64_t> begin_;        // of each key's slots
  std::vector<std::uint32_t> entry_keys_;   // by slot
  std::vector<std::uint32_t> entry_items_;  // by slot
  std::vector<std::uint32_t> order_;
};

}  // namespace

Metadata read_metadata(const ByteSource& source, const std::string& name,
                       const std::set<std::string>& allowed_globals) {
  MetadataTables tables = read_metadata_tables(source, allowed_globals);
  return Assembler(tables, name).run();
}

}  // namespace fsdp::formats::dcp
