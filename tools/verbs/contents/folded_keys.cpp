// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/folded_keys.h"

#include "tools/verbs/contents/key_tree.h"

namespace fsdp::cli {
namespace {

// Adds the tensors below a node.
void collect(const KeyNode& node, const std::string& prefix, const formats::Index& index,
             std::vector<FoldedKey>& keys) {
  for (const auto& child : node.children) {
    const std::string name = prefix + child->name;
    if (!child->alike.empty()) {
      const bool one = child->alike.size() == 1;
      FoldedKey& key = keys.emplace_back(FoldedKey{one ? child->tensor->key : name, {}});
      for (const formats::TensorEntry* tensor : child->alike)
        key.members.push_back(static_cast<std::size_t>(tensor - index.tensors.data()));
    }
    collect(*child, name + ".", index, keys);
  }
}

}  // namespace

std::vector<FoldedKey> folded_keys(const formats::Index& index) {
  std::vector<FoldedKey> keys;
  collect(*key_tree(index, true), "", index, keys);
  std::size_t members = 0;
  for (const FoldedKey& key : keys) members += key.members.size();
  if (members == index.tensors.size()) return keys;
  keys.clear();
  for (std::size_t i = 0; i < index.tensors.size(); ++i)
    keys.push_back({index.tensors[i].key, {i}});
  return keys;
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
