// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt stats: statistics of every tensor in one pass, and a gate for NaN and infinities.
#include <algorithm>
#include <map>
#include <mutex>
#include <ostream>
#include <set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/json_writer.h"
#include "formats/bytes/base/text.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/model/tensor_stats.h"
#include "tools/base/reading.h"
#include "tools/base/runs.h"
#include "tools/base/selection.h"
#include "tools/base/verbs.h"
#include "tools/text/colour.h"
#include "tools/text/table.h"
#include "tools/text/terminal_text.h"
#include "tools/text/value_text.h"
#include "tools/verbs/contents/figures_page.h"
#include "tools/verbs/contents/quantization_stats.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::DType;
using formats::Json;
using formats::TensorEntry;
using formats::TensorStats;

const std::vector<std::string> kGates = {"nan", "inf", "zero"};
// The columns of the table.
const std::vector<std::string> kFigures = {"key", "dtype", "shape", "min", "max", "mean",
                                           "std", "rms",   "zeros", "NaN", "Inf"};

// Parses the words of --fail-on, which may be given several times and contain commas.
std::set<std::string> gates_of(const std::vector<std::string>& lists) {
  std::set<std::string> gates;
  for (const std::string& list : lists) {
    for (std::size_t at = 0; at <= list.size();) {
      const std::size_t end = std::min(list.find(',', at), list.size());
      const std::string word = list.substr(at, end - at);
      if (std::find(kGates.begin(), kGates.end(), word) == kGates.end()) {
        throw Error(ErrorCode::kUsage,
                    cat("--fail-on knows nan, inf and zero, not ", formats::quote(word)));
      }
      gates.insert(word);
      at = end + 1;
    }
  }
  return gates;
}

struct Failure {
  std::size_t tensor;
  std::string what;
  std::uint64_t count;
};

struct Outcome {
  std::vector<TensorStats> stats;  // of each tensor
  std::vector<Failure> failures;
  std::uint64_t unchecked_bytes = 0;
};

// Completes the tensors whose parts several members of a team have read.
void join_stats(formats::Team& team, const formats::Index& index,
                const std::map<std::size_t, formats::StatsJoiner>& mine,
                std::vector<TensorStats>& stats) {
  formats::Packed packed;
  for (const auto& [tensor, joiner] : mine) {
    for (const auto& [first, block] : joiner.blocks())
      packed.number(tensor).number(first).object(block);
  }
  std::map<std::size_t, formats::StatsJoiner> joined;
  for (const std::string& sent : team.exchange("statistics", packed.take())) {
    formats::Unpacked fields(sent);
    while (!fields.empty()) {
      const std::size_t tensor = fields.number();
      const std::uint64_t first = fields.number();
      joined[tensor].add(index.tensors[tensor].dtype, first, fields.object<TensorStats>());
    }
  }
  for (const auto& [tensor, joiner] : joined) stats[tensor] = joiner.total();
}

std::vector<TensorStats> read_stats(const formats::Checkpoint& checkpoint,
                                    const CommonOptions& common, const Streams& streams,
                                    std::uint64_t& unchecked_bytes) {
  const formats::Index& index = checkpoint.index();
  std::vector<formats::TargetPiece> pieces;
  pieces.reserve(index.tensors.size());
  for (std::size_t i = 0; i < index.tensors.size(); ++i)
    pieces.push_back(formats::whole_tensor_piece(checkpoint, i));
  std::vector<TensorStats> stats(index.tensors.size());
  std::map<std::size_t, formats::StatsJoiner> open;  // the tensors being read
  std::mutex mutex;
  Progress progress(streams.err, streams.show_progress, "stats", tensor_bytes(index));
  formats::VisitOptions options = visit_options(common, progress);
  options.on_piece = [&](std::size_t piece) {
    const std::lock_guard lock(mutex);
    if (!common.team->alone()) return;
    stats[piece] = open[piece].total();
    open.erase(piece);
  };
  const auto result =
      formats::visit_pieces(pieces, options, [&](const formats::TensorBlock& block) {
        const DType dtype = index.tensors[block.piece].dtype;
        const TensorStats part = formats::stats_of(dtype, block.bytes);
        const std::lock_guard lock(mutex);
        open[block.piece].add(dtype, block.offset / formats::item_bytes(dtype), part);
      });
  unchecked_bytes = result.unchecked_bytes;
  if (!common.team->alone()) join_stats(*common.team, index, open, stats);
  return stats;
}

