// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/ahead_memory.h"

#include <algorithm>

namespace fsdp::formats {
namespace {

constexpr std::uint64_t with_rest(std::uint64_t request_bytes) {
  return request_bytes + request_bytes / 2;
}

}  // namespace

std::uint64_t AheadMemory::request_bytes() const {
  return std::clamp<std::uint64_t>(budget_ / (most_at_once_ * 4 / 3), kLeastRequest, kMostRequest);
}

std::uint64_t AheadMemory::request_end(std::uint64_t from, std::uint64_t to) const {
  const std::uint64_t most = request_bytes();
  return to - from <= with_rest(most) ? to : from + most;
}

bool AheadMemory::make_room(std::uint64_t bytes) {
  while (held_bytes_ != 0 && held_bytes_ + bytes > budget_) {
    // Blocks at the ends of files, read at least once: most are not read again.
    if (looked_at_bytes_ > budget_ / 4) {
      const auto [file, block] = looked_at_.begin()->second;
      forget(*file, block);
      continue;
    }
    if (at_hand_.empty()) return false;
    // The memory holds everything between a hint and its read.  So a block that was unused for
    // longer is no longer expected to be read.
    const auto [file, block] = at_hand_.begin()->second;
    if (block->key.first + budget_ >= taken_) return false;
    forget(*file, block);
  }
  return true;
}

void AheadMemory::begin(Block& block) {
  held_bytes_ += block.size();
  // Most blocks get the same capacity, so that their buffers can be reused.
  const std::uint64_t usual = with_rest(request_bytes());
  block.capacity = block.size() > usual / 2 ? std::max(usual, block.size()) : block.size();
  block.bytes = buffers_.take(block.capacity);
  if (bytes() > budget_) buffers_.drop();
}

void AheadMemory::arrived(const FilePointer& file, const BlockPointer& block) {
  block->key = {taken_, ++number_};
  shelf_of(*block).emplace(block->key, Entry(file, block));
}

void AheadMemory::shelve_again(Block& block, Shelf& from, std::uint64_t when) {
  auto entry = from.extract(block.key);
  block.key = entry.key() = {when, ++number_};
  shelf_of(block).insert(std::move(entry));
}

void AheadMemory::used(const FilePointer& file, const BlockPointer& block, std::uint64_t offset,
                       std::uint64_t bytes) {
  taken_ += bytes;
  Shelf& shelf = shelf_of(*block);
  if (block->kept && block->reach == 0) looked_at_bytes_ += block->size();
  block->used += bytes;
  block->reach = std::max(block->reach, offset + bytes);
  shelve_again(*block, shelf, taken_);
  if (!block->kept && !block->spent && block->used >= block->size() && block->reach == block->end) {
    spent_.emplace_back(file, block);
    block->spent = true;
    spent_bytes_ += block->size();
  }
}

void AheadMemory::want_again(AheadFile& file, std::uint64_t from, std::uint64_t to,
                             std::uint64_t waiting) {
  auto at = file.blocks.upper_bound(from);
  if (at != file.blocks.begin()) --at;
  for (; at != file.blocks.end() && at->first < to; ++at) {
    Block& block = *at->second;
    if (block.end <= from || block.state != Block::State::kReady) continue;
    if (block.spent) {
      block.spent = false;
      spent_bytes_ -= block.size();
      const std::uint64_t wanted = std::min(to, block.end) - std::max(from, block.begin);
      block.used = block.size() - wanted;
    }
    shelve_again(block, shelf_of(block), taken_ + waiting + held_bytes_);
  }
}

void AheadMemory::forget(AheadFile& file, const BlockPointer& block) {
  const auto at = file.blocks.find(block->begin);
  if (at != file.blocks.end() && at->second == block) file.blocks.erase(at);
  if (block->state == Block::State::kReady) {
    if (&shelf_of(*block) == &looked_at_) looked_at_bytes_ -= block->size();
    shelf_of(*block).erase(block->key);
  }
  held_bytes_ -= block->size();
  if (block->spent) spent_bytes_ -= block->size();
  // A buffer of another size would not be reused.
  if (block->capacity == with_rest(request_bytes()) && bytes() + block->capacity <= budget_)
    buffers_.give(std::move(block->bytes), block->capacity);
  block->bytes.reset();
  block->state = Block::State::kGone;
}

void AheadMemory::drop_spent() {
  while (!spent_.empty()) {
    const Block& oldest = *spent_.front().second;
    const bool is = oldest.state == Block::State::kReady && oldest.spent;
    if (is && spent_bytes_ <= budget_ / 8) return;
    const auto [file, block] = std::move(spent_.front());
    spent_.pop_front();
    if (is) forget(*file, block);
  }
}

void AheadMemory::drop_buffers() {
  if (held_bytes_ == 0) buffers_.drop();
}

}  // namespace fsdp::formats
