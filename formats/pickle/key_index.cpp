// SPDX-License-Identifier: Apache-2.0
#include "formats/pickle/key_index.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

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

std::uint64_t hash_text(std::uint64_t kind, std::string_view text) {
  SipState state(process_key());
  std::size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    state.add(word);
  }
  std::uint64_t last = 0;
  if (at < text.size()) std::memcpy(&last, text.data() + at, text.size() - at);
  state.add(last);
  state.add(text.size() << 8U | kind);
  return state.finish();
}

std::uint64_t hash_number(std::uint64_t bits) {
  SipState state(process_key());
  state.add(bits);
  return state.finish();
}

// Returns the integer that a number equals, nothing if it has a fraction or is outside 64 bits.
std::optional<std::int64_t> integral(const Value& value) {
  if (const auto boolean = value.as_bool()) return *boolean ? 1 : 0;
  if (const auto integer = value.as_int()) return integer;
  if (const auto number = value.as_float()) {
    constexpr double kLimit = 9223372036854775808.0;  // 2^63
    if (*number >= -kLimit && *number < kLimit && std::trunc(*number) == *number) {
      return static_cast<std::int64_t>(*number);
    }
  }
  return std::nullopt;
}

bool is_number(ValueKind kind) {
  return kind == ValueKind::kBool || kind == ValueKind::kInt || kind == ValueKind::kFloat;
}

constexpr std::uint64_t kNameHash = 255;  // beside the kinds, for hash(string_view) of global names

}  // namespace

bool equal_keys(const Value& a, const Value& b) noexcept {
  if (a.kind() == ValueKind::kString && b.kind() == ValueKind::kString) {
    return a.identity() == b.identity() || *a.as_string() == *b.as_string();
  }
  if (is_number(a.kind()) && is_number(b.kind())) {
    const auto x = integral(a);
    const auto y = integral(b);
    if (x.has_value() || y.has_value()) return x == y;
    return *a.as_float() == *b.as_float();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case ValueKind::kNone:
      return true;
    case ValueKind::kBytes:
    case ValueKind::kBigInt:
      return a.identity() == b.identity() || *a.as_bytes() == *b.as_bytes();
    case ValueKind::kGlobal:
      return a.identity() == b.identity() || *a.as_global() == *b.as_global();
    default:
      return false;
  }
}

std::uint64_t KeyIndex::hash(std::string_view text) noexcept {
  return hash_text(static_cast<std::uint64_t>(ValueKind::kString), text);
}

std::optional<std::uint64_t> KeyIndex::hash(const Value& key) noexcept {
  const auto kind = static_cast<std::uint64_t>(key.kind());
  switch (key.kind()) {
    case ValueKind::kNone:
      return hash_number(kind);
    case ValueKind::kBool:
    case ValueKind::kInt:
    case ValueKind::kFloat: {
      if (const auto integer = integral(key)) {
        return hash_number(static_cast<std::uint64_t>(*integer));
      }
      const double number = *key.as_float();
      if (std::isnan(number)) return std::nullopt;
      return hash_number(std::bit_cast<std::uint64_t>(number));
    }
    case ValueKind::kString:
      return hash(*key.as_string());
    case ValueKind::kBytes:
    case ValueKind::kBigInt:
      return hash_text(kind, *key.as_bytes());
    case ValueKind::kGlobal:
      return hash_text(kNameHash, key.as_global()->module) ^ hash_text(kind, key.as_global()->name);
    default:
      return std::nullopt;
  }
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
