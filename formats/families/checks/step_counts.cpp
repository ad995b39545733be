// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/step_counts.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/text.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats {
namespace {

// Limit of the counters compared: more than any model has parameters.
constexpr std::size_t kMostCounters = 1'000'000;
// A counter has 4 or 8 bytes.
constexpr std::uint64_t kCounterBlockBytes = 64;
constexpr std::uint64_t kCounterBufferBytes = 1U << 20U;

// Returns the part of a counter's key before `state`, which names the optimizer; nothing for other
// keys.
std::optional<std::string_view> optimizer_of_counter(std::string_view key) {
  constexpr std::string_view kState = "state.";
  if (!key.ends_with(".step")) return std::nullopt;
  if (key.starts_with(kState)) return key.substr(0, 0);
  const std::size_t at = key.find(".state.");
  return at == key.npos ? std::nullopt : std::optional(key.substr(0, at));
}

// The largest counter of an optimizer in each file.
using LargestCounters = std::map<std::uint32_t, std::int64_t>;

void see_counter(LargestCounters& largest, std::uint32_t file, double steps) {
  constexpr double kMostSteps = 9e15;  // integers that a double holds
  if (!(steps >= 0 && steps <= kMostSteps)) return;
  std::int64_t& most = largest[file];
  most = std::max(most, static_cast<std::int64_t>(steps));
}

// Returns the number that most files have, and one of those files; of numbers that as many files
// have, the largest.  Requires: a counter was seen.
std::pair<std::uint32_t, std::int64_t> usual_counter(const LargestCounters& largest) {
  std::map<std::int64_t, std::size_t> files;
  for (const auto& [file, steps] : largest) ++files[steps];
  return *std::ranges::max_element(largest, [&](const auto& a, const auto& b) {
    return std::pair(files[a.second], a.second) < std::pair(files[b.second], b.second);
  });
}

}  // namespace

StepCounts step_counts(const Checkpoint& checkpoint, const std::function<bool()>& cancelled,
                       const std::function<bool(const std::string& key)>& readable) {
  const Index& index = checkpoint.index();
  std::vector<std::size_t> tensors;
  std::vector<const ValueEntry*> values;
  for (std::size_t t = 0; t < index.tensors.size() && tensors.size() < kMostCounters; ++t) {
    const TensorEntry& tensor = index.tensors[t];
    if (!optimizer_of_counter(tensor.key) || tensor.numel() != 1 || tensor.chunks.size() != 1 ||
        !can_cast(tensor.dtype, DType::kFloat64) || !readable(tensor.key))
      continue;
    tensors.push_back(t);
  }
  for (const ValueEntry& value : index.values) {
    if (!optimizer_of_counter(value.key) || values.size() == kMostCounters || !readable(value.key))
      continue;
    values.push_back(&value);
  }
  StepCounts largest;
  std::vector<TargetPiece> pieces;
  for (const std::size_t tensor : tensors) {
    pieces.push_back(whole_tensor_piece(checkpoint, tensor));
    if (pieces.back().dtype != DType::kFloat64) pieces.back().cast_to = DType::kFloat64;
  }
  VisitOptions options;
  options.block_bytes = kCounterBlockBytes;
  options.max_buffer_bytes = kCounterBufferBytes;
  options.cancelled = cancelled;
  visit_pieces(pieces, options, [&](const TensorBlock& block) {
    const TensorEntry& tensor = index.tensors[tensors[block.piece]];
    double steps = 0;
    std::memcpy(&steps, block.bytes.data(), sizeof steps);
    see_counter(largest[std::string(*optimizer_of_counter(tensor.key))],
                tensor.chunks.location(0).file, steps);
  });
  for (const ValueEntry* value : values) {
    if (const auto steps = checkpoint.value(*value).as_int())
      see_counter(largest[std::string(*optimizer_of_counter(value->key))], value->location.file,
                  static_cast<double>(*steps));
  }
  return largest;
}

void check_step_counts(const Checkpoint& checkpoint, Findings& findings,
                       const std::function<bool()>& cancelled) {
  const auto& files = checkpoint.index().files;
  std::set<std::uint32_t> holders;
  for (const TensorEntry& tensor : checkpoint.index().tensors) {
    if (optimizer_of_counter(tensor.key) && tensor.chunks.size() == 1)
      holders.insert(tensor.chunks.location(0).file);
  }
  for (const ValueEntry& value : checkpoint.index().values) {
    if (optimizer_of_counter(value.key)) holders.insert(value.location.file);
  }
  if (holders.size() < 2) return;
  const auto all = [](const std::string&) { return true; };
  for (const auto& [optimizer, largest] : step_counts(checkpoint, cancelled, all)) {
    if (largest.empty()) continue;
    const auto usual = usual_counter(largest);
    for (const auto& [file, steps] : largest) {
      if (steps == usual.second) continue;
      findings.push_back(warning(ErrorCode::kMismatch,
                                 cat("the states of an optimizer in this file count up to ", steps,
                                     " steps, those in ", escape(files[usual.first].name),
                                     " up to ", usual.second, ": the files are from two saves"),
                                 files[file].name, optimizer));
    }
  }
}

}  // namespace fsdp::formats
