// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/dcp/item.h"
#include "formats/families/dcp/metadata.h"
#include "formats/state/checkpoint/parallel_check.h"
#include "formats/state/model/check.h"

namespace fsdp::formats::dcp {
namespace {

// Writers that support mapped reading begin an item at a multiple of this.
constexpr std::uint64_t kItemAlignment = 64;

// A chunk or a value, with its place.
struct ItemRef {
  const TensorEntry* tensor;  // null for a value
  const ValueEntry* value;
  std::size_t chunk;
  Location location;
  bool replica = false;
  const std::string& key() const { return tensor != nullptr ? tensor->key : value->key; }
};

std::vector<ItemRef> items_in_file_order(const Index& index, const Replicas& replicas) {
  std::vector<ItemRef> items;
  for (const TensorEntry& tensor : index.tensors) {
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      items.push_back({&tensor, nullptr, c, tensor.chunks.location(c)});
    const auto found = replicas.find(tensor.key);
    if (found == replicas.end()) continue;
    for (const Replica& replica : found->second)
      items.push_back({&tensor, nullptr, replica.chunk, replica.location, true});
  }
  // An item of several values is one item.
  std::set<std::pair<std::uint32_t, std::uint64_t>> shared;  // file, byte
  for (const ValueEntry& value : index.values) {
    const Location& at = value.location;
    if (!value.member || shared.emplace(at.file, at.offset).second)
      items.push_back({nullptr, &value, 0, at});
  }
  std::ranges::stable_sort(items, [](const ItemRef& a, const ItemRef& b) {
    return std::pair(a.location.file, a.location.offset) <
           std::pair(b.location.file, b.location.offset);
  });
  return items;
}

bool begins_with_zip(const FolderUnderTest& f, const Location& location) {
  if (!f.index.transforms[location.transform].empty()) return true;
  std::array<std::byte, 4> start{};
  const auto file = f.pool.get(location.file);
  if (location.offset + start.size() > file->size()) return true;
  file->read_at(location.offset, start);
  return std::memcmp(start.data(), "PK\x03\x04", 4) == 0;
}

// Finds items that share bytes, and bytes of data files that belong to no item.  Skips files with
// items of a safetensors blob: they all name the start of the blob, and a meaningless length.
void check_ranges(const FolderUnderTest& f, const std::vector<ItemRef>& items, Findings& findings) {
  const ItemRef* last = nullptr;
  std::uint64_t end = 0;
  for (const ItemRef& item : items) {
    const FileEntry& file = f.index.files[item.location.file];
    if (!file.bytes) continue;
    if (last == nullptr || last->location.file != item.location.file) {
      last = nullptr;
      end = 0;
    }
    if (item.location.offset < end && last != nullptr) {
      if (!begins_with_zip(f, item.location)) {
        last = &item;
        end = *file.bytes;
        continue;
      }
      findings.push_back(
          {.code = ErrorCode::kExtentOverlap,
           .message = cat("the item shares bytes with that of ", quote(last->key(), 200),
                          ", which ends at byte ", end),
           .file = file.name,
           .key = item.key(),
           .bytes = ByteRange{item.location.offset,
                              std::min(end, item.location.offset + item.location.length)}});
    } else if (!f.narrowed && item.location.offset > end &&
               // Bytes that only align the item, as writers do.
               (item.location.offset - end >= kItemAlignment ||
                item.location.offset % kItemAlignment != 0)) {
      findings.push_back(
          {.code = ErrorCode::kExtent,
           .message = cat("bytes ", end, " to ", item.location.offset, " belong to no item"),
           .file = file.name,
           .bytes = ByteRange{end, item.location.offset},
           .severity = Finding::Severity::kWarning});
    }
    if (item.location.offset + item.location.length >= end) {
      end = item.location.offset + item.location.length;
      last = &item;
    }
  }
}

class ItemChecker {
 public:
  ItemChecker(const FolderUnderTest& f, const VerifyOptions& options) : f_(f), options_(options) {}

