// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/key_index.h"

#include <bit>
#include <cstring>
#include <random>

namespace fsdp::formats {
namespace {

struct HashKey {
  std::uint64_t k0;
  std::uint64_t k1;
};

const HashKey& process_key() {
  static const HashKey key = [] {
    std::random_device random;
    const auto word = [&] { return (std::uint64_t{random()} << 32U) | random(); };
    return HashKey{word(), word()};
  }();
  return key;
}

// SipHash-1-3 (Aumasson and Bernstein).
class SipState {
 public:
  explicit SipState(const HashKey& key)
      : v0_(key.k0 ^ 0x736f6d6570736575ULL),
        v1_(key.k1 ^ 0x646f72616e646f6dULL),
        v2_(key.k0 ^ 0x6c7967656e657261ULL),
        v3_(key.k1 ^ 0x7465646279746573ULL) {}
  void add(std::uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }
  std::uint64_t finish() {
    v2_ ^= 0xFF;
    round();
    round();
    round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }
  std::uint64_t v0_;
  std::uint64_t v1_;
  std::uint64_t v2_;
  std::uint64_t v3_;
};

}  // namespace

std::uint64_t KeyIndex::hash_bytes(std::uint64_t kind, std::string_view bytes) noexcept {
  SipState state(process_key());
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    state.add(word);
  }
  std::uint64_t last = 0;
  if (at < bytes.size()) std::memcpy(&last, bytes.data() + at, bytes.size() - at);
  state.add(last);
  state.add(bytes.size() << 8U | kind);
  return state.finish();
}

std::uint64_t KeyIndex::hash_number(std::uint64_t bits) noexcept {
  SipState state(process_key());
  state.add(bits);
  return state.finish();
}

void KeyIndex::place(Slot slot) noexcept {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = slot.hash & mask;
  while (slots_[at].position != kFree) at = (at + 1) & mask;
  slots_[at] = slot;
}

void KeyIndex::insert(std::uint64_t hash, std::uint32_t position) {
  if ((taken_ + 1) * 4 > slots_.size() * 3) {
    std::vector<Slot> before(slots_.empty() ? 64 : slots_.size() * 2);
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.position != kFree) place(slot);
    }
  }
  place({short_hash(hash), position});
  ++taken_;
}

}  // namespace fsdp::formats
