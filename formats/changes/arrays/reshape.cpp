// SPDX-License-Identifier: Apache-2.0
// Arrays in other shapes.
#include <algorithm>
#include <optional>
#include <utility>

#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {
namespace {

// Dimensions [old_begin, old_end) of the old shape hold the same elements, in row-major order, as
// [new_begin, new_end) of the new one.
struct Group {
  std::size_t old_begin, old_end;
  std::size_t new_begin, new_end;
};

// Returns the smallest groups, from the left.  Requires: no dimension is 0, the products are equal.
std::vector<Group> groups_of(std::span<const std::int64_t> from, std::span<const std::int64_t> to) {
  std::vector<Group> groups;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < from.size() || j < to.size()) {
    Group group{i, i, j, j};
    std::int64_t left = 1;
    std::int64_t right = 1;
    if (i < from.size()) left = from[i++];
    if (j < to.size()) right = to[j++];
    while (left != right) {
      if (left < right) {
        left *= from[i++];
      } else {
        right *= to[j++];
      }
    }
    group.old_end = i;
    group.new_end = j;
    groups.push_back(group);
  }
  return groups;
}

// Elements [at, at + count) of a group's row-major order: consecutive ones lie `step` apart in
// dimension `dim` of the operand.
struct Run {
  std::int64_t at = 0;
  std::int64_t count = 1;
  std::size_t dim = View::kNone;
  std::int64_t step = 0;
  // Offset of the first element from the part's base: dimension of the operand, distance.
  std::vector<std::pair<std::size_t, std::int64_t>> beyond;
};

// One of the boxes that a part becomes, in some dimensions of the new shape.
struct Piece {
  std::vector<std::int64_t> offset;
  std::vector<std::int64_t> size;
  std::vector<std::size_t> dim;
  std::vector<std::int64_t> step;
  std::vector<std::pair<std::size_t, std::int64_t>> beyond;
};

// Joins the dimensions of a part that belong to a group to runs.
class Joining {
 public:
  Joining(const Part& part, std::span<const std::int64_t> shape, const Group& group)
      : part_(part), shape_(shape), group_(group) {}

  // Returns nothing if there are more than `most` runs.
  std::optional<std::vector<Run>> runs(std::size_t most) {
    std::size_t d = group_.old_end;
    bool full = true;  // the run covers all of the dimensions so far
    while (d > group_.old_begin && join(d - 1, full)) --d;
    std::vector<Run> out = {run_};
    for (; d > group_.old_begin; --d) {
      const auto size = static_cast<std::size_t>(part_.box.size[d - 1]);
      if (size > most / out.size()) return std::nullopt;
      std::vector<Run> more;
      for (std::int64_t i = 0; i < part_.box.size[d - 1]; ++i) {
        for (Run run : out) {
          run.at += (part_.box.offset[d - 1] + i) * weight_;
          const std::size_t e = part_.view.dim[d - 1];
          if (e != View::kNone) run.beyond.emplace_back(e, i * part_.view.step[d - 1]);
          more.push_back(std::move(run));
        }
      }
      weight_ *= shape_[d - 1];
      out = std::move(more);
    }
    return out;
  }

 private:
  // Returns false if the elements of dimension `d` do not continue the run.
  bool join(std::size_t d, bool& full) {
    const std::int64_t size = part_.box.size[d];
    const std::size_t e = part_.view.dim[d];
    const std::int64_t step = part_.view.step[d];
    if (size != 1) {
      if (!full) return false;
      if (run_.count == 1) {
        run_.dim = e;
        run_.step = step;
      } else if (run_.dim != e || step != run_.step * run_.count) {
        return false;
      }
      run_.count *= size;
    }
    run_.at += part_.box.offset[d] * weight_;
    weight_ *= shape_[d];
    full = full && size == shape_[d];
    return true;
  }

  const Part& part_;
  std::span<const std::int64_t> shape_;
  const Group& group_;
  Run run_;
  std::int64_t weight_ = 1;  // elements from one index of the current dimension to the next
};

