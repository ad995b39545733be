// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/zip/reader.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "formats/containers/zip/directory.h"
#include "formats/containers/zip/local_headers.h"
#include "formats/containers/zip/records.h"

namespace fsdp::formats {
namespace {

// torch.save writes through miniz, which leaves 0 in the fields that describe a file of a file
// system; only PyTorch pads with "FB".  Each mark must show in more than one entry, so that one
// flipped bit cannot hide them all.
bool is_by_torch(const ZipDirectory& directory, const std::vector<ZipLocalFacts>& facts) {
  const bool padded = std::ranges::any_of(facts, [](const ZipLocalFacts& f) { return f.padded; });
  const bool by_miniz = std::ranges::any_of(directory.headers, [](const auto& header) {
    return header.version_made_by == 0 && header.common.version_needed == 0;
  });
  return padded && by_miniz;
}

void check_torch_entry(const ZipEntry& entry, const zip::CentralHeader& central,
                       bool has_other_extra, const ZipLocalFacts& local) {
  const auto check = [&](std::string_view field, std::uint64_t found, std::uint64_t expected) {
    if (found == expected) return;
    throw zip_error(ErrorCode::kZipMismatch, "entry ", quote(entry.name), " says ", field, " ",
                    found, ", expected ", expected, " in an archive by torch.save");
  };
  const std::uint16_t version = entry.deflated ? 20 : 0;
  const std::uint16_t flags =
      entry.uncompressed_bytes == 0 ? zip::kFlagUtf8 : zip::kFlagUtf8 | zip::kFlagDescriptor;
  check("version_made_by", central.version_made_by, 0);
  check("version_needed", central.common.version_needed, version);
  check("local version_needed", local.header.common.version_needed, version);
  check("flags", central.common.flags, flags);
  check("comment_bytes", central.comment_bytes, 0);
  check("internal_attributes", central.internal_attributes, 0);
  check("external_attributes", central.external_attributes, entry.name.ends_with('/') ? 0x10 : 0);
  check("local crc", local.header.common.crc, 0);
  check("local compressed_bytes", local.header.common.compressed_bytes, 0);
  check("local uncompressed_bytes", local.header.common.uncompressed_bytes, 0);
  if (!local.padded || local.has_other_extra || has_other_extra) {
    throw zip_error(ErrorCode::kZipPadding, "entry ", quote(entry.name),
                    " has extra fields other than zip64 and padding, or no padding, unlike an "
                    "archive by torch.save");
  }
}

void check_torch_archive(const ZipDirectory& directory, const std::vector<ZipLocalFacts>& facts) {
  if (directory.zip64) {
    constexpr std::uint16_t kMadeBy = 0x031E;
    constexpr std::uint16_t kNeeded = 45;
    if (directory.zip64->version_made_by != kMadeBy || directory.zip64->version_needed != kNeeded) {
      throw zip_error(ErrorCode::kZip64, "the zip64 end record says versions ",
                      directory.zip64->version_made_by, " and ", directory.zip64->version_needed,
                      ", expected ", kMadeBy, " and ", kNeeded, " in an archive by torch.save");
    }
  }
  std::uint16_t most_padding = 0;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    check_torch_entry(directory.entries[i], directory.headers[i], directory.has_other_extra[i],
                      facts[i]);
    most_padding = std::max(most_padding, facts[i].padding_bytes);
  }
  // The alignment is a power of two larger than every padding, so at least this.
  const std::uint64_t alignment = std::bit_ceil(std::uint64_t{most_padding} + 1);
  for (const ZipEntry& entry : directory.entries) {
    if (entry.data_offset % alignment == 0) continue;
    throw zip_error(ErrorCode::kZipPadding, "entry ", quote(entry.name),
                    " has its payload at byte ", entry.data_offset,
                    ", which its padding should align to ", alignment);
  }
}

bool has_capitals(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return c >= 'A' && c <= 'Z'; });
}

// Throws: kZipDuplicate if two names differ only in case: PyTorch ignores case when it looks for a
// record, and so may find the other one.
void check_names_apart(const std::vector<ZipEntry>& entries) {
  if (entries.empty()) return;
  // Usually one folder holds everything, and all names are in lower case.
  const std::string& first = entries.front().name;
  const std::string_view folder = std::string_view(first).substr(0, first.find('/') + 1);
  const bool plain = std::ranges::all_of(entries, [&](const ZipEntry& entry) {
    return entry.name.starts_with(folder) &&
           !has_capitals(std::string_view(entry.name).substr(folder.size()));
  });
  std::vector<std::string> lower;
  for (const ZipEntry& entry : entries) {
    if (plain) break;
    lower.push_back(entry.name);
    for (char& c : lower.back()) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  std::ranges::sort(lower);
  const auto twice = std::ranges::adjacent_find(lower);
  if (twice != lower.end()) {
    throw zip_error(ErrorCode::kZipDuplicate, "two entries are called ", quote(*twice),
                    ", differing only in case, which PyTorch ignores");
  }
}

}  // namespace

ZipReader::ZipReader(const ByteSource& source, const ZipLimits& limits,
                     const ZipHeaderReading& reading) {
  ZipDirectory directory = read_zip_directory(source, limits);
  by_name_.resize(directory.entries.size());
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  const auto name = [&](std::size_t i) -> const std::string& { return directory.entries[i].name; };
  std::ranges::sort(by_name_, {}, name);
  const auto twice = std::ranges::adjacent_find(by_name_, {}, name);
  if (twice != by_name_.end()) {
    throw zip_error(ErrorCode::kZipDuplicate, "entry ", quote(name(*twice)),
                    " is in the directory twice");
  }
  check_names_apart(directory.entries);
  unread_headers_ = reading.later && foretell_payloads(directory);
  if (!unread_headers_) {
    const std::vector<ZipLocalFacts> facts =
        read_zip_local_headers(source, directory, reading.ahead);
    if (is_by_torch(directory, facts)) check_torch_archive(directory, facts);
  }
  entries_ = std::move(directory.entries);
  const auto any = [&](auto&& test) { return std::ranges::any_of(entries_, test); };
  without_crcs_ = any([](const ZipEntry& e) { return e.uncompressed_bytes != 0; }) &&
                  !any([](const ZipEntry& e) { return e.crc != 0; });
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      by_name_, name, {}, [&](std::size_t i) -> const std::string& { return entries_[i].name; });
  return found != by_name_.end() && entries_[*found].name == name ? &entries_[*found] : nullptr;
}

}  // namespace fsdp::formats
