// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/value_compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/back_reference.h"

namespace fsdp::formats {
namespace {

// Keys that are not text, and members of sets, are searched one by one among at most this many.
constexpr std::size_t kMaxSearch = 1000;
// Values are nested no deeper than pickles may be; this limit bounds the stack in any case.
constexpr std::size_t kMaxDepth = 2000;

class Comparer {
 public:
  ValueComparison take() { return std::move(result_); }

  bool compare(const Value& a, const Value& b) {
    // Values are shared: each pair is compared once.
    const bool shared = a.identity() != nullptr && b.identity() != nullptr;
    if (shared && !seen_.emplace(a.identity(), b.identity()).second) return true;
    if (++depth_ > kMaxDepth) return differ();
    if (const std::uint32_t number = cycle_number(a); number != 0)
      cycles_.emplace(number, cycle_number(b));
    const bool same = compare_new(a, b);
    --depth_;
    return same;
  }

 private:
  bool compare_new(const Value& a, const Value& b) {
    const auto left = mapping_entries(a);
    const auto right = mapping_entries(b);
    if (left || right) return left && right ? mappings(*left, b, *right) : differ();
    if (a.kind() != b.kind()) return differ();
    switch (a.kind()) {
      case ValueKind::kNone:
        return true;
      case ValueKind::kBool:
        return *a.as_bool() == *b.as_bool() || differ();
      case ValueKind::kInt:
        return *a.as_int() == *b.as_int() || differ();
      case ValueKind::kFloat:
        return floats(*a.as_float(), *b.as_float()) || differ();
      case ValueKind::kOpaque:
        if (back_reference(a) && back_reference(b)) {
          // Each file numbers its cycles by itself.
          const auto pair = cycles_.emplace(*back_reference(a), *back_reference(b)).first;
          return pair->second == *back_reference(b) || differ();
        }
        return (a.opaque_tag() == b.opaque_tag() && a.opaque_payload() == b.opaque_payload()) ||
               differ();
      case ValueKind::kString:
        return *a.as_string() == *b.as_string() || differ();
      case ValueKind::kBytes:
      case ValueKind::kByteArray:
      case ValueKind::kBigInt:
        return *a.as_bytes() == *b.as_bytes() || differ();
      case ValueKind::kGlobal:
        return *a.as_global() == *b.as_global() || differ();
      case ValueKind::kStorage:
        return storages(*a.as_storage(), *b.as_storage());
      case ValueKind::kSet:
      case ValueKind::kFrozenSet:
        return sets(a.items(), b.items());
      case ValueKind::kObject:
        return objects(*a.as_object(), *b.as_object());
      default:
        return sequences(a.items(), b.items());
    }
  }

  // The innermost place is noted first; each outer level puts its step before it.
  bool differ() {
    result_.same = false;
    return false;
  }
  bool at(const std::string& step, bool same) {
    if (!same) result_.where.insert(0, step);
    return same;
  }

  static bool floats(double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
           (std::isnan(a) && std::isnan(b));
  }

  bool sequences(std::span<const Value> a, std::span<const Value> b) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!at(cat("[", i, "]"), compare(a[i], b[i]))) return false;
    }
    return a.size() == b.size() || differ();
  }

  // Compares two keys or members with a copy that records nothing.
  static bool equal(const Value& a, const Value& b) {
    Comparer other;
    return other.compare(a, b) && other.result_.storages.empty();
  }

  // Returns the value of `mapping` under the key; tries its place first.
  static const Value* find(const Value& mapping, std::span<const Value::Entry> entries,
                           const Value& key, std::size_t position) {
    if (position < entries.size() && equal(entries[position].first, key))
      return &entries[position].second;
    const std::string* text = key.as_string();
    if (text != nullptr && mapping.kind() == ValueKind::kDict) return mapping.find(*text);
    if (entries.size() > kMaxSearch) return nullptr;
    for (const Value::Entry& entry : entries) {
      if (equal(entry.first, key)) return &entry.second;
    }
    return nullptr;
  }

  static std::string step_of(const Value& key) {
    if (const std::string* text = key.as_string()) return "[" + quote(*text) + "]";
    if (const auto number = key.as_int()) return cat("[", *number, "]");
    return "[...]";
  }

  bool mappings(std::span<const Value::Entry> a, const Value& right,
                std::span<const Value::Entry> b) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Value* other = find(right, b, a[i].first, i);
      const bool same = other != nullptr ? compare(a[i].second, *other) : differ();
      if (!at(step_of(a[i].first), same)) return false;
    }
    return a.size() == b.size() || differ();
  }

  bool sets(std::span<const Value> a, std::span<const Value> b) {
    if (a.size() != b.size()) return differ();
    for (std::size_t i = 0; i < a.size(); ++i) {
      bool found = equal(a[i], b[i]);
      for (std::size_t k = 0; !found && a.size() <= kMaxSearch && k < b.size(); ++k)
        found = equal(a[i], b[k]);
      if (!found) return differ();
    }
    return true;
  }

  bool storages(const StorageRef& a, const StorageRef& b) {
    if (a.numel != b.numel || a.dtype != b.dtype || a.untyped != b.untyped) return differ();
    result_.storages.emplace_back(a, b);
    return true;
  }

  bool objects(const ObjectData& a, const ObjectData& b) {
    if (!compare(a.callable, b.callable)) return false;
    if (!at("(...)", sequences(a.args.items(), b.args.items()))) return false;
    if (a.by_new != b.by_new || a.built != b.built) return differ();
    if (!at(".state", compare(a.state, b.state))) return false;
    return sequences(a.list_items, b.list_items) && mappings(a.dict_items, {}, b.dict_items);
  }

  ValueComparison result_;
  std::set<std::pair<const void*, const void*>> seen_;
  std::map<std::uint32_t, std::uint32_t> cycles_;  // numbers of containers that hold themselves
  std::size_t depth_ = 0;
};

}  // namespace

ValueComparison compare_values(const Value& a, const Value& b) {
  Comparer comparer;
  comparer.compare(a, b);
  return comparer.take();
}

}  // namespace fsdp::formats
