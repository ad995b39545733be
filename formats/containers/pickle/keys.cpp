// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/keys.h"

#include <bit>
#include <cmath>

namespace fsdp::formats {
namespace {

// Returns the integer that a number equals, nothing if it has a fraction or is outside 64 bits.
std::optional<std::int64_t> integral(const Value& value) {
  if (const auto boolean = value.as_bool()) return *boolean ? 1 : 0;
  if (const auto integer = value.as_int()) return integer;
  if (const auto number = value.as_float()) {
    constexpr double kLimit = 9223372036854775808.0;  // 2^63
    if (*number >= -kLimit && *number < kLimit && std::trunc(*number) == *number)
      return static_cast<std::int64_t>(*number);
  }
  return std::nullopt;
}

bool is_number(ValueKind kind) {
  return kind == ValueKind::kBool || kind == ValueKind::kInt || kind == ValueKind::kFloat;
}

constexpr std::uint64_t kNameHash = 255;  // for the module of a global; is not a ValueKind

}  // namespace

bool equal_keys(const Value& a, const Value& b) noexcept {
  if (a.kind() == ValueKind::kString && b.kind() == ValueKind::kString)
    return a.identity() == b.identity() || *a.as_string() == *b.as_string();
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

std::optional<std::uint64_t> hash_of_key(const Value& key) noexcept {
  const auto kind = static_cast<std::uint64_t>(key.kind());
  switch (key.kind()) {
    case ValueKind::kNone:
      return KeyIndex::hash_number(kind);
    case ValueKind::kBool:
    case ValueKind::kInt:
    case ValueKind::kFloat: {
      if (const auto integer = integral(key))
        return KeyIndex::hash_number(static_cast<std::uint64_t>(*integer));
      const double number = *key.as_float();
      if (std::isnan(number)) return std::nullopt;
      return KeyIndex::hash_number(std::bit_cast<std::uint64_t>(number));
    }
    case ValueKind::kString:
      return KeyIndex::hash(*key.as_string());
    case ValueKind::kBytes:
    case ValueKind::kBigInt:
      return KeyIndex::hash_bytes(kind, *key.as_bytes());
    case ValueKind::kGlobal:
      return KeyIndex::hash_bytes(kNameHash, key.as_global()->module) ^
             KeyIndex::hash_bytes(kind, key.as_global()->name);
    default:
      return std::nullopt;
  }
}

}  // namespace fsdp::formats
