// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/model_pair.h"

#include "formats/bytes/base/error.h"
#include "formats/changes/arrays/computed.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMaxNames = 2000;

}  // namespace

ModelSide::ModelSide(const ModelTensors& model)
    : source(std::make_shared<arrays::ArraySource>(model.checkpoint)) {
  for (const auto& [key, value] : members_of(model.tensors))
    tensors.emplace(*key.as_string(), *tensor_number(value));
}

std::vector<std::string> ModelPair::names(
    const std::function<bool(const std::string& name)>& wanted) const {
  check_lacking(base, tuned, wanted);
  check_lacking(tuned, base, wanted);
  std::vector<std::string> names;
  for (const auto& [name, number] : base.tensors) {
    if (!wanted(name)) continue;
    if (base.text(name) != tuned.text(name)) {
      throw Error(ErrorCode::kMismatch,
                  cat(tuned.path(), ": ", quote(name, 200), " is ", tuned.text(name), ", but ",
                      base.text(name), " in ", base.path()));
    }
    names.push_back(name);
  }
  return names;
}

void ModelPair::check_lacking(const ModelSide& a, const ModelSide& b,
                              const std::function<bool(const std::string& name)>& wanted) const {
  std::vector<std::string> lacking;
  for (const auto& [name, number] : a.tensors) {
    if (!b.tensors.contains(name) && wanted(name)) lacking.push_back(name);
  }
  if (lacking.empty()) return;
  const std::string& first = lacking.front();
  std::vector<std::string> candidates;
  for (const auto& [name, number] : b.tensors) {
    if (candidates.size() == kMaxNames) break;
    if (!a.tensors.contains(name)) candidates.push_back(name);
  }
  const std::string near = nearest(first, candidates);
  throw Error(ErrorCode::kMismatch,
              cat(b.path(), ": lacks ", quote(first, 200), ", which is ", a.text(first), " in ",
                  a.path(), near.empty() ? "" : "; its nearest name is " + quote(near, 200),
                  lacking.size() == 1 ? "" : cat("; ", lacking.size() - 1, " more are missing")));
}

bool ModelPair::is_equal(const std::string& name,
                         const std::function<void(std::uint64_t)>& on_bytes) {
  if (is_known_equal(name)) return true;
  const bool equal = equal_arrays(base.array(name), tuned.array(name), on_bytes);
  if (equal) note_equal(name);
  return equal;
}

}  // namespace fsdp::formats
