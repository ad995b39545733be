// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/dequantized_source.h"

#include <optional>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/quantized/dequantize.h"
#include "formats/families/hf/model_content.h"
#include "formats/families/safetensors/texts.h"
#include "tools/base/dtype_word.h"
#include "tools/base/reading.h"
#include "tools/verbs/models/quantization_settings.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::DType;
using formats::Json;
using formats::hf::Companions;

formats::quantized::Settings settings_of(const Companions& companions, const std::string& path) {
  const auto about = quantization_about(companions.config ? &*companions.config : nullptr,
                                        companions.config_name, path);
  if (!about) {
    throw Error(ErrorCode::kUsage,
                cat("--dequantize: ", formats::escape(path), " has no config.json with a ",
                    "quantization_config, and no hf_quant_config.json; --config names one"));
  }
  return formats::quantized::read_settings(about->config, about->name);
}

}  // namespace

std::optional<DType> configured_dtype(const Companions& companions) {
  if (!companions.config) return std::nullopt;
  const Json* const text = companions.config->find("text_config");
  for (const Json* const from : {&*companions.config, text}) {
    for (const char* const member : {"dtype", "torch_dtype"}) {
      const Json* const found = from == nullptr ? nullptr : from->find(member);
      if (found == nullptr || found->as_string() == nullptr) continue;
      const auto dtype = formats::dtype_from_torch_name(*found->as_string());
      if (dtype && formats::is_floating(*dtype)) return dtype;
    }
  }
  return std::nullopt;
}

Changed dequantized_source(const formats::Checkpoint& source, const formats::Value& content,
                           const std::string& path, const std::string& place,
                           const std::string& dtype, Companions& companions, ReportExtras& extras) {
  formats::quantized::Settings settings = settings_of(companions, path);
  settings.texts = formats::safetensors::texts_of(source);
  const formats::hf::FoundModel model = formats::hf::find_model(source, content, place);
  const auto configured = configured_dtype(companions);
  const DType to = dtype.empty() ? configured.value_or(DType::kBFloat16) : floating_dtype(dtype);
  formats::quantized::DequantizedModel made =
      formats::quantized::dequantized_model(source, model.tensors, settings, to);
  Json::Array schemes;
  for (const auto& [scheme, count] : made.weights) {
    extras.lines.push_back(
        cat("dequantized: ", counted(count, "weight"), " of ", scheme, ", ", settings.method));
    schemes.emplace_back(Json::Object{{"scheme", scheme}, {"weights", count}});
  }
  if (dtype.empty() && !configured) {
    extras.lines.push_back(
        "assumed: bfloat16, the configuration names no dtype; --dtype says another one");
  }
  if (!made.left_out.empty()) {
    extras.lines.push_back(
        cat("left out: ", counted(made.left_out.size(), "scale"), " of activations and caches"));
  }
  extras.members.emplace_back(
      "dequantized",
      Json::Object{{"method", settings.method},
                   {"dtype", formats::torch_name(to)},
                   {"schemes", std::move(schemes)},
                   {"left_out", Json::Array(made.left_out.begin(), made.left_out.end())}});
  formats::hf::drop_quantization(companions, true);
  return {std::move(made.checkpoint), std::move(made.content)};
}

}  // namespace fsdp::cli
