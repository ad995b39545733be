// SPDX-License-Identifier: Apache-2.0
// Finds nodes that a value refers to more than once, and numbers them in the order of writing.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "formats/containers/pickle/key_index.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Nodes are shared by identity; equal strings, and equal names of globals, are shared even across
// nodes.  Storages are not: torch.save writes each reference to one in full.
//
// Lifetime: `root` outlives it and does not change.
class PickleSharing {
 public:
  explicit PickleSharing(const Value& root);
  // Returns the slot of a value written before; nothing if it was not, or is referred to only once.
  std::optional<std::uint32_t> slot(const Value& value);
  // Gives the value that has just been written the next slot; nothing if no other reference
  // follows.
  std::optional<std::uint32_t> take_slot(const Value& value);
  // Returns the slot of the value with this number (cycle_number); nothing if it was not written.
  std::optional<std::uint32_t> slot_of_cycle(std::uint32_t number) const;

 private:
  // kUnseen, kOnce, kUnwritten (seen again, not written yet), or the slot.
  using Slot = std::uint32_t;
  static constexpr Slot kUnseen = UINT32_MAX;
  static constexpr Slot kOnce = UINT32_MAX - 1;
  static constexpr Slot kUnwritten = UINT32_MAX - 2;
  using Name = std::pair<std::string_view, std::string_view>;  // module, name
  struct TextHash {
    std::size_t operator()(std::string_view text) const noexcept { return KeyIndex::hash(text); }
    std::size_t operator()(const Name& name) const noexcept {
      return KeyIndex::hash(name.first) * 31 + KeyIndex::hash(name.second);
    }
  };

  // Counts one more reference; returns false if the value's members have been counted before.
  bool note(const Value& value);
  // Returns the slot of a string or global, by content.
  Slot& text_slot(const Value& value);
  // Returns nullptr if nothing else refers to the value.
  Slot* find(const Value& value);

  std::unordered_map<std::string_view, Slot, TextHash> strings_;
  std::unordered_map<Name, Slot, TextHash> names_;
  std::unordered_map<const void*, Slot> nodes_;  // other kinds, with more than one reference
  std::unordered_map<std::uint32_t, const Slot*> cycles_;  // by number, in nodes_
  // The slots of such nodes in strings_ and names_, so that their text is hashed only once.
  std::unordered_map<const void*, Slot*> text_nodes_;
  std::uint32_t next_slot_ = 0;
};

}  // namespace fsdp::formats
