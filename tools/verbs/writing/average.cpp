// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt average: the mean, or another weighted sum, of several checkpoints.
#include "formats/changes/edit/average.h"

#include <charconv>
#include <cmath>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/rewrite/optimizer_ids.h"
#include "tools/base/dtype_word.h"
#include "tools/base/reading.h"
#include "tools/base/selection.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

using formats::Accumulator;
using formats::cat;
using formats::Differing;

std::vector<double> parse_weights(const std::string& text) {
  std::vector<double> weights;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const char* const last = text.data() + end;
    double weight = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, last, weight);
    if (error != std::errc() || stop != last || !std::isfinite(weight)) {
      throw Error(ErrorCode::kUsage, cat("--weights needs numbers separated by commas, not ",
                                         formats::quote(text.substr(at, end - at)), " as number ",
                                         weights.size() + 1));
    }
    weights.push_back(weight);
    at = end + 1;
  }
  return weights;
}

class AverageVerb : public Verb {
 public:
  AverageVerb()
      : Verb("average", "Average or add up checkpoints: of any formats, with weights",
             {"fsdp-ckpt average step-300 step-400 step-500 mean.safetensors -k 'model.**'",
              "fsdp-ckpt average base.pt tuned.pt base.pt out.pt --weights=1,0.5,-0.5"}) {}
  void declare(OptionSet& options) override {
    options.more("MORE", more_, "More checkpoints, and last OUT, the file or folder to write")
        .required = true;
    options.add("--weights", &weights_);
    options.add("--normalize", &normalize_);
    options.add("--accumulate", &accumulate_).choices = {"float32", "float64"};
    options.add("--optimizer", &optimizer_);
    options.add("--differing", &differing_).choices = {"refuse", "first", "last"};
    declare_conversion_options(options, conversion_, output_formats());
    options.add("--resume", &conversion_.writing.resume);
    declare_world_size(options, conversion_);
  }

