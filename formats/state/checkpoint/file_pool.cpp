// SPDX-License-Identifier: Apache-2.0
#include "formats/state/checkpoint/file_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"

namespace fsdp::formats {
namespace {

// Limit of files held open: far below the usual limit of 1024 descriptors of a process.
constexpr std::size_t kMaxOpenFiles = 256;
// Threads that open files; most of them wait for the disk or the store.  Fewer than kFewFiles are
// opened faster without threads.
constexpr std::size_t kOpenAtOnce = 16;
constexpr std::size_t kFewFiles = 16;

}  // namespace

void FilePool::examine(std::vector<FileEntry>& files) {
  const std::lock_guard lock(mutex_);
  const std::size_t first = files_.size();
  std::vector<Known> added(files.size() - std::min(first, files.size()));
  run_each(added.size(), added.size() < kFewFiles ? 1 : kOpenAtOnce, [&](std::size_t i) {
    Known& known = added[i];
    known.name = files[first + i].name;
    if (const auto file = folder_.open_member_if_present(known.name)) {
      known.present = true;
      known.bytes = file->size();
      known.mtime_ns = file->mtime_ns();
      files[first + i].bytes = known.bytes;
    }
  });
  std::ranges::move(added, std::back_inserter(files_));
}

std::shared_ptr<const File> FilePool::reopen(Known& known) {
  auto file = folder_.open_member(known.name);
  if (known.present && (file->size() != known.bytes || file->mtime_ns() != known.mtime_ns)) {
    throw Error(ErrorCode::kChanged,
                file->name() + ": was written to while the checkpoint was being read");
  }
  known.used = true;
  return file;
}

std::shared_ptr<const File> FilePool::get(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  return get_locked(number);
}

std::shared_ptr<const File> FilePool::get_at_hand(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  if (!files_.at(number).open && open_.size() == kMaxOpenFiles && !folder_.read_by_requests())
    return nullptr;
  return get_locked(number);
}

std::shared_ptr<const File> FilePool::get_locked(std::uint32_t number) {
  Known& known = files_.at(number);
  if (folder_.read_by_requests()) {
    if (!known.open) known.open = reopen(known);
    return known.open;
  }
  if (known.open) {
    open_.remove(number);
  } else {
    known.open = reopen(known);
    if (open_.size() == kMaxOpenFiles) {
      files_[open_.back()].open.reset();
      open_.pop_back();
    }
  }
  open_.push_front(number);
  return known.open;
}

void FilePool::check_unchanged() {
  const std::lock_guard lock(mutex_);
  for (Known& known : files_) {
    if (!known.used) continue;
    // A folder of a store returns the same file again, which then asks the store itself.
    if (const auto file = reopen(known); file->read_by_requests()) file->check_unchanged();
  }
}

}  // namespace fsdp::formats
