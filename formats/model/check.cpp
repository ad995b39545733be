// SPDX-License-Identifier: Apache-2.0
#include "formats/model/check.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "formats/base/checked_math.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

// More overlaps than these of one tensor say nothing new.
constexpr std::size_t kMaxOverlaps = 8;
// Steps of the search for the first uncovered element; past them the hole is told by its volume
// alone.
constexpr std::size_t kMaxHoleSteps = 200'000;

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

bool meet(BoxView a, BoxView b) {
  for (std::size_t d = 0; d < a.rank(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.size[d] || b.offset[d] >= a.offset[d] + a.size[d])
      return false;
  }
  return true;
}

// The dimension in which chunks begin at the most different places: sweeping along it keeps few at
// once.
std::size_t sweep_dimension(const TensorEntry& tensor, const std::vector<std::size_t>& chunks) {
  std::size_t best = 0;
  std::size_t best_count = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::vector<std::int64_t> begins;
    begins.reserve(chunks.size());
    for (const std::size_t c : chunks) begins.push_back(tensor.chunks.box(c).offset[d]);
    std::sort(begins.begin(), begins.end());
    const auto distinct =
        static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (distinct > best_count) {
      best = d;
      best_count = distinct;
    }
  }
  return best;
}

void find_overlaps(const TensorEntry& tensor, std::vector<std::size_t> chunks, Findings& findings) {
  std::size_t found = 0;
  const auto report = [&](std::size_t a, std::size_t b) {
    add(findings, tensor, ErrorCode::kOverlap,
        cat("chunks ", box_text(tensor.chunks.box(std::min(a, b))), " and ",
            box_text(tensor.chunks.box(std::max(a, b))), " overlap"));
    return ++found >= kMaxOverlaps;
  };
  if (tensor.shape.empty()) {
    for (std::size_t i = 1; i < chunks.size(); ++i) {
      if (report(chunks[0], chunks[i])) return;
    }
    return;
  }
  const std::size_t dim = sweep_dimension(tensor, chunks);
  std::sort(chunks.begin(), chunks.end(), [&](std::size_t a, std::size_t b) {
    return tensor.chunks.box(a).offset[dim] < tensor.chunks.box(b).offset[dim];
  });
  std::vector<std::size_t> active;
  for (const std::size_t chunk : chunks) {
    const BoxView box = tensor.chunks.box(chunk);
    std::erase_if(active, [&](std::size_t other) {
      const BoxView o = tensor.chunks.box(other);
      return o.offset[dim] + o.size[dim] <= box.offset[dim];
    });
    for (const std::size_t other : active) {
      if (meet(box, tensor.chunks.box(other)) && report(other, chunk)) return;
    }
    active.push_back(chunk);
  }
}

