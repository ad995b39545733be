// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arithmetic/replaced_tensors.h"

#include <algorithm>
#include <optional>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/content/key_text.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats {
namespace {

// Returns the mapping with `leaf` added at the steps of `path` from `depth` on.
Value with_member(const Value& mapping, const KeyPath& path, std::size_t depth, const Value& leaf) {
  if (depth == path.size()) return leaf;
  const std::string& step = std::get<std::string>(path[depth]);
  const auto own = mapping_entries(mapping);
  if (!own) {
    if (!mapping.is_none()) {
      throw Error(ErrorCode::kKey, cat(quote(step, 200),
                                       " cannot be added to a value that is not "
                                       "a mapping"));
    }
    return Value::dict({{Value::string(step), with_member({}, path, depth + 1, leaf)}});
  }
  std::vector<Value::Entry> entries(own->begin(), own->end());
  const auto at = std::find_if(entries.begin(), entries.end(), [&](const Value::Entry& entry) {
    return key_text(entry.first) == step;
  });
  if (at != entries.end()) {
    at->second = with_member(at->second, path, depth + 1, leaf);
  } else {
    entries.emplace_back(Value::string(step), with_member({}, path, depth + 1, leaf));
  }
  return mapping_like(mapping, std::move(entries));
}

}  // namespace

ReplacedTensors::ReplacedTensors(std::shared_ptr<const Checkpoint> source)
    : source_(std::move(source)) {
  const Index& index = source_->index();
  for (std::size_t t = 0; t < index.tensors.size(); ++t)
    positions_.emplace(std::pair(index.tensors[t].key, index.tensors[t].path), t);
}

std::size_t ReplacedTensors::own_position(const Leaf& leaf) const {
  const auto own = positions_.find({leaf.key, leaf.path});
  return own != positions_.end() ? own->second : *tensor_number(leaf.value);
}

std::size_t ReplacedTensors::replace(const Leaf& leaf, ComputedTensor tensor) {
  const std::size_t own = own_position(leaf);
  if (computed_.emplace(own, std::move(tensor)).second && replaced_.emplace(leaf.key, own).second)
    return own;
  throw Error(ErrorCode::kMismatch, cat(source_->description().path, ": ", quote(leaf.key, 200),
                                        ": two entries have this name"));
}

void ReplacedTensors::add(const Leaf& beside, const std::string& key, ComputedTensor tensor) {
  std::size_t depth = 0;
  std::size_t shared = 0;  // characters of the key that `depth` steps stand for
  std::string front;
  for (std::size_t d = 0; d + 1 < beside.path.size(); ++d) {
    const std::string* const step = std::get_if<std::string>(&beside.path[d]);
    if (step == nullptr) break;
    front += *step + ".";
    if (!key.starts_with(front)) break;
    depth = d + 1;
    shared = front.size();
  }
  KeyPath path(beside.path.begin(), beside.path.begin() + static_cast<std::ptrdiff_t>(depth));
  const auto* next =
      depth < beside.path.size() ? std::get_if<std::string>(&beside.path[depth]) : nullptr;
  std::string rest = key.substr(shared);
  if (next == nullptr || next->find('.') == next->npos) {
    for (std::size_t dot = rest.find('.'); dot != rest.npos; dot = rest.find('.')) {
      path.emplace_back(rest.substr(0, dot));
      rest.erase(0, dot + 1);
    }
  }
  path.emplace_back(std::move(rest));
  added_.push_back({key, std::move(path), std::move(tensor)});
}

ReplacedTensors::Result ReplacedTensors::finish(const Value& content, std::string path,
                                                std::function<void()> finish) {
  Result result;
  result.checkpoint =
      with_computed_tensors(source_, std::move(path), computed_, std::move(finish), added_);
  std::map<std::size_t, Value> made;
  const auto reference = [&](std::size_t position) {
    const auto [at, fresh] = made.try_emplace(position);
    if (fresh) at->second = tensor_reference(*result.checkpoint, position);
    return at->second;
  };
  std::map<std::size_t, std::size_t> kept;  // replaced position -> position of its old elements
  result.content = with_leaves(content, [&](const Leaf& leaf) -> std::optional<Value> {
    const auto found = replaced_.find(leaf.key);
    if (found != replaced_.end()) return reference(found->second);
    const auto number = tensor_number(leaf.value);
    if (!number || !computed_.contains(*number)) return leaf.value;
    return reference(kept.try_emplace(*number, own_position(leaf)).first->second);
  });
  std::size_t position = source_->index().tensors.size();
  for (const AddedTensor& one : added_) {
    result.content =
        with_member(result.content, one.path, 0, tensor_reference(*result.checkpoint, position++));
  }
  return result;
}

}  // namespace fsdp::formats
