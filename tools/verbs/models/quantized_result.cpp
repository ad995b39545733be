// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/quantized_result.h"

#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/quantized/known_schemes.h"
#include "formats/changes/quantized/quantize.h"
#include "formats/state/model/select.h"
#include "tools/base/dtype_word.h"
#include "tools/base/reading.h"
#include "tools/verbs/writing/name_report.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::quantized::Dialect;

}  // namespace

bool details_given(const QuantizationOptions& quantization) {
  return !quantization.dialect.empty() || quantization.group || !quantization.skip.empty();
}

void declare_quantization(OptionSet& options, QuantizationOptions& quantization) {
  OptionRecord& scheme = options.add("--quantize", &quantization.scheme);
  for (const std::string_view word : formats::quantized::scheme_words(Dialect::kCompressedTensors))
    scheme.choices.emplace_back(word);
  options.add("--quantize-dialect", &quantization.dialect).choices = {
      formats::quantized::kDialectWords.begin(), formats::quantized::kDialectWords.end()};
  options.add("--quantize-group", &quantization.group);
  options.add("--quantize-skip", &quantization.skip);
}

Changed quantized_result(const formats::Checkpoint& source, const formats::Value& tensors,
                         const QuantizationOptions& quantization, const std::string& dtype,
                         ReportExtras& extras, Json& config) {
  const std::vector<formats::Glob> globs = formats::globs_of(quantization.skip);
  std::vector<bool> used(globs.size(), false);
  formats::quantized::QuantizeRequest request;
  request.dialect = formats::quantized::dialect_named(quantization.dialect).value();
  request.word = quantization.scheme;
  request.group = quantization.group;
  if (!dtype.empty()) request.dtype = floating_dtype(dtype);
  request.skip = [&](const std::string& module) {
    bool skipped = false;
    for (std::size_t i = 0; i < globs.size(); ++i) {
      if (!globs[i].matches(module)) continue;
      used[i] = true;
      skipped = true;
    }
    return skipped;
  };
  formats::quantized::QuantizedModel made =
      formats::quantized::quantized_model(source, tensors, request);
  for (std::size_t i = 0; i < globs.size(); ++i) {
    if (used[i]) continue;
    throw Error(ErrorCode::kUsage,
                cat("--quantize-skip ", formats::quote(quantization.skip[i], 200),
                    " matches no module with a matrix that would be quantized"));
  }
  const std::string dialect =
      quantization.dialect.empty() ? "compressed-tensors" : quantization.dialect;
  extras.lines.push_back(cat("quantized: ", counted(made.weights, "weight"), " to ", made.scheme,
                             made.group == 0 ? "" : cat(" in groups of ", made.group), ", ",
                             dialect, ", rounded to nearest from the weights alone"));
  extras.lines.push_back("assumed: every other matrix NAME.weight is that of a linear layer");
  extras.lines.push_back(
      cat("not quantized: ", counted(made.kept.size(), "module"), ", embeddings, heads, gates, ",
          dialect == "transformers" ? "what 128 does not divide, " : "", "and --quantize-skip"));
  list_names(
      made.kept.size(), [&](std::size_t i) { return formats::escape(made.kept[i]); }, extras.lines);
  extras.members.emplace_back(
      "quantized", Json::Object{{"scheme", made.scheme},
                                {"group", made.group == 0 ? Json() : Json(made.group)},
                                {"dialect", dialect},
                                {"weights", made.weights},
                                {"kept", Json::Array(made.kept.begin(), made.kept.end())}});
  config = std::move(made.config);
  return {std::move(made.checkpoint), std::move(made.content)};
}

}  // namespace fsdp::cli
