// SPDX-License-Identifier: Apache-2.0
// The nested state dict of a checkpoint as one value, without its data: verbs edit it, and writers
// write it.
//
// Tensors are dense tensors over storages with a TensorRef, which names a tensor of the
// checkpoint's index and the dtype to write.  Values that were not read yet are placeholders.
// Everything else is plain.
#pragma once

#include <cstddef>
#include <optional>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

// The tag of the opaque value that stands for a value of the checkpoint, by its position in
// Index::values.
inline constexpr std::uint32_t kDeferredValue = 0x76616C75;  // "valu"

// Returns the nested state dict.  If the checkpoint has one of its own (torch.save), its containers
// are kept as they are: OrderedDicts, tuples, integer keys.  Tensors that alias exactly share one
// reference, so that they stay tied.  Reads no value of a folder.
// Requires: the index was not narrowed by Checkpoint::keep; to select keys, use `pruned` on the
// result.
// Throws: kKey, kLimitNodes.
Value content_of(const Checkpoint& checkpoint);

// Returns the tensor of the index that `value` stands for; nothing if it is not such a tensor.
std::optional<std::size_t> tensor_number(const Value& value);
// Returns the value of the index that `value` stands for; nothing if it is not a placeholder.
std::optional<std::size_t> deferred_number(const Value& value);

// Returns a dense tensor that stands for tensor `number` of the index, as it is or cast.
Value tensor_reference(const Checkpoint& checkpoint, std::size_t number,
                       std::optional<DType> dtype = std::nullopt);
// Returns the whole tensor that such a storage stands for, dense and row-major, cast if the
// reference asks for it; the caller sets its place in the output.
// Lifetime: the checkpoint outlives the piece.
TargetPiece reference_piece(const Checkpoint& checkpoint, const TensorRef& reference);

// Returns `value` itself, or the value that the placeholder stands for.  Throws: the errors of
// Checkpoint::value.
Value resolved(const Checkpoint& checkpoint, const Value& value);
// Returns `root` with every placeholder replaced.
Value with_values(const Checkpoint& checkpoint, const Value& root);
// Returns `root` with references to tensors replaced by the checkpoint's own objects: views,
// parameters (see Checkpoint::tensor_value).  References that cast stay.
Value with_own_tensors(const Checkpoint& checkpoint, const Value& root);

}  // namespace fsdp::formats
