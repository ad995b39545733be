// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/storage_map.h"

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsdp::formats {
namespace {

class StorageMap {
 public:
  explicit StorageMap(const std::function<void(StorageRef&)>& change) : change_(change) {}

  Value operator()(const Value& value) {
    if (value.identity() == nullptr) return value;
    const auto known = known_.find(value.identity());
    if (known != known_.end()) return known->second;
    Value made = rebuilt(value);
    known_.emplace(value.identity(), made);
    return made;
  }

 private:
  Value rebuilt(const Value& value) {
    switch (value.kind()) {
      case ValueKind::kStorage: {
        StorageRef storage = *value.as_storage();
        change_(storage);
        return Value::storage(std::move(storage));
      }
      case ValueKind::kList:
        return Value::list(all(value.items()));
      case ValueKind::kTuple:
        return Value::tuple(all(value.items()));
      case ValueKind::kSet:
        return Value::set(all(value.items()));
      case ValueKind::kFrozenSet:
        return Value::frozen_set(all(value.items()));
      case ValueKind::kDict:
        return Value::dict(all(value.entries()));
      case ValueKind::kObject: {
        const ObjectData& from = *value.as_object();
        ObjectData to;
        to.callable = (*this)(from.callable);
        to.args = (*this)(from.args);
        to.by_new = from.by_new;
        to.built = from.built;
        to.state = (*this)(from.state);
        to.list_items = all(from.list_items);
        to.dict_items = all(from.dict_items);
        return Value::object(std::move(to));
      }
      default:
        return value;
    }
  }

  std::vector<Value> all(std::span<const Value> items) {
    std::vector<Value> out;
    out.reserve(items.size());
    for (const Value& item : items) out.push_back((*this)(item));
    return out;
  }
  std::vector<Value::Entry> all(std::span<const Value::Entry> entries) {
    std::vector<Value::Entry> out;
    out.reserve(entries.size());
    for (const auto& [key, item] : entries) out.emplace_back((*this)(key), (*this)(item));
    return out;
  }

  const std::function<void(StorageRef&)>& change_;
  std::unordered_map<const void*, Value> known_;
};

}  // namespace

Value with_storages(const Value& value, const std::function<void(StorageRef&)>& change) {
  return StorageMap(change)(value);
}

}  // namespace fsdp::formats
