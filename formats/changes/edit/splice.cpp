// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/splice.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/changes/edit/glob_use.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/storage_map.h"
#include "formats/state/rewrite/optimizer_ids.h"

namespace fsdp::formats {
namespace {

std::string step_name(const PathStep& step) {
  const auto* text = std::get_if<std::string>(&step);
  return text != nullptr ? *text : std::to_string(std::get<std::int64_t>(step));
}

// Returns the number if a position or an integer key is written as this name.
std::optional<std::int64_t> number_named(const std::string& name) {
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = error == std::errc() && stop == name.data() + name.size();
  return whole && std::to_string(number) == name ? std::optional(number) : std::nullopt;
}

bool is_empty_container(const Value& value) {
  if (const auto entries = mapping_entries(value)) return entries->empty();
  const bool sequence = value.kind() == ValueKind::kList || value.kind() == ValueKind::kTuple;
  return sequence && value.items().empty();
}

// Returns the first levels of a path as one name, the same for positions and keys.
std::string level_name(const std::vector<PlacedStep>& path, std::size_t levels) {
  std::string name;
  for (std::size_t i = 0; i < levels; ++i) name += step_name(path[i].step) + '\x1f';
  return name;
}

std::string what_of(const Checkpoint& checkpoint, const Value& value) {
  const auto number = tensor_number(value);
  return number ? arrays::tensor_text(checkpoint.index().tensors[*number]) : "a value";
}

// Marks archive numbers of the other checkpoint's storages; no checkpoint uses this bit.
constexpr std::uint64_t kOtherArchive = std::uint64_t{1} << 63U;

std::string file_in_other(const Checkpoint& other, const std::string& name) {
  const std::string& path = other.description().path;
  return name.empty() || path.ends_with("/" + name) || path == name ? path : path + "/" + name;
}

// A checkpoint with some tensors of another one after its own.  Numbers and objects of `base` stay,
// so its content is also content of the whole.  Tensors of `other` follow in the index under their
// own keys.  Names of files of `other` begin with its path.
class ExtendedCheckpoint : public Checkpoint {
 public:
  // Leaves out findings of `base` about the keys `gone`; takes those of `other` that concern the
  // `taken` keys, or no key.
  ExtendedCheckpoint(std::shared_ptr<const Checkpoint> base,
                     std::shared_ptr<const Checkpoint> other, const std::set<std::string>& gone,
                     const std::set<std::string>& taken)
      : base_(std::move(base)), other_(std::move(other)) {
    description_ = base_->description();
    index_ = base_->index();
    first_tensor_ = index_.tensors.size();
    first_file_ = static_cast<std::uint32_t>(index_.files.size());
    first_transform_ = static_cast<std::uint32_t>(index_.transforms.size()) - 1;
    const Index& from = other_->index();
    for (FileEntry file : from.files) {
      file.name = file_in_other(*other_, file.name);
      index_.files.push_back(std::move(file));
    }
    index_.transforms.insert(index_.transforms.end(), from.transforms.begin() + 1,
                             from.transforms.end());
    for (const Finding& finding : base_->findings()) {
      if (finding.key.empty() || !gone.contains(finding.key)) findings_.push_back(finding);
    }
    for (Finding finding : other_->findings()) {
      if (!finding.key.empty() && !taken.contains(finding.key)) continue;
      finding.file = file_in_other(*other_, finding.file);
      findings_.push_back(std::move(finding));
    }
  }

  // Adds tensor `number` of `other` at `path`; returns its number in this checkpoint.
  // Throws: kKey if a tensor of that key was added before.
  std::size_t add(std::size_t number, const KeyPath& path) {
    const TensorEntry& from = other_->index().tensors.at(number);
    if (!positions_.emplace(from.key, number).second) {
      throw Error(ErrorCode::kKey, cat(other_->description().path, ": ", quote(from.key, 200),
                                       ": two entries have this name"));
    }
    TensorEntry entry{from.key, path, from.dtype, from.shape, ChunkList(from.shape.size())};
    entry.chunks.reserve(from.chunks.size());
    for (std::size_t c = 0; c < from.chunks.size(); ++c) {
      const BoxView box = from.chunks.box(c);
      Location location = from.chunks.location(c);
      location.file += first_file_;
      if (location.transform != 0) location.transform += first_transform_;
      entry.chunks.add(box.offset, box.size, location);
    }
    index_.add(std::move(entry));
    return index_.tensors.size() - 1;
  }

