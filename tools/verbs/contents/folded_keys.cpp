// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/folded_keys.h"

#include "tools/verbs/contents/key_tree.h"

namespace fsdp::cli {
namespace {

class Collector {
 public:
  explicit Collector(const formats::Index& index) : index_(index) {}

  void collect(const KeyNode& node, const std::string& prefix) {
    for (const auto& child : node.children) {
      const std::string name = prefix + child->name;
      if (!child->alike.empty()) add(name, *child);
      collect(*child, name + ".");
    }
  }
  std::vector<FoldedKey> take() {
    if (members_ == index_.tensors.size()) return std::move(keys_);
    keys_.clear();
    for (std::size_t i = 0; i < index_.tensors.size(); ++i)
      keys_.push_back({index_.tensors[i].key, {i}});
    return std::move(keys_);
  }

 private:
  void add(const std::string& name, const KeyNode& node) {
    FoldedKey key;
    for (const formats::TensorEntry* tensor : node.alike)
      key.members.push_back(static_cast<std::size_t>(tensor - index_.tensors.data()));
    key.name = key.members.size() == 1 ? node.tensor->key : name;
    members_ += key.members.size();
    keys_.push_back(std::move(key));
  }

  const formats::Index& index_;
  std::vector<FoldedKey> keys_;
  std::size_t members_ = 0;
};

}  // namespace

std::vector<FoldedKey> folded_keys(const formats::Index& index) {
  Collector collector(index);
  collector.collect(*key_tree(index, true), "");
  return collector.take();
}

std::string folded_part(const std::string& name, const std::string& key) {
  const std::size_t begin = name.find('{');
  const std::size_t end = name.find('}');
  if (end == std::string::npos || begin > end || name.find('{', end) != std::string::npos)
    return key;
  const std::string behind = name.substr(end + 1);
  if (key.size() < begin + behind.size() || !key.starts_with(name.substr(0, begin)) ||
      !key.ends_with(behind))
    return key;
  return key.substr(begin, key.size() - begin - behind.size());
}

}  // namespace fsdp::cli
