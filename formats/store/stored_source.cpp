// SPDX-License-Identifier: Apache-2.0
#include "formats/store/stored_source.h"

#include <map>
#include <mutex>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"

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
    : store_(store),
      url_(std::move(url)),
      file_(std::move(file)),
      identity_(identity_of(url_, file_)) {}

StoredSource::~StoredSource() = default;

void StoredSource::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > file_.bytes || out.size() > file_.bytes - offset) {
    throw Error(ErrorCode::kTruncated, cat(escape(url_), ": ", out.size(), " bytes at byte ",
                                           offset, " are wanted, but the file has ", file_.bytes));
  }
  if (!out.empty()) store_.read(url_, file_, offset, out);
}

void StoredSource::expect(std::uint64_t /*offset*/, std::uint64_t /*count*/) const noexcept {}

void StoredSource::check_unchanged() const {
  if (!file_.version.empty()) return;
  const std::optional<StoredFile> now = store_.find(url_);
  if (!now || now->bytes != file_.bytes || now->mtime_ns != file_.mtime_ns)
    throw Error(ErrorCode::kChanged, escape(url_) + ": was written to while it was being read");
}

}  // namespace fsdp::formats
