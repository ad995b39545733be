// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/pickle_search.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/text.h"
#include "formats/containers/zip/decompress.h"
#include "formats/containers/zip/reader.h"
#include "formats/containers/zip/records.h"
#include "formats/families/torch/stream.h"

namespace fsdp::formats {
namespace {

using Source = std::shared_ptr<const ByteSource>;

// The pickles of a legacy torch.save file: magic number, protocol, system info, object, storage
// keys.
constexpr int kLegacyPickles = 5;
// Bytes within which a record proves not to be a pickle; most records do so at their first byte.
constexpr std::uint64_t kProbeBytes = 512;
// A compressed record that is a pickle is decompressed to the disk up to this size.
constexpr std::uint64_t kMaxInflatedPickle = 256U << 20U;
// The most consecutive pickles.
constexpr std::uint64_t kMaxPickles = 100'000;
constexpr std::size_t kSearchBlockBytes = std::size_t{1} << 20U;
constexpr std::uint64_t kZip64EndBytes = zip::Zip64EndRecord::kBytes + zip::Zip64Locator::kBytes;

Source range(const Source& source, std::uint64_t offset, std::uint64_t bytes) {
  return std::make_shared<SourceRange>(source, offset, bytes);
}

std::string head_of(const ByteSource& source, std::size_t count) {
  std::string head(static_cast<std::size_t>(std::min<std::uint64_t>(count, source.size())), '\0');
  source.read_at(0, std::as_writable_bytes(std::span(head)));
  return head;
}

// Returns the kind of a packed file that may hold pickles and is not unpacked here; empty for other
// bytes.
std::string_view packed_kind(const ByteSource& source) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kMagics = {{
      {"\x1F\x8B", "gzip data"},
      {"BZh", "bzip2 data"},
      {"\xFD"
       "7zXZ",
       "xz data"},
      {"\x28\xB5\x2F\xFD", "zstd data"},
      {"7z\xBC\xAF\x27\x1C", "a 7z archive"},
  }};
  const std::string head = head_of(source, 256);
  for (const auto& [magic, kind] : kMagics) {
    if (head.starts_with(magic)) return kind;
  }
  // The type of the elements is in the header.
  if (head.starts_with("\x93NUMPY") && head.find("|O") != std::string::npos)
    return "a NumPy array of objects";
  return {};
}

// Returns whether the bytes begin with PROTO and are not a safetensors file, whose length may look
// so.
bool begins_with_proto(const ByteSource& source) {
  const std::string head = head_of(source, 9);
  if (head.size() == 9 && head[8] == '{') return false;
  return head.size() >= 2 && head[0] == '\x80' && head[1] >= 0 && head[1] <= 5;
}

// Returns whether one of the names is plausible.  Text that happens to begin like a pickle has only
// other names.
bool has_plausible_name(const NameScanner& scanner) {
  const auto& names = scanner.names();
  return std::ranges::any_of(names, [](const ScannedName& scanned) {
    return is_global_name(scanned.name.module) && is_global_name(scanned.name.name) &&
           scanned.name.module.find(' ') == std::string::npos;
  });
}

// "archive/data/3".
bool is_storage_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  return slash != std::string_view::npos && name.substr(slash).starts_with("/data/");
}

class Search {
 public:
  Search(const PickleSearchOptions& options, const PickleSearchSink& sink)
      : options_(options), allowed_(options.allowed), sink_(sink) {}

  void whole(const Source& source, PickleSearch search) {
    if (source->size() == 0) return;
    if (search == PickleSearch::kPickle) return bare(source, 0, {}, true);
    switch (sniff_torch_stream(*source)) {
      case TorchStream::kZip:
        if (search == PickleSearch::kData || search == PickleSearch::kRest)
          return archives(source, search == PickleSearch::kData);
        return archive(source, {});
      case TorchStream::kLegacy:
        return legacy(source);
      case TorchStream::kTar:
        return sink_.unread(
            Error(ErrorCode::kUnsupported, "is a tar, whose content is not examined"), {});
      case TorchStream::kOther:
        break;
    }
    if (const std::string_view kind = packed_kind(*source); !kind.empty()) {
      return sink_.unread(Error(ErrorCode::kUnsupported, cat("is ", kind, ", not examined")), {});
    }
    bare(source, 0, {}, search == PickleSearch::kData);
  }

 private:
  // Searches consecutive archives, as in data files of torch.distributed.checkpoint.
  void archives(const Source& source, bool expected) {
    std::uint64_t at = 0;
    while (at < source->size()) {
      const Source rest = range(source, at, source->size() - at);
      if (sniff_torch_stream(*rest) != TorchStream::kZip)
        return bare(rest, 0, byte_place(at), expected);
      const auto bytes = archive_bytes(*rest);
      if (!bytes) {
        return sink_.unread(
            Error(ErrorCode::kZipEocd, "an archive begins here whose end is not found"),
            byte_place(at));
      }
      archive(range(source, at, *bytes), at == 0 && *bytes == source->size() ? "" : byte_place(at));
      at += *bytes;
    }
  }

  static std::string byte_place(std::uint64_t at) { return cat("byte ", at); }

