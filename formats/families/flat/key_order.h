// SPDX-License-Identifier: Apache-2.0
// The order in which a checkpoint of divided flat parameters lists its keys: that of the files, and
// within a model that of the list of parameters.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/families/flat/flat_parameters.h"
#include "formats/families/flat/parameter_list.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::flat {

// The place of a key in the order.
struct KeyPlace {
  std::size_t outer = 0;  // of its model, its optimizer, or the key itself
  std::size_t inner = 0;  // within these
  auto operator<=>(const KeyPlace&) const = default;
};

class KeyOrder {
 public:
  // `leaves`: of the first file.  `list`: may be null.
  KeyOrder(std::span<const Leaf> leaves, const std::vector<FlatModel>& models,
           const ParameterList* list);

  // Returns the place of a key of which `path` has no wrappers.  Keys of a model stand together,
  // where its first one stood in the file: first those of the list, and what the list lacks behind
  // the key that it followed in the file.
  KeyPlace of(const KeyPath& path);
  // Returns the place of member `inner` of an optimizer at `path`.
  KeyPlace of(const KeyPath& path, std::size_t inner) { return {position_of(path), inner}; }
  // Returns whether the path is that of a key of a model.
  bool in_model(const KeyPath& path) const;

 private:
  std::size_t position_of(const KeyPath& path);

  std::map<KeyPath, std::size_t> positions_;
  std::map<KeyPath, std::unordered_map<std::string, std::size_t>> models_;  // places of names
  std::size_t next_;
};

}  // namespace fsdp::formats::flat
