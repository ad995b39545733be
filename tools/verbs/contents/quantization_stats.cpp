// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/quantization_stats.h"

#include <algorithm>
#include <ostream>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json_writer.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/quantized/quantization_error.h"
#include "formats/families/hf/companions.h"
#include "formats/families/hf/model_content.h"
#include "formats/families/safetensors/texts.h"
#include "tools/base/reading.h"
#include "tools/text/table.h"
#include "tools/text/terminal_text.h"
#include "tools/verbs/models/dequantized_source.h"
#include "tools/verbs/models/quantization_settings.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::quantized::ErrorFigures;
using formats::quantized::ErrorReport;
using formats::quantized::ModelTensors;
using formats::quantized::WeightError;

// Shares of elements have no more digits than this.
constexpr int kShareDigits = 3;

// A model that was opened; its tensors belong to the checkpoints.
struct OpenedModel {
  Prepared prepared;
  formats::hf::FoundModel model;
};

struct MeasuredErrors {
  ErrorReport report;
  std::string method;
  formats::DType dtype = formats::DType::kBFloat16;
  std::vector<std::string> lines;  // for users
};

class QuantizationMeter {
 public:
  QuantizationMeter(const QuantizationStats& stats, const CommonOptions& common,
                    const Streams& streams)
      : stats_(stats), common_(common), streams_(streams) {}

  MeasuredErrors run() {
    if (stats_.original.empty()) {
      measure_scheme();
    } else {
      measure_folder();
    }
    if (!out_.report.weights.empty()) return std::move(out_);
    std::string why;
    if (!out_.report.not_compared.empty()) {
      const auto& [key, reason] = out_.report.not_compared.front();
      why = cat(": ", formats::quote(key, 200), " ", reason);
    }
    throw Error(ErrorCode::kNotFound,
                cat(formats::escape(common_.path), ": no quantized weight is compared", why));
  }

 private:
  OpenedModel open(const std::string& path) const {
    CommonOptions one = common_;
    one.path = path;
    one.keys = {};  // the parts of a weight belong together
    one.quiet = true;
    ConversionOptions conversion;
    conversion.by_module = true;
    conversion.strip_prefixes = {"auto"};
    conversion.strip_unasked = true;
    OpenedModel out{prepare_conversion("safetensors", conversion, one, streams_, {}), {}};
    out.model = formats::hf::find_model(*out.prepared.source, out.prepared.content, {});
    return out;
  }

  void measure(const ModelTensors& original, const ModelTensors& quantized,
               const formats::quantized::Settings& settings) {
    out_.method = settings.method;
    std::uint64_t total = 0;
    for (const auto& tensor : original.checkpoint.index().tensors) total += tensor.bytes();
    Progress progress(streams_.err, streams_.show_progress, "stats", total);
    out_.report = formats::quantized::quantization_error(
        original, quantized, settings, out_.dtype,
        [&](const std::string& key) { return common_.keys.selects(key); },
        visit_options(common_, progress));
  }

  void measure_folder() {
    const formats::hf::Companions companions = formats::hf::find_companions(common_.path);
    const auto about = quantization_about(companions.config ? &*companions.config : nullptr,
                                          companions.config_name, common_.path);
    if (!about) {
      throw Error(ErrorCode::kUsage,
                  cat("--original: ", formats::escape(common_.path), " has no config.json with a ",
                      "quantization_config; --quantize SCHEME tells what a scheme would cost"));
    }
    out_.dtype = configured_dtype(companions).value_or(formats::DType::kBFloat16);
    auto settings = formats::quantized::read_settings(about->config, about->name);
    const OpenedModel quantized = open(common_.path);
    settings.texts = formats::safetensors::texts_of(*quantized.prepared.source);
    const OpenedModel original = open(stats_.original);
    measure({*original.prepared.source, original.model.tensors},
            {*quantized.prepared.source, quantized.model.tensors}, settings);
    if (settings.dialect == formats::quantized::Dialect::kAwq) {
      out_.lines.emplace_back(
          "note: AWQ moves factors from weights to the layers before them; differences contain "
          "these");
    }
    original.prepared.source->check_unchanged();
  }

  void measure_scheme() {
    const OpenedModel original = open(common_.path);
    out_.dtype = formats::hf::main_dtype(original.model.tensors);
    ReportExtras extras;
    Json config;
    const Changed made = quantized_result(*original.prepared.source, original.model.tensors,
                                          stats_.quantization, {}, extras, config);
    out_.lines = std::move(extras.lines);
    const auto settings = formats::quantized::read_settings(config, stats_.quantization.scheme);
    measure({*original.prepared.source, original.model.tensors}, {*made.checkpoint, made.content},
            settings);
    original.prepared.source->check_unchanged();
  }

  const QuantizationStats& stats_;
  const CommonOptions& common_;
  const Streams& streams_;
  MeasuredErrors out_;
};

Json number_or_null(std::optional<double> number) {
  return number ? Json(*number) : Json();
}

std::string number_or_dash(std::optional<double> number, int digits) {
  return number ? short_number(*number, digits) : "-";
}

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  if (whole == 0) return "-";
  return short_number(100 * static_cast<double>(part) / static_cast<double>(whole), kShareDigits) +
         " %";
}

