// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/part_upload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/file_descriptor.h"
#include "formats/bytes/base/interface.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Space is given back in blocks of this size, which no file system exceeds by much.
constexpr std::uint64_t kBlockBytes = 4096;

[[noreturn]] void fail(const std::string& url, std::string_view what) {
  throw Error(ErrorCode::kIo, escape(url), ": ", what, ": ", std::strerror(errno));
}

FileDescriptor open_spooled(const std::filesystem::path& path, const std::string& url) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) fail(url, "opening its copy in the temporary folder");
  return fd;
}

// Bytes of the file in memory.  Only this process has the file, so it cannot become shorter.
class SpoolBytes : NotCopied {
 public:
  SpoolBytes(const FileDescriptor& file, std::uint64_t offset, std::uint64_t bytes,
             const std::string& url) {
    if (bytes == 0) return;
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t before = offset % page;
    mapped_ = static_cast<std::size_t>(before + bytes);
    start_ = ::mmap(nullptr, mapped_, PROT_READ, MAP_SHARED, file.get(),
                    static_cast<off_t>(offset - before));
    if (start_ == MAP_FAILED) fail(url, "reading its copy in the temporary folder");
    span_ = {static_cast<const std::byte*>(start_) + before, static_cast<std::size_t>(bytes)};
  }
  ~SpoolBytes() {
    if (mapped_ != 0 && start_ != MAP_FAILED) ::munmap(start_, mapped_);
  }
  std::span<const std::byte> bytes() const { return span_; }

 private:
  void* start_ = nullptr;
  std::size_t mapped_ = 0;
  std::span<const std::byte> span_;
};

}  // namespace

PartUpload::PartUpload(Store& store, std::string url, std::filesystem::path spool,
                       SenderPool& senders)
    : store_(store), url_(std::move(url)), spool_(std::move(spool)), senders_(senders) {}

void PartUpload::begin(std::uint64_t bytes) {
  if (bytes == 0) return;
  {
    const std::lock_guard lock(mutex_);
    bytes_ = bytes;
    begun_ = true;
  }
  senders_.submit([this] { create(); });
}

void PartUpload::create() {
  auto upload = store_.upload(url_, bytes_);
  Parts parts;
  {
    const std::lock_guard lock(mutex_);
    part_bytes_ = upload->part_bytes();
    upload_ = std::move(upload);
    taken_.resize(static_cast<std::size_t>((bytes_ - 1) / part_bytes_ + 1), false);
    for (const ByteRuns::Run run : written_.runs()) add_whole(run, run, parts);
  }
  for (const std::uint32_t part : parts) senders_.submit_more([this, part] { send(part); });
}

// Takes the parts that overlap `within` and lie completely in `run`.
void PartUpload::add_whole(ByteRuns::Run run, ByteRuns::Run within, Parts& parts) {
  for (std::uint64_t part = within.begin / part_bytes_; part * part_bytes_ < within.end; ++part) {
    const std::uint64_t begin = part * part_bytes_;
    const std::uint64_t end = std::min(begin + part_bytes_, bytes_);
    if (run.begin > begin || run.end < end || taken_[part]) continue;
    taken_[part] = true;
    parts.push_back(static_cast<std::uint32_t>(part));
  }
}

void PartUpload::wrote(std::uint64_t offset, std::uint64_t bytes, bool kept) {
  if (bytes == 0) return;
  Parts parts;
  {
    std::unique_lock lock(mutex_);
    // Until the upload has begun, the spool would fill while the store is slow to answer.
    if (begun_ && !upload_) {
      lock.unlock();
      senders_.wait();
      lock.lock();
    }
    const ByteRuns::Run run = written_.add(offset, offset + bytes);
    if (run.end == 0 || (begun_ && run.end > bytes_)) {
      throw Error(ErrorCode::kIo, escape(url_), ": ", bytes, " bytes at byte ", offset,
                  " are written twice, or lie past the end");
    }
    if (kept) kept_.add(offset, offset + bytes);
    if (upload_) add_whole(run, {offset, offset + bytes}, parts);
  }
  for (const std::uint32_t part : parts) senders_.submit([this, part] { send(part); });
}

void PartUpload::finish(std::uint64_t bytes) {
  bool begun = false;
  {
    const std::lock_guard lock(mutex_);
    begun = begun_;
    if (begun && bytes != bytes_)
      throw Error(ErrorCode::kIo, escape(url_), ": has ", bytes, " bytes, not ", bytes_);
    if (!begun) bytes_ = bytes;
  }
  if (!begun && bytes <= kMostPutBytes) return;
  if (!begun) begin(bytes);
  Parts parts;
  {
    const std::lock_guard lock(mutex_);
    // Gaps are zeros.
    written_ = {};
    written_.add(0, bytes);
    if (upload_) add_whole({0, bytes}, {0, bytes}, parts);
  }
  for (const std::uint32_t part : parts) senders_.submit([this, part] { send(part); });
}

void PartUpload::send(std::uint32_t part) {
  const std::uint64_t begin = part * part_bytes_;
  const std::uint64_t end = std::min(begin + part_bytes_, bytes_);
  const FileDescriptor file = open_spooled(spool_, url_);
  {
    const SpoolBytes bytes(file, begin, end - begin, url_);
    upload_->put(part, bytes.bytes());
  }
  give_back(file.get(), begin, end);
}

void PartUpload::give_back(int fd, std::uint64_t begin, std::uint64_t end) {
  std::vector<ByteRuns::Run> kept;
  {
    const std::lock_guard lock(mutex_);
    kept = kept_.take(begin, end);
  }
  kept.push_back({end, end});
  std::uint64_t at = begin;
  for (const ByteRuns::Run run : kept) {
    const std::uint64_t from = (at + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    const std::uint64_t to = run.begin / kBlockBytes * kBlockBytes;
    // File systems that cannot punch holes keep the bytes until the end.
    if (from < to) {
      (void)::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(from),
                        static_cast<off_t>(to - from));
    }
    at = run.end;
  }
}

void PartUpload::complete(bool only_new) {
  if (upload_) return upload_->complete(only_new);
  const FileDescriptor file = open_spooled(spool_, url_);
  const SpoolBytes bytes(file, 0, bytes_, url_);
  store_.put(url_, bytes.bytes(), only_new);
}

void PartUpload::take_back() noexcept {
  std::unique_ptr<StoreUpload> upload;
  const std::lock_guard lock(mutex_);
  upload.swap(upload_);
}

}  // namespace fsdp::formats
