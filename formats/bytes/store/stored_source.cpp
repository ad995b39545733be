// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/stored_source.h"

#include <map>
#include <mutex>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/ahead_memory.h"
#include "formats/bytes/store/read_ahead.h"

namespace fsdp::formats {
namespace {

std::uint64_t identity_of(const std::string& url, const StoredFile& file) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, std::uint64_t> identities;
  const std::lock_guard lock(mutex);
  return identities.try_emplace({url, file.version}, identities.size() + 1).first->second;
}

}  // namespace

StoredSource::StoredSource(const Store& store, std::string url, StoredFile file)
    : File(escape(url)),
      ahead_(std::make_shared<AheadFile>(store, std::move(url), std::move(file))),
      identity_(identity_of(ahead_->url, ahead_->file)) {
  ReadAhead::shared().open(*ahead_);
}

StoredSource::~StoredSource() {
  ReadAhead::shared().close(*ahead_);
}

std::uint64_t StoredSource::size() const {
  return ahead_->file.bytes;
}

void StoredSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size());
  ReadAhead::shared().read(ahead_, offset, out);
}

bool StoredSource::read_ahead(std::uint64_t offset, std::uint64_t count) const noexcept {
  return ReadAhead::shared().expect(ahead_, offset, count, false);
}

bool StoredSource::will_read(std::uint64_t offset, std::uint64_t count) const noexcept {
  return ReadAhead::shared().expect(ahead_, offset, count, true);
}

// No device has this number.
std::pair<std::uint64_t, std::uint64_t> StoredSource::identity() const {
  return {UINT64_MAX, identity_};
}

std::int64_t StoredSource::mtime_ns() const {
  return ahead_->file.mtime_ns;
}

void StoredSource::check_unchanged() const {
  const StoredFile& opened = ahead_->file;
  if (!opened.version.empty()) return;
  const std::optional<StoredFile> now = ahead_->store.find(ahead_->url);
  if (!now || now->bytes != opened.bytes || now->mtime_ns != opened.mtime_ns)
    throw Error(ErrorCode::kChanged, name() + ": was written to while it was being read");
}

}  // namespace fsdp::formats
