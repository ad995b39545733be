// SPDX-License-Identifier: Apache-2.0
// The models of two checkpoints: a base, and the model that was trained from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// The model of a checkpoint.
struct ModelTensors {
  std::shared_ptr<const Checkpoint> checkpoint;
  Value tensors;  // a mapping of names to tensors, as hf::find_model returns it
};

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};

struct ModelSide {
  explicit ModelSide(const ModelTensors& model);
  const std::string& path() const { return source->checkpoint().description().path; }
  const TensorEntry& entry(const std::string& name) const {
    return source->entry(tensors.at(name));
  }
  // "float32 [3, 4]".
  std::string text(const std::string& name) const { return arrays::tensor_text(entry(name)); }
  arrays::Array array(const std::string& name) const { return source->array(tensors.at(name)); }

  std::shared_ptr<arrays::ArraySource> source;
  std::map<std::string, std::size_t, NaturalLess> tensors;  // position in the index
};

class ModelPair {
 public:
  ModelPair(const ModelTensors& first, const ModelTensors& second) : base(first), tuned(second) {}

  // Returns the names in both models for which `wanted` returns true, in natural order.
  // Throws: kMismatch if the two differ in names, shapes or dtypes, naming the nearest.
  std::vector<std::string> names(const std::function<bool(const std::string& name)>& wanted) const;

  // Compares all bytes of a tensor.  `on_bytes`: called with the number of bytes that were read.
  bool is_equal(const std::string& name, const std::function<void(std::uint64_t)>& on_bytes);
  // Remembers that the tensor is equal in both, for its other names.
  void note_equal(const std::string& name) { equal_.insert(pair_of(name)); }
  bool is_known_equal(const std::string& name) const { return equal_.contains(pair_of(name)); }

  ModelSide base;
  ModelSide tuned;

 private:
  void check_lacking(const ModelSide& a, const ModelSide& b,
                     const std::function<bool(const std::string& name)>& wanted) const;
  std::pair<std::size_t, std::size_t> pair_of(const std::string& name) const {
    return {base.tensors.at(name), tuned.tensors.at(name)};
  }

  std::set<std::pair<std::size_t, std::size_t>> equal_;  // positions in both indexes
};

}  // namespace fsdp::formats
