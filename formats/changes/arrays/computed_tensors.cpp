// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/computed_tensors.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"

namespace fsdp::formats::arrays {
namespace {

// Computed tensors that stay open: an output of several ranks returns to each of them.
constexpr std::size_t kMostOpen = 4;
// Arrays of more parts are not compared: few of them are tied, and those are written twice.
constexpr std::size_t kMaxPartsCompared = 64;

template <typename Numbers>
void append(std::string& out, const Numbers& numbers) {
  const auto bytes = std::as_bytes(std::span(numbers));
  out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  out += '/';
}

// Returns a text that is equal for arrays of the same elements; empty if they must not be compared.
std::string fingerprint(const Array& array) {
  if (array.parts.empty() || array.parts.size() > kMaxPartsCompared) return {};
  std::string out;
  append(out, array.shape);
  for (const Part& part : array.parts) {
    append(out, std::array{part.operand.get()});
    append(out, part.box.offset);
    append(out, part.box.size);
    append(out, part.view.base);
    append(out, part.view.dim);
    append(out, part.view.step);
  }
  return out;
}

}  // namespace

ComputedTensors::ComputedTensors(const Checkpoint& source)
    : sources_{std::make_shared<ArraySource>(source)} {
  description_ = source.description();
  index_.files = source.index().files;
  index_.transforms = source.index().transforms;
  file_ = static_cast<std::uint32_t>(index_.files.size());
  index_.files.push_back({description_.path, 0, {}});
}

ComputedTensors::ComputedTensors(std::vector<std::shared_ptr<ArraySource>> sources)
    : sources_(std::move(sources)) {
  description_ = base().description();
  findings_ = base().findings();
  index_ = base().index();
  kept_ = index_.tensors.size();
  file_ = static_cast<std::uint32_t>(index_.files.size());
  index_.files.push_back({description_.path, 0, {}});
}

Value ComputedTensors::shared(KeyPath path, const Array& array) {
  const std::string print = fingerprint(array);
  if (print.empty()) return separate(std::move(path), array);
  const auto found = made_.find(print);
  if (found != made_.end()) return found->second;
  return made_.emplace(print, separate(std::move(path), array)).first->second;
}

Value ComputedTensors::separate(KeyPath path, const Array& array) {
  TensorEntry entry{joined(path), std::move(path), array.dtype, array.shape,
                    ChunkList(array.shape.size())};
  for (PlacedPart& part : placed_parts(array)) {
    entry.chunks.add(part.box.offset, part.box.size, {file_, 0, parts_.size(), 0});
    parts_.push_back(std::move(part));
  }
  // All positions lie inside the file.
  index_.files[file_].bytes = parts_.size();
  index_.add(std::move(entry));
  return tensor_reference(*this, index_.tensors.size() - 1);
}

void ComputedTensors::replace(const Leaf& leaf, const Value& tensor) {
  const auto [at, fresh] = replaced_.emplace(leaf.key, tensor);
  if (fresh || tensor_number(at->second) == tensor_number(tensor)) return;
  throw Error(ErrorCode::kMismatch, cat(base().description().path, ": ", quote(leaf.key, 200),
                                        ": two entries have this name"));
}

Value ComputedTensors::edited(const Value& content) const {
  return with_leaves(content, [&](const Leaf& leaf) -> std::optional<Value> {
    const auto found = replaced_.find(leaf.key);
    return found == replaced_.end() ? leaf.value : found->second;
  });
}

const PlacedPart* ComputedTensors::part_of(const TensorEntry& tensor, std::size_t chunk) const {
  const Location& location = tensor.chunks.location(chunk);
  return location.file == file_ ? &parts_[location.offset] : nullptr;
}

ChunkData ComputedTensors::chunk(const TensorEntry& tensor, std::size_t chunk) const {
  const PlacedPart* const part = part_of(tensor, chunk);
  if (part == nullptr) return base().chunk(tensor, chunk);
  const Operand& operand = *part->operand;
  if (!operand.computes()) return chunk_data(*part, operand.open(part->chunk));
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(open_, [&](const auto& one) { return one.first == &operand; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    if (open_.size() == kMostOpen) open_.pop_back();
    open_.emplace_front(&operand, operand.open(0));
  }
  return chunk_data(*part, open_.front().second);
}

bool ComputedTensors::expect_chunk(const TensorEntry& tensor, std::size_t chunk,
                                   ElementRange range) const {
  const PlacedPart* const part = part_of(tensor, chunk);
  return part == nullptr ? base().expect_chunk(tensor, chunk, range)
                         : part->operand->expect(part->chunk);
}

std::optional<Value> ComputedTensors::tree() const {
  return kept_ == 0 ? std::nullopt : base().tree();
}

std::optional<Value> ComputedTensors::tensor_value(std::size_t tensor) const {
  return tensor < kept_ ? base().tensor_value(tensor) : std::nullopt;
}

std::optional<Value> ComputedTensors::tensor_object(std::size_t tensor) const {
  return tensor < kept_ ? base().tensor_object(tensor) : std::nullopt;
}

void ComputedTensors::check_unchanged() const {
  for (const auto& source : sources_) source->finish();
}

}  // namespace fsdp::formats::arrays