Json::Object error_json(const ErrorFigures& figures, std::optional<std::uint64_t> saturated) {
  return {{"elements", figures.count},
          {"relative", number_or_null(figures.relative())},
          {"max_abs", figures.max_abs},
          {"snr_db", number_or_null(figures.decibels())},
          {"saturated", saturated ? Json(*saturated) : Json()},
          {"zeros", figures.zeros},
          {"original_zeros", figures.original_zeros},
          {"not_finite", figures.not_finite}};
}

struct ErrorTotals {
  ErrorFigures figures;
  std::optional<std::uint64_t> saturated = 0;
};

ErrorTotals error_totals(const ErrorReport& report) {
  ErrorTotals out;
  for (const WeightError& weight : report.weights) {
    out.figures.append(weight.figures);
    if (out.saturated && weight.saturated) {
      *out.saturated += *weight.saturated;
    } else {
      out.saturated.reset();
    }
  }
  return out;
}

void write_errors(const QuantizationStats& stats, const CommonOptions& common,
                  const MeasuredErrors& measured, formats::JsonWriter& json) {
  json.begin_object().member("schema", "fsdp-ckpt/quantization/1").member("path", common.path);
  json.member("original", stats.original.empty() ? Json() : Json(stats.original));
  json.member("quantize", stats.original.empty() ? Json(stats.quantization.scheme) : Json());
  json.member("method", measured.method);
  json.member("dtype", std::string(formats::torch_name(measured.dtype)));
  json.key("tensors").begin_array();
  for (const WeightError& weight : measured.report.weights) {
    Json::Object object{{"key", weight.key},
                        {"scheme", weight.scheme},
                        {"shape", Json::Array(weight.shape.begin(), weight.shape.end())}};
    for (auto& member : error_json(weight.figures, weight.saturated))
      object.push_back(std::move(member));
    json.value(std::move(object));
  }
  const ErrorTotals totals = error_totals(measured.report);
  json.end_array().member("totals", error_json(totals.figures, totals.saturated));
  json.key("not_compared").begin_array();
  for (const auto& [key, why] : measured.report.not_compared)
    json.value(Json::Object{{"key", key}, {"why", why}});
  json.end_array().end_object();
}

void print_errors(const MeasuredErrors& measured, const CommonOptions& common,
                  const Streams& streams) {
  const auto number = Column::kNumber;
  Table table({Column::kName, Column::kWhole, number, number, number, number, number},
              {"weight", "scheme", "error", "max abs", "SNR dB", "saturated", "zeros"});
  const auto cells = [](const ErrorFigures& figures, std::optional<std::uint64_t> saturated) {
    return std::vector<std::string>{
        number_or_dash(figures.relative(), 4), short_number(figures.max_abs, 4),
        figures.error_sum == 0 ? "exact" : number_or_dash(figures.decibels(), 4),
        saturated ? share_text(*saturated, figures.count) : "-",
        share_text(figures.zeros, figures.count)};
  };
  for (const WeightError& weight : measured.report.weights) {
    std::vector<std::string> row = {formats::escape(weight.key), weight.scheme};
    for (std::string& cell : cells(weight.figures, weight.saturated))
      row.push_back(std::move(cell));
    table.add(std::move(row));
  }
  table.print(streams.out, streams.columns);
  const ErrorTotals totals = error_totals(measured.report);
  const std::vector<std::string> all = cells(totals.figures, totals.saturated);
  streams.out << '\n'
              << wrapped(cat(formats::escape(common.path), ": ",
                             counted(measured.report.weights.size(), "weight"), ", ",
                             counted(totals.figures.count, "element"), ": error ", all[0],
                             " of the norm, SNR ", all[2], " dB, ", all[3], " saturated, ", all[4],
                             " zero"),
                         streams.columns)
              << '\n';
  if (totals.figures.not_finite != 0) {
    streams.out << counted(totals.figures.not_finite, "element")
                << " NaN or infinite, in no other figure\n";
  }
  for (const std::string& line : measured.lines)
    streams.out << wrapped(line, streams.columns) << '\n';
  for (const auto& [key, why] : measured.report.not_compared)
    streams.out << wrapped(cat("not compared: ", formats::quote(key, 200), " ", why),
                           streams.columns)
                << '\n';
}

}  // namespace

void declare_quantization_stats(OptionSet& options, QuantizationStats& stats) {
  options.add("--quantization", &stats.asked);
  options.add("--original", &stats.original);
  declare_quantization(options, stats.quantization);
}

int print_quantization(const QuantizationStats& stats, const CommonOptions& common,
                       const Streams& streams, FiguresOutput& output) {
  const bool scheme = !stats.quantization.scheme.empty();
  if (scheme != stats.original.empty()) {
    throw Error(ErrorCode::kUsage,
                scheme ? "--original and --quantize exclude each other"
                       : "--quantization needs --original MODEL, or --quantize SCHEME");
  }
  if (!common.team->alone())
    throw Error(ErrorCode::kUsage, "--quantization is measured in one process");
  const MeasuredErrors measured = QuantizationMeter(stats, common, streams).run();
  const Figures figures{
      formats::escape(common.path), measured.report.weights.size(),
      [&](formats::JsonWriter& json) { write_errors(stats, common, measured, json); }};
  if (output.print(figures, common, streams) && !common.quiet)
    print_errors(measured, common, streams);
  return 0;
}

}  // namespace fsdp::cli
