// SPDX-License-Identifier: Apache-2.0
// Tensors of int64 in memory, cut into chunks, as operands of arrays.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {

// A dense tensor whose elements are 1, 2, 3, ...  in row-major order, from `first`.
struct Counted {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> elements;
};

inline Counted counted(std::vector<std::int64_t> shape, std::int64_t first = 1) {
  Counted out{std::move(shape), {}};
  out.elements.resize(volume({out.shape, out.shape}));
  std::iota(out.elements.begin(), out.elements.end(), first);
  return out;
}

// Its chunks have at most `rows` rows of the first dimension.
class DenseTensor : public Operand {
 public:
  DenseTensor(Counted tensor, std::int64_t rows) : tensor_(std::move(tensor)), rows_(rows) {}
  DType dtype() const override { return DType::kInt64; }
  std::size_t chunk_count() const override {
    if (tensor_.shape.empty()) return 1;
    return static_cast<std::size_t>((tensor_.shape[0] + rows_ - 1) / rows_);
  }
  Box chunk_box(std::size_t chunk) const override {
    Box box = whole_box(tensor_.shape);
    if (box.size.empty()) return box;
    box.offset[0] = static_cast<std::int64_t>(chunk) * rows_;
    box.size[0] = std::min(rows_, tensor_.shape[0] - box.offset[0]);
    return box;
  }
  ChunkData open(std::size_t chunk) const override {
    const Box box = chunk_box(chunk);
    const std::size_t row =
        box.size.empty() || tensor_.shape[0] == 0
            ? 0
            : tensor_.elements.size() / static_cast<std::size_t>(tensor_.shape[0]);
    const std::size_t begin = box.size.empty() ? 0 : static_cast<std::size_t>(box.offset[0]) * row;
    ChunkData data;
    data.storage_bytes = volume(box.view()) * sizeof(std::int64_t);
    data.source = std::make_shared<MemorySource>(
        std::as_bytes(std::span(tensor_.elements))
            .subspan(begin * sizeof(std::int64_t), data.storage_bytes));
    data.file = "memory";
    data.dtype = DType::kInt64;
    return data;
  }

 private:
  Counted tensor_;
  std::int64_t rows_;
};

inline Array array_of(const Counted& tensor, std::int64_t rows = 1 << 20) {
  return whole_array(std::make_shared<DenseTensor>(tensor, rows), tensor.shape);
}

// All elements of an array in row-major order.
inline std::vector<std::int64_t> elements_of(const Array& array) {
  std::vector<std::int64_t> out(volume({array.shape, array.shape}));
  if (out.empty()) return out;
  ArrayReader(array).read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace fsdp::formats::arrays
