// SPDX-License-Identifier: Apache-2.0
// The text of `diff`.
#include <algorithm>
#include <map>
#include <ostream>
#include <span>
#include <utility>

#include "formats/bytes/base/text.h"
#include "tools/base/reading.h"
#include "tools/text/colour.h"
#include "tools/text/table.h"
#include "tools/text/terminal_text.h"
#include "tools/verbs/comparing/diff_report.h"
#include "tools/verbs/contents/folded_keys.h"

namespace fsdp::cli {
namespace {

using formats::cat;

constexpr int kSignificantDigits = 3;  // of numbers in the table
// Up to this count, differences are shown as multiples of the spacing of floats (ulps): they are
// rounding.  For larger differences the count says nothing.
constexpr std::uint64_t kRoundingUlps = 16;

const char* side_letter(std::size_t side) {
  return side == 0 ? "A" : "B";
}

std::string difference_text(const Difference& difference) {
  switch (difference.kind) {
    case DifferenceKind::kOnlyA:
      return difference.a;
    case DifferenceKind::kOnlyB:
      return difference.b;
    case DifferenceKind::kValue:
      return cat(difference.where.empty() ? "" : "at " + difference.where + ": ", difference.a,
                 " in A, ", difference.b, " in B");
    default:
      return cat(difference.a, " in A, ", difference.b, " in B");
  }
}

std::string hint_text(const Difference& difference) {
  if (difference.hint.empty()) return {};
  return "; did you mean " + formats::quote(difference.hint, 200) + "?";
}

std::string kind_text(DifferenceKind kind) {
  if (kind == DifferenceKind::kOnlyA) return "only in A";
  return kind == DifferenceKind::kOnlyB ? "only in B" : kind_word(kind);
}

// A row for keys with the same kind of difference.
struct KeyRow {
  DifferenceKind kind;
  std::string name;
  std::string text;
};

std::vector<KeyRow> key_rows(const std::vector<Difference>& differences) {
  std::vector<KeyRow> rows;
  for (const Difference& difference : differences) {
    rows.push_back(
        {difference.kind, difference.key, difference_text(difference) + hint_text(difference)});
  }
  return rows;
}

// Returns one row for numbered layers with the same difference.
std::vector<KeyRow> folded_key_rows(const std::vector<Difference>& differences) {
  std::map<std::pair<DifferenceKind, std::string>, formats::Index> alike;
  for (const Difference& difference : differences) {
    formats::TensorEntry entry;
    entry.key = difference.key;
    entry.path = {difference.key};
    alike[{difference.kind, difference_text(difference)}].add(std::move(entry));
  }
  std::vector<KeyRow> rows;
  for (const auto& [what, index] : alike) {
    for (const FoldedKey& key : folded_keys(index))
      rows.push_back({what.first, key.name, what.second});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const KeyRow& a, const KeyRow& b) {
    return formats::natural_less(a.name, b.name);
  });
  return rows;
}

// Returns "is 'model.norm.weight' in B" for a key that a map leads from; empty if none does.
std::string name_text(const std::string& key, const Comparison& found) {
  if (!found.way) return {};
  const auto names = found.way->names.find(key);
  if (names == found.way->names.end() || names->second.empty()) return {};
  std::string text = "is " + formats::quote(names->second[0], 200);
  if (names->second.size() > 1) text += cat(" and ", names->second.size() - 1, " more");
  return cat(text, " in ", side_letter(1 - found.way->named_by));
}

std::string note_text(const ComparedTensor& tensor, const Comparison& found) {
  const formats::TensorDifference& figures = tensor.figures;
  std::vector<std::string> notes;
  if (std::string name = name_text(tensor.key, found); !name.empty())
    notes.push_back(std::move(name));
  if (tensor.a != tensor.b)
    notes.push_back(cat(formats::torch_name(tensor.a), " and ", formats::torch_name(tensor.b)));
  if (figures.nan_left != 0) notes.emplace_back("NaN in A");
  if (figures.nan_right != 0) notes.emplace_back("NaN in B");
  if (figures.max_ulp && *figures.max_ulp <= kRoundingUlps && figures.unbounded == 0)
    notes.push_back(cat("at most ", *figures.max_ulp, " ulp"));
  return packed(notes, "; ", 0, 0);
}

std::string part_text(std::uint64_t some, std::uint64_t all) {
  return some == all ? "all" : formats::group_digits(some);
}

class ChangeTable {
 public:
  ChangeTable(const Comparison& found, ChangeUnit unit)
      : found_(found),
        unit_(unit),
        table_({Column::kName, Column::kNumber, Column::kNumber, Column::kText, Column::kNumber,
                Column::kNumber, Column::kWhole, Column::kText},
               {unit_word(unit), "change", "max abs", "most in", "tensors", "elements", "at",
                "note"}) {}

