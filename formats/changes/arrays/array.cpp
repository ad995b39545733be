// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/array.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::arrays {
namespace {

// Returns the index of the operand that element `at` of the array comes from.  Requires: `at` lies
// inside the part.
std::vector<std::int64_t> base_at(const Part& part, std::span<const std::int64_t> at) {
  std::vector<std::int64_t> base = part.view.base;
  for (std::size_t d = 0; d < at.size(); ++d) {
    if (part.view.dim[d] != View::kNone)
      base[part.view.dim[d]] += (at[d] - part.box.offset[d]) * part.view.step[d];
  }
  return base;
}

// Returns `part` narrowed to `box`, which lies inside it.
Part narrowed(const Part& part, Box box) {
  Part out;
  out.view = part.view;
  out.view.base = base_at(part, box.offset);
  out.operand = part.operand;
  out.box = std::move(box);
  return out;
}

// Returns the first and last index of the operand's dimension `e` that elements of the part come
// from.
std::pair<std::int64_t, std::int64_t> reach(const Box& box, const View& view, std::size_t e) {
  std::int64_t last = view.base[e];
  for (std::size_t d = 0; d < box.size.size(); ++d) {
    if (view.dim[d] == e) last += (box.size[d] - 1) * view.step[d];
  }
  return {view.base[e], last};
}

// Cuts a part until each piece lies inside one chunk.
class ChunkCut {
 public:
  ChunkCut(const Box& chunk, std::size_t number, std::vector<PlacedPart>& out)
      : chunk_(chunk), number_(number), out_(out) {}

  void run(const Part& part) {
    for (std::size_t e = 0; e < chunk_.size.size(); ++e) {
      const auto [first, last] = reach(part.box, part.view, e);
      const std::int64_t begin = chunk_.offset[e];
      const std::int64_t end = begin + chunk_.size[e];
      if (last < begin || first >= end) return;
      if (first >= begin && last < end) continue;
      split(part, e, first < begin ? begin : end);
      return;
    }
    out_.push_back({part.box, part.operand, number_, part.view});
  }

 private:
  // Cuts where the dimension with the longest step crosses `border`.
  void split(const Part& part, std::size_t e, std::int64_t border) {
    std::size_t widest = View::kNone;
    for (std::size_t d = 0; d < part.box.size.size(); ++d) {
      if (part.view.dim[d] != e || part.box.size[d] == 1) continue;
      if (widest == View::kNone || part.view.step[d] > part.view.step[widest]) widest = d;
    }
    const std::int64_t step = part.view.step[widest];
    const std::int64_t index = (border - part.view.base[e] + step - 1) / step;
    // Both halves need elements: dimensions with smaller steps may cross the border before `index`.
    const std::int64_t at = std::clamp<std::int64_t>(index, 1, part.box.size[widest] - 1);
    Box low = part.box;
    Box high = part.box;
    low.size[widest] = at;
    high.offset[widest] += at;
    high.size[widest] -= at;
    run(narrowed(part, std::move(low)));
    run(narrowed(part, std::move(high)));
  }

  const Box& chunk_;
  std::size_t number_;
  std::vector<PlacedPart>& out_;
};

// Returns both parts as one if the second continues the first along one dimension.
std::optional<Part> joined_parts(const Part& a, const Part& b) {
  if (a.operand != b.operand || a.view.dim != b.view.dim || a.view.step != b.view.step)
    return std::nullopt;
  std::size_t along = View::kNone;
  for (std::size_t d = 0; d < a.box.size.size(); ++d) {
    if (a.box.offset[d] == b.box.offset[d] && a.box.size[d] == b.box.size[d]) continue;
    if (along != View::kNone || a.box.offset[d] + a.box.size[d] != b.box.offset[d])
      return std::nullopt;
    along = d;
  }
  if (along == View::kNone || base_at(a, b.box.offset) != b.view.base) return std::nullopt;
  Part joined = a;
  joined.box.size[along] += b.box.size[along];
  return joined;
}

}  // namespace

void join_neighbours(std::vector<Part>& parts) {
  for (std::size_t before = 0; before != parts.size();) {
    before = parts.size();
    std::vector<Part> joined;
    for (Part& part : parts) {
      auto both = joined.empty() ? std::nullopt : joined_parts(joined.back(), part);
      if (both) {
        joined.back() = std::move(*both);
      } else {
        joined.push_back(std::move(part));
      }
    }
    parts = std::move(joined);
  }
}

void check_bytes(std::span<const std::int64_t> shape, DType dtype) {
  std::uint64_t bytes = item_bytes(dtype);
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes) ||
        bytes > std::numeric_limits<std::int64_t>::max()) {
      throw Error(ErrorCode::kOverflow, cat("a tensor of ", shape_text(shape), " is too large"));
    }
  }
}

Array whole_array(std::shared_ptr<const Operand> operand, std::vector<std::int64_t> shape) {
  Array array;
  array.dtype = operand->dtype();
  Part part;
  part.box = whole_box(shape);
  part.view.base.assign(shape.size(), 0);
  part.view.step.assign(shape.size(), 1);
  for (std::size_t d = 0; d < shape.size(); ++d) part.view.dim.push_back(d);
  part.operand = std::move(operand);
  array.shape = std::move(shape);
  if (volume(part.box.view()) != 0) array.parts.push_back(std::move(part));
  return array;
}

