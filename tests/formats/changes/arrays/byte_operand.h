// SPDX-License-Identifier: Apache-2.0
// Tensors of any dtype in memory, from their bytes, as operands of arrays.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/cast.h"
#include "formats/changes/arrays/array.h"
#include "formats/changes/arrays/computed.h"

namespace fsdp::formats::arrays {

// Elements of any dtype, as bytes.
class Elements : public Operand {
 public:
  Elements(DType dtype, std::vector<std::int64_t> shape, std::vector<std::byte> bytes)
      : dtype_(dtype), shape_(std::move(shape)), bytes_(std::move(bytes)) {}
  DType dtype() const override { return dtype_; }
  std::string name() const override { return "memory: 'w'"; }
  std::size_t chunk_count() const override { return 1; }
  Box chunk_box(std::size_t /*chunk*/) const override { return whole_box(shape_); }
  ChunkData open(std::size_t /*chunk*/) const override {
    ChunkData data;
    data.storage_bytes = bytes_.size();
    data.source = std::make_shared<MemorySource>(bytes_);
    data.file = "memory";
    data.dtype = dtype_;
    return data;
  }

 private:
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::vector<std::byte> bytes_;
};

inline Array bytes_array(DType dtype, const std::vector<std::int64_t>& shape,
                         const std::vector<int>& bytes) {
  std::vector<std::byte> out;
  for (const int byte : bytes) out.push_back(static_cast<std::byte>(byte));
  return whole_array(std::make_shared<Elements>(dtype, shape, std::move(out)), shape);
}

inline Array floats_array(const std::vector<std::int64_t>& shape,
                          const std::vector<float>& numbers) {
  std::vector<std::byte> out(numbers.size() * sizeof(float));
  std::memcpy(out.data(), numbers.data(), out.size());
  return whole_array(std::make_shared<Elements>(DType::kFloat32, shape, std::move(out)), shape);
}

inline std::vector<std::byte> bytes_of(const Array& array) {
  std::vector<std::byte> out(volume({array.shape, array.shape}) * item_bytes(array.dtype));
  ArrayReader(array).read(0, out);
  return out;
}

inline std::vector<float> floats_of(const Array& array) {
  const std::vector<std::byte> bytes = bytes_of(array);
  std::vector<float> out(bytes.size() / item_bytes(array.dtype));
  cast(array.dtype, bytes, DType::kFloat32, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace fsdp::formats::arrays