  // Returns the length of the archive that begins at byte 0: up to the first end record that fits.
  static std::optional<std::uint64_t> archive_bytes(const ByteSource& source) {
    constexpr std::string_view kMagic = "PK\5\6";
    std::vector<std::byte> block;
    for (std::uint64_t at = 0; at + zip::EndRecord::kBytes <= source.size();
         at += kSearchBlockBytes - zip::EndRecord::kBytes) {
      block.resize(std::min<std::uint64_t>(kSearchBlockBytes, source.size() - at));
      source.read_at(at, block);
      const std::string_view text(reinterpret_cast<const char*>(block.data()), block.size());
      for (std::size_t found = text.find(kMagic);
           found != std::string_view::npos && found + zip::EndRecord::kBytes <= text.size();
           found = text.find(kMagic, found + 1)) {
        const auto end = zip::decode<zip::EndRecord>(
            std::span<const std::byte>(block).subspan(found, zip::EndRecord::kBytes));
        const std::uint64_t begins = at + found;
        const std::uint64_t directory_end =
            std::uint64_t{end.directory_offset} + end.directory_bytes;
        const bool is_wide =
            end.directory_offset == UINT32_MAX || end.directory_bytes == UINT32_MAX;
        const bool fits =
            is_wide || directory_end == begins || directory_end + kZip64EndBytes == begins;
        const std::uint64_t bytes = begins + zip::EndRecord::kBytes + end.comment_bytes;
        if (fits && bytes <= source.size()) return bytes;
      }
    }
    return std::nullopt;
  }

  void archive(const Source& source, const std::string& place) {
    try {
      const EndsCache ends(*source, kTorchEndBytes, kTorchEndBytes);
      const ZipReader zip(ends);
      for (const ZipEntry& entry : zip.entries()) record(source, entry, place);
    } catch (const Error& error) {
      sink_.unread(error, place);
    }
  }

  void record(const Source& source, const ZipEntry& entry, const std::string& place) {
    const std::string where = cat(place, place.empty() ? "" : ": ", "record ", entry.name);
    const bool is_named = entry.name.ends_with(".pkl") || entry.name.ends_with(".pickle");
    if (!options_.storages && !is_named && is_storage_name(entry.name)) return;
    Source stored = range(source, entry.data_offset, entry.compressed_bytes);
    if (entry.deflated) {
      if (!is_named && !inflated_begins_as_pickle(stored, entry)) return;
      if (entry.uncompressed_bytes > kMaxInflatedPickle) {
        return sink_.unread(
            Error(ErrorCode::kLimitSize,
                  cat("has ", entry.uncompressed_bytes, " bytes, at most ", kMaxInflatedPickle)),
            where);
      }
      const Spill::Range spilled = spill_.get(where, entry.header_offset, [&](const ByteSink& out) {
        inflate(*stored, entry.uncompressed_bytes, out);
      });
      stored = range(spilled.source, spilled.offset, spilled.bytes);
    } else if (!is_named && !begins_as_pickle(*stored)) {
      return;
    }
    if (stored->size() != 0) bare(stored, 0, where, is_named);
  }

  // Returns whether a record may be a pickle with names, judging by its first bytes.
  bool begins_as_pickle(const ByteSource& source) const {
    const std::vector<std::byte> head =
        read_bytes(source, 0, std::min<std::uint64_t>(kProbeBytes, source.size()));
    NameScanner scanner(allowed_);
    try {
      scanner.scan(MemorySource(head));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kTruncated && head.size() < source.size()) return true;
    }
    return has_plausible_name(scanner);
  }

  bool inflated_begins_as_pickle(const Source& stored, const ZipEntry& entry) const {
    struct Enough {};
    std::vector<std::byte> head;
    try {
      inflate(*stored, entry.uncompressed_bytes, [&](std::span<const std::byte> part) {
        head.insert(head.end(), part.begin(), part.end());
        if (head.size() >= 2 * kProbeBytes) throw Enough();
      });
    } catch (const Enough&) {
    }
    return begins_as_pickle(MemorySource(head));
  }

  void legacy(const Source& source) {
    NameScanner scanner(allowed_);
    try {
      std::uint64_t at = 0;
      for (int i = 0; i < kLegacyPickles; ++i) at = scanner.scan(*source, at);
    } catch (const Error& error) {
      sink_.unread(error, {});
    }
    found(scanner, {});
  }

  // Searches consecutive pickles.  `expected`: the bytes must be pickles; others are reported.
  void bare(const Source& source, std::uint64_t at, const std::string& place, bool expected) {
    NameScanner scanner(allowed_);
    std::uint64_t pickles = 0;
    try {
      while (at < source->size()) {
        if (pickles == kMaxPickles)
          throw Error(ErrorCode::kLimitNodes, cat("more than ", kMaxPickles, " pickles"));
        at = scanner.scan(*source, at);
        ++pickles;
      }
    } catch (const Error& error) {
      const bool plausible = has_plausible_name(scanner);
      if (!expected && !plausible && !begins_with_proto(*source)) return;
      // Bytes after STOP that are not a pickle: Python ignores them, but their content is unknown.
      sink_.unread(pickles == 0 ? error
                                : Error(ErrorCode::kTrailing,
                                        cat(source->size() - at,
                                            " bytes follow the pickle that ends "
                                            "at byte ",
                                            at, " and are not a pickle: ", error.what())),
                   place);
    }
    // These bytes read as a value without names and need not be a pickle: they may be text.
    if (!expected && scanner.names().empty() && scanner.hidden().empty() &&
        !begins_with_proto(*source)) {
      return;
    }
    found(scanner, place);
  }

  void found(const NameScanner& scanner, const std::string& place) {
    for (const std::string& what : scanner.hidden())
      sink_.unread(Error(ErrorCode::kGlobal, what), place);
    sink_.found(scanner, place);
  }

  const PickleSearchOptions& options_;
  const std::set<std::string>& allowed_;
  const PickleSearchSink& sink_;
  Spill spill_;
};

}  // namespace

void search_pickles(const Source& source, const PickleSearchOptions& options,
                    const PickleSearchSink& sink) {
  Search(options, sink).whole(source, options.search);
}

}  // namespace fsdp::formats