  // Returns a value of `other` with storages that `storage` of this checkpoint finds.  Requires:
  // the value is not a placeholder.
  static Value value_of_other(const Value& value) {
    return with_storages(value, [](StorageRef& storage) { storage.archive |= kOtherArchive; });
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const TensorEntry* const theirs = in_other(tensor);
    return theirs == nullptr ? base_->chunk(tensor, chunk)
                             : from_other(other_->chunk(*theirs, chunk));
  }
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    const TensorEntry* const theirs = in_other(tensor);
    return theirs == nullptr ? base_->expect_chunk(tensor, chunk, part)
                             : other_->expect_chunk(*theirs, chunk, part);
  }
  Value value(const ValueEntry& value) const override { return base_->value(value); }
  ChunkData storage(const StorageRef& storage) const override {
    if ((storage.archive & kOtherArchive) == 0) return base_->storage(storage);
    StorageRef own = storage;
    own.archive &= ~kOtherArchive;
    return from_other(other_->storage(own));
  }
  std::optional<Value> tensor_value(std::size_t tensor) const override {
    return tensor < first_tensor_ ? base_->tensor_value(tensor) : std::nullopt;
  }
  void check_unchanged() const override {
    base_->check_unchanged();
    other_->check_unchanged();
  }

 private:
  // Returns the tensor of `other` that an entry stands for; nothing for those of `base`.  Looks at
  // the file, not at the key: both may have an entry of this key, while that of `base` is being
  // replaced.
  const TensorEntry* in_other(const TensorEntry& tensor) const {
    const bool own = tensor.chunks.size() == 0 || tensor.chunks.location(0).file < first_file_;
    return own ? nullptr : &other_->index().tensors[positions_.at(tensor.key)];
  }
  ChunkData from_other(ChunkData data) const {
    data.file = file_in_other(*other_, data.file);
    return data;
  }

  std::shared_ptr<const Checkpoint> base_;
  std::shared_ptr<const Checkpoint> other_;
  std::size_t first_tensor_;                      // of `other` in the index
  std::map<std::string, std::size_t> positions_;  // key -> number in `other`
  std::uint32_t first_file_;                      // of `other` in Index::files
  std::uint32_t first_transform_;                 // less one, as transform 0 means none
};

class Splicer {
 public:
  Splicer(std::shared_ptr<const Checkpoint> source, const Value& content, const Splice& splice)
      : source_(std::move(source)), splice_(splice), own_(placed_leaves(content)) {}

  Spliced run() {
    drop();
    result_.checkpoint = source_;
    if (!splice_.take.empty() || !splice_.take_exactly.empty()) {
      note_levels();
      take();
      join();
    }
    std::vector<PlacedLeaf> leaves;
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (!gone_[i]) leaves.push_back(own_[i]);
      for (PlacedLeaf& leaf : behind_[i]) leaves.push_back(std::move(leaf));
    }
    check_lists(leaves);
    result_.content = rebuilt(leaves);
    return std::move(result_);
  }

 private:
  // A container of the first checkpoint.
  struct Level {
    std::size_t last = 0;              // the last leaf in it
    std::size_t alive = 0;             // leaves in it that were not dropped
    const PlacedStep* step = nullptr;  // a step into it
  };

