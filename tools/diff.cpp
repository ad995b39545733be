// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt diff: what two checkpoints of any formats and world sizes do not share.
#include <algorithm>
#include <ostream>

#include "formats/base/json.h"
#include "formats/base/text.h"
#include "tools/colour.h"
#include "tools/comparison.h"
#include "tools/reading.h"
#include "tools/table.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;

constexpr DifferenceKind kKinds[] = {
    DifferenceKind::kOnlyA, DifferenceKind::kOnlyB, DifferenceKind::kKind,  DifferenceKind::kDtype,
    DifferenceKind::kShape, DifferenceKind::kValue, DifferenceKind::kTensor};
constexpr std::size_t kDefaultLimit = 20;

// The place of element `at` of a dense row-major tensor.
std::vector<std::int64_t> place_of(std::uint64_t at, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> place(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    const auto size = static_cast<std::uint64_t>(shape[d]);
    place[d] = static_cast<std::int64_t>(at % size);
    at /= size;
  }
  return place;
}

Json place_json(std::uint64_t at, const std::vector<std::int64_t>& shape) {
  Json::Array numbers;
  for (const std::int64_t number : place_of(at, shape)) numbers.emplace_back(number);
  return numbers;
}

Json difference_json(const Difference& difference) {
  const auto text = [](const std::string& word) { return word.empty() ? Json() : Json(word); };
  Json::Object object;
  object.emplace_back("what", kind_word(difference.kind));
  object.emplace_back("key", difference.key);
  object.emplace_back("a", text(difference.a));
  object.emplace_back("b", text(difference.b));
  if (difference.kind == DifferenceKind::kOnlyA || difference.kind == DifferenceKind::kOnlyB)
    object.emplace_back("nearest", text(difference.hint));
  if (difference.kind == DifferenceKind::kValue) object.emplace_back("where", difference.where);
  if (difference.kind != DifferenceKind::kTensor) return object;
  const formats::TensorDifference& figures = difference.figures;
  object.emplace_back("elements", figures.count);
  object.emplace_back("unequal", figures.unequal);
  object.emplace_back("different", figures.different);
  object.emplace_back("first", place_json(figures.first, difference.shape));
  object.emplace_back("max_abs", figures.max_abs);
  object.emplace_back("max_abs_at", figures.max_abs == 0
                                        ? Json()
                                        : place_json(figures.max_abs_at, difference.shape));
  object.emplace_back("max_rel", figures.max_rel);
  object.emplace_back("max_ulp", figures.max_ulp ? Json(*figures.max_ulp) : Json());
  object.emplace_back("nan_a", figures.nan_left);
  object.emplace_back("nan_b", figures.nan_right);
  return object;
}

std::string tensor_text(const Difference& difference) {
  const formats::TensorDifference& figures = difference.figures;
  std::string text =
      cat(formats::group_digits(figures.different), " of ", counted(figures.count, "element"),
          ", first at ", formats::shape_text(place_of(figures.first, difference.shape)));
  if (figures.max_abs != 0) {
    text += cat("; max abs ", short_number(figures.max_abs), " at ",
                formats::shape_text(place_of(figures.max_abs_at, difference.shape)), ", max rel ",
                short_number(figures.max_rel));
  }
  if (figures.max_ulp) text += cat(", max ulp ", formats::group_digits(*figures.max_ulp));
  if (figures.nan_left != 0 || figures.nan_right != 0) {
    text += cat("; NaN: ", formats::group_digits(figures.nan_left), " in A, ",
                formats::group_digits(figures.nan_right), " in B");
  }
  if (difference.a != difference.b) text += cat("; ", difference.a, " and ", difference.b);
  return text;
}

std::string difference_text(const Difference& difference) {
  const std::string hint =
      difference.hint.empty() ? "" : "; did you mean " + formats::quote(difference.hint, 200) + "?";
  switch (difference.kind) {
    case DifferenceKind::kOnlyA:
      return difference.a + hint;
    case DifferenceKind::kOnlyB:
      return difference.b + hint;
    case DifferenceKind::kValue:
      return cat(difference.where.empty() ? "" : "at " + difference.where + ": ", difference.a,
                 " in A, ", difference.b, " in B");
    case DifferenceKind::kTensor:
      return tensor_text(difference);
    default:
      return cat(difference.a, " in A, ", difference.b, " in B");
  }
}

