// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt diff: the differences of two checkpoints of any formats and world sizes.
#include <cstdint>
#include <map>
#include <optional>

#include "tools/base/verbs.h"
#include "tools/verbs/comparing/change.h"
#include "tools/verbs/comparing/comparison.h"
#include "tools/verbs/comparing/diff_json.h"
#include "tools/verbs/comparing/diff_text.h"

namespace fsdp::cli {
namespace {

constexpr std::size_t kTerminalLimit = 20;

const std::map<std::string, ChangeUnit> kUnits = {{"tensor", ChangeUnit::kTensor},
                                                  {"module", ChangeUnit::kModule},
                                                  {"layer", ChangeUnit::kLayer}};
const std::map<std::string, ChangeOrder> kOrders = {{"relative", ChangeOrder::kRelative},
                                                    {"absolute", ChangeOrder::kAbsolute},
                                                    {"name", ChangeOrder::kName}};

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
                    "Same where at most N representable numbers lie between the two");
    options.flag("--close", options_.close,
                 "The tolerance of torch.testing.assert_close for each dtype");
    options.flag("--nan-equal", options_.tolerance.nan_equal, "Every NaN is like any other");
    options.flag("--ignore-dtype", options_.ignore_dtype,
                 "Compare numbers of different dtypes, in float64; --close does so too");
    options.flag("--ignore-values", options_.ignore_values, "Compare only tensors");
    options.text("--strip-prefix-a", options_.strip_prefix[0], "TEXT",
                 "Strip the prefix TEXT and its dot from the keys of PATH");
    options.text("--strip-prefix-b", options_.strip_prefix[1], "TEXT",
                 "Strip the prefix TEXT and its dot from the keys of OTHER");
    options.choice("--sort", sort_, {"relative", "absolute", "name"}, "ORDER",
                   "Largest change first, relative or absolute; or by name");
    options.choice("--by", by_, {"tensor", "module", "layer"}, "UNIT",
                   "Add changes up: by tensor, module or layer");
    options.flag("--fold", fold_, "Show equal numbered layers once; the default on a terminal");
    options.flag("--no-fold", no_fold_, "Show every layer, on a terminal as well");
    options.integer("--limit", limit_, 0, INT32_MAX, "N",
                    "Differences to list for people; 20 on a terminal, else all");
  }

  bool divides() const override { return true; }
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
      print_json(found, streams);
    } else {
      print_text(found, streams);
    }
    return found.same() ? 0 : 1;
  }

 private:
  std::vector<Change> ranked(std::vector<Change> changes) const {
    rank(changes, kOrders.at(sort_));
    return changes;
  }

  void print_json(const Comparison& found, const Streams& streams) const {
    const ChangeUnit unit = kUnits.at(by_);
    const auto tensors = ranked(changes_of(found.compared, ChangeUnit::kTensor));
    const auto groups = unit == ChangeUnit::kTensor ? std::vector<Change>{}
                                                    : ranked(changes_of(found.compared, unit));
    print_diff_json(options_, found, tensors, unit, groups, streams.out);
  }

  void print_text(const Comparison& found, const Streams& streams) const {
    const ChangeUnit unit = kUnits.at(by_);
    // `--by layer` asks for each layer, so layers are not folded.
    const bool fold = fold_ || (streams.columns != 0 && !no_fold_ && unit != ChangeUnit::kLayer);
    auto changes = changes_of(found.compared, unit);
    if (fold) changes = folded(changes, found.compared);
    const std::size_t all = streams.columns == 0 ? SIZE_MAX : kTerminalLimit;
    const std::size_t limit = limit_ ? static_cast<std::size_t>(*limit_) : all;
    print_diff_text(options_, found, ranked(std::move(changes)), {limit, fold, unit}, streams);
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
};

}  // namespace

std::unique_ptr<Verb> make_diff() {
  return std::make_unique<DiffVerb>();
}

}  // namespace fsdp::cli
