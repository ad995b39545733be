// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/quantization_settings.h"

#include <filesystem>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"

namespace fsdp::cli {
namespace {

constexpr const char* kModelOptFile = "hf_quant_config.json";
constexpr std::uint64_t kMaxQuantConfigBytes = 16U << 20U;

}  // namespace

std::optional<QuantizationAbout> quantization_about(const formats::Json* config,
                                                    const std::string& config_name,
                                                    const std::string& path) {
  const formats::Json* const own =
      config == nullptr ? nullptr : config->find("quantization_config");
  if (own != nullptr && own->as_object() != nullptr) return QuantizationAbout{*own, config_name};
  const std::filesystem::path beside = std::filesystem::path(path) / kModelOptFile;
  if (!formats::is_folder(path) || !formats::exists_at(beside)) return std::nullopt;
  const auto file = formats::file_at(beside);
  return in_context(file->name(), [&] {
    formats::Json found = formats::parse_json(formats::read_text(*file, kMaxQuantConfigBytes));
    const formats::Json::Object* const members = found.as_object();
    formats::Json::Object named = members == nullptr ? formats::Json::Object{} : *members;
    if (found.find("quant_method") == nullptr) named.emplace_back("quant_method", "modelopt");
    return QuantizationAbout{formats::Json(std::move(named)), file->name()};
  });
}

}  // namespace fsdp::cli
