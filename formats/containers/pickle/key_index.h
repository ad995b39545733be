// SPDX-License-Identifier: Apache-2.0
// A hash table from keys to their positions in a large dict or set.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// Containers with at most this many keys are searched without an index.
inline constexpr std::size_t kUnindexedKeys = 16;

// Maps hashes of keys to their positions.  The hash key is random, one per process, so that no file
// can provoke collisions.  keys.h has the hash of any key.
class KeyIndex {
 public:
  // Return the hash of a text, of other bytes of the kind `kind`, and of a number.
  static std::uint64_t hash(std::string_view text) noexcept { return hash_bytes(kText, text); }
  static std::uint64_t hash_bytes(std::uint64_t kind, std::string_view bytes) noexcept;
  static std::uint64_t hash_number(std::uint64_t bits) noexcept;

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
  static constexpr std::uint64_t kText = UINT64_MAX;  // not a kind
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

}  // namespace fsdp::formats
