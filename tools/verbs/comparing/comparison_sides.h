// SPDX-License-Identifier: Apache-2.0
// The two checkpoints that `diff` compares, with entries named so that both sides can match.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "formats/state/checkpoint/checkpoint.h"
#include "tools/base/selection.h"
#include "tools/verbs/comparing/comparison.h"

namespace fsdp::cli {

// The key of a tensor or value without the removed prefix, and a number that tells entries with the
// same key apart: by the types of their keys (1 and '1') if both sides show them, otherwise (a flat
// and a nested key) by their order.
using EntryName = std::pair<std::string, std::uint32_t>;
struct EntryLess {
  bool operator()(const EntryName& a, const EntryName& b) const;
};

// One of the two checkpoints.
struct Side {
  std::unique_ptr<formats::Checkpoint> mapped;  // what `checkpoint` was made of, by a map
  std::unique_ptr<formats::Checkpoint> checkpoint;
  std::map<EntryName, formats::Index::EntryRef, EntryLess> keys;

  const formats::Index& index() const { return checkpoint->index(); }
  const std::string& key(const formats::Index::EntryRef& ref) const {
    return ref.is_tensor ? index().tensors[ref.position].key : index().values[ref.position].key;
  }
  // Returns "float32 [3, 4]", or a text for a value.
  std::string text(const formats::Index::EntryRef& ref) const;
  // Returns whether there is an entry of that name.
  bool has(const std::string& name) const;
};
using Sides = std::array<Side, 2>;

// Opens both sides.  Divides values that the other side keeps key by key.
// `selection` sees the keys of both sides.
// Throws: as compare_checkpoints.
Sides open_sides(const DiffOptions& options, SelectionCheck& selection, const Streams& streams);

}  // namespace fsdp::cli