  CheckResult check(const ItemRef& ref, std::span<std::byte> buffer) const {
    CheckResult result;
    const std::string& name = f_.index.files[ref.location.file].name;
    const auto file = f_.pool.get(ref.location.file);
    const Item item = open_item(file, ref.location, f_.index.transforms[ref.location.transform],
                                ref.key(), 0, f_.spill);
    if (ref.tensor != nullptr) {
      try {
        item_tensor(item, ref.key(), ref.tensor->dtype, ref.tensor->chunks.box(ref.chunk).size,
                    f_.spill);
      } catch (const Error& error) {
        // Another dtype or shape than expected says nothing about the bytes: those are checked too.
        result.findings.push_back(describe(ref, error));
        // Quantized and sparse tensors are sound, although they could not be joined from chunks.
        if (!item.tensor && !special_tensor(item.torch.root).empty())
          result.findings.back().severity = Finding::Severity::kUnknown;
      }
    }
    if (ref.tensor != nullptr && !ref.replica) compare_replicas(ref, result.findings);
    if (!item.stream) {
      result.bytes_unchecked = item.tensor->bytes;
      return result;
    }
    for (const std::string& global : item.torch.unknown_globals) {
      if (options_.allowed_globals.contains(global)) continue;
      result.findings.push_back(global_finding(global, name, ref.key()));
      result.findings.back().bytes = range_of(ref);
    }
    if (item.torch.cyclic) {
      if (auto finding = cycle_finding(item.torch.root, name, ref.key())) {
        finding->bytes = range_of(ref);
        result.findings.push_back(std::move(*finding));
      }
    }
    if (item.torch.without_crcs || item.torch.legacy) {
      result.bytes_unchecked = item.stream->size();
      return result;
    }
    const bool direct = f_.index.transforms[ref.location.transform].empty();
    const auto note = [&](const ZipEntry& entry, std::uint32_t computed) {
      options_.crcs->add(*file, ref.location.offset + entry.data_offset, entry.compressed_bytes,
                         computed);
    };
    result.bytes_checked = check_entries(
        *item.stream, item.torch.entries, buffer,
        [&](const ZipEntry& entry, std::uint32_t computed) {
          result.findings.push_back(
              crc_finding(entry, computed, name, ref.key(), direct ? ref.location.offset : 0));
          if (!direct) result.findings.back().bytes = range_of(ref);
        },
        direct && options_.crcs != nullptr ? EntryCrc(note) : EntryCrc());
    return result;
  }

  // A difference is only a warning if the tensor is whole on every rank: readers take the first
  // one.
  void compare_replicas(const ItemRef& ref, Findings& findings) const {
    try {
      std::string torn = f_.torn(*ref.tensor, ref.chunk);
      if (torn.empty()) return;
      const bool whole = volume(ref.tensor->chunks.box(ref.chunk)) == ref.tensor->numel();
      findings.push_back(
          {.code = ErrorCode::kMismatch,
           .message = std::move(torn),
           .file = f_.index.files[ref.location.file].name,
           .key = ref.key(),
           .bytes = range_of(ref),
           .severity = whole ? Finding::Severity::kWarning : Finding::Severity::kDamage});
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      // The check of the replica itself reports this error.
    }
  }

  Finding describe(const ItemRef& ref, const Error& error) const {
    const std::string& name = f_.index.files[ref.location.file].name;
    const std::string path = escape((f_.folder.path() / name).native());
    Finding finding = finding_from(error, path + ": " + quote(ref.key(), 200));
    finding.file = name;
    finding.key = ref.key();
    finding.bytes = range_of(ref);
    return finding;
  }

 private:
  static ByteRange range_of(const ItemRef& ref) {
    return {ref.location.offset, ref.location.offset + ref.location.length};
  }

  const FolderUnderTest& f_;
  const VerifyOptions& options_;
};

}  // namespace

VerifyReport verify_folder(const FolderUnderTest& f, const VerifyOptions& options) {
  VerifyReport report;
  report.findings = f.opening;
  check_extents(f.index, report.findings);
  for (const TensorEntry& tensor : f.index.tensors) check_coverage(tensor, report.findings);
  std::vector<ItemRef> items = items_in_file_order(f.index, f.replicas);
  if (!f.rank_local) check_ranges(f, items, report.findings);
  if (options.fast) {
    report.items = items.size();
    return report;
  }
  // Items in a missing file or past the end of one are already reported.
  std::erase_if(items, [&](const ItemRef& item) {
    const auto& bytes = f.index.files[item.location.file].bytes;
    return !bytes || item.location.offset > *bytes ||
           item.location.length > *bytes - item.location.offset;
  });
  const ItemChecker checker(f, options);
  run_checks(
      items.size(), options, report,
      [&](std::size_t i, std::span<std::byte> buffer) { return checker.check(items[i], buffer); },
      [&](std::size_t i, const Error& error) { return checker.describe(items[i], error); }, {},
      [&](std::size_t i) {
        return f.folder.read_by_requests() &&
               expect_item(*f.pool.get(items[i].location.file), items[i].location);
      });
  return report;
}

}  // namespace fsdp::formats::dcp
