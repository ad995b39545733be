// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/step_counts.h"

#include <algorithm>
#include <cstring>
#include <map>
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
class LargestCounters {
 public:
  void see(std::uint32_t file, double steps) {
    if (!(steps >= 0 && steps <= kMostSteps)) return;
    const auto counted = static_cast<std::int64_t>(steps);
    const auto [at, added] = by_file_.emplace(file, counted);
    if (!added) at->second = std::max(at->second, counted);
  }
  const std::map<std::uint32_t, std::int64_t>& by_file() const { return by_file_; }

  // Returns the number that most files have, and one of those files; of numbers that as many files
  // have, the largest.  Requires: a counter was seen.
  std::pair<std::uint32_t, std::int64_t> usual() const {
    std::map<std::int64_t, std::size_t> files;
    for (const auto& [file, steps] : by_file_) ++files[steps];
    return *std::ranges::max_element(by_file_, [&](const auto& a, const auto& b) {
      return std::pair(files[a.second], a.second) < std::pair(files[b.second], b.second);
    });
  }

 private:
  static constexpr double kMostSteps = 9e15;  // integers that a double holds
  std::map<std::uint32_t, std::int64_t> by_file_;
};

// Reads the counters of all optimizers from the files that hold them.
class CounterSearch {
 public:
  explicit CounterSearch(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    const Index& index = checkpoint.index();
    for (std::size_t t = 0; t < index.tensors.size() && tensors_.size() < kMostCounters; ++t) {
      const TensorEntry& tensor = index.tensors[t];
      if (!optimizer_of_counter(tensor.key) || tensor.numel() != 1 || tensor.chunks.size() != 1 ||
          !can_cast(tensor.dtype, DType::kFloat64))
        continue;
      tensors_.push_back(t);
      files_.insert(tensor.chunks.location(0).file);
    }
    for (const ValueEntry& value : index.values) {
      if (!optimizer_of_counter(value.key) || values_.size() == kMostCounters) continue;
      values_.push_back(&value);
      files_.insert(value.location.file);
    }
  }

  bool in_several_files() const { return files_.size() > 1; }

  std::map<std::string_view, LargestCounters> read(const std::function<bool()>& cancelled) const {
    const Index& index = checkpoint_.index();
    std::map<std::string_view, LargestCounters> largest;
    std::vector<TargetPiece> pieces;
    for (const std::size_t tensor : tensors_) {
      pieces.push_back(whole_tensor_piece(checkpoint_, tensor));
      if (pieces.back().dtype != DType::kFloat64) pieces.back().cast_to = DType::kFloat64;
    }
    VisitOptions options;
    options.block_bytes = kCounterBlockBytes;
    options.max_buffer_bytes = kCounterBufferBytes;
    options.cancelled = cancelled;
    visit_pieces(pieces, options, [&](const TensorBlock& block) {
      const TensorEntry& tensor = index.tensors[tensors_[block.piece]];
      double steps = 0;
      std::memcpy(&steps, block.bytes.data(), sizeof steps);
      largest[*optimizer_of_counter(tensor.key)].see(tensor.chunks.location(0).file, steps);
    });
    for (const ValueEntry* value : values_) {
      if (const auto steps = checkpoint_.value(*value).as_int())
        largest[*optimizer_of_counter(value->key)].see(value->location.file,
                                                       static_cast<double>(*steps));
    }
    return largest;
  }

 private:
  const Checkpoint& checkpoint_;
  std::vector<std::size_t> tensors_;
  std::vector<const ValueEntry*> values_;
  std::set<std::uint32_t> files_;  // that have counters
};

}  // namespace

void check_step_counts(const Checkpoint& checkpoint, Findings& findings,
                       const std::function<bool()>& cancelled) {
  const CounterSearch search(checkpoint);
  if (!search.in_several_files()) return;
  const auto& files = checkpoint.index().files;
  for (const auto& [optimizer, largest] : search.read(cancelled)) {
    const auto usual = largest.usual();
    for (const auto& [file, steps] : largest.by_file()) {
      if (steps == usual.second) continue;
      findings.push_back(warning(ErrorCode::kMismatch,
                                 cat("the states of an optimizer in this file count up to ", steps,
                                     " steps, those in ", escape(files[usual.first].name),
                                     " up to ", usual.second, ": the files are from two saves"),
                                 files[file].name, std::string(optimizer)));
    }
  }
}

}  // namespace fsdp::formats