// Returns whether a value holds elements: a sparse or quantized tensor, or one inside an object.
bool holds_storage(const formats::Value& value, std::set<const void*>& seen) {
  if (value.as_storage() != nullptr) return true;
  if (value.identity() == nullptr || !seen.insert(value.identity()).second) return false;
  const auto any = [&](const auto& values) {
    return std::any_of(values.begin(), values.end(),
                       [&](const formats::Value& item) { return holds_storage(item, seen); });
  };
  const auto any_entry = [&](const auto& entries) {
    return std::any_of(entries.begin(), entries.end(), [&](const formats::Value::Entry& entry) {
      return holds_storage(entry.second, seen);
    });
  };
  if (any(value.items()) || any_entry(value.entries())) return true;
  const formats::ObjectData* object = value.as_object();
  return object != nullptr &&
         (holds_storage(object->args, seen) || holds_storage(object->state, seen) ||
          any(object->list_items) || any_entry(object->dict_items));
}

// Refuses a gate if some elements cannot be examined.
void refuse_hidden_tensors(const formats::Checkpoint& checkpoint) {
  for (const formats::ValueEntry& entry : checkpoint.index().values) {
    formats::throw_if_interrupted();
    const formats::Value value = checkpoint.value(entry);
    std::set<const void*> seen;
    if (!holds_storage(value, seen)) continue;
    throw Error(ErrorCode::kUnsupported,
                cat(checkpoint.description().path, ": ", formats::quote(entry.key, 200), ": a ",
                    type_name(value),
                    " holds elements that stats does not read; leave it out with --exclude"));
  }
}

std::vector<Failure> failures_of(const std::vector<TensorStats>& stats,
                                 const std::vector<std::size_t>& order,
                                 const std::set<std::string>& gates) {
  std::vector<Failure> failures;
  for (const std::size_t i : order) {
    const TensorStats& s = stats[i];
    if (gates.contains("nan") && s.nan != 0) failures.push_back({i, "nan", s.nan});
    if (gates.contains("inf") && s.infinite() != 0) failures.push_back({i, "inf", s.infinite()});
    if (gates.contains("zero") && s.count != 0 && s.zeros == s.count)
      failures.push_back({i, "zero", s.zeros});
  }
  return failures;
}

bool has_extremes(DType dtype, const TensorStats& stats) {
  return stats.finite() != 0 && formats::has_numbers(dtype) && !formats::is_complex(dtype);
}

bool is_integer(DType dtype) {
  return (dtype >= DType::kInt64 && dtype <= DType::kUInt64) || dtype == DType::kBool;
}

// Returns the least or the largest element, exact.
Json extreme_json(DType dtype, double number, std::uint64_t ordered) {
  if (dtype == DType::kUInt64) return ordered;
  if (dtype == DType::kInt64) return formats::from_ordered(ordered);
  if (is_integer(dtype)) return static_cast<std::int64_t>(number);
  return number;
}

std::string extreme_text(DType dtype, double number, std::uint64_t ordered) {
  return is_integer(dtype) ? formats::to_text(extreme_json(dtype, number, ordered))
                           : short_number(number);
}

Json optional_json(std::optional<double> number) {
  return number ? Json(*number) : Json();
}

std::string optional_text(std::optional<double> number) {
  return number ? short_number(*number) : "-";
}

