// SPDX-License-Identifier: Apache-2.0
// Finds equal keys among the keys of a large dict or set, as Python compares them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "formats/pickle/value.h"

namespace fsdp::formats {

// Containers up to this size are searched from end to end.
inline constexpr std::size_t kUnindexedKeys = 16;

// Returns whether both are keys that compare without running Python (None, numbers, text, bytes,
// globals) and are equal: 1, True and 1.0 are one key.  False for NaN and for all other kinds.
bool equal_keys(const Value& a, const Value& b) noexcept;

// Positions of keys by a hash that is keyed at random once per process, so that no file can be made
// to collide.
class KeyIndex {
 public:
  // Returns the hash of a key, nothing for the kinds that `equal_keys` does not compare.
  static std::optional<std::uint64_t> hash(const Value& key) noexcept;
  static std::uint64_t hash(std::string_view text) noexcept;

  // Returns the first position in the index with this hash for which `is_key(position)`; nothing if
  // there is no such position.
  template <typename IsKey>
  std::optional<std::uint32_t> find(std::uint64_t hash, const IsKey& is_key) const {
    if (slots_.empty()) return std::nullopt;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = hash & mask; slots_[at].position != kFree; at = (at + 1) & mask) {
      if (slots_[at].hash == short_hash(hash) && is_key(slots_[at].position))
        return slots_[at].position;
    }
    return std::nullopt;
  }
  // Requires: position < 2^32 - 1.
  void insert(std::uint64_t hash, std::uint32_t position);

 private:
  static constexpr std::uint32_t kFree = UINT32_MAX;
  struct Slot {
    std::uint32_t hash = 0;  // low bits of the hash; they also determine the slot's place
    std::uint32_t position = kFree;
  };
  static std::uint32_t short_hash(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash);
  }
  void place(Slot slot) noexcept;
  std::vector<Slot> slots_;  // a power of two, at most three quarters taken
  std::size_t taken_ = 0;
};

// Records that `key` follows the first `count` keys, where `key_at(i)` is number i.  Returns false
// if it equals one of them.  The index appears when the container grows beyond kUnindexedKeys.
// Requires: called for each key in turn, or `index` is empty.
template <typename KeyAt>
bool add_key(std::unique_ptr<KeyIndex>& index, std::size_t count, const Value& key,
             const KeyAt& key_at) {
  if (count < kUnindexedKeys) {
    for (std::size_t i = 0; i < count; ++i) {
      if (equal_keys(key_at(i), key)) return false;
    }
    return true;
  }
  if (index == nullptr) {
    index = std::make_unique<KeyIndex>();
    for (std::size_t i = 0; i < count; ++i) {
      const std::optional<std::uint64_t> hash = KeyIndex::hash(key_at(i));
      if (hash.has_value()) index->insert(*hash, static_cast<std::uint32_t>(i));
    }
  }
  const std::optional<std::uint64_t> hash = KeyIndex::hash(key);
  if (!hash.has_value()) return true;
  if (index->find(*hash, [&](std::uint32_t i) { return equal_keys(key_at(i), key); })) return false;
  index->insert(*hash, static_cast<std::uint32_t>(count));
  return true;
}

}  // namespace fsdp::formats