std::string element_text(const Array& array, std::uint64_t element) {
  std::vector<std::int64_t> index(array.shape.size());
  for (std::size_t d = index.size(); d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(array.shape[d]);
    index[d] = static_cast<std::int64_t>(element % size);
    element /= size;
  }
  for (const Part& part : array.parts) {
    bool inside = true;
    for (std::size_t d = 0; d < index.size(); ++d) {
      inside = inside && index[d] >= part.box.offset[d] &&
               index[d] - part.box.offset[d] < part.box.size[d];
    }
    if (inside) return cat(part.operand->name(), ": element ", shape_text(base_at(part, index)));
  }
  return "a computed tensor";
}

Array sliced(const Array& array, std::size_t dim, std::int64_t begin, std::int64_t size) {
  Array out;
  out.dtype = array.dtype;
  out.shape = array.shape;
  out.shape[dim] = size;
  Box wanted = whole_box(array.shape);
  wanted.offset[dim] = begin;
  wanted.size[dim] = size;
  for (const Part& part : array.parts) {
    auto box = intersect(part.box.view(), wanted.view());
    if (!box || volume(box->view()) == 0) continue;
    Part cut = narrowed(part, std::move(*box));
    cut.box.offset[dim] -= begin;
    out.parts.push_back(std::move(cut));
  }
  return out;
}

Array concatenated(std::span<const Array> arrays, std::size_t dim) {
  Array out;
  out.dtype = arrays[0].dtype;
  out.shape = arrays[0].shape;
  out.shape[dim] = 0;
  for (const Array& array : arrays) {
    for (Part part : array.parts) {
      part.box.offset[dim] += out.shape[dim];
      out.parts.push_back(std::move(part));
    }
    out.shape[dim] += array.shape[dim];
  }
  join_neighbours(out.parts);
  return out;
}

Array stacked(std::span<const Array> arrays, std::size_t dim) {
  std::vector<Array> layers;
  for (const Array& array : arrays) layers.push_back(with_dimension(array, dim));
  return concatenated(layers, dim);
}

Array with_dimension(const Array& array, std::size_t dim) {
  const auto at = static_cast<std::ptrdiff_t>(dim);
  Array out = array;
  out.shape.insert(out.shape.begin() + at, 1);
  for (Part& part : out.parts) {
    part.box.offset.insert(part.box.offset.begin() + at, 0);
    part.box.size.insert(part.box.size.begin() + at, 1);
    part.view.dim.insert(part.view.dim.begin() + at, View::kNone);
    part.view.step.insert(part.view.step.begin() + at, 0);
  }
  return out;
}

Array without_dimension(const Array& array, std::size_t dim) {
  const auto at = static_cast<std::ptrdiff_t>(dim);
  Array out = array;
  out.shape.erase(out.shape.begin() + at);
  for (Part& part : out.parts) {
    part.box.offset.erase(part.box.offset.begin() + at);
    part.box.size.erase(part.box.size.begin() + at);
    part.view.dim.erase(part.view.dim.begin() + at);
    part.view.step.erase(part.view.step.begin() + at);
  }
  return out;
}

Array permuted(const Array& array, std::span<const std::size_t> order) {
  Array out = array;
  for (std::size_t d = 0; d < order.size(); ++d) out.shape[d] = array.shape[order[d]];
  for (std::size_t p = 0; p < array.parts.size(); ++p) {
    const Part& from = array.parts[p];
    Part& to = out.parts[p];
    for (std::size_t d = 0; d < order.size(); ++d) {
      to.box.offset[d] = from.box.offset[order[d]];
      to.box.size[d] = from.box.size[order[d]];
      to.view.dim[d] = from.view.dim[order[d]];
      to.view.step[d] = from.view.step[order[d]];
    }
  }
  return out;
}

std::vector<PlacedPart> placed_parts(const Array& array) {
  std::vector<PlacedPart> out;
  for (const Part& part : array.parts) {
    for (std::size_t c = 0; c < part.operand->chunk_count(); ++c) {
      const Box box = part.operand->chunk_box(c);
      if (volume(box.view()) != 0) ChunkCut(box, c, out).run(part);
    }
  }
  return out;
}

ChunkData chunk_data(const PlacedPart& part, ChunkData data) {
  const Box chunk = part.operand->chunk_box(part.chunk);
  const std::vector<std::int64_t> strides =
      data.strides.empty() ? row_major_strides(chunk.size) : data.strides;
  for (std::size_t e = 0; e < chunk.size.size(); ++e) {
    data.first += static_cast<std::uint64_t>(part.view.base[e] - chunk.offset[e]) *
                  static_cast<std::uint64_t>(strides[e]);
  }
  const std::vector<std::int64_t> dense = row_major_strides(part.box.size);
  data.strides = dense;
  for (std::size_t d = 0; d < part.box.size.size(); ++d) {
    // A dimension of one element is dense whatever its stride.
    if (part.box.size[d] == 1) continue;
    const std::size_t e = part.view.dim[d];
    data.strides[d] = e == View::kNone ? 0 : part.view.step[d] * strides[e];
  }
  return data;
}

}  // namespace fsdp::formats::arrays
