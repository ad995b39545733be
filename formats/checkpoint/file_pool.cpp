// SPDX-License-Identifier: Apache-2.0
#include "formats/checkpoint/file_pool.h"

#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

// Files held open at once: far below the usual limit of 1024 descriptors a process.
constexpr std::size_t kMaxOpenFiles = 256;

}  // namespace

void FilePool::examine(std::vector<FileEntry>& files) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = files_.size(); i < files.size(); ++i) {
    Known known;
    known.name = files[i].name;
    if (const auto file = folder_.open_member_if_present(known.name)) {
      known.present = true;
      known.bytes = file->size();
      known.mtime_ns = file->mtime_ns();
      files[i].bytes = known.bytes;
    }
    files_.push_back(std::move(known));
  }
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
  if (!files_.at(number).open && open_.size() == kMaxOpenFiles) return nullptr;
  return get_locked(number);
}

std::shared_ptr<const File> FilePool::get_locked(std::uint32_t number) {
  Known& known = files_.at(number);
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
    // A folder of a store gives the same file again, and that asks the store itself.
    if (const auto file = reopen(known); file->stored()) file->check_unchanged();
  }
}

}  // namespace fsdp::formats
