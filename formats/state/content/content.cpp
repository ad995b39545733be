// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/content.h"

#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "formats/bytes/base/text.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

// Returns for each tensor the first one that is the same view of the same bytes.  Only files of
// torch.save and HDF5 show aliases.
std::vector<std::size_t> first_aliases(const Checkpoint& checkpoint) {
  using Place = std::tuple<std::string, std::uint64_t, std::vector<std::int64_t>, DType,
                           std::uint64_t, std::vector<std::int64_t>>;
  const auto& tensors = checkpoint.index().tensors;
  std::map<Place, std::size_t> places;
  std::vector<std::size_t> first(tensors.size());
  const std::string& format = checkpoint.description().format;
  const bool shown = format == "torch" || format == "torch-shards" || format == "hdf5";
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    first[t] = t;
    if (!shown || tensors[t].numel() == 0) continue;
    const ChunkData data = checkpoint.chunk(tensors[t], 0);
    first[t] = places
                   .try_emplace(Place{data.file, data.file_offset, tensors[t].shape,
                                      tensors[t].dtype, data.first, data.strides},
                                t)
                   .first->second;
  }
  return first;
}

Value placeholder(std::size_t number) {
  return Value::opaque(kDeferredValue, number);
}

// Makes one value for each tensor, which its aliases share.
class References {
 public:
  explicit References(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), first_(first_aliases(checkpoint)) {}
  Value operator()(std::size_t number) {
    const std::size_t first = first_[number];
    const auto found = made_.find(first);
    if (found != made_.end()) return found->second;
    return made_.emplace(first, tensor_reference(checkpoint_, first)).first->second;
  }

 private:
  const Checkpoint& checkpoint_;
  std::vector<std::size_t> first_;
  std::unordered_map<std::size_t, Value> made_;
};

}  // namespace

Value content_of(const Checkpoint& checkpoint) {
  const Index& index = checkpoint.index();
  References references(checkpoint);
  if (const auto tree = checkpoint.tree()) {
    // The index lists the leaves of the tree in their order.
    std::size_t next = 0;
    return with_leaves(*tree, [&](const Leaf& leaf) -> std::optional<Value> {
      const auto indexed = indexed_place(leaf.value);
      const Index::EntryRef& ref = index.order.at(indexed.value_or(next));
      ++next;
      if (ref.is_tensor) return references(ref.position);
      return indexed ? placeholder(ref.position) : leaf.value;
    });
  }
  std::vector<Leaf> leaves;
  leaves.reserve(index.order.size());
  for (const Index::EntryRef& ref : index.order) {
    if (ref.is_tensor) {
      const TensorEntry& tensor = index.tensors[ref.position];
      leaves.push_back({tensor.key, tensor.path, references(ref.position)});
    } else {
      const ValueEntry& value = index.values[ref.position];
      leaves.push_back({value.key, value.path, placeholder(ref.position)});
    }
  }
  return nested(leaves);
}

std::optional<std::size_t> tensor_number(const Value& value) {
  if (value.kind() != ValueKind::kObject) return std::nullopt;
  const auto tensor = dense_tensor(value);
  if (!tensor || !tensor->storage->tensor) return std::nullopt;
  return tensor->storage->tensor->number;
}

std::optional<std::size_t> deferred_number(const Value& value) {
  if (value.kind() != ValueKind::kOpaque || value.opaque_tag() != kDeferredValue)
    return std::nullopt;
  return static_cast<std::size_t>(value.opaque_payload());
}

Value tensor_reference(const Checkpoint& checkpoint, std::size_t number,
                       std::optional<DType> dtype) {
  const TensorEntry& tensor = checkpoint.index().tensors.at(number);
  if (dtype == tensor.dtype) dtype.reset();
  const DType shown = dtype.value_or(tensor.dtype);
  StorageRef storage;
  storage.tensor = TensorRef{number, dtype};
  storage.numel =
      storage_class(shown).empty() ? tensor.numel() * item_bytes(shown) : tensor.numel();
  return make_dense_tensor(shown, tensor.shape, std::move(storage));
}

TargetPiece reference_piece(const Checkpoint& checkpoint, const TensorRef& reference) {
  TargetPiece piece = whole_tensor_piece(checkpoint, reference.number);
  piece.cast_to = reference.cast;
  return piece;
}

Value resolved(const Checkpoint& checkpoint, const Value& value) {
  const auto number = deferred_number(value);
  return number ? checkpoint.value(checkpoint.index().values.at(*number)) : value;
}

Value with_values(const Checkpoint& checkpoint, const Value& root) {
  // From a store, values are requested together, in the order of the index, which is about that of
  // the leaves: one by one, each would wait for its request.
  const auto& values = checkpoint.index().values;
  std::size_t expected = 0;
  bool memory_ahead = false;  // each value that is read makes room for another hint
  return with_leaves(root, [&](const Leaf& leaf) {
    if (const auto number = deferred_number(leaf.value)) {
      bool more = memory_ahead;
      for (; expected < values.size() && (more || expected <= *number); ++expected) {
        more = checkpoint.expect_value(values[expected]);
        memory_ahead = memory_ahead || more;
      }
    }
    return std::optional(resolved(checkpoint, leaf.value));
  });
}

Value with_own_tensors(const Checkpoint& checkpoint, const Value& root) {
  return with_leaves(root, [&](const Leaf& leaf) -> std::optional<Value> {
    if (!tensor_number(leaf.value)) return leaf.value;
    const TensorRef reference = *dense_tensor(leaf.value)->storage->tensor;
    if (reference.cast) return leaf.value;
    const auto own = checkpoint.tensor_value(reference.number);
    return own ? *own : leaf.value;
  });
}

}  // namespace fsdp::formats
