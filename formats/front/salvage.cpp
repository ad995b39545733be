// SPDX-License-Identifier: Apache-2.0
#include "formats/front/salvage.h"

#include <unordered_map>
#include <utility>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/store/place.h"
#include "formats/front/judge.h"
#include "formats/front/open_around.h"
#include "formats/state/model/check.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Looks for tensors that are lost in files with damage in those of other ranks.
void take_replicas(const fs::path& path, const SalvageOptions& options, const Judge& judge,
                   Salvaged& out) {
  std::vector<std::string> files = judge.damaged_files();
  if (kind_of_place(path) != PlaceKind::kFolder || files.empty()) return;
  for (const auto& [name, why] : out.unread) files.push_back(name);
  std::unordered_map<std::string_view, EntryState*> lost;
  for (EntryState& state : out.tensors) {
    if (!state.usable() && !judge.differs(state.key)) lost.emplace(state.key, &state);
  }
  std::unique_ptr<StoredCheckpoint> rest;
  try {
    if (!lost.empty()) rest = open_without(path, files, options);
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
  }
  if (!rest) return;
  // Everything is read again only if other files hold something.
  std::set<std::string> there;
  const Index& first = out.checkpoint->index();
  const Index& index = rest->index();
  std::unordered_map<std::string_view, const TensorEntry*> was;
  for (const TensorEntry& tensor : first.tensors) was.emplace(tensor.key, &tensor);
  for (const TensorEntry& tensor : index.tensors) {
    const auto before = was.find(tensor.key);
    Findings holes;
    check_coverage(tensor, holes);
    // Copies of integers are not compared when a folder is opened: each rank may have its own.
    bool whole = lost.contains(tensor.key) && holes.empty() && is_differentiable(tensor.dtype) &&
                 before->second->dtype == tensor.dtype && before->second->shape == tensor.shape;
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      whole = whole && index.files[tensor.chunks.location(c).file].bytes.has_value();
    if (whole) there.insert(tensor.key);
  }
  if (there.empty()) return;
  SalvageOptions plain = options;
  plain.step.reset();
  Salvaged second = Judge(path, {std::move(rest)}, plain).run();
  for (const EntryState& state : second.tensors) {
    if (!state.usable() || !there.contains(state.key)) continue;
    EntryState& own = *lost.at(state.key);
    own.state = state.state;
    own.lost.clear();
    out.replicated.insert(state.key);
  }
  if (!out.replicated.empty()) out.replicas = std::move(second.checkpoint);
}

}  // namespace

Salvaged salvage(const fs::path& path, const SalvageOptions& options) {
  Judge judge(path, open_around(path, options), options);
  Salvaged out = judge.run();
  take_replicas(path, options, judge, out);
  return out;
}

}  // namespace fsdp::formats
