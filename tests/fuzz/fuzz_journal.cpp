// SPDX-License-Identifier: Apache-2.0
// Any bytes read as a journal; also with their checksums put right, so that lengths are believed.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/journal/journal_file.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kHeadBytes = 16;

void require(bool holds) {
  if (!holds) std::abort();
}

std::uint32_t crc_of(std::string_view bytes) {
  return crc32(0, std::as_bytes(std::span(bytes)));
}

// Puts a mark and right checksums where each record begins whose length the bytes have.
std::string sealed(std::string text) {
  for (std::size_t at = 0; at + kHeadBytes <= text.size();) {
    std::array<std::uint32_t, 4> head{};
    std::memcpy(head.data(), text.data() + at, kHeadBytes);
    const std::size_t left = text.size() - at - kHeadBytes;
    head[0] = 0x4A4B4346;
    head[2] =
        head[1] > left ? head[2] : crc_of(std::string_view(text).substr(at + kHeadBytes, head[1]));
    head[3] = crc32(0, std::as_bytes(std::span(head).first(3)));
    std::memcpy(text.data() + at, head.data(), kHeadBytes);
    if (head[1] > left) break;
    at += kHeadBytes + head[1];
  }
  return text;
}

void check_promises(const FileDescriptor& file, const JournalRecords& read, std::size_t size) {
  std::uint64_t sound = 0;
  for (const std::string& record : read.records) sound += kHeadBytes + record.size();
  require(sound == read.sound_bytes && sound <= size);
  // A run goes on behind what is sound.
  require(::ftruncate(file.get(), static_cast<off_t>(sound)) == 0);
  require(::lseek(file.get(), 0, SEEK_END) >= 0);
  append_record(file, "the next", "j");
  JournalRecords again = read_journal(file, "j");
  require(again.sound_bytes == sound + kHeadBytes + 8 && again.records.back() == "the next");
  again.records.pop_back();
  require(again.records == read.records);
}

void fuzz_journal(std::string_view text) {
  const FileDescriptor file(::memfd_create("journal", MFD_CLOEXEC));
  require(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  try {
    check_promises(file, read_journal(file, "j"), text.size());
  } catch (const Error& e) {
    require(e.code() == ErrorCode::kMismatch);
  }
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  fsdp::formats::fuzz_journal(text);
  fsdp::formats::fuzz_journal(fsdp::formats::sealed(text));
  return 0;
}
