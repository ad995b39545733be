// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/values_apart.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/key_text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

bool is_container(const Value& value) {
  if (const auto entries = mapping_entries(value)) return !entries->empty();
  const bool sequence = value.kind() == ValueKind::kList || value.kind() == ValueKind::kTuple;
  return sequence && !value.items().empty();
}

// Finds out whether a dense tensor lies in containers of a value.  Each shared part is visited once
// and identified by its address, so a search serves one value and its parts, while they live.
class TensorSearch {
 public:
  bool operator()(const Value& value) {
    if (dense_tensor(value)) return true;
    if (!is_container(value)) return false;
    const auto [at, fresh] = known_.try_emplace(value.identity(), false);
    if (!fresh) return at->second;
    bool found = false;
    if (const auto entries = mapping_entries(value)) {
      found = std::ranges::any_of(*entries,
                                  [&](const Value::Entry& entry) { return (*this)(entry.second); });
    } else {
      const auto items = value.items();
      found = std::ranges::any_of(items, [&](const Value& item) { return (*this)(item); });
    }
    known_[value.identity()] = found;
    return found;
  }

 private:
  std::unordered_map<const void*, bool> known_;
};

class ApartCheckpoint : public Checkpoint {
 public:
  ApartCheckpoint(std::unique_ptr<Checkpoint> source, const ApartRule& rule)
      : source_(std::move(source)), rule_(rule) {
    description_ = source_->description();
    findings_ = source_->findings();
    const Index& from = source_->index();
    index_.files = from.files;
    index_.transforms = from.transforms;
    for (const Index::EntryRef& ref : from.order) add(ref);
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    const Origin& origin = origin_of(tensor.key, tensor.path);
    if (!origin.inner) return source_->chunk(source_->index().tensors[origin.position], chunk);
    const Inner& inner = inner_[origin.position];
    ChunkData data = source_->storage(inner.storage);
    view_storage(data, inner.view);
    return data;
  }
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                    ElementRange part) const override {
    const Origin& origin = origin_of(tensor.key, tensor.path);
    return !origin.inner &&
           source_->expect_chunk(source_->index().tensors[origin.position], chunk, part);
  }
  Value value(const ValueEntry& value) const override {
    const Origin& origin = origin_of(value.key, value.path);
    return origin.inner ? values_[origin.position]
                        : source_->value(source_->index().values[origin.position]);
  }
  ChunkData storage(const StorageRef& storage) const override { return source_->storage(storage); }
  std::optional<Value> tree() const override {
    // The source's own object, or one built from paths; each leaf is replaced by what it became.
    std::size_t next = 0;
    if (const auto own = source_->tree()) {
      return with_leaves(*own, [&](const Leaf& leaf) -> std::optional<Value> {
        const std::size_t at = indexed_place(leaf.value).value_or(next);
        ++next;
        return became_.at(at);
      });
    }
    std::vector<Leaf> leaves;
    const Index& from = source_->index();
    for (std::size_t i = 0; i < from.order.size(); ++i) {
      const Index::EntryRef& ref = from.order[i];
      leaves.push_back(
          {ref.is_tensor ? from.tensors[ref.position].key : from.values[ref.position].key,
           ref.is_tensor ? from.tensors[ref.position].path : from.values[ref.position].path,
           became_[i]});
    }
    return nested(leaves);
  }
  std::optional<Value> tensor_value(std::size_t tensor) const override {
    const TensorEntry& entry = index_.tensors.at(tensor);
    const Origin& origin = origin_of(entry.key, entry.path);
    return origin.inner ? std::nullopt : source_->tensor_value(origin.position);
  }
  std::optional<Value> tensor_object(std::size_t tensor) const override {
    const TensorEntry& entry = index_.tensors.at(tensor);
    const Origin& origin = origin_of(entry.key, entry.path);
    return origin.inner ? std::nullopt : source_->tensor_object(origin.position);
  }
  void check_unchanged() const override { source_->check_unchanged(); }

 private:
  struct Origin {
    bool inner;            // of a value that was taken apart
    std::size_t position;  // in the source's index, or in inner_ or values_
  };
  // A tensor within a value.
  struct Inner {
    StorageRef storage;
    TensorValue view;  // without its storage
  };

  // Keys alone are not unique: a flat and a nested key may have the same text.
  const Origin& origin_of(const std::string& key, const KeyPath& path) const {
    return origins_.at({key, path});
  }

  void note(const std::string& key, const KeyPath& path, Origin origin) {
    if (!origins_.emplace(std::pair(key, path), origin).second) {
      throw Error(ErrorCode::kKey, description_.path, ": ", quote(key, 200),
                  ": two entries have this name");
    }
  }

  void add(const Index::EntryRef& ref) {
    const Index& from = source_->index();
    if (ref.is_tensor) {
      note(from.tensors[ref.position].key, from.tensors[ref.position].path, {false, ref.position});
      became_.push_back(placeholder());
      index_.add(from.tensors[ref.position]);
      return;
    }
    const ValueEntry& entry = from.values[ref.position];
    if (rule_.wanted(entry.key)) {
      const Value value = source_->value(entry);
      has_tensor_ = {};
      if (is_container(value) && (!rule_.only_with_tensors || has_tensor_(value))) {
        ValueEntry at = entry;
        became_.push_back(taken_apart(value, at));
        return;
      }
    }
    note(entry.key, entry.path, {false, ref.position});
    became_.push_back(placeholder());
    index_.add(entry);
  }

  // Returns the stand-in in the tree for the entry that is added next.
  Value placeholder() const { return indexed_leaf(index_.order.size()); }

  // Returns the container with placeholders for its members.
  Value taken_apart(const Value& value, ValueEntry& at) {
    if (const auto entries = mapping_entries(value)) {
      std::vector<Value::Entry> out;
      for (const auto& [key, item] : *entries) {
        const std::string text = key_text(key);
        out.emplace_back(key, member(item, at, text, text));
      }
      return mapping_like(value, std::move(out));
    }
    std::vector<Value> out;
    std::int64_t position = 0;
    for (const Value& item : value.items()) {
      out.push_back(member(item, at, std::to_string(position), position));
      ++position;
    }
    return value.kind() == ValueKind::kTuple ? Value::tuple(std::move(out))
                                             : Value::list(std::move(out));
  }

  Value member(const Value& item, ValueEntry& at, const std::string& text, PathStep step) {
    const std::size_t length = at.key.size();
    if (!at.path.empty()) at.key += '.';
    at.key += text;
    at.path.push_back(std::move(step));
    if (index_.order.size() >= kMaxEntries) {
      throw Error(ErrorCode::kLimitNodes, description_.path, ": ", quote(at.key, 200),
                  ": the values unfold into more than ", kMaxEntries);
    }
    Value out = is_container(item) && rule_.wanted(at.key) &&
                        (!rule_.only_with_tensors || has_tensor_(item))
                    ? taken_apart(item, at)
                    : added(item, at);
    at.path.pop_back();
    at.key.resize(length);
    return out;
  }

  Value added(const Value& item, const ValueEntry& at) {
    Value out = placeholder();
    if (const auto tensor = dense_tensor(item)) {
      note(at.key, at.path, {true, inner_.size()});
      inner_.push_back({*tensor->storage, *tensor});
      inner_.back().view.storage = nullptr;
      TensorEntry entry{at.key, at.path, tensor->dtype, tensor->shape,
                        ChunkList(tensor->shape.size())};
      const Box whole = whole_box(entry.shape);
      entry.chunks.add(whole.offset, whole.size, {at.location.file, 0, 0, 0});
      index_.add(std::move(entry));
    } else {
      note(at.key, at.path, {true, values_.size()});
      values_.push_back(item);
      index_.add(ValueEntry{at.key, at.path, at.location});
    }
    return out;
  }

  // As in leaves_of: shared parts can unfold into far more than the file holds.
  static constexpr std::size_t kMaxEntries = 10'000'000;

  std::unique_ptr<Checkpoint> source_;
  const ApartRule rule_;
  TensorSearch has_tensor_;
  std::vector<Inner> inner_;
  std::vector<Value> values_;
  std::vector<Value> became_;  // for each entry of the source, its stand-in in the tree
  std::map<std::pair<std::string, KeyPath>, Origin> origins_;
};

}  // namespace

std::unique_ptr<Checkpoint> with_values_apart(std::unique_ptr<Checkpoint> source,
                                              const ApartRule& rule) {
  // An index of many ranks is large: a second one is made only if needed.
  const auto& values = source->index().values;
  const bool any = std::ranges::any_of(values, [&](const ValueEntry& entry) {
    if (!rule.wanted(entry.key)) return false;
    const Value value = source->value(entry);
    return is_container(value) && (!rule.only_with_tensors || TensorSearch()(value));
  });
  if (!any) return source;
  return std::make_unique<ApartCheckpoint>(std::move(source), rule);
}

}  // namespace fsdp::formats
