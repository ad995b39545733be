// SPDX-License-Identifier: Apache-2.0
// The two checkpoints that `diff` compares, their entries under names that can meet.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "formats/state/checkpoint/checkpoint.h"
#include "tools/comparison.h"
#include "tools/selection.h"

namespace fsdp::cli {

// The key of a tensor or value, without the prefix that was taken off.  More of the same key are
// told apart by a number: by the types of their keys (1 and '1') where both sides show them, else
// (a flat and a nested one) by their order.
using EntryName = std::pair<std::string, std::uint32_t>;
struct EntryLess {
  bool operator()(const EntryName& a, const EntryName& b) const;
};

// One of the two checkpoints.
struct Side {
  std::unique_ptr<formats::Checkpoint> checkpoint;
  std::map<EntryName, formats::Index::EntryRef, EntryLess> keys;

  const formats::Index& index() const { return checkpoint->index(); }
  const std::string& key(const formats::Index::EntryRef& ref) const {
    return ref.is_tensor ? index().tensors[ref.position].key : index().values[ref.position].key;
  }
  // "float32 [3, 4]", or that it is a value.
  std::string text(const formats::Index::EntryRef& ref) const;
  // Returns whether there is an entry of that name.
  bool has(const std::string& name) const;
};
using Sides = std::array<Side, 2>;

// Takes apart values that the other side keeps key by key.
// `selection` sees the keys of both.
// Throws: as compare_checkpoints.
Sides open_sides(const DiffOptions& options, SelectionCheck& selection, const Streams& streams);

}  // namespace fsdp::cli
