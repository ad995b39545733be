// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/combined_checkpoint.h"

#include <algorithm>
#include <span>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/storage_map.h"

namespace fsdp::formats {
namespace {

// Bits of a part's archive numbers; the part's own number is in the bits above.
constexpr unsigned kPartShift = 48;

class JoinedCheckpoint : public StoredCheckpoint {
 public:
  JoinedCheckpoint(std::vector<CheckpointPart> parts, CheckpointDescription description,
                   Findings findings)
      : parts_(std::move(parts)) {
    description_ = std::move(description);
    findings_ = std::move(findings);
    for (std::size_t p = 0; p < parts_.size(); ++p) add(p);
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const Origin& origin = origins_.at(tensor.key);
    const CheckpointPart& part = parts_[origin.part];
    const Checkpoint& own = *part.checkpoint;
    return in_whole(part, own.chunk(own.index().tensors[origin.position], chunk));
  }

  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange elements) const override {
    const Origin& origin = origins_.at(tensor.key);
    const Checkpoint& part = *parts_[origin.part].checkpoint;
    return part.expect_chunk(part.index().tensors[origin.position], chunk, elements);
  }

  Value value(const ValueEntry& value) const override {
    const Origin& origin = origins_.at(value.key);
    const Checkpoint& part = *parts_[origin.part].checkpoint;
    if (parts_[origin.part].one_value) return renumbered(*part.tree(), origin.part);
    return renumbered(part.value(part.index().values[origin.position]), origin.part);
  }

  ChunkData storage(const StorageRef& storage) const override {
    StorageRef own = storage;
    own.archive &= (std::uint64_t{1} << kPartShift) - 1;
    const CheckpointPart& part = parts_.at((storage.archive >> kPartShift) - 1);
    return in_whole(part, part.checkpoint->storage(own));
  }

  std::optional<Value> tensor_object(std::size_t tensor) const override {
    const Origin& origin = origins_.at(index_.tensors.at(tensor).key);
    const auto object = parts_[origin.part].checkpoint->tensor_object(origin.position);
    return object ? std::optional(renumbered(*object, origin.part)) : std::nullopt;
  }

  std::optional<Value> tree() const override {
    if (std::ranges::none_of(parts_, has_tree)) return std::nullopt;
    std::vector<Value::Entry> entries;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const CheckpointPart& part = parts_[p];
      Value own = has_tree(part) ? renumbered(*part.checkpoint->tree(), p) : tree_of_keys(p);
      if (!part.name.empty()) {
        entries.emplace_back(Value::string(part.name), std::move(own));
      } else {
        const auto members = mapping_entries(own);
        if (!members) return std::nullopt;
        entries.insert(entries.end(), members->begin(), members->end());
      }
    }
    return Value::dict(std::move(entries));
  }

  VerifyReport verify(const VerifyOptions& options) const override {
    VerifyReport report;
    report.findings = findings_;
    for (const CheckpointPart& part : parts_) {
      VerifyOptions own = options;
      const std::uint64_t before = report.bytes_checked + report.bytes_unchecked;
      if (options.on_progress) {
        own.on_progress = [&options, before](std::uint64_t bytes) {
          options.on_progress(before + bytes);
        };
      }
      const VerifyReport found = part.checkpoint->verify(own);
      // Findings that opening the part made are in `findings_` already.
      const std::size_t known = std::min(part.checkpoint->findings().size(), found.findings.size());
      add_findings(std::span(found.findings).subspan(known), part, report.findings);
      report.items += found.items;
      report.bytes_checked += found.bytes_checked;
      report.bytes_unchecked += found.bytes_unchecked;
    }
    return report;
  }

  void check_unchanged() const override {
    for (const CheckpointPart& part : parts_) part.checkpoint->check_unchanged();
  }

 private:
  struct Origin {
    std::size_t part;
    std::size_t position;  // among the part's tensors or values
  };

  // Adds the part's folder to the file's name: storages are told apart by these names, and parts
  // have files of the same names.
  static ChunkData in_whole(const CheckpointPart& part, ChunkData data) {
    data.file.insert(0, part.folder);
    return data;
  }

  static Value renumbered(const Value& value, std::size_t part) {
    return with_storages(value, [part](StorageRef& storage) {
      storage.archive |= static_cast<std::uint64_t>(part + 1) << kPartShift;
    });
  }

  // Returns whether the part is an object tree of its own within the whole.
  static bool has_tree(const CheckpointPart& part) {
    return !part.unwrap && !part.one_value && part.checkpoint->tree();
  }

  // Returns a part without a tree, built from the paths of its entries.
  Value tree_of_keys(std::size_t p) const {
    const auto levels = static_cast<std::ptrdiff_t>(parts_[p].name.empty() ? 0 : 1);
    std::vector<Leaf> leaves;
    for (std::size_t i = first_entry_[p]; i < index_.order.size(); ++i) {
      if (p + 1 < parts_.size() && i == first_entry_[p + 1]) break;
      const Index::EntryRef& ref = index_.order[i];
      const KeyPath& path =
          ref.is_tensor ? index_.tensors[ref.position].path : index_.values[ref.position].path;
      leaves.push_back({{}, {path.begin() + levels, path.end()}, indexed_leaf(i)});
    }
    return nested(leaves);
  }

