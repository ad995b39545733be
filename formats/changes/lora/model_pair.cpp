// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/model_pair.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kPairNameText = 200;
constexpr std::size_t kMaxNames = 2000;
constexpr std::uint64_t kBlockBytes = 1U << 20U;

}  // namespace

ModelSide::ModelSide(const ModelTensors& model) : checkpoint(model.checkpoint) {
  for (const auto& [key, value] : members_of(model.tensors))
    tensors.emplace(*key.as_string(), *tensor_number(value));
}

std::string ModelSide::text(const std::string& name) const {
  return cat(torch_name(entry(name).dtype), " ", shape_text(entry(name).shape));
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
                  cat(tuned.path(), ": ", quote(name, kPairNameText), " is ", tuned.text(name),
                      ", but ", base.text(name), " in ", base.path()));
    }
    names.push_back(name);
  }
  return names;
}

void ModelPair::check_lacking(const ModelSide& a, const ModelSide& b,
                              const std::function<bool(const std::string& name)>& wanted) const {
  std::string first;
  std::uint64_t more = 0;
  for (const auto& [name, number] : a.tensors) {
    if (b.tensors.contains(name) || !wanted(name)) continue;
    if (first.empty()) {
      first = name;
    } else {
      ++more;
    }
  }
  if (first.empty()) return;
  std::vector<std::string> candidates;
  for (const auto& [name, number] : b.tensors) {
    if (candidates.size() == kMaxNames) break;
    if (!a.tensors.contains(name)) candidates.push_back(name);
  }
  const std::string near = nearest(first, candidates);
  throw Error(
      ErrorCode::kMismatch,
      cat(b.path(), ": lacks ", quote(first, kPairNameText), ", which is ", a.text(first), " in ",
          a.path(), near.empty() ? "" : "; its nearest name is " + quote(near, kPairNameText),
          more == 0 ? "" : cat("; ", more, " more are missing")));
}

bool ModelPair::is_equal(const std::string& name,
                         const std::function<void(std::uint64_t)>& on_bytes) {
  if (is_known_equal(name)) return true;
  const std::uint64_t numel = base.entry(name).numel();
  bool equal = true;
  if (numel != 0) {
    const InputReader one(base.input(name).input, base.checks);
    const InputReader other(tuned.input(name).input, tuned.checks);
    const std::uint64_t item = item_bytes(one.dtype());
    std::vector<std::byte> first(std::min(kBlockBytes / item, numel) * item);
    std::vector<std::byte> second(first.size());
    std::vector<std::byte> scratch(first.size());
    // Reads everything, even after a difference, so that all checksums are compared.
    for (std::uint64_t at = 0; at < numel;) {
      throw_if_interrupted();
      const std::uint64_t count = std::min<std::uint64_t>(first.size() / item, numel - at);
      const auto a = std::span(first).first(count * item);
      const auto b = std::span(second).first(count * item);
      one.read(at, a, scratch);
      other.read(at, b, scratch);
      on_bytes(2 * a.size());
      equal = equal && std::equal(a.begin(), a.end(), b.begin());
      at += count;
    }
  }
  if (equal) note_equal(name);
  return equal;
}

void ModelPair::finish() {
  std::vector<std::byte> buffer(kBlockBytes);
  for (ModelSide* const side : {&base, &tuned}) {
    side->checks.finish(buffer, [] { return interrupted(); });
    side->checkpoint->check_unchanged();
  }
}

}  // namespace fsdp::formats
