// SPDX-License-Identifier: Apache-2.0
#include "tools/table.h"

#include <algorithm>
#include <ostream>

namespace fsdp::cli {
namespace {

// Code points of UTF-8 text: every byte but the continuation ones begins one.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  rows_.push_back({false, std::move(cells)});
}

void Table::add_line(std::string text) {
  rows_.push_back({true, {std::move(text)}});
}

void Table::print(std::ostream& out) const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const Row& row : rows_) {
    if (row.line) continue;
    const std::size_t count =
        row.cells.size() < columns_.size() ? row.cells.size() - 1 : row.cells.size();
    for (std::size_t c = 0; c < count; ++c) widths[c] = std::max(widths[c], width_of(row.cells[c]));
  }
  for (const Row& row : rows_) {
    if (row.line) {
      out << row.cells[0] << '\n';
      continue;
    }
    std::string text;
    for (std::size_t c = 0; c < row.cells.size(); ++c) {
      const std::size_t width = width_of(row.cells[c]);
      const std::string blanks(width < widths[c] ? widths[c] - width : 0, ' ');
      if (c != 0) text += "  ";
      text += columns_[c] == Align::kRight ? blanks + row.cells[c] : row.cells[c] + blanks;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << '\n';
  }
}

}  // namespace fsdp::cli