  void add(const Change& change) {
    const ComparedTensor& tensor = found_.compared[change.tensor];
    const bool one = unit_ == ChangeUnit::kTensor && change.tensors == 1;
    const auto relative = change.relative();
    table_.add({formats::escape(change.name),
                relative ? short_number(*relative, kSignificantDigits) : "",
                change.max_abs == 0 ? "" : short_number(change.max_abs, kSignificantDigits),
                formats::escape(change.most), one ? "" : part_text(change.changed, change.tensors),
                part_text(change.different, change.elements), one ? place_text(tensor) : "",
                unit_ == ChangeUnit::kTensor ? note_text(tensor, found_)
                : change.unbounded != 0      ? "NaN or Inf"
                                             : ""});
  }
  void print(const Streams& streams) const { table_.print(streams.out, streams.columns); }

 private:
  // Returns the index of the largest difference, else of the first element that differs.
  static std::string place_text(const ComparedTensor& tensor) {
    const formats::TensorDifference& figures = tensor.figures;
    const std::uint64_t at = figures.max_abs == 0 ? figures.first : figures.max_abs_at;
    return formats::shape_text(tensor.place_of(at));
  }

  const Comparison& found_;
  ChangeUnit unit_;
  Table table_;
};

// Counts the differences by kind.
std::string counts_text(const Comparison& found) {
  std::vector<std::string> parts;
  for (const DifferenceKind kind : kDifferenceKinds) {
    const std::uint64_t count = found.count(kind);
    if (count == 0) continue;
    parts.push_back(kind == DifferenceKind::kTensor ? cat(formats::group_digits(count), " of ",
                                                          counted(found.compared.size(), "tensor"))
                    : kind == DifferenceKind::kValue
                        ? cat(formats::group_digits(count), " of ", counted(found.values, "value"))
                    : kind == DifferenceKind::kOnlyA || kind == DifferenceKind::kOnlyB
                        ? cat(counted(count, "key"), " ", kind_text(kind))
                        : counted(count, kind_word(kind)));
  }
  return packed(parts, ", ", 0, 0);
}

std::string sameness_text(const DiffOptions& options, const Comparison& found) {
  std::string text = cat(counted(found.compared.size(), "tensor"), ", ",
                         counted(found.values, "value"), ", ", formats::human_bytes(found.bytes),
                         options.tolerance.exact ? ", bit by bit" : ", within the tolerance");
  if (found.way && !found.way->rounded.empty()) text += " after rounding";
  if (found.within != 0) text += ", " + formats::group_digits(found.within) + " not bit by bit";
  if (options.ignore_values) text += ", values not looked at";
  if (found.unchecked_bytes != 0)
    text += "; " + formats::human_bytes(found.unchecked_bytes) + " carry no checksum";
  return text;
}

// Returns the lines that say which tensors were compared, and under whose names.
std::vector<std::string> way_lines(const ExportWay& way) {
  const std::size_t made = 1 - way.origin;
  const auto model = [&](std::size_t side) {
    return way.models[side].empty()
               ? std::string(side_letter(side))
               : cat(formats::quote(way.models[side], 200), " of ", side_letter(side));
  };
  std::string line = cat("through: the models ", model(way.origin), " and ", model(made));
  for (std::size_t s = 0; s < 2; ++s) {
    formats::SomeNames names;
    for (const std::string& prefix : way.prefixes[s]) names.add(formats::quote(prefix, 200));
    if (names.count() != 0) line += cat("; ", side_letter(s), " without ", names.text());
  }
  if (!way.map.empty()) {
    line +=
        cat("; map ", formats::escape(way.map),
            way.named_by == way.origin ? cat(", undone: keys are ", side_letter(way.origin), "'s")
                                       : cat(": keys are ", side_letter(made), "'s"));
  }
  std::vector<std::string> lines = {std::move(line)};
  for (const auto& [dtypes, tensors] : way.rounded) {
    lines.push_back(cat("rounded: ", counted(tensors, "tensor"), " of ", side_letter(way.origin),
                        ", ", formats::torch_name(dtypes.first), " to ",
                        formats::torch_name(dtypes.second)));
  }
  if (!way.tied.empty()) {
    lines.push_back(cat("not in ", side_letter(made), ": ", formats::quote(way.tied, 200),
                        ", which equals the embedding that config.json ties it to"));
  }
  for (std::size_t s = 0; s < 2; ++s) {
    if (way.beside[s] == 0) continue;
    lines.push_back(
        cat("not compared: ",
            way.beside[s] == 1 ? "1 entry" : cat(formats::group_digits(way.beside[s]), " entries"),
            " of ", side_letter(s), " beside the model"));
  }
  return lines;
}

std::string summary(const DiffOptions& options, const Comparison& found, bool color) {
  const bool same = found.same();
  return cat(
      formats::escape(options.common.path), " and ", formats::escape(options.other), ' ',
      coloured(same ? "are the same" : "differ", same ? Colour::kGreen : Colour::kRed, color), ": ",
      same ? sameness_text(options, found) : counts_text(found));
}

}  // namespace

