// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/check.h"

#include <algorithm>
#include <string>
#include <variant>

#include "formats/bytes/base/characters.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/tiling.h"

namespace fsdp::formats {
namespace {

// The bytes that the tensors of any checkpoint may expand to, beyond a multiple of its files'
// bytes.
constexpr std::uint64_t kFreeExpansion = 128U << 20U;
constexpr std::uint64_t kMaxExpansion = 64;
// More overlaps of one tensor than this add no information.
constexpr std::size_t kMaxOverlaps = 8;
void add(Findings& findings, const TensorEntry& tensor, ErrorCode code, std::string message) {
  findings.push_back(
      {.code = code, .message = std::move(message), .file = {}, .key = tensor.key, .bytes = {}});
}

bool inside(BoxView box, std::span<const std::int64_t> shape) {
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.size[d] < 0 || box.offset[d] > shape[d] ||
        box.size[d] > shape[d] - box.offset[d]) {
      return false;
    }
  }
  return true;
}

// Returns what is wrong with a name; empty if nothing is.
std::string name_fault(const std::string& key, const KeyPath& path) {
  for (const PathStep& step : path) {
    const auto* text = std::get_if<std::string>(&step);
    if (text != nullptr && text->empty())
      return path.size() == 1 ? "the key is empty" : "a part of the key is empty";
  }
  for (std::size_t at = 0; at < key.size();) {
    const auto [code, length] = character_at(key, at);
    if (length == 0) return cat("the key is not UTF-8 at byte ", at);
    if (code == 0) return cat("the key has a NUL at byte ", at);
    if (is_control(code)) return cat("the key has a control character at byte ", at);
    if (is_hidden(code))
      return cat("the key has an invisible character, ", code_text(code), ", at byte ", at);
    at += length;
  }
  return {};
}

}  // namespace

void check_coverage(const TensorEntry& tensor, Findings& findings) {
  std::vector<std::size_t> chunks;
  std::uint64_t covered = 0;
  bool sound = true;
  for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
    const BoxView box = tensor.chunks.box(c);
    if (!inside(box, tensor.shape)) {
      add(findings, tensor, ErrorCode::kBounds,
          cat("chunk ", box_text(box), " lies outside the tensor of shape ",
              shape_text(tensor.shape)));
      sound = false;
      continue;
    }
    const std::uint64_t count = volume(box);
    if (count == 0) continue;
    // Overlapping chunks may add up to more than a number holds; the comparison below is then void
    // anyway.
    covered = covered > UINT64_MAX - count ? UINT64_MAX : covered + count;
    chunks.push_back(c);
  }
  const std::uint64_t numel = tensor.numel();
  if (numel == 0) return;
  // The usual case: one chunk as large as the tensor.
  if (sound && chunks.size() == 1 && covered == numel) return;
  const Tiling tiling = look_at_tiling(tensor.shape, tensor.chunks, chunks, kMaxOverlaps);
  for (const auto& [a, b] : tiling.overlaps) {
    add(findings, tensor, ErrorCode::kOverlap,
        cat("chunks ", box_text(tensor.chunks.box(a)), " and ", box_text(tensor.chunks.box(b)),
            " overlap"));
  }
  // If chunks are missing or doubled, their volumes do not reveal holes.
  const bool volumes_tell = sound && tiling.overlaps.empty();
  if (volumes_tell && covered != numel) {
    add(findings, tensor, ErrorCode::kHole,
        cat("chunks cover ", covered, " of ", numel, " elements of shape ",
            shape_text(tensor.shape),
            tiling.hole ? cat("; none covers ", box_text(tiling.hole->view())) : std::string()));
  } else if (tiling.hole) {
    add(findings, tensor, ErrorCode::kHole,
        cat("no chunk covers ", box_text(tiling.hole->view()), " of shape ",
            shape_text(tensor.shape)));
  } else if (volumes_tell && !tiling.decided) {
    add(findings, tensor, ErrorCode::kLimitNodes,
        cat("the ", chunks.size(), " chunks cross in too many places to check them for overlaps"));
  }
}

