// SPDX-License-Identifier: Apache-2.0
// The memo of a pickle stream: the slots that are ever fetched, and their values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "formats/containers/pickle/node.h"

namespace fsdp::formats {

// A growing set of memo slots.
class SlotSet {
 public:
  bool contains(std::uint64_t slot) const {
    return slot / 64 < words_.size() && (words_[slot / 64] >> (slot % 64) & 1U) != 0;
  }
  // Returns false if it already contains the slot.
  bool insert(std::uint64_t slot) {
    const auto word = static_cast<std::size_t>(slot / 64);
    if (word >= words_.size()) words_.resize(std::max(word + 1, words_.size() * 2));
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    if ((words_[word] & bit) != 0) return false;
    words_[word] |= bit;
    ++count_;
    return true;
  }
  // Numbers the slots in ascending order, for `rank`.
  void make_ranks() {
    ranks_.clear();
    ranks_.reserve(words_.size());
    std::uint32_t rank = 0;
    for (const std::uint64_t word : words_) {
      ranks_.push_back(rank);
      rank += bit_count(word);
    }
  }
  // Returns the number of slots of the set below `slot`.  Requires: contains(slot), make_ranks, no
  // insert since.
  std::uint32_t rank(std::uint64_t slot) const {
    const std::uint64_t below = words_[slot / 64] & ((std::uint64_t{1} << (slot % 64)) - 1);
    return ranks_[slot / 64] + bit_count(below);
  }
  std::uint32_t count() const { return count_; }

 private:
  // Inline, because std::popcount is a call on targets that may lack the instruction.
  static std::uint32_t bit_count(std::uint64_t bits) {
    bits -= bits >> 1U & 0x5555555555555555ULL;
    bits = (bits & 0x3333333333333333ULL) + (bits >> 2U & 0x3333333333333333ULL);
    bits = (bits + (bits >> 4U)) & 0x0F0F0F0F0F0F0F0FULL;
    return static_cast<std::uint32_t>(bits * 0x0101010101010101ULL >> 56U);
  }

  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> ranks_;  // rank of the first slot of each word
  std::uint32_t count_ = 0;
};

// Keeps the values of the slots in `fetched`; drops all others.
class PickleMemo {
 public:
  // Requires: fetched.make_ranks() was called.
  explicit PickleMemo(SlotSet fetched) : fetched_(std::move(fetched)), values_(fetched_.count()) {}

  void put(std::uint64_t slot, Value& value) {
    if (!fetched_.contains(slot)) return;
    ValueAccess::set_in_memo(value);
    values_[fetched_.rank(slot)] = value;
  }
  // Returns nullptr if no value was put into the slot.
  const Value* get(std::uint64_t slot) {
    Recent& recent = recent_[slot % recent_.size()];
    if (recent.value != nullptr && recent.slot == slot) return recent.value;
    if (!fetched_.contains(slot)) return nullptr;
    const Value& value = values_[fetched_.rank(slot)];
    if (!ValueAccess::in_memo(value)) return nullptr;
    recent = {slot, &value};
    return &value;
  }

 private:
  struct Recent {
    std::uint64_t slot = 0;
    const Value* value = nullptr;
  };
  SlotSet fetched_;
  std::vector<Value> values_;       // by rank
  std::array<Recent, 256> recent_;  // class names and field names are fetched repeatedly
};

}  // namespace fsdp::formats
