// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/content_check.h"

#include <algorithm>
#include <exception>
#include <span>
#include <unordered_set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/torch/low_bit_tensor.h"
#include "formats/state/content/content.h"
#include "formats/state/model/check.h"

namespace fsdp::formats {
namespace {

// Returns an index of the entries that `content` refers to: the checkpoint's own if those are all,
// else one stored in `narrowed` (an index of many ranks is large).  `numbers`: receives the
// positions of its tensors in the checkpoint's index.
const Index& used_entries(const Checkpoint& checkpoint, const Value& content, Index& narrowed,
                          std::vector<std::size_t>& numbers) {
  const Index& index = checkpoint.index();
  std::vector<bool> tensors(index.tensors.size());
  std::vector<bool> values(index.values.size());
  for (const Leaf& leaf : leaves_of(content)) {
    if (const auto tensor = tensor_number(leaf.value)) tensors.at(*tensor) = true;
    if (const auto value = deferred_number(leaf.value)) values.at(*value) = true;
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t]) numbers.push_back(t);
  }
  const auto all = [](const std::vector<bool>& used) {
    return std::ranges::find(used, false) == used.end();
  };
  if (all(tensors) && all(values)) return index;
  narrowed.files = index.files;
  narrowed.transforms = index.transforms;
  for (const std::size_t number : numbers) narrowed.add(index.tensors[number]);
  for (std::size_t v = 0; v < values.size(); ++v) {
    if (values[v]) narrowed.add(index.values[v]);
  }
  return narrowed;
}

Hint exclude_hint(const std::string& key) {
  return key.empty() ? Hint{} : Hint{Remedy::kExclude, key};
}

// Gives hints for the chunks whose headers are looked at next: without hints, each look would wait
// for a slow disk or a store.
class LookAhead {
 public:
  // Expects a look at every `step`th of `tensors` from `begin` on.
  LookAhead(const Checkpoint& checkpoint, std::span<const TensorEntry> tensors, std::size_t begin,
            std::size_t step)
      : checkpoint_(checkpoint), tensors_(tensors), next_(begin), step_(step) {}

  // Called before tensor `number` is looked at.
  void before(std::size_t number) {
    bool more = memory_ahead_;
    for (; next_ < tensors_.size() && (more || ahead_ < kChunksAhead); next_ += step_) {
      const TensorEntry& tensor = tensors_[next_];
      for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
        more = checkpoint_.expect_chunk(tensor, c, {0, 0});
      memory_ahead_ = memory_ahead_ || more;
      ahead_ += tensor.chunks.size();
    }
    ahead_ -= std::min(ahead_, tensors_[number].chunks.size());
  }

 private:
  static constexpr std::size_t kChunksAhead = 64;
  const Checkpoint& checkpoint_;
  std::span<const TensorEntry> tensors_;
  std::size_t next_;  // the first tensor without hints so far
  std::size_t step_;
  bool memory_ahead_ = false;  // hints are kept in memory: each look makes room for another one
  std::size_t ahead_ = 0;      // chunks with hints that were not looked at
};

// Checks the chunks of tensors.  If a tensor cannot be joined, the error names a remedy: to leave
// it out, or to keep an object of a library's class in one of PyTorch's own formats.
class ChunkLook {
 public:
  ChunkLook(const Checkpoint& checkpoint, LibraryTensors library_tensors)
      : checkpoint_(checkpoint), library_tensors_(library_tensors) {}

