// SPDX-License-Identifier: Apache-2.0
// A tensor with another number of rows, as bytes that are made while they are read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/changes/arithmetic/input_reader.h"
#include "formats/changes/edit/row_fill.h"

namespace fsdp::formats {

// New rows: noise if it is set, else copies of `row`, or zeros if that is empty.
struct NewRows {
  std::vector<std::byte> row;
  std::optional<Noise> noise;
};

// The first `rows` rows of a table of `old_rows` rows; new rows follow if the table has fewer.
class ResizedTable : public ByteSource {
 public:
  // `columns`: elements of a row, not 0.  Lifetime: what `table` reads outlives this source.
  ResizedTable(std::unique_ptr<InputReader> table, std::uint64_t old_rows, std::uint64_t rows,
               std::uint64_t columns, NewRows fill);

  std::uint64_t size() const override { return bytes_; }
  // Requires: whole elements.  Throws: the errors of InputReader::read.
  void read_at(std::uint64_t offset, std::span<std::byte> out) const override;

 private:
  void read_old(std::uint64_t first, std::span<std::byte> out) const;
  void fill(std::uint64_t offset, std::span<std::byte> out) const;

  std::unique_ptr<InputReader> table_;
  std::uint64_t item_;
  std::uint64_t kept_bytes_;  // of old rows
  std::uint64_t bytes_;
  NewRows fill_;
};

}  // namespace fsdp::formats
