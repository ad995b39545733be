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

// Blanks between columns, and what the first and the last one keep of their width.
constexpr std::size_t kGap = 2;
constexpr std::size_t kLeastFirst = 16;
constexpr std::size_t kLeastLast = 8;

// Returns `text` in at most `width` characters; the last is an ellipsis if some are left out.
std::string clipped(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return text;
  if (width == 0) return {};
  std::size_t end = 0;
  for (std::size_t count = 0; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U;
    if (begins && count++ == width - 1) break;
  }
  return text.substr(0, end) + "…";
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  rows_.push_back({false, std::move(cells)});
}

void Table::add_line(std::string text) {
  rows_.push_back({true, {std::move(text)}});
}

std::vector<std::size_t> Table::widths(std::size_t columns) const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const Row& row : rows_) {
    if (row.line) continue;
    const std::size_t count =
        row.cells.size() < columns_.size() ? row.cells.size() - 1 : row.cells.size();
    for (std::size_t c = 0; c < count; ++c) widths[c] = std::max(widths[c], width_of(row.cells[c]));
  }
  if (columns == 0 || widths.empty()) return widths;
  std::size_t total = kGap * (widths.size() - 1);
  for (const std::size_t width : widths) total += width;
  const auto shrink = [&](std::size_t& width, std::size_t least) {
    if (total <= columns || width <= least) return;
    const std::size_t less = std::min(total - columns, width - least);
    width -= less;
    total -= less;
  };
  if (widths.size() > 1 && columns_.back() == Align::kLeft) shrink(widths.back(), kLeastLast);
  shrink(widths.front(), kLeastFirst);
  return widths;
}

std::string Table::line(const Row& row, const std::vector<std::size_t>& widths,
                        std::size_t columns) const {
  std::string text;
  std::size_t used = 0;
  for (std::size_t c = 0; c < row.cells.size(); ++c) {
    const bool over = row.cells.size() < columns_.size() && c + 1 == row.cells.size();
    const bool text_at_an_end = columns_[c] == Align::kLeft && (c == 0 || c + 1 == columns_.size());
    const bool cut = columns != 0 && (over || text_at_an_end);
    const std::size_t most = over ? columns - std::min(columns, used) : widths[c];
    const std::string cell = cut ? clipped(row.cells[c], most) : row.cells[c];
    const std::size_t width = width_of(cell);
    const std::string blanks(width < widths[c] ? widths[c] - width : 0, ' ');
    if (c != 0) text += std::string(kGap, ' ');
    text += columns_[c] == Align::kRight ? blanks + cell : cell + blanks;
    used += std::max(width, widths[c]) + kGap;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

void Table::print(std::ostream& out, std::size_t columns) const {
  const std::vector<std::size_t> widths = this->widths(columns);
  for (const Row& row : rows_)
    out << (row.line ? row.cells[0] : line(row, widths, columns)) << '\n';
}

}  // namespace fsdp::cli