// Cuts a run into boxes: one index in the outer dimensions, a range in the next, all of the rest.
void cut_run(const Run& run, std::span<const std::int64_t> sizes, std::vector<Piece>& out) {
  const std::size_t rank = sizes.size();
  for (std::int64_t done = 0; done < run.count;) {
    Piece piece;
    piece.offset.assign(rank, 0);
    piece.size.assign(sizes.begin(), sizes.end());
    piece.dim.assign(rank, run.dim);
    piece.step.assign(rank, 0);
    std::int64_t inner = 1;
    for (const std::int64_t size : sizes) inner *= size;
    std::int64_t rest = run.at + done;
    std::int64_t count = inner;
    std::int64_t steps = inner;
    for (std::size_t d = 0; d < rank; ++d) {
      steps /= sizes[d];
      piece.step[d] = run.step * steps;
    }
    for (std::size_t d = 0; d < rank; ++d) {
      inner /= sizes[d];
      piece.offset[d] = rest / inner;
      rest %= inner;
      if (rest == 0 && inner <= run.count - done) {
        piece.size[d] = std::min((run.count - done) / inner, sizes[d] - piece.offset[d]);
        count = piece.size[d] * inner;
        break;
      }
      piece.size[d] = 1;
      count = inner;
    }
    piece.beyond = run.beyond;
    if (run.dim != View::kNone) piece.beyond.emplace_back(run.dim, done * run.step);
    out.push_back(std::move(piece));
    done += count;
  }
}

void append(Piece& to, const Piece& more) {
  to.offset.insert(to.offset.end(), more.offset.begin(), more.offset.end());
  to.size.insert(to.size.end(), more.size.begin(), more.size.end());
  to.dim.insert(to.dim.end(), more.dim.begin(), more.dim.end());
  to.step.insert(to.step.end(), more.step.begin(), more.step.end());
  to.beyond.insert(to.beyond.end(), more.beyond.begin(), more.beyond.end());
}

std::optional<std::vector<Piece>> pieces_of(const Part& part, const Array& array,
                                            std::span<const std::int64_t> shape,
                                            std::span<const Group> groups, std::size_t most) {
  std::vector<Piece> all(1);
  for (const Group& group : groups) {
    const auto runs = Joining(part, array.shape, group).runs(most);
    if (!runs) return std::nullopt;
    std::vector<Piece> here;
    for (const Run& run : *runs) {
      cut_run(run, shape.subspan(group.new_begin, group.new_end - group.new_begin), here);
      if (here.size() > most) return std::nullopt;
    }
    if (here.size() > most / all.size()) return std::nullopt;
    std::vector<Piece> more;
    for (const Piece& before : all) {
      for (const Piece& piece : here) append(more.emplace_back(before), piece);
    }
    all = std::move(more);
  }
  return all;
}

// Returns the parts of `array` as boxes of the new shape; nothing if they are more than
// `max_parts`.
std::optional<std::vector<Part>> reshaped_parts(const Array& array,
                                                std::span<const std::int64_t> shape,
                                                std::size_t max_parts) {
  const std::vector<Group> groups = groups_of(array.shape, shape);
  std::vector<Part> out;
  for (const Part& part : array.parts) {
    auto pieces = pieces_of(part, array, shape, groups, max_parts);
    if (!pieces || pieces->size() + out.size() > max_parts) return std::nullopt;
    for (Piece& piece : *pieces) {
      Part made;
      made.operand = part.operand;
      made.box = {std::move(piece.offset), std::move(piece.size)};
      made.view = {part.view.base, std::move(piece.dim), std::move(piece.step)};
      for (const auto& [dim, distance] : piece.beyond) made.view.base[dim] += distance;
      out.push_back(std::move(made));
    }
  }
  return out;
}

}  // namespace

Array reshaped(const Array& array, std::span<const std::int64_t> shape, std::size_t max_parts) {
  Array out{array.dtype, {shape.begin(), shape.end()}, {}};
  if (array.parts.empty()) return out;
  auto parts = reshaped_parts(array, shape, max_parts);
  if (!parts) return gathered(array, shape);
  out.parts = std::move(*parts);
  join_neighbours(out.parts);
  return out;
}

}  // namespace fsdp::formats::arrays
