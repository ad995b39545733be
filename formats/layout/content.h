// SPDX-License-Identifier: Apache-2.0
// The nested state dict of a checkpoint as one value, without its data: what verbs edit and writers
// write.
//
// Tensors are dense ones over kTensorArchive storages (state_tree.h), which name a tensor of the
// checkpoint's index; values that were not read yet stand as placeholders.  Everything else is
// plain.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "formats/container/pickle_value.h"
#include "formats/layout/checkpoint.h"
#include "formats/layout/state_tree.h"

namespace fsdp::formats {

// The tag of the opaque value that stands for a value of the checkpoint, by its position in
// Index::values.
inline constexpr std::uint32_t kDeferredValue = 0x76616C75;  // "valu"

// The nested state dict; where the checkpoint has one of its own (torch.save), its containers are
// kept as they are: OrderedDicts, tuples, integer keys.  Tensors that alias exactly share one
// reference, so that they stay tied.  No value of a folder is read.
// Requires: the index was not narrowed by Checkpoint::keep; selection is `pruned` on the result.
// Throws: kKey, kLimitNodes.
Value content_of(const Checkpoint& checkpoint);

// The tensor of the index that `value` stands for; nothing where it is no such tensor.
std::optional<std::size_t> tensor_number(const Value& value);
// The value of the index that `value` stands for; nothing where it is no placeholder.
std::optional<std::size_t> deferred_number(const Value& value);

// A dense tensor that stands for tensor `number` of the index.
Value tensor_reference(const Checkpoint& checkpoint, std::size_t number);

// `value` itself, or what the placeholder stands for.  Throws: what Checkpoint::value throws.
Value resolved(const Checkpoint& checkpoint, const Value& value);
// `root` with every placeholder replaced.
Value with_values(const Checkpoint& checkpoint, const Value& root);

// `root` rebuilt with `edit` applied to every leaf (see leaves_of); nothing drops the leaf, and the
// containers that this empties.  Containers keep their kinds and their keys their types.
Value with_leaves(const Value& root,
                  const std::function<std::optional<Value>(const Leaf& leaf)>& edit);

// A nested dict built from leaves by their paths: text steps make dicts, numbers make lists.
// Throws: kKey where two paths contradict each other, kLimitNodes.
Value nested(const std::vector<Leaf>& leaves);

}  // namespace fsdp::formats