namespace {

// The items of a file that cannot be read: the file is missing, or ends before they do.
struct Unread {
  std::uint64_t items = 0;
  std::string key;      // of the first item
  Location location{};  // of the first item
};

std::string count_text(std::uint64_t count, const char* noun) {
  return cat(count, " ", noun, count == 1 ? "" : "s");
}

// The number of tensors whose chunks can all be read, and of all tensors.
struct WholeTensors {
  std::size_t whole = 0;
  std::size_t all = 0;
};

Finding missing_file(const FileEntry& file, const Unread& unread, const WholeTensors& tensors) {
  return {.code = ErrorCode::kShardMissing,
          .message =
              cat("file is missing; ", count_text(unread.items, "item"),
                  unread.items == 1 ? " lies" : " lie", " in it, the first is ", quote(unread.key),
                  "; ", tensors.whole, " of ", count_text(tensors.all, "tensor"),
                  tensors.whole == 1 ? " is whole" : " are whole"),
          .file = file.name,
          .hint = {tensors.whole == 0 ? Remedy::kNone : Remedy::kTakeWhole}};
}

Finding short_file(const FileEntry& file, const Unread& unread) {
  const Location& at = unread.location;
  const std::uint64_t end = at.offset + std::min(at.length, UINT64_MAX - at.offset);
  Finding finding{.code = ErrorCode::kExtent,
                  .message = cat(at.length, " bytes at byte ", at.offset,
                                 " reach past the end of the file, which has ", *file.bytes),
                  .file = file.name,
                  .key = unread.key,
                  .bytes = ByteRange{at.offset, end}};
  if (unread.items > 1)
    finding.message += cat(unread.items == 2 ? "; so does " : "; so do ",
                           count_text(unread.items - 1, "other item"), " in it");
  return finding;
}

}  // namespace

void check_extents(const Index& index, Findings& findings) {
  std::vector<Unread> unread(index.files.size());
  const auto check = [&](const std::string& key, const Location& location) {
    const FileEntry& file = index.files[location.file];
    const bool inside = file.bytes && location.offset <= *file.bytes &&
                        location.length <= *file.bytes - location.offset;
    if (inside) return true;
    Unread& found = unread[location.file];
    // If a file was cut off, the item at the cut is the most informative.
    if (found.items++ != 0 && (!file.bytes || location.offset >= found.location.offset))
      return false;
    found.key = key;
    found.location = location;
    return false;
  };
  WholeTensors tensors{0, index.tensors.size()};
  for (const TensorEntry& tensor : index.tensors) {
    bool whole = true;
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      whole = check(tensor.key, tensor.chunks.location(c)) && whole;
    tensors.whole += whole ? 1 : 0;
  }
  for (const ValueEntry& value : index.values) check(value.key, value.location);
  for (std::size_t f = 0; f < index.files.size(); ++f) {
    if (unread[f].items == 0) continue;
    const FileEntry& file = index.files[f];
    findings.push_back(file.bytes ? short_file(file, unread[f])
                                  : missing_file(file, unread[f], tensors));
  }
}

std::uint64_t expansion_limit(const Index& index) {
  std::uint64_t stored = 0;
  for (const FileEntry& file : index.files) stored += file.bytes.value_or(0);
  return std::min(stored, (UINT64_MAX - kFreeExpansion) / kMaxExpansion) * kMaxExpansion +
         kFreeExpansion;
}

void check_expansion(const Index& index, const std::string& path) {
  const std::uint64_t most = expansion_limit(index);
  std::uint64_t bytes = 0;
  const TensorEntry* largest = nullptr;
  for (const TensorEntry& tensor : index.tensors) {
    bytes = bytes > UINT64_MAX - tensor.bytes() ? UINT64_MAX : bytes + tensor.bytes();
    if (largest == nullptr || tensor.bytes() > largest->bytes()) largest = &tensor;
  }
  if (bytes <= most) return;
  throw Error(
      ErrorCode::kLimitRatio,
      cat(path, ": ", quote(largest->key, 200), ": ", torch_name(largest->dtype), " ",
          shape_text(largest->shape), " is ", human_bytes(largest->bytes()), "; all tensors are ",
          human_bytes(bytes), ", but these files may expand to at most ", human_bytes(most)),
      {Remedy::kExclude, largest->key});
}

void check_names(const Index& index, Findings& findings) {
  const auto check = [&](const std::string& key, const KeyPath& path) {
    const std::string what = name_fault(key, path);
    if (what.empty()) return;
    findings.push_back({.code = ErrorCode::kName,
                        .message = what,
                        .key = key,
                        .severity = Finding::Severity::kWarning});
  };
  for (const TensorEntry& tensor : index.tensors) check(tensor.key, tensor.path);
  for (const ValueEntry& value : index.values) check(value.key, value.path);
}

}  // namespace fsdp::formats
