// SPDX-License-Identifier: Apache-2.0
#include "formats/arithmetic/replaced_tensors.h"

#include <optional>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/content/content.h"

namespace fsdp::formats {

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

ReplacedTensors::Result ReplacedTensors::finish(const Value& content, std::string path,
                                                std::function<void()> finish) {
  Result result;
  result.checkpoint = with_computed_tensors(source_, std::move(path), computed_, std::move(finish));
  std::map<std::size_t, Value> made;
  const auto reference = [&](std::size_t position) {
    const auto [at, fresh] = made.try_emplace(position);
    if (fresh) at->second = tensor_reference(*result.checkpoint, position);
    return at->second;
  };
  std::map<std::size_t, std::size_t> kept;  // position that is replaced -> that of its old elements
  result.content = with_leaves(content, [&](const Leaf& leaf) -> std::optional<Value> {
    const auto found = replaced_.find(leaf.key);
    if (found != replaced_.end()) return reference(found->second);
    const auto number = tensor_number(leaf.value);
    if (!number || !computed_.contains(*number)) return leaf.value;
    return reference(kept.try_emplace(*number, own_position(leaf)).first->second);
  });
  return result;
}

}  // namespace fsdp::formats
