// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/architecture_fit.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::formats::hf {
namespace {

// No model has more wrappers around it.
constexpr std::size_t kMostFronts = 8;

// The parameters of a LayerNorm in models that came from TensorFlow, which transformers renames.
constexpr std::pair<std::string_view, std::string_view> kEarlyWords[] = {{".gamma", ".weight"},
                                                                         {".beta", ".bias"}};

}  // namespace

std::vector<std::string> common_fronts(const NamedShapes& tensors) {
  std::vector<std::string> out = {""};
  while (out.size() < kMostFronts && !tensors.empty()) {
    const std::size_t dot = tensors[0].first.find('.', out.back().size());
    if (dot == std::string::npos) break;
    const std::string front = tensors[0].first.substr(0, dot + 1);
    if (!std::ranges::all_of(tensors,
                             [&](const auto& tensor) { return tensor.first.starts_with(front); }))
      break;
    out.push_back(front);
  }
  return out;
}

std::string ArchitectureFit::renamed(const std::string& name) const {
  std::string out = add + name.substr(strip.size());
  for (const auto& [word, now] : kEarlyWords) {
    if (early && out.ends_with(word)) out.replace(out.size() - word.size(), word.size(), now);
  }
  return out;
}

ArchitectureFit fit_to(const Architecture& architecture, const NamedShapes& tensors) {
  std::vector<ArchitectureFit> tries;
  for (const bool early : {false, true}) {
    if (early && std::ranges::none_of(tensors, [](const auto& tensor) {
          return tensor.first.ends_with("LayerNorm.gamma");
        }))
      break;
    for (const std::string& front : common_fronts(tensors)) tries.push_back({front, "", early, {}});
    if (!architecture.front().empty()) tries.push_back({"", architecture.front(), early, {}});
  }
  ArchitectureFit* best = nullptr;
  for (ArchitectureFit& one : tries) {
    NamedShapes renamed;
    renamed.reserve(tensors.size());
    for (const auto& [name, shape] : tensors) renamed.emplace_back(one.renamed(name), shape);
    one.differences = architecture.differences(renamed);
    if (best == nullptr || one.differences.count() < best->differences.count()) best = &one;
  }
  return std::move(*best);
}

}  // namespace fsdp::formats::hf