Json tensor_json(const TensorEntry& tensor, const TensorStats& stats) {
  const DType dtype = tensor.dtype;
  const bool extremes = has_extremes(dtype, stats);
  return Json::Object{
      {"key", tensor.key},
      {"dtype", std::string(formats::torch_name(dtype))},
      {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
      {"min", extremes ? extreme_json(dtype, stats.min, stats.ordered_min) : Json()},
      {"max", extremes ? extreme_json(dtype, stats.max, stats.ordered_max) : Json()},
      {"mean", optional_json(mean_of(dtype, stats))},
      {"std", optional_json(std_of(dtype, stats))},
      {"rms", optional_json(rms_of(dtype, stats))},
      {"zeros", stats.zeros},
      {"nan", stats.nan},
      {"inf", stats.infinite()},
      {"positive_inf", stats.positive_infinity},
      {"negative_inf", stats.negative_infinity}};
}

// Sums over the tensors of one dtype, or all.
struct Totals {
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;
  std::uint64_t zeros = 0;
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;

  void add(const TensorEntry& tensor, const TensorStats& stats) {
    ++tensors;
    parameters += stats.count;
    bytes += tensor.bytes();
    zeros += stats.zeros;
    nan += stats.nan;
    inf += stats.infinite();
  }
  void append_to(Json::Object& object) const {
    object.emplace_back("tensors", tensors);
    object.emplace_back("parameters", parameters);
    object.emplace_back("bytes", bytes);
    object.emplace_back("zeros", zeros);
    object.emplace_back("nan", nan);
    object.emplace_back("inf", inf);
  }
};

std::map<DType, Totals> totals_by_dtype(const formats::Index& index, const Outcome& outcome) {
  std::map<DType, Totals> totals;
  for (std::size_t i = 0; i < index.tensors.size(); ++i)
    totals[index.tensors[i].dtype].add(index.tensors[i], outcome.stats[i]);
  return totals;
}

Totals total_of(const formats::Index& index, const Outcome& outcome) {
  Totals total;
  for (std::size_t i = 0; i < index.tensors.size(); ++i)
    total.add(index.tensors[i], outcome.stats[i]);
  return total;
}

// Writes as it goes: a checkpoint may have a million tensors.
void print_json(const formats::Checkpoint& checkpoint, const CommonOptions& common,
                const std::vector<std::size_t>& order, const std::set<std::string>& gates,
                const Outcome& outcome, formats::JsonWriter& json) {
  const formats::Index& index = checkpoint.index();
  json.begin_object().member("schema", "fsdp-ckpt/stats/1").member("path", common.path);
  json.member("format", checkpoint.description().format).key("tensors").begin_array();
  for (const std::size_t i : order) json.value(tensor_json(index.tensors[i], outcome.stats[i]));
  json.end_array().key("dtypes").begin_array();
  for (const auto& [dtype, totals] : totals_by_dtype(index, outcome)) {
    Json::Object object{{"dtype", std::string(formats::torch_name(dtype))}};
    totals.append_to(object);
    json.value(std::move(object));
  }
  Json::Object totals;
  total_of(index, outcome).append_to(totals);
  json.end_array().member("totals", std::move(totals));
  json.member("unchecked_bytes", outcome.unchecked_bytes);
  json.member("fail_on", Json::Array(gates.begin(), gates.end()));
  json.member("passed", outcome.failures.empty()).key("failures").begin_array();
  for (const Failure& failure : outcome.failures) {
    json.value(Json::Object{{"key", index.tensors[failure.tensor].key},
                            {"what", failure.what},
                            {"count", failure.count}});
  }
  json.end_array().end_object();
}

void print_table(const formats::Index& index, const std::vector<std::size_t>& order,
                 const Outcome& outcome, const Streams& streams) {
  std::vector<Column> columns(kFigures.size(), Column::kNumber);
  columns[0] = Column::kName;
  columns[1] = columns[2] = Column::kWhole;
  Table table(columns, kFigures);
  for (const std::size_t i : order) {
    const TensorEntry& tensor = index.tensors[i];
    const TensorStats& s = outcome.stats[i];
    const bool extremes = has_extremes(tensor.dtype, s);
    table.add({formats::escape(tensor.key), std::string(formats::torch_name(tensor.dtype)),
               formats::shape_text(tensor.shape),
               extremes ? extreme_text(tensor.dtype, s.min, s.ordered_min) : "-",
               extremes ? extreme_text(tensor.dtype, s.max, s.ordered_max) : "-",
               optional_text(mean_of(tensor.dtype, s)), optional_text(std_of(tensor.dtype, s)),
               optional_text(rms_of(tensor.dtype, s)), formats::group_digits(s.zeros),
               formats::group_digits(s.nan), formats::group_digits(s.infinite())});
  }
  table.print(streams.out, streams.columns);
}

std::string totals_text(const Totals& totals, const std::string& name) {
  return cat(name, ": ", counted(totals.tensors, "tensor"), ", ",
             counted(totals.parameters, "element"), ", ", formats::human_bytes(totals.bytes), "; ",
             formats::group_digits(totals.zeros), " zero, ", formats::group_digits(totals.nan),
             " NaN, ", formats::group_digits(totals.inf), " infinite");
}

void print_totals(const formats::Index& index, const Outcome& outcome, const Streams& streams) {
  const auto print = [&](const Totals& totals, const std::string& name) {
    streams.out << wrapped(totals_text(totals, name), streams.columns) << '\n';
  };
  const auto totals = totals_by_dtype(index, outcome);
  for (const auto& [dtype, of_dtype] : totals)
    print(of_dtype, std::string(formats::torch_name(dtype)));
  if (totals.size() != 1) print(total_of(index, outcome), "all");
  if (outcome.unchecked_bytes != 0)
    streams.out << formats::human_bytes(outcome.unchecked_bytes) << " carry no checksum\n";
}

void print_failures(const formats::Index& index, const Outcome& outcome, const Streams& streams) {
  for (const Failure& failure : outcome.failures) {
    const std::string text =
        cat("gate[", failure.what, "]: ", formats::quote(index.tensors[failure.tensor].key, 200),
            ": ", formats::group_digits(failure.count),
            failure.what == "nan"   ? " NaN"
            : failure.what == "inf" ? " infinite"
                                    : " zeros and nothing else");
    streams.out << wrapped(text, streams.columns) << '\n';
  }
}

void print_text(const formats::Checkpoint& checkpoint, const CommonOptions& common,
                const std::vector<std::size_t>& order, const std::set<std::string>& gates,
                const Outcome& outcome, const Streams& streams) {
  const formats::Index& index = checkpoint.index();
  if (!common.quiet) {
    if (!order.empty()) {
      print_table(index, order, outcome, streams);
      streams.out << '\n';
    }
    print_totals(index, outcome, streams);
  }
  print_failures(index, outcome, streams);
  const bool passed = outcome.failures.empty();
  if (gates.empty() || (common.quiet && passed)) return;
  streams.out << formats::escape(common.path) << ": "
              << coloured(passed ? "passed" : "failed", passed ? Colour::kGreen : Colour::kRed,
                          streams.color)
              << '\n';
}

class StatsVerb : public Verb {
 public:
  StatsVerb()
      : Verb("stats", "Find extremes, zeros, NaN and Inf: statistics of every tensor, and a gate",
             {"fsdp-ckpt stats step-400 -k 'model.**'",
              "fsdp-ckpt stats model --quantization --quantize nvfp4",
              "fsdp-ckpt stats step-400 -q --fail-on nan,inf && echo healthy"}) {}
  void declare(OptionSet& options) override {
    options.add("--fail-on", &fail_on_);
    declare_quantization_stats(options, quantization_);
    options.add("--html", &html_, ": every tensor, to search and sort");
    options.add("--force", &force_);
  }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    const std::set<std::string> gates = gates_of(fail_on_);
    check_quantization_words(gates);
    FiguresOutput output(html_, force_, common);
    if (quantization_.asked) return print_quantization(quantization_, common, streams, output);
    const auto checkpoint = open_to_read(
        common.path, common, [&](const std::string& key) { return common.keys.selects(key); },
        [&](const formats::Index& whole) {
          check_selection(common.keys, whole, formats::escape(common.path));
        });
    note_unread(common.path, *checkpoint, common, streams);
    const formats::Index& index = checkpoint->index();
    if (index.tensors.empty() && !common.keys.everything()) {
      throw Error(ErrorCode::kNotFound,
                  formats::escape(common.path) + ": no tensor's key matches the selection");
    }
    if (!gates.empty()) refuse_hidden_tensors(*checkpoint);
    const std::vector<std::size_t> order = natural_order(index);
    Outcome outcome;
    read_or_say_exclude(
        [&] { outcome.stats = read_stats(*checkpoint, common, streams, outcome.unchecked_bytes); });
    checkpoint->check_unchanged();
    outcome.failures = failures_of(outcome.stats, order, gates);
    const Figures figures{formats::escape(common.path), order.size(),
                          [&](formats::JsonWriter& json) {
                            print_json(*checkpoint, common, order, gates, outcome, json);
                          }};
    if (output.print(figures, common, streams))
      print_text(*checkpoint, common, order, gates, outcome, streams);
    return outcome.failures.empty() ? 0 : 1;
  }

 private:
  void check_quantization_words(const std::set<std::string>& gates) const {
    const bool worded =
        !quantization_.original.empty() || !quantization_.quantization.scheme.empty();
    if (worded && !quantization_.asked)
      throw Error(ErrorCode::kUsage, "--original and --quantize need --quantization");
    if (quantization_.asked && !gates.empty())
      throw Error(ErrorCode::kUsage, "--quantization has no gate; leave --fail-on out");
  }

  QuantizationStats quantization_;
  std::vector<std::string> fail_on_;
  std::string html_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_stats() {
  return std::make_unique<StatsVerb>();
}

}  // namespace fsdp::cli
