// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/content_check.h"

#include <algorithm>
#include <unordered_set>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/layout/content.h"
#include "formats/model/check.h"

namespace fsdp::formats {
namespace {

// The index of what `content` refers to, in `narrowed` where that is not all of the checkpoint's:
// an index of many ranks is large.
const Index& used_entries(const Checkpoint& checkpoint, const Value& content, Index& narrowed) {
  const Index& index = checkpoint.index();
  std::vector<bool> tensors(index.tensors.size());
  std::vector<bool> values(index.values.size());
  for (const Leaf& leaf : leaves_of(content)) {
    if (const auto tensor = tensor_number(leaf.value)) tensors.at(*tensor) = true;
    if (const auto value = deferred_number(leaf.value)) values.at(*value) = true;
  }
  const auto all = [](const std::vector<bool>& used) {
    return std::find(used.begin(), used.end(), false) == used.end();
  };
  if (all(tensors) && all(values)) return index;
  narrowed.files = index.files;
  narrowed.transforms = index.transforms;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t]) narrowed.add(index.tensors[t]);
  }
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (values[v]) narrowed.add(index.values[v]);
  }
  return narrowed;
}

std::string exclude_hint(const std::string& key) {
  if (key.empty()) return {};
  return "; leave it out with --exclude " + quote(key, 200);
}

// What is of a kind that cannot be joined, the user can do without.
void look_at_chunk(const Checkpoint& checkpoint, const TensorEntry& tensor, std::size_t chunk) {
  try {
    checkpoint.chunk(tensor, chunk);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    throw Error(error.code(), error.what() + exclude_hint(tensor.key));
  }
}

}  // namespace

void check_before_copy(const Checkpoint& checkpoint, const Value& content,
                       const std::function<bool()>& cancelled) {
  Index narrowed;
  const Index& used = used_entries(checkpoint, content, narrowed);
  std::unordered_set<std::string_view> keys;
  for (const TensorEntry& tensor : used.tensors) keys.insert(tensor.key);
  for (const ValueEntry& value : used.values) keys.insert(value.key);
  Findings findings;
  for (const Finding& finding : checkpoint.findings()) {
    if (finding.key.empty() || keys.contains(finding.key)) findings.push_back(finding);
  }
  check_extents(used, findings);
  for (const TensorEntry& tensor : used.tensors) check_coverage(tensor, findings);
  throw_if_damaged(findings, checkpoint.description().path);
  for (const Finding& finding : findings) {
    if (finding.severity != Finding::Severity::kUnknown) continue;
    throw Error(finding.code, cat(checkpoint.description().path, ": ", finding_text(finding),
                                  exclude_hint(finding.key)));
  }
  check_expansion(used, checkpoint.description().path);
  for (const TensorEntry& tensor : used.tensors) {
    if (cancelled && cancelled()) throw Error(ErrorCode::kInterrupted, "interrupted");
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      if (volume(tensor.chunks.box(c)) != 0) look_at_chunk(checkpoint, tensor, c);
    }
  }
}

}  // namespace fsdp::formats
