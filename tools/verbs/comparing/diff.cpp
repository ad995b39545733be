// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt diff: the differences of two checkpoints of any formats and world sizes.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/text.h"
#include "tools/base/verbs.h"
#include "tools/verbs/comparing/change.h"
#include "tools/verbs/comparing/comparison.h"
#include "tools/verbs/comparing/diff_report.h"
#include "tools/verbs/contents/figures_page.h"

namespace fsdp::cli {
namespace {

using formats::cat;

constexpr std::size_t kTerminalLimit = 20;

const std::map<std::string, ChangeUnit> kUnits = {{"tensor", ChangeUnit::kTensor},
                                                  {"module", ChangeUnit::kModule},
                                                  {"layer", ChangeUnit::kLayer}};
const std::map<std::string, ChangeOrder> kOrders = {{"relative", ChangeOrder::kRelative},
                                                    {"absolute", ChangeOrder::kAbsolute},
                                                    {"name", ChangeOrder::kName}};

class DiffVerb : public Verb {
 public:
  DiffVerb()
      : Verb("diff",
             "Compare two checkpoints of any formats: keys, dtypes, shapes, values, elements",
             {"fsdp-ckpt diff step-400 step-400.safetensors --ignore-values",
              "fsdp-ckpt diff golden.pt step-400 --close --json"}) {}
  void declare(OptionSet& options) override {
    options.positional("OTHER", options_.other, "The checkpoint to compare with: B");
    options.add("--atol", &atol_);
    options.add("--rtol", &rtol_);
    options.add("--ulp", &ulp_);
    options.add("--close", &options_.close);
    options.add("--nan-equal", &options_.tolerance.nan_equal);
    options.add("--ignore-dtype", &options_.ignore_dtype);
    options.add("--ignore-values", &options_.ignore_values);
    options.add("--strip-prefix-a", &options_.strip_prefix[0]);
    options.add("--strip-prefix-b", &options_.strip_prefix[1]);
    options.add("--map", &options_.map, "; found if one side is an export of the other");
    options.add("--set", &options_.choice.parameters);
    options.add("--config", &options_.choice.config, "; that beside a side if not given; or none");
    options.add("--model", &options_.model);
    options.add("--sort", &sort_).choices = {"relative", "absolute", "name"};
    options.add("--by", &by_).choices = {"tensor", "module", "layer"};
    options.add("--fold", &fold_);
    options.add("--no-fold", &no_fold_);
    options.add("--limit", &limit_, "; 20 on a terminal, else all");
    options.add("--html", &html_, ": every difference, to search and sort");
    options.add("--force", &force_);
  }

  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    options_.common = common;
    FiguresOutput output(html_, force_, common);
    formats::Tolerance& tolerance = options_.tolerance;
    tolerance.exact = !atol_ && !rtol_ && !ulp_ && !options_.close;
    tolerance.atol = atol_.value_or(0);
    tolerance.rtol = rtol_.value_or(0);
    if (ulp_) tolerance.ulp = static_cast<std::uint64_t>(*ulp_);
    options_.has_atol = atol_.has_value();
    options_.has_rtol = rtol_.has_value();
    options_.ignore_dtype = options_.ignore_dtype || options_.close;
    const Comparison found = compare_checkpoints(options_, streams);
    const auto tensors = ranked(changes_of(found.compared, ChangeUnit::kTensor));
    const Figures figures{
        cat(formats::escape(common.path), " and ", formats::escape(options_.other)),
        found.differences.size() + tensors.size(),
        [&](formats::JsonWriter& json) { print_json(found, tensors, json); }};
    if (output.print(figures, common, streams)) print_text(found, streams);
    return found.same() ? 0 : 1;
  }

 private:
  std::vector<Change> ranked(std::vector<Change> changes) const {
    rank(changes, kOrders.at(sort_));
    return changes;
  }

  void print_json(const Comparison& found, const std::vector<Change>& tensors,
                  formats::JsonWriter& json) const {
    const ChangeUnit unit = kUnits.at(by_);
    const auto groups = unit == ChangeUnit::kTensor ? std::vector<Change>{}
                                                    : ranked(changes_of(found.compared, unit));
    print_diff_json(options_, found, tensors, unit, groups, json);
  }

  void print_text(const Comparison& found, const Streams& streams) const {
    const ChangeUnit unit = kUnits.at(by_);
    // `--by layer` asks for each layer, so layers are not folded.
    const bool fold = fold_ || (streams.columns != 0 && !no_fold_ && unit != ChangeUnit::kLayer);
    auto changes = changes_of(found.compared, unit);
    if (fold) changes = folded(changes, found.compared);
    const std::size_t all = streams.columns == 0 ? SIZE_MAX : kTerminalLimit;
    const std::size_t limit = limit_ ? static_cast<std::size_t>(*limit_) : all;
    print_diff_text(options_, found, ranked(std::move(changes)), unit, limit, fold, streams);
  }

  DiffOptions options_;
  std::optional<double> atol_;
  std::optional<double> rtol_;
  std::optional<std::int64_t> ulp_;
  std::string sort_ = "relative";
  std::string by_ = "tensor";
  bool fold_ = false;
  bool no_fold_ = false;
  std::optional<std::int64_t> limit_;
  std::string html_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_diff() {
  return std::make_unique<DiffVerb>();
}

}  // namespace fsdp::cli
