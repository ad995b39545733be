// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/leaf_move.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

std::vector<std::string> components_of(std::string_view text) {
  std::vector<std::string> out;
  while (text.ends_with('.')) text.remove_suffix(1);
  if (text.empty()) return out;
  for (std::size_t at = 0;;) {
    const std::size_t dot = text.find('.', at);
    out.emplace_back(text.substr(at, dot - at));
    if (dot == std::string_view::npos) return out;
    at = dot + 1;
  }
}

std::string joined_text(std::span<const std::string> components) {
  std::string out;
  for (const std::string& component : components) out += (out.empty() ? "" : ".") + component;
  return out;
}

}  // namespace

void move_leaf(PlacedLeaf& leaf, std::size_t bytes, std::string_view to) {
  // A first level that both keys share stays as it is.
  const std::string front = joined({leaf.path[0].step}) + '.';
  if (leaf.path.size() > 1 && bytes >= front.size() && to.starts_with(front)) {
    PlacedLeaf inner{leaf.was, {leaf.path.begin() + 1, leaf.path.end()}, leaf.value};
    move_leaf(inner, bytes - front.size(), to.substr(front.size()));
    leaf.path.erase(leaf.path.begin() + 1, leaf.path.end());
    leaf.path.insert(leaf.path.end(), inner.path.begin(), inner.path.end());
    return;
  }
  // The number of replaced components in each step, and the rest of the last step.
  std::vector<std::size_t> counts;
  std::string rest;
  std::size_t taken = 0;  // steps
  for (std::size_t left = bytes; left != 0 && taken < leaf.path.size(); ++taken) {
    const std::string text = joined({leaf.path[taken].step});
    counts.push_back(components_of(std::string_view(text).substr(0, left)).size());
    if (left >= text.size()) {
      left -= text.size();
      if (left != 0) --left;  // the dot between two steps
      continue;
    }
    rest = text.substr(left);
    if (rest.starts_with('.')) rest.erase(0, 1);
    left = 0;
  }
  std::vector<std::string> components = components_of(to);
  std::vector<std::string> steps;
  for (std::size_t i = counts.size(); i-- > 0;) {
    const std::size_t count = std::min(counts[i], components.size());
    std::string text = joined_text(std::span(components).last(count));
    components.resize(components.size() - count);
    if (i + 1 == counts.size() && !rest.empty()) text += (text.empty() ? "" : ".") + rest;
    if (!text.empty()) steps.insert(steps.begin(), std::move(text));
  }
  steps.insert(steps.begin(), components.begin(), components.end());
  std::vector<PlacedStep> path;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    // Steps are matched from the end: the last new step leads to the same place as the last old
    // one.
    const std::size_t from_end = steps.size() - 1 - i;
    PlacedStep like;
    if (from_end < taken) like = leaf.path[taken - 1 - from_end];
    path.push_back(text_step(steps[i], like));
  }
  path.insert(path.end(), leaf.path.begin() + static_cast<std::ptrdiff_t>(taken), leaf.path.end());
  if (path.empty())
    throw Error(ErrorCode::kName, quote(leaf.was, 200) + " would be left without a name");
  leaf.path = std::move(path);
}

}  // namespace fsdp::formats