// Walks scan lines along the last dimension from the origin, jumping from chunk to chunk, until an
// element that no chunk covers turns up.  Nothing where the walk is too long.
std::optional<Box> first_hole(const TensorEntry& tensor, const std::vector<std::size_t>& chunks) {
  const std::size_t rank = tensor.shape.size();
  std::vector<std::int64_t> at(rank, 0);
  // How far each outer dimension may jump once the lines inside it are done: to the nearest end of
  // a chunk met.
  std::vector<std::int64_t> jump(tensor.shape.begin(), tensor.shape.end());
  const auto covering = [&](std::size_t& steps) -> std::optional<std::size_t> {
    for (const std::size_t c : chunks) {
      ++steps;
      const BoxView box = tensor.chunks.box(c);
      bool hit = true;
      for (std::size_t d = 0; d < rank && hit; ++d) {
        hit = at[d] >= box.offset[d] && at[d] < box.offset[d] + box.size[d];
      }
      if (hit) return c;
    }
    return std::nullopt;
  };
  std::size_t steps = 0;
  while (steps < kMaxHoleSteps) {
    const auto chunk = covering(steps);
    if (!chunk) {
      // From here to the next chunk that begins further along the last dimension on this line, one
      // line thick in the dimensions before, except where the tensor has but one.
      Box hole{at, std::vector<std::int64_t>(rank, 1)};
      if (rank != 0) {
        std::int64_t end = tensor.shape[rank - 1];
        for (const std::size_t c : chunks) {
          const BoxView box = tensor.chunks.box(c);
          bool on_line = box.offset[rank - 1] > at[rank - 1];
          for (std::size_t d = 0; d + 1 < rank && on_line; ++d) {
            on_line = at[d] >= box.offset[d] && at[d] < box.offset[d] + box.size[d];
          }
          if (on_line) end = std::min(end, box.offset[rank - 1]);
        }
        hole.size[rank - 1] = end - at[rank - 1];
        // A hole of whole lines: grow it along dimension 0 until the next chunk begins.
        const bool whole_rows =
            std::all_of(at.begin() + 1, at.end(), [](std::int64_t x) { return x == 0; }) &&
            (rank == 1 || hole.size[rank - 1] == tensor.shape[rank - 1]);
        if (whole_rows) {
          std::int64_t next = tensor.shape[0];
          for (const std::size_t c : chunks) {
            const std::int64_t begin = tensor.chunks.box(c).offset[0];
            if (begin > at[0]) next = std::min(next, begin);
          }
          hole.size.assign(tensor.shape.begin(), tensor.shape.end());
          hole.size[0] = next - at[0];
        }
      }
      return hole;
    }
    const BoxView box = tensor.chunks.box(*chunk);
    for (std::size_t d = 0; d < rank; ++d) jump[d] = std::min(jump[d], box.offset[d] + box.size[d]);
    std::size_t d = rank;
    while (d-- > 0) {
      at[d] = d + 1 == rank ? box.offset[d] + box.size[d] : jump[d];
      jump[d] = tensor.shape[d];
      if (at[d] < tensor.shape[d]) break;
      at[d] = 0;
      if (d == 0) return std::nullopt;
    }
    if (rank == 0) return std::nullopt;
  }
  return std::nullopt;
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
    // Overlapping chunks may add up to more than any number holds; the comparison below is then
    // void anyway.
    covered = covered > UINT64_MAX - count ? UINT64_MAX : covered + count;
    chunks.push_back(c);
  }
  const std::size_t before = findings.size();
  if (chunks.size() > 1) find_overlaps(tensor, chunks, findings);
  const bool overlap = findings.size() != before;
  const std::uint64_t numel = tensor.numel();
  if (numel == 0 || (!overlap && covered == numel)) return;
  if (!sound || overlap) {
    // With chunks missing or doubled the volumes say nothing: look for an uncovered element itself.
    if (const auto hole = first_hole(tensor, chunks)) {
      add(findings, tensor, ErrorCode::kHole,
          cat("no chunk covers ", box_text(hole->view()), " of shape ", shape_text(tensor.shape)));
    }
    return;
  }
  const auto hole =
      chunks.empty() ? std::optional(whole_box(tensor.shape)) : first_hole(tensor, chunks);
  add(findings, tensor, ErrorCode::kHole,
      cat("chunks cover ", covered, " of ", numel, " elements of shape ", shape_text(tensor.shape),
          hole ? cat("; none covers ", box_text(hole->view())) : std::string()));
}

namespace {

// What of a file's items cannot be read: the file is missing, or ends before they do.
struct Unread {
  std::uint64_t items = 0;
  std::string key;      // of the first item
  Location location{};  // of the first item
};

std::string count_text(std::uint64_t count, const char* noun) {
  return cat(count, " ", noun, count == 1 ? "" : "s");
}

Finding missing_file(const FileEntry& file, const Unread& unread) {
  return {.code = ErrorCode::kShardMissing,
          .message = cat("file is missing; ", count_text(unread.items, "item"),
                         unread.items == 1 ? " lies" : " lie", " in it, ", quote(unread.key),
                         " among them"),
          .file = file.name,
          .key = {},
          .bytes = {}};
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
    if (inside) return;
    Unread& found = unread[location.file];
    // Of a file that was cut off, the item that the cut goes through says most.
    if (found.items++ != 0 && (!file.bytes || location.offset >= found.location.offset)) return;
    found.key = key;
    found.location = location;
  };
  for (const TensorEntry& tensor : index.tensors) {
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      check(tensor.key, tensor.chunks.location(c));
  }
  for (const ValueEntry& value : index.values) check(value.key, value.location);
  for (std::size_t f = 0; f < index.files.size(); ++f) {
    if (unread[f].items == 0) continue;
    const FileEntry& file = index.files[f];
    findings.push_back(file.bytes ? short_file(file, unread[f]) : missing_file(file, unread[f]));
  }
}

}  // namespace fsdp::formats
