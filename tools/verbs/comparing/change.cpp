// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/comparing/change.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/tensor_stats.h"
#include "tools/verbs/contents/folded_keys.h"
#include "tools/verbs/contents/inspect.h"

namespace fsdp::cli {
namespace {

constexpr const char* kDecimal = "0123456789";

std::string module_of(const std::string& key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string::npos ? std::string(kRootName) : key.substr(0, dot);
}

// Returns "model.layers.3" for "model.layers.3.attn.weight".
std::string layer_of(const std::string& key) {
  for (std::size_t begin = 0, end = 0; end < key.size(); begin = end + 1) {
    end = std::min(key.find('.', begin), key.size());
    const bool number = begin != end && key.find_first_not_of(kDecimal, begin) >= end;
    if (number && end != key.size()) return key.substr(0, end);
  }
  return module_of(key);
}

Change change_of(const ComparedTensor& compared, std::size_t position) {
  const formats::TensorDifference& figures = compared.figures;
  Change change;
  change.name = compared.key;
  change.tensor = position;
  change.tensors = 1;
  change.changed = compared.differs() ? 1 : 0;
  change.elements = figures.count;
  change.different = figures.different;
  change.numbers = formats::has_numbers(compared.a);
  change.left = figures.left;
  change.apart = figures.apart;
  change.unbounded = figures.unbounded;
  change.max_abs = figures.max_abs;
  return change;
}

void add_counts(Change& change, const Change& other) {
  change.tensors += other.tensors;
  change.changed += other.changed;
  change.elements += other.elements;
  change.different += other.different;
}

void add(Change& module, const Change& tensor) {
  add_counts(module, tensor);
  module.numbers = module.numbers || tensor.numbers;
  module.left.add(tensor.left);
  module.apart.add(tensor.apart);
  module.unbounded += tensor.unbounded;
  module.max_abs = std::max(module.max_abs, tensor.max_abs);
}

using Rank = std::pair<bool, double>;

Rank rank_of(const Change& change, ChangeOrder order) {
  return {change.unbounded != 0,
          order == ChangeOrder::kAbsolute ? change.max_abs : change.relative().value_or(0)};
}

// Returns an index with an entry for each change: its name, and the dtype and shape that decide
// which numbered layers are alike.
formats::Index index_of(const std::vector<Change>& changes,
                        const std::vector<ComparedTensor>& compared) {
  formats::Index index;
  for (const Change& change : changes) {
    const ComparedTensor& first = compared[change.tensor];
    formats::TensorEntry entry;
    entry.key = change.name;
    entry.path = {change.name};
    entry.dtype = first.a;
    entry.shape = first.shape;
    index.add(std::move(entry));
  }
  return index;
}

}  // namespace

const char* unit_word(ChangeUnit unit) {
  if (unit == ChangeUnit::kTensor) return "tensor";
  return unit == ChangeUnit::kModule ? "module" : "layer";
}

std::optional<double> Change::relative() const {
  if (!numbers) return std::nullopt;
  return formats::relative_change(apart, left);
}

std::vector<Change> changes_of(const std::vector<ComparedTensor>& compared, ChangeUnit unit) {
  std::vector<Change> changes;
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < compared.size(); ++i) {
    Change change = change_of(compared[i], i);
    if (unit != ChangeUnit::kTensor) {
      change.name =
          unit == ChangeUnit::kModule ? module_of(compared[i].key) : layer_of(compared[i].key);
      const auto [at, fresh] = places.try_emplace(change.name, changes.size());
      if (!fresh) {
        add(changes[at->second], change);
        continue;
      }
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

std::vector<Change> folded(const std::vector<Change>& changes,
                           const std::vector<ComparedTensor>& compared) {
  std::vector<Change> rows;
  for (const FoldedKey& key : folded_keys(index_of(changes, compared))) {
    const auto largest = *std::max_element(key.members.begin(), key.members.end(),
                                           [&](std::size_t x, std::size_t y) {
                                             return rank_of(changes[x], ChangeOrder::kRelative) <
                                                    rank_of(changes[y], ChangeOrder::kRelative);
                                           });
    Change row = changes[largest];
    for (const std::size_t i : key.members) {
      if (i == largest) continue;
      add_counts(row, changes[i]);
      row.max_abs = std::max(row.max_abs, changes[i].max_abs);
    }
    if (key.members.size() > 1) {
      row.most = folded_part(key.name, row.name);
      row.name = key.name;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void rank(std::vector<Change>& changes, ChangeOrder order) {
  std::erase_if(changes, [](const Change& change) { return change.changed == 0; });
  std::stable_sort(changes.begin(), changes.end(), [&](const Change& x, const Change& y) {
    if (order == ChangeOrder::kName) return formats::natural_less(x.name, y.name);
    return rank_of(x, order) > rank_of(y, order);
  });
}

}  // namespace fsdp::cli