void print_diff_text(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& changes, ChangeUnit unit, std::size_t limit,
                     bool fold, const Streams& streams) {
  if (found.same() && options.common.quiet) return;
  const auto keys = fold ? folded_key_rows(found.differences) : key_rows(found.differences);
  const std::size_t some_keys = std::min(limit, keys.size());
  const std::size_t some_changes = std::min(limit - some_keys, changes.size());
  Table table({Column::kWhole, Column::kName, Column::kWhole});
  for (const KeyRow& row : std::span(keys).first(some_keys))
    table.add({kind_text(row.kind), formats::escape(row.name), formats::escape(row.text)});
  table.print(streams.out, streams.columns);
  ChangeTable rows(found, unit);
  for (const Change& change : std::span(changes).first(some_changes)) rows.add(change);
  if (some_keys != 0 && some_changes != 0) streams.out << '\n';
  if (some_changes != 0) rows.print(streams);
  const std::size_t more = keys.size() + changes.size() - some_keys - some_changes;
  if (more != 0)
    streams.out << "and " << formats::group_digits(more) << " more; --limit shows more\n";
  if (!found.prefix_hint.empty() && !options.common.quiet)
    streams.err << "fsdp-ckpt: note: " << found.prefix_hint << " would make keys match\n";
  if (!found.no_way.empty() && found.prefix_hint.empty() && !options.common.quiet)
    streams.err << "fsdp-ckpt: note: neither is an export of the other: " << found.no_way << '\n';
  if (found.way) {
    for (const std::string& line : way_lines(*found.way))
      streams.out << wrapped(line, streams.columns) << '\n';
  }
  streams.out << wrapped(summary(options, found, streams.color), streams.columns) << '\n';
}

}  // namespace fsdp::cli
