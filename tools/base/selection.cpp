// SPDX-License-Identifier: Apache-2.0
#include "tools/base/selection.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/meant_name.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::quote;

// Trainers' names for the level that holds the model in a state dict.
constexpr std::array<std::string_view, 6> kLevels = {"model", "module",  "state_dict",
                                                     "net",   "network", "model_state_dict"};
constexpr std::string_view kBelow = ".**";

// Returns whether a top-level key belongs to an optimizer, not to the model beside it.
bool is_of_optimizer(std::string_view key) {
  return key.starts_with("optim");
}

}  // namespace

SelectionCheck::SelectionCheck(const formats::KeySelection& selection)
    : selection_(selection), matched_(selection.include.size(), 0) {
  for (const formats::Glob& included : selection.include) {
    const std::string& glob = included.text();
    if (!glob.ends_with(kBelow)) continue;
    const std::string front = glob.substr(0, glob.size() - 2);
    if (front.find_first_of("*?[") != std::string::npos) continue;
    const std::size_t dot = front.rfind('.', front.size() - 2);
    const std::string parent = dot == std::string::npos ? "" : front.substr(0, dot + 1);
    const std::string last = front.substr(parent.size(), front.size() - parent.size() - 1);
    if (std::find(kLevels.begin(), kLevels.end(), last) != kLevels.end())
      levels_.push_back({glob, front, parent, false, 0, {}});
  }
}

void SelectionCheck::see(const std::string& key) {
  for (std::size_t i = 0; i < matched_.size(); ++i) {
    if (matched_[i] == 0 && selection_.include[i].matches(key)) matched_[i] = 1;
  }
  any_ = any_ || selection_.selects(key);
  if (!matched_.empty() && names_.size() < formats::kMostNamesCompared) names_.push_back(key);
}

void SelectionCheck::see(const formats::Index& index,
                         const std::function<std::string(const std::string&)>& name) {
  const auto named = [&](const std::string& key) { return name ? name(key) : key; };
  for (const formats::TensorEntry& tensor : index.tensors) {
    const std::string key = named(tensor.key);
    see(key);
    if (!levels_.empty() && tensor.path.size() == 1 && formats::is_floating(tensor.dtype))
      see_flat_parameter(key, selection_.selects(key));
  }
  for (const formats::ValueEntry& value : index.values) see(named(value.key));
}

void SelectionCheck::see_flat_parameter(const std::string& key, bool selected) {
  for (Level& level : levels_) {
    if (key.starts_with(level.front)) {
      level.is_module = true;
      continue;
    }
    const bool beside = key.starts_with(level.parent) &&
                        !is_of_optimizer(std::string_view(key).substr(level.parent.size()));
    if (!beside || selected || formats::any_matches(selection_.exclude, key)) continue;
    if (level.left_out++ == 0) level.example = key;
  }
}

void SelectionCheck::finish(const std::string& where) const {
  if (selection_.everything()) return;
  for (std::size_t i = 0; i < matched_.size(); ++i) {
    if (matched_[i] == 0) {
      const std::string near = formats::meant_glob(selection_.include[i], names_);
      throw Error(ErrorCode::kNotFound,
                  cat(where, ": no key matches ", quote(selection_.include[i].text(), 200),
                      near.empty() ? "; fsdp-ckpt inspect lists them" : near));
    }
  }
  if (!any_) throw Error(ErrorCode::kNotFound, where + ": no key matches the selection");
  for (const Level& level : levels_) {
    if (!level.is_module || level.left_out == 0) continue;
    const std::string more =
        level.left_out == 1 ? "" : cat(" and ", level.left_out - 1, " more parameters");
    throw Error(ErrorCode::kUsage,
                cat(where, ": ", quote(level.glob, 200), " is a module of the model here, not the ",
                    "whole of it: ", quote(level.example, 200), more,
                    level.left_out == 1 ? " lies" : " lie",
                    " beside it; select them with another -k, or leave them out with --exclude"));
  }
}

void check_selection(const formats::KeySelection& selection, const formats::Index& index,
                     const std::string& where) {
  if (selection.everything()) return;
  SelectionCheck check(selection);
  check.see(index);
  check.finish(where);
}

}  // namespace fsdp::cli
