// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/journal/journal_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>

#include <climits>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/team.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::uint32_t kMark = 0x4A4B4346;
// A record of an extent takes some KiB: the journal of 100 TB is smaller.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30U;

struct RecordHead {
  std::uint32_t mark = kMark;
  std::uint32_t bytes = 0;
  std::uint32_t crc = 0;       // of the bytes that follow
  std::uint32_t head_crc = 0;  // of the fields above
};
static_assert(sizeof(RecordHead) == 16);

std::uint32_t head_crc_of(const RecordHead& head) {
  const std::array<std::uint32_t, 3> fields = {head.mark, head.bytes, head.crc};
  return crc32(0, std::as_bytes(std::span(fields)));
}

std::string whole_file(const FileDescriptor& fd, const std::string& shown) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno(shown);
  if (static_cast<std::uint64_t>(info.st_size) > kMostBytes) {
    throw Error(ErrorCode::kMismatch,
                cat(shown, ": the journal is damaged: it has ", info.st_size, " bytes, at most ",
                    kMostBytes, " are expected"),
                {Remedy::kStartAnew});
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t got =
        ::pread(fd.get(), text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(shown);
    if (got == 0) text.resize(at);
    at += static_cast<std::size_t>(got);
  }
  return text;
}

bool only_zeros(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == '\0'; });
}

void pack(Packed& out, const JournalEntry& entry) {
  out.number(entry.unchecked_bytes).text(entry.reads).number(entry.runs.size());
  std::map<std::string_view, std::uint64_t> numbers;
  std::vector<std::string_view> names;
  for (const JournalEntry::Run& run : entry.runs) {
    if (numbers.try_emplace(run.file, names.size()).second) names.push_back(run.file);
  }
  out.number(names.size());
  for (const std::string_view name : names) out.text(name);
  for (const JournalEntry::Run& run : entry.runs)
    out.number(numbers.at(run.file)).number(run.offset).number(run.bytes).number(run.crc);
}

JournalEntry unpacked(Unpacked& in) {
  JournalEntry entry;
  entry.unchecked_bytes = in.number();
  entry.reads = in.text();
  const std::uint64_t runs = in.number();
  std::vector<std::string> names;
  for (std::uint64_t left = in.number(); left != 0; --left) {
    names.emplace_back(in.text());
    // Each run copies its file's name: a name longer than any path would take its bytes for every
    // run.
    if (names.back().size() >= PATH_MAX)
      throw Error(ErrorCode::kTruncated, "a name of ", names.back().size(), " bytes");
  }
  for (std::uint64_t left = runs; left != 0; --left) {
    const std::uint64_t name = in.number();
    if (name >= names.size()) throw Error(ErrorCode::kTruncated, "a run without a file");
    JournalEntry::Run run;
    run.file = names[static_cast<std::size_t>(name)];
    run.offset = in.number();
    run.bytes = in.number();
    run.crc = static_cast<std::uint32_t>(in.number());
    entry.runs.push_back(std::move(run));
  }
  return entry;
}

}  // namespace

JournalRecords read_journal(const FileDescriptor& fd, const std::string& shown) {
  const std::string text = whole_file(fd, shown);
  JournalRecords found;
  const auto damaged = [&](std::string_view what) {
    return Error(ErrorCode::kMismatch,
                 cat(shown, ": the journal is damaged: ", what, " at byte ", found.sound_bytes),
                 {Remedy::kStartAnew});
  };
  std::string_view rest = text;
  while (rest.size() >= sizeof(RecordHead)) {
    RecordHead head;
    std::memcpy(&head, rest.data(), sizeof head);
    if (head.mark != kMark || head.head_crc != head_crc_of(head)) {
      if (only_zeros(rest)) break;
      throw damaged("no record");
    }
    const std::string_view after = rest.substr(sizeof head);
    if (after.size() < head.bytes) break;
    const std::string_view bytes = after.substr(0, head.bytes);
    if (crc32(0, std::as_bytes(std::span(bytes))) != head.crc) {
      if (bytes.size() == after.size()) break;  // the last one, whose bytes did not reach the disk
      throw damaged("a record whose checksum does not match");
    }
    found.records.emplace_back(bytes);
    found.sound_bytes += sizeof head + head.bytes;
    rest = after.substr(head.bytes);
  }
  return found;
}

void append_record(const FileDescriptor& fd, std::string_view bytes, const std::string& shown) {
  RecordHead head;
  head.bytes = static_cast<std::uint32_t>(bytes.size());
  head.crc = crc32(0, std::as_bytes(std::span(bytes)));
  head.head_crc = head_crc_of(head);
  std::string record(sizeof head, '\0');
  std::memcpy(record.data(), &head, sizeof head);
  record += bytes;
  for (std::string_view rest = record; !rest.empty();) {
    const ssize_t written = ::write(fd.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      if (written == 0) errno = EIO;
      throw_errno(shown + ": writing");
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(fd.get()) != 0) throw_errno(shown + ": fsync");
}

std::string record_of(std::span<const JournalEntry> entries) {
  Packed record;
  for (const JournalEntry& entry : entries) pack(record, entry);
  return record.take();
}

std::vector<JournalEntry> entries_of(std::string_view record) {
  std::vector<JournalEntry> entries;
  for (Unpacked fields(record); !fields.empty();) entries.push_back(unpacked(fields));
  return entries;
}

}  // namespace fsdp::formats