  void drop() {
    GlobUse use(splice_.drop);
    gone_.assign(own_.size(), false);
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (!use.matches(own_[i].was)) continue;
      gone_[i] = true;
      result_.dropped.push_back(own_[i].was);
    }
    use.check_all(source_->description().path, "key");
    // One more, for an empty content.
    behind_.resize(own_.size() + 1);
  }

  void note_levels() {
    for (std::size_t i = 0; i < own_.size(); ++i) {
      leaf_at_.emplace(level_name(own_[i].path, own_[i].path.size()), i);
      if (!by_key_.emplace(own_[i].was, i).second) twice_.insert(own_[i].was);
      for (std::size_t d = 0; d < own_[i].path.size(); ++d) {
        Level& level = levels_[level_name(own_[i].path, d)];
        level.last = i;
        level.alive += gone_[i] ? 0 : 1;
        level.step = &own_[i].path[d];
      }
    }
  }

  void take() {
    const Checkpoint& other = *splice_.other;
    const std::vector<PlacedLeaf> theirs =
        placed_leaves(with_integer_ids(other, with_values(other, content_of(other))));
    GlobUse use(splice_.take);
    std::vector<std::pair<std::size_t, const PlacedLeaf*>> both;
    for (const PlacedLeaf& leaf : theirs) {
      if (!splice_.take_exactly.contains(leaf.was) && !use.matches(leaf.was)) continue;
      const auto own = by_key_.find(leaf.was);
      if (own != by_key_.end() && !gone_[own->second]) both.emplace_back(own->second, &leaf);
      chosen_.push_back(leaf);
    }
    use.check_all(other.description().path, "key");
    if (!both.empty() && !splice_.replace) {
      const auto& [at, leaf] = both.front();
      std::string text = cat(other.description().path, ": ", quote(leaf->was, 200), " is ",
                             what_of(other, leaf->value), ", and ", source_->description().path,
                             " has ", what_of(*source_, own_[at].value), " there");
      if (both.size() > 1) text += cat("; ", both.size() - 1, " more in both");
      throw Error(ErrorCode::kRekeyCollision, text);
    }
    std::set<std::string> keys;
    for (const PlacedLeaf& leaf : chosen_) {
      if (keys.insert(leaf.was).second && !twice_.contains(leaf.was)) continue;
      throw Error(ErrorCode::kKey, cat(twice_.contains(leaf.was) ? source_->description().path
                                                                 : other.description().path,
                                       ": ", quote(leaf.was, 200), ": two entries have this name"));
    }
  }

  // Puts the chosen leaves among those of the first checkpoint.
  void join() {
    const Checkpoint& other = *splice_.other;
    std::set<std::string> gone(result_.dropped.begin(), result_.dropped.end());
    std::set<std::string> taken;
    for (const PlacedLeaf& leaf : chosen_) taken.insert(leaf.was);
    for (const std::string& key : taken) gone.insert(key);
    const auto whole = std::make_shared<ExtendedCheckpoint>(source_, splice_.other, gone, taken);
    std::map<std::pair<std::string, KeyPath>, std::size_t> entries;
    const auto& tensors = other.index().tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t)
      entries.emplace(std::pair(tensors[t].key, tensors[t].path), t);
    std::map<std::size_t, Value> references;  // by number in `other`, shared by tied tensors
    for (PlacedLeaf& leaf : chosen_) {
      TakenKey report{leaf.was, what_of(other, leaf.value), {}};
      const auto entry = entries.find({leaf.was, key_path(leaf)});
      const auto number = tensor_number(leaf.value);
      PlacedLeaf& placed = place(std::move(leaf), report);
      if (number) {
        const std::size_t own = entry == entries.end() ? *number : entry->second;
        const std::size_t here = whole->add(own, key_path(placed));
        const auto [at, fresh] = references.try_emplace(*number);
        if (fresh) at->second = tensor_reference(*whole, here);
        placed.value = at->second;
        result_.holds_others = true;
      } else {
        with_storages(placed.value, [&](StorageRef&) { result_.holds_others = true; });
        placed.value = whole->value_of_other(placed.value);
      }
      result_.taken.push_back(std::move(report));
    }
    if (result_.holds_others) result_.checkpoint = whole;
  }

  // Returns the leaf in its place; valid until the next leaf is placed.
  PlacedLeaf& place(PlacedLeaf leaf, TakenKey& report) {
    const auto own = by_key_.find(leaf.was);
    if (own != by_key_.end()) {
      if (!gone_[own->second]) report.was = what_of(*source_, own_[own->second].value);
      gone_[own->second] = false;
      own_[own->second].value = std::move(leaf.value);
      return own_[own->second];
    }
    const auto below = levels_.find(level_name(leaf.path, leaf.path.size()));
    if (below != levels_.end() && below->second.alive != 0) {
      refuse(leaf, cat(" is ", report.what, ", but ", source_->description().path,
                       " has keys inside it, ", quote(own_[below->second.last].was, 200)));
    }
    std::size_t last = own_.empty() ? 0 : own_.size() - 1;
    for (std::size_t d = 0; d < leaf.path.size(); ++d) {
      const std::string level = level_name(leaf.path, d);
      open_leaf(leaf, d, level);
      const auto found = levels_.find(level);
      if (found == levels_.end()) continue;
      last = found->second.last;
      leaf.path[d] = step_into(leaf, leaf.path[d], *found->second.step);
    }
    return behind_[last].emplace_back(std::move(leaf));
  }

  // Makes way for a new leaf inside a leaf of the first checkpoint: drops that one if it is empty,
  // else throws kKey.
  void open_leaf(PlacedLeaf& leaf, std::size_t depth, const std::string& level) {
    const auto found = leaf_at_.find(level);
    if (found == leaf_at_.end() || gone_[found->second]) {
      if (found != leaf_at_.end() && is_empty_container(own_[found->second].value))
        leaf.path[depth].container = own_[found->second].value;
      return;
    }
    const PlacedLeaf& around = own_[found->second];
    const bool list = !mapping_entries(around.value);
    if (!is_empty_container(around.value) ||
        list != std::holds_alternative<std::int64_t>(leaf.path[depth].step)) {
      refuse(leaf, cat(" lies inside ", quote(around.was, 200), ", which is ",
                       what_of(*source_, around.value), " in ", source_->description().path));
    }
    leaf.path[depth].container = around.value;
    gone_[found->second] = true;
  }

  // Returns the step into a container of the first checkpoint, in which `like` is a step.
  PlacedStep step_into(const PlacedLeaf& leaf, const PlacedStep& step,
                       const PlacedStep& like) const {
    const std::string name = step_name(step.step);
    const auto number = number_named(name);
    if (std::holds_alternative<std::int64_t>(like.step)) {
      if (!number || *number < 0) {
        refuse(leaf, cat(": ", quote(name, 200), " is a key, but ", source_->description().path,
                         " has a list there"));
      }
      return {*number, Value(), like.container};
    }
    const auto members = members_of(like.container);
    const bool numbers = !members.empty() && std::ranges::all_of(members, [](const auto& member) {
      return member.first.as_int().has_value();
    });
    const bool plain = step.key.is_none() || step.key.as_string() != nullptr || step.key.as_int();
    if (!plain) return {name, step.key, like.container};
    return {name, numbers && number ? Value::integer(*number) : Value::string(name),
            like.container};
  }

  // Throws kKey if a list that got leaves would have a gap: positions are not moved.
  void check_lists(const std::vector<PlacedLeaf>& leaves) const {
    std::set<std::string> taken;
    for (const TakenKey& key : result_.taken) taken.insert(key.key);
    std::set<std::string> touched;
    for (const PlacedLeaf& leaf : leaves) {
      if (!taken.contains(leaf.was)) continue;
      for (std::size_t d = 0; d < leaf.path.size(); ++d) {
        if (std::holds_alternative<std::int64_t>(leaf.path[d].step))
          touched.insert(level_name(leaf.path, d));
      }
    }
    if (touched.empty()) return;
    std::unordered_map<std::string, std::int64_t> next;
    for (const PlacedLeaf& leaf : leaves) {
      for (std::size_t d = 0; d < leaf.path.size(); ++d) {
        const auto* position = std::get_if<std::int64_t>(&leaf.path[d].step);
        if (position == nullptr) continue;
        const std::string level = level_name(leaf.path, d);
        if (!touched.contains(level)) continue;
        std::int64_t& after = next[level];
        if (*position != after && *position + 1 != after) {
          throw Error(ErrorCode::kKey, cat(splice_.other->description().path, ": ",
                                           quote(leaf.was, 200), " would become item ", after,
                                           " of its list, because items before it are missing"));
        }
        after = *position + 1;
      }
    }
  }

  [[noreturn]] void refuse(const PlacedLeaf& leaf, const std::string& why) const {
    throw Error(ErrorCode::kKey,
                cat(splice_.other->description().path, ": ", quote(leaf.was, 200), why));
  }

  std::shared_ptr<const Checkpoint> source_;
  const Splice& splice_;
  std::vector<PlacedLeaf> own_;
  std::vector<bool> gone_;                                // dropped or replaced
  std::vector<std::vector<PlacedLeaf>> behind_;           // taken leaves, by the leaf before them
  std::unordered_map<std::string, Level> levels_;         // by level_name
  std::unordered_map<std::string, std::size_t> leaf_at_;  // by level_name
  std::unordered_map<std::string, std::size_t> by_key_;
  std::set<std::string> twice_;
  std::vector<PlacedLeaf> chosen_;
  Spliced result_;
};

}  // namespace

Spliced spliced(std::shared_ptr<const Checkpoint> source, const Value& content,
                const Splice& splice) {
  return Splicer(std::move(source), content, splice).run();
}

}  // namespace fsdp::formats
