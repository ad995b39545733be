// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/resized_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Size of the scratch buffer for reading old rows, which exists only during a read.
constexpr std::uint64_t kOldRowsBytes = std::uint64_t{1} << 20U;

}  // namespace

ResizedTable::ResizedTable(std::unique_ptr<InputReader> table, std::uint64_t old_rows,
                           std::uint64_t rows, std::uint64_t columns, NewRows fill)
    : table_(std::move(table)),
      item_(item_bytes(table_->dtype())),
      kept_bytes_(std::min(old_rows, rows) * columns * item_),
      bytes_(rows * columns * item_),
      fill_(std::move(fill)) {}

void ResizedTable::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset % item_ != 0 || out.size() % item_ != 0 || offset > bytes_ ||
      out.size() > bytes_ - offset) {
    throw Error(ErrorCode::kTruncated, cat("bytes ", offset, "+", out.size(), " of ", bytes_,
                                           " are not whole elements of a resized tensor"));
  }
  if (offset < kept_bytes_) {
    const auto kept = out.first(std::min<std::uint64_t>(out.size(), kept_bytes_ - offset));
    read_old(offset / item_, kept);
    offset += kept.size();
    out = out.subspan(kept.size());
  }
  if (!out.empty()) fill(offset, out);
}

void ResizedTable::read_old(std::uint64_t first, std::span<std::byte> out) const {
  const std::uint64_t step = kOldRowsBytes - kOldRowsBytes % item_;
  std::vector<std::byte> scratch(std::min<std::uint64_t>(step, out.size()));
  while (!out.empty()) {
    const auto part = out.first(std::min<std::uint64_t>(step, out.size()));
    table_->read(first, part, scratch);
    first += part.size() / item_;
    out = out.subspan(part.size());
  }
}

void ResizedTable::fill(std::uint64_t offset, std::span<std::byte> out) const {
  if (fill_.noise) {
    fill_noise(*fill_.noise, offset / item_, table_->dtype(), out);
    return;
  }
  if (fill_.row.empty()) {
    std::memset(out.data(), 0, out.size());
    return;
  }
  std::size_t at = (offset - kept_bytes_) % fill_.row.size();
  while (!out.empty()) {
    const std::size_t run = std::min(out.size(), fill_.row.size() - at);
    std::memcpy(out.data(), fill_.row.data() + at, run);
    out = out.subspan(run);
    at = 0;
  }
}

}  // namespace fsdp::formats