  static KeyPath path_in_whole(const CheckpointPart& part, const KeyPath& path) {
    KeyPath whole;
    if (!part.name.empty()) whole.emplace_back(part.name);
    whole.insert(whole.end(), path.begin() + (part.unwrap && !path.empty() ? 1 : 0), path.end());
    if (part.separator == 0) return whole;
    KeyPath steps;
    for (const PathStep& step : whole) {
      const auto* text = std::get_if<std::string>(&step);
      if (text == nullptr) steps.push_back(step);
      for (std::size_t at = 0; text != nullptr && at <= text->size();) {
        const std::size_t end = std::min(text->find(part.separator, at), text->size());
        steps.emplace_back(text->substr(at, end - at));
        at = end + 1;
      }
    }
    return steps;
  }

  // Keys of the whole by those of a part.
  using Keys = std::unordered_map<std::string, std::string>;
  static Keys keys_in_whole(const CheckpointPart& part) {
    Keys keys;
    const Index& index = part.checkpoint->index();
    for (const TensorEntry& tensor : index.tensors)
      keys.emplace(tensor.key, joined(path_in_whole(part, tensor.path)));
    for (const ValueEntry& value : index.values)
      keys.emplace(value.key, joined(path_in_whole(part, value.path)));
    return keys;
  }

  static void add_findings(std::span<const Finding> of_part, const CheckpointPart& part,
                           Findings& findings) {
    if (of_part.empty()) return;
    const Keys keys = keys_in_whole(part);
    for (Finding finding : of_part) {
      if (!finding.file.empty()) finding.file = part.folder + finding.file;
      const auto key = keys.find(finding.key);
      if (!finding.key.empty() && key != keys.end()) finding.key = key->second;
      findings.push_back(std::move(finding));
    }
  }

  void add(std::size_t p) {
    const CheckpointPart& part = parts_[p];
    first_entry_.push_back(index_.order.size());
    const Index& from = part.checkpoint->index();
    const auto first_file = static_cast<std::uint32_t>(index_.files.size());
    const auto first_transform = static_cast<std::uint32_t>(index_.transforms.size()) - 1;
    for (FileEntry file : from.files) {
      file.name = part.folder + file.name;
      index_.files.push_back(std::move(file));
    }
    // Transform 0 means none, everywhere.
    index_.transforms.insert(index_.transforms.end(), from.transforms.begin() + 1,
                             from.transforms.end());
    const auto moved = [&](Location location) {
      location.file += first_file;
      if (location.transform != 0) location.transform += first_transform;
      return location;
    };
    add_findings(part.checkpoint->findings(), part, findings_);
    description_.ranks = std::max(description_.ranks, part.checkpoint->description().ranks);
    if (part.one_value) {
      index_.add(ValueEntry{part.name, {part.name}, {first_file, 0, 0, 0}});
      note(part.name, {p, 0});
      return;
    }
    for (const Index::EntryRef& ref : from.order) {
      if (ref.is_tensor) {
        const TensorEntry& tensor = from.tensors[ref.position];
        TensorEntry entry{{},
                          path_in_whole(part, tensor.path),
                          tensor.dtype,
                          tensor.shape,
                          ChunkList(tensor.shape.size())};
        entry.key = joined(entry.path);
        entry.chunks.reserve(tensor.chunks.size());
        for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
          const BoxView box = tensor.chunks.box(c);
          entry.chunks.add(box.offset, box.size, moved(tensor.chunks.location(c)));
        }
        note(entry.key, {p, ref.position});
        index_.add(std::move(entry));
      } else {
        const ValueEntry& value = from.values[ref.position];
        ValueEntry entry{{}, path_in_whole(part, value.path), moved(value.location)};
        entry.key = joined(entry.path);
        note(entry.key, {p, ref.position});
        index_.add(std::move(entry));
      }
    }
  }

  void note(const std::string& key, Origin origin) {
    if (!origins_.emplace(key, origin).second) {
      throw Error(ErrorCode::kKey, description_.path, ": ", quote(key, 200),
                  ": two entries have this name");
    }
  }

  std::vector<CheckpointPart> parts_;
  std::vector<std::size_t> first_entry_;             // of each part, in Index::order
  std::unordered_map<std::string, Origin> origins_;  // by key in the whole
};

}  // namespace

bool is_below(const Checkpoint& checkpoint, std::string_view name) {
  const auto under = [&](const KeyPath& path) {
    const auto* step = path.size() < 2 ? nullptr : std::get_if<std::string>(&path[0]);
    return step != nullptr && *step == name;
  };
  const Index& index = checkpoint.index();
  return std::ranges::all_of(index.tensors,
                             [&](const TensorEntry& tensor) { return under(tensor.path); }) &&
         std::ranges::all_of(index.values,
                             [&](const ValueEntry& value) { return under(value.path); });
}

std::unique_ptr<StoredCheckpoint> combine_checkpoints(std::vector<CheckpointPart> parts,
                                                      CheckpointDescription description,
                                                      Findings findings) {
  return std::make_unique<JoinedCheckpoint>(std::move(parts), std::move(description),
                                            std::move(findings));
}

}  // namespace fsdp::formats