std::string kind_text(DifferenceKind kind) {
  if (kind == DifferenceKind::kOnlyA) return "only in A";
  return kind == DifferenceKind::kOnlyB ? "only in B" : kind_word(kind);
}

class DiffVerb : public Verb {
 public:
  std::string name() const override { return "diff"; }
  std::string description() const override {
    return "Compare two checkpoints of any formats: keys, dtypes, shapes, values, elements";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt diff step-400 step-400.safetensors --ignore-values",
            "fsdp-ckpt diff golden.pt step-400 --close --json"};
  }
  void declare(OptionSet& options) override {
    options.positional("OTHER", options_.other, "The checkpoint to compare with: B", true);
    options.number("--atol", atol_, "X", "Same where |a - b| <= X + rtol * |b|; 0 if not given");
    options.number("--rtol", rtol_, "X", "Same where |a - b| <= atol + X * |b|; 0 if not given");
    options.integer("--ulp", ulp_, 0, INT64_MAX, "N",
                    "Same where at most N representable numbers lie between");
    options.flag("--close", options_.close,
                 "The tolerance of torch.testing.assert_close for each dtype");
    options.flag("--nan-equal", options_.tolerance.nan_equal, "Every NaN is like any other");
    options.flag("--ignore-dtype", options_.ignore_dtype,
                 "Compare numbers of different dtypes, in float64; --close does so too");
    options.flag("--ignore-values", options_.ignore_values, "Tensors alone");
    options.text("--strip-prefix-a", options_.strip_prefix[0], "TEXT",
                 "Take TEXT off the keys of PATH, and a dot behind it");
    options.text("--strip-prefix-b", options_.strip_prefix[1], "TEXT",
                 "Take TEXT off the keys of OTHER");
    options.integer("--limit", limit_, 0, INT32_MAX, "N",
                    "Differences to list for people; 20 if not given");
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    options_.common = common;
    formats::Tolerance& tolerance = options_.tolerance;
    tolerance.exact = !atol_ && !rtol_ && !ulp_ && !options_.close;
    tolerance.atol = atol_.value_or(0);
    tolerance.rtol = rtol_.value_or(0);
    if (ulp_) tolerance.ulp = static_cast<std::uint64_t>(*ulp_);
    options_.has_atol = atol_.has_value();
    options_.has_rtol = rtol_.has_value();
    options_.ignore_dtype = options_.ignore_dtype || options_.close;
    const Comparison found = compare_checkpoints(options_, streams);
    if (common.json) {
      print_json(found, streams.out);
    } else {
      print_text(found, streams);
    }
    return found.differences.empty() ? 0 : 1;
  }

 private:
  Json tolerance_json() const {
    const formats::Tolerance& tolerance = options_.tolerance;
    Json::Object object;
    object.emplace_back("exact", tolerance.exact);
    object.emplace_back("close", options_.close);
    // --close has one for each dtype.
    const auto number = [&](bool given, double value) {
      return tolerance.exact || (options_.close && !given) ? Json() : Json(value);
    };
    object.emplace_back("atol", number(options_.has_atol, tolerance.atol));
    object.emplace_back("rtol", number(options_.has_rtol, tolerance.rtol));
    object.emplace_back("ulp", tolerance.ulp ? Json(*tolerance.ulp) : Json());
    object.emplace_back("nan_equal", tolerance.nan_equal);
    object.emplace_back("ignore_dtype", options_.ignore_dtype);
    object.emplace_back("ignore_values", options_.ignore_values);
    return object;
  }

  // Written as it goes: there may be a difference for every tensor.
  void print_json(const Comparison& found, std::ostream& out) const {
    const auto text = [](const Json& json) { return formats::to_text(json); };
    Json::Object counts;
    for (const DifferenceKind kind : kKinds)
      counts.emplace_back(kind_word(kind), found.count(kind));
    out << "{\"schema\":\"fsdp-ckpt/diff/1\",\"a\":" << text(options_.common.path)
        << ",\"b\":" << text(options_.other) << ",\"format_a\":" << text(found.formats[0])
        << ",\"format_b\":" << text(found.formats[1])
        << ",\n\"same\":" << (found.differences.empty() ? "true" : "false")
        << ",\n\"tolerance\":" << text(tolerance_json()) << ",\n\"tensors\":" << found.tensors
        << ",\"values\":" << found.values << ",\"bytes\":" << found.bytes
        << ",\"unchecked_bytes\":" << found.unchecked_bytes
        << ",\"within_tolerance\":" << found.within << ",\n\"counts\":" << text(counts)
        << ",\n\"differences\":[";
    const char* before = "\n";
    for (const Difference& difference : found.differences) {
      out << before << text(difference_json(difference));
      before = ",\n";
    }
    out << "]}\n";
  }

  void print_text(const Comparison& found, const Streams& streams) const {
    std::ostream& out = streams.out;
    const bool same = found.differences.empty();
    if (same && options_.common.quiet) return;
    const std::size_t limit = limit_ ? static_cast<std::size_t>(*limit_) : kDefaultLimit;
    Table table({Column::kWhole, Column::kName, Column::kText});
    const std::size_t shown = std::min(limit, found.differences.size());
    for (std::size_t i = 0; i < shown; ++i) {
      const Difference& difference = found.differences[i];
      table.add({kind_text(difference.kind), formats::escape(difference.key),
                 formats::escape(difference_text(difference))});
    }
    table.print(out);
    if (shown < found.differences.size())
      out << "and " << formats::group_digits(found.differences.size() - shown)
          << " more; --limit shows more\n";
    if (!found.prefix_hint.empty() && !options_.common.quiet)
      streams.err << "fsdp-ckpt: note: " << found.prefix_hint << " would make keys meet\n";
    print_summary(found, streams);
  }

  void print_summary(const Comparison& found, const Streams& streams) const {
    const bool same = found.differences.empty();
    std::ostream& out = streams.out;
    out << formats::escape(options_.common.path) << " and " << formats::escape(options_.other)
        << coloured(same ? " are the same" : " differ", same ? Colour::kGreen : Colour::kRed,
                    streams.color)
        << ": ";
    if (!same) {
      std::string parts;
      for (const DifferenceKind kind : kKinds) {
        const std::uint64_t count = found.count(kind);
        if (count == 0) continue;
        const std::string part =
            kind == DifferenceKind::kTensor
                ? cat(formats::group_digits(count), " of ", counted(found.tensors, "tensor"))
            : kind == DifferenceKind::kValue
                ? cat(formats::group_digits(count), " of ", counted(found.values, "value"))
            : kind == DifferenceKind::kOnlyA || kind == DifferenceKind::kOnlyB
                ? cat(counted(count, "key"), " ", kind_text(kind))
                : counted(count, kind_word(kind));
        parts += (parts.empty() ? "" : ", ") + part;
      }
      out << parts << '\n';
      return;
    }
    out << counted(found.tensors, "tensor") << ", " << counted(found.values, "value") << ", "
        << formats::human_bytes(found.bytes)
        << (options_.tolerance.exact ? ", bit by bit" : ", within the tolerance");
    if (found.within != 0) out << ", " << formats::group_digits(found.within) << " not bit by bit";
    if (options_.ignore_values) out << ", values not looked at";
    if (found.unchecked_bytes != 0)
      out << "; " << formats::human_bytes(found.unchecked_bytes) << " carry no checksum";
    out << '\n';
  }

  DiffOptions options_;
  std::optional<double> atol_;
  std::optional<double> rtol_;
  std::optional<std::int64_t> ulp_;
  std::optional<std::int64_t> limit_;
};

}  // namespace

std::unique_ptr<Verb> make_diff() {
  return std::make_unique<DiffVerb>();
}

}  // namespace fsdp::cli
