// SPDX-License-Identifier: Apache-2.0
// Keys of dicts and sets, compared as Python compares them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "formats/containers/pickle/key_index.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Returns whether both are keys that compare without running Python (None, numbers, text, bytes,
// globals) and are equal: 1, True and 1.0 are one key.  False for NaN and for all other kinds.
bool equal_keys(const Value& a, const Value& b) noexcept;
// Returns the hash of a key, nothing for the kinds that `equal_keys` does not compare.
std::optional<std::uint64_t> hash_of_key(const Value& key) noexcept;

// Records that `key` follows the first `count` keys; `key_at(i)` is key i.  Returns false if `key`
// equals one of them.  Makes the index when the container grows beyond kUnindexedKeys.  Requires:
// called for each key in turn, or `index` is empty.
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
      const std::optional<std::uint64_t> hash = hash_of_key(key_at(i));
      if (hash.has_value()) index->insert(*hash, static_cast<std::uint32_t>(i));
    }
  }
  const std::optional<std::uint64_t> hash = hash_of_key(key);
  if (!hash.has_value()) return true;
  if (index->find(*hash, [&](std::uint32_t i) { return equal_keys(key_at(i), key); })) return false;
  index->insert(*hash, static_cast<std::uint32_t>(count));
  return true;
}

}  // namespace fsdp::formats
