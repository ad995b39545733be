// SPDX-License-Identifier: Apache-2.0
#include "tools/text/table.h"

#include <algorithm>
#include <ostream>

#include "tools/text/terminal_text.h"

namespace fsdp::cli {
namespace {

// Blanks between columns, and the least widths to which names and texts are cut.
constexpr std::size_t kGap = 2;
constexpr std::size_t kLeastName = 16;
constexpr std::size_t kLeastNameWithHeader = 28;
constexpr std::size_t kLeastText = 8;  // NaN in A
// Blanks before cells that stand below their row's name.
constexpr std::size_t kIndent = 2;

}  // namespace

void Table::add(std::vector<std::string> cells) {
  rows_.push_back({false, std::move(cells)});
}

void Table::add_line(std::string text) {
  rows_.push_back({true, {std::move(text)}});
}

std::vector<std::size_t> Table::whole_widths() const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const Row& row : rows_) {
    for (std::size_t c = 0; !row.line && c < row.cells.size(); ++c) {
      if (!reaches_over(row, c)) widths[c] = std::max(widths[c], width_of(row.cells[c]));
    }
  }
  for (std::size_t c = 0; c < header_.size(); ++c) {
    if (widths[c] != 0) widths[c] = std::max(widths[c], width_of(header_[c]));
  }
  return widths;
}

bool Table::shrink(std::vector<std::size_t>& widths, std::size_t columns) const {
  std::size_t total = 0;
  for (const std::size_t width : widths) total += width + (width == 0 ? 0 : kGap);
  total -= std::min(total, kGap);
  const auto take = [&](Column column, std::size_t least) {
    for (std::size_t c = 0; c < widths.size(); ++c) {
      if (columns_[c] != column || widths[c] <= least || total <= columns) continue;
      const std::size_t less = std::min(total - columns, widths[c] - least);
      widths[c] -= less;
      total -= less;
    }
  };
  take(Column::kText, kLeastText);
  take(Column::kName, header_.empty() ? kLeastName : kLeastNameWithHeader);
  return total <= columns;
}

std::string Table::cut(const std::string& cell, Column column, std::size_t width) const {
  if (column == Column::kName) return cut_within(cell, width);
  return column == Column::kText ? cut_end(cell, width) : cell;
}

std::string Table::line(const Row& row, const std::vector<std::size_t>& widths,
                        std::size_t columns) const {
  std::string text;
  for (std::size_t c = 0; c < row.cells.size(); ++c) {
    if (widths[c] == 0 && !reaches_over(row, c)) continue;
    if (!text.empty()) text += std::string(kGap, ' ');
    if (reaches_over(row, c)) {
      const std::size_t used = width_of(text);
      text +=
          columns == 0 ? row.cells[c] : cut_end(row.cells[c], columns - std::min(columns, used));
      continue;
    }
    const std::string cell = cut(row.cells[c], columns_[c], widths[c]);
    const std::string blanks(widths[c] - std::min(widths[c], width_of(cell)), ' ');
    text += columns_[c] == Column::kNumber ? blanks + cell : cell + blanks;
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::string Table::stacked(const Row& row, std::size_t columns) const {
  const auto found = std::find(columns_.begin(), columns_.end(), Column::kName);
  const auto name = static_cast<std::size_t>(found - columns_.begin());
  std::vector<std::string> cells;
  for (std::size_t c = 0; c < row.cells.size(); ++c) {
    if (c == name || row.cells[c].empty()) continue;
    const std::string header = c < header_.size() ? header_[c] + " " : "";
    cells.push_back(wrapped(header + row.cells[c], columns - std::min(columns, kIndent), kIndent));
  }
  std::string text = name < row.cells.size() ? cut_within(row.cells[name], columns) : "";
  if (cells.empty()) return text;
  cells.front() = std::string(kIndent, ' ') + cells.front();
  return text + (text.empty() ? "" : "\n") + packed(cells, "  ", columns, kIndent);
}

void Table::print(std::ostream& out, std::size_t columns) const {
  std::vector<std::size_t> widths = whole_widths();
  const bool fits = columns == 0 || widths.empty() || shrink(widths, columns);
  if (!header_.empty() && fits) out << line({false, header_}, widths, columns) << '\n';
  for (const Row& row : rows_) {
    out << (row.line ? wrapped(row.cells[0], columns)
            : fits   ? line(row, widths, columns)
                     : stacked(row, columns))
        << '\n';
  }
}

}  // namespace fsdp::cli