  bool divides() const override { return true; }
  bool more_ends_in_output() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    const std::vector<std::string> paths = take_words(common);
    formats::AverageOptions options = read_options(paths.size());
    const std::string format = output_format_of(conversion_);
    for (const std::string& path : paths) check_apart(path, conversion_.writing.destination);
    std::vector<formats::InputContent> inputs =
        formats::input_contents(open_all(paths, common, streams),
                                {[&](const std::string& key) { return common.keys.selects(key); },
                                 optimizer_, [] { return formats::interrupted(); }, common.team});
    formats::check_same_keys(inputs);
    std::uint64_t left_out = 0;
    for (const formats::InputContent& input : inputs) left_out += input.optimizer_tensors;
    Progress no_progress(streams.err, false, name(), 0);
    options.compare = visit_options(common, no_progress);
    options.compare.team = &formats::this_process();  // every member needs the answer at once
    formats::Average average = formats::average_of(std::move(inputs), options);
    formats::Value content = formats::with_values(*average.checkpoint, average.content);
    content = formats::with_integer_ids(*average.checkpoint, content);
    return write_converted(name(), *average.checkpoint, content, format, conversion_, common,
                           streams, extras_of(paths, options, average, left_out));
  }

 private:
  // The last word is OUT.
  std::vector<std::string> take_words(const CommonOptions& common) {
    std::vector<std::string> paths = {common.path};
    paths.insert(paths.end(), more_.begin(), more_.end());
    if (paths.size() < 3) {
      throw Error(ErrorCode::kUsage,
                  "needs at least two checkpoints, then OUT; see fsdp-ckpt average --help");
    }
    conversion_.writing.destination = paths.back();
    paths.pop_back();
    return paths;
  }

  formats::AverageOptions read_options(std::size_t count) const {
    formats::AverageOptions options;
    formats::arrays::SumRule& rule = options.rule;
    if (accumulate_ == "float64") rule.accumulator = Accumulator::kFloat64;
    if (weights_.empty()) {
      rule.weights.assign(count, 1);
    } else {
      rule.weights = parse_weights(weights_);
      if (rule.weights.size() != count) {
        throw Error(ErrorCode::kUsage,
                    cat("--weights has ", counted(rule.weights.size(), "number"), " for ",
                        counted(count, "checkpoint"), "; commas separate them: --weights 0.5,0.5"));
      }
    }
    if (weights_.empty() || normalize_) {
      double sum = 0;
      for (const double weight : rule.weights) sum = sum + weight;
      rule.divisor = formats::rounded(sum, rule.accumulator);
      if (*rule.divisor == 0 || !std::isfinite(*rule.divisor)) {
        throw Error(ErrorCode::kUsage,
                    cat("--normalize: the weights add up to ", short_number(*rule.divisor),
                        ", by which nothing can be divided"));
      }
    }
    for (const double weight : rule.weights) {
      if (std::isfinite(formats::rounded(weight, rule.accumulator))) continue;
      throw Error(ErrorCode::kUsage, cat("--weights: ", short_number(weight),
                                         " is too large for float32; see --accumulate"));
    }
    if (differing_ == "first") options.differing = Differing::kFirst;
    if (differing_ == "last") options.differing = Differing::kLast;
    if (!conversion_.dtype.empty()) options.dtype = floating_dtype(conversion_.dtype);
    return options;
  }

  static std::vector<std::unique_ptr<formats::Checkpoint>> open_all(
      const std::vector<std::string>& paths, const CommonOptions& common, const Streams& streams) {
    std::vector<std::unique_ptr<formats::Checkpoint>> checkpoints;
    for (const std::string& path : paths) {
      checkpoints.push_back(open_source(path, common, streams));
      check_selection(common.keys, checkpoints.back()->index(), formats::escape(path));
    }
    return checkpoints;
  }

  ReportExtras extras_of(const std::vector<std::string>& paths,
                         const formats::AverageOptions& options, const formats::Average& average,
                         std::uint64_t left_out) const {
    const formats::arrays::SumRule& rule = options.rule;
    ReportExtras extras;
    std::string line =
        cat(weights_.empty() ? "mean of " : "sum of ", counted(paths.size(), "checkpoint"));
    formats::SomeNames weights;
    for (const double weight : rule.weights) weights.add(short_number(weight, 17));
    if (!weights_.empty()) line += cat(", weights ", weights.text());
    if (!weights_.empty() && rule.divisor)
      line += cat(", divided by ", short_number(*rule.divisor, 17));
    line += cat(", in ", accumulate_, ": ", counted(average.summed, "tensor"), " from ",
                formats::human_bytes(average.input_bytes));
    if (average.taken + average.values != 0) {
      line += cat("; ", counted(average.taken, "other tensor"), " and ",
                  counted(average.values, "value"),
                  differing_ == "refuse" ? " equal in all" : " of the " + differing_);
    }
    extras.lines.push_back(line);
    if (left_out != 0) {
      extras.lines.push_back(cat("left out: states of optimizers, ", counted(left_out, "tensor"),
                                 "; --optimizer takes them"));
    }
    extras.members = {{"inputs", formats::Json::Array(paths.begin(), paths.end())},
                      {"weights", formats::Json::Array(rule.weights.begin(), rule.weights.end())},
                      {"divisor", rule.divisor ? formats::Json(*rule.divisor) : formats::Json()},
                      {"accumulate", accumulate_},
                      {"differing", differing_},
                      {"summed", average.summed},
                      {"taken", average.taken},
                      {"input_bytes", average.input_bytes},
                      {"left_out", left_out}};
    return extras;
  }

  std::vector<std::string> more_;
  std::string weights_;
  bool normalize_ = false;
  std::string accumulate_ = "float32";
  bool optimizer_ = false;
  std::string differing_ = "refuse";
  ConversionOptions conversion_;
};

}  // namespace

std::unique_ptr<Verb> make_average() {
  return std::make_unique<AverageVerb>();
}

}  // namespace fsdp::cli