  // `tensor` is an entry in use, `number` its place in the checkpoint's index.
  void operator()(const TensorEntry& tensor, std::size_t number) {
    std::string computed;
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      if (volume(tensor.chunks.box(c)) == 0) continue;
      try {
        const std::string cls = low_bit_class_of(checkpoint_.chunk(tensor, c));
        if (!cls.empty()) computed = cls;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnsupported) throw;
        if (!keep(number)) throw refused(error, tensor, number);
      }
    }
    if (!computed.empty()) ++result_.computed[computed];
  }

  CopyCheck take() { return std::move(result_); }

  // Adds what the other members of a team found in their tensors.  `failed`: the first of `used` at
  // which this member threw.  Returns the first one at which any member threw.
  std::size_t join(Team& team, std::size_t failed) {
    Packed mine;
    mine.number(failed).number(result_.computed.size());
    for (const auto& [cls, count] : result_.computed) mine.text(cls).number(count);
    for (const auto& [number, object] : result_.objects) mine.number(number);
    result_.computed.clear();
    for (const std::string& sent : team.exchange("the look at chunks", mine.take())) {
      Unpacked fields(sent);
      failed = std::min<std::size_t>(failed, fields.number());
      for (std::uint64_t left = fields.number(); left != 0; --left) {
        const std::string cls(fields.text());
        result_.computed[cls] += fields.number();
      }
      while (!fields.empty()) keep(fields.number());
    }
    return failed;
  }

 private:
  bool keep(std::size_t number) {
    if (result_.objects.contains(number)) return true;
    if (library_tensors_ != LibraryTensors::kKept) return false;
    auto object = checkpoint_.tensor_object(number);
    if (!object) return false;
    result_.objects.emplace(number, std::move(*object));
    return true;
  }

  Error refused(const Error& error, const TensorEntry& tensor, std::size_t number) const {
    const bool whole = library_tensors_ == LibraryTensors::kRefused &&
                       checkpoint_.tensor_object(number).has_value();
    return {error.code(),
            cat(error.what(), whole ? "; consolidate to a .pt file keeps it as it is" : ""),
            error.hint().remedy == Remedy::kNone ? exclude_hint(tensor.key) : error.hint()};
  }

  const Checkpoint& checkpoint_;
  LibraryTensors library_tensors_;
  CopyCheck result_;
};

}  // namespace

CopyCheck check_before_copy(const Checkpoint& checkpoint, const Value& content,
                            const std::function<bool()>& cancelled, LibraryTensors library_tensors,
                            Team& team) {
  Index narrowed;
  std::vector<std::size_t> numbers;
  const Index& used = used_entries(checkpoint, content, narrowed, numbers);
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
    throw Error(finding.code, cat(checkpoint.description().path, ": ", finding_text(finding)),
                exclude_hint(finding.key));
  }
  check_expansion(used, checkpoint.description().path);
  ChunkLook look(checkpoint, library_tensors);
  const std::size_t none = used.tensors.size();
  std::size_t failed = none;
  std::exception_ptr failure;
  // Each member takes a share: a thousand ranks need not all open every item.
  LookAhead ahead(checkpoint, used.tensors, team.rank(), team.size());
  for (std::size_t t = team.rank(); t < none && failed == none; t += team.size()) {
    if (cancelled && cancelled()) throw Error(ErrorCode::kInterrupted, "interrupted");
    ahead.before(t);
    try {
      look(used.tensors[t], numbers[t]);
    } catch (const Error&) {
      failed = t;
      failure = std::current_exception();
    }
  }
  const std::size_t first = look.join(team, failed);
  if (first == none) return look.take();
  // All members meet the error that a single process would meet, and report that error.
  if (first == failed) std::rethrow_exception(failure);
  look(used.tensors[first], numbers[first]);
  // This member meets no error here: the exchange throws the error that the others met.
  team.exchange("another look at a chunk");
  return look.take();
}

Value with_objects(const Value& content, const CopyCheck& check) {
  if (check.objects.empty()) return content;
  return with_leaves(content, [&](const Leaf& leaf) -> std::optional<Value> {
    const auto number = tensor_number(leaf.value);
    const auto object = number ? check.objects.find(*number) : check.objects.end();
    return object == check.objects.end() ? leaf.value : object->second;
  });
}

}  // namespace fsdp::formats
