// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/quantization_check.h"

#include <filesystem>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/changes/quantized/examine.h"
#include "formats/families/hf/companions.h"
#include "formats/families/hf/model_content.h"
#include "formats/families/safetensors/texts.h"
#include "formats/state/content/content.h"
#include "formats/state/model/check.h"
#include "tools/base/reading.h"
#include "tools/verbs/models/quantization_settings.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;

constexpr std::uint64_t kMaxModelConfigBytes = 16U << 20U;
// The part of the memory that may hold what is read.
constexpr std::uint64_t kReadShare = 4;

bool says_true(const Json& config, const char* member) {
  const Json* const found = config.find(member);
  return found != nullptr && found->as_bool() != nullptr && *found->as_bool();
}

// Returns the folder of a model: the path itself, or that of a file that holds all of it; empty.
std::string model_folder(const std::string& path) {
  if (formats::is_folder(path)) return path;
  const std::string name = formats::name_of_place(path);
  const bool whole = name == "model.safetensors" || name == "pytorch_model.bin";
  return whole ? formats::folder_of_place(path).native() : std::string();
}

class FolderCheck {
 public:
  FolderCheck(const formats::Checkpoint& checkpoint, const std::string& path, bool values,
              bool numbers, const CommonOptions& common)
      : checkpoint_(checkpoint), path_(model_folder(path)), common_(common) {
    options_.values = values;
    options_.numbers = numbers;
  }

  std::optional<QuantizationCheck> run() {
    if (path_.empty()) return std::nullopt;
    std::optional<QuantizationAbout> about;
    try {
      about = read_about();
      if (!about) return std::nullopt;
      compare(*about);
    } catch (const Error& error) {
      if (is_no_answer(error.code())) throw;
      // A file that is not JSON is damaged; the rest is not known to this tool.
      const bool damage = error.code() == ErrorCode::kJson || error.code() == ErrorCode::kJsonDepth;
      if (damage) {
        out_.findings.push_back({.code = error.code(), .message = error.what()});
      } else {
        out_.lines.push_back(cat("quantized weights were not compared: ", error.what()));
      }
      left(error.what());
    }
    return std::move(out_);
  }

 private:
  std::optional<QuantizationAbout> read_about() {
    const std::filesystem::path file = std::filesystem::path(path_) / formats::hf::kConfigFile;
    Json config;
    std::string name;
    if (formats::exists_at(file)) {
      const auto opened = formats::file_at(file);
      name = opened->name();
      config = in_context(name, [&] {
        return formats::parse_json(formats::read_text(*opened, kMaxModelConfigBytes));
      });
      const Json* const text = config.find("text_config");
      options_.tied = says_true(config, "tie_word_embeddings") ||
                      (text != nullptr && says_true(*text, "tie_word_embeddings"));
    }
    return quantization_about(&config, name, path_);
  }

  void compare(const QuantizationAbout& about) {
    formats::quantized::Settings settings =
        formats::quantized::read_settings(about.config, about.name);
    settings.texts = formats::safetensors::texts_of(checkpoint_);
    // A kilobyte of views may stand for more scales than can be read.
    formats::check_expansion(checkpoint_.index(), checkpoint_.description().path);
    const formats::Value content = formats::content_of(checkpoint_);
    const formats::hf::FoundModel model = formats::hf::find_model(checkpoint_, content, {});
    options_.visit.threads = common_.threads;
    options_.visit.max_buffer_bytes = common_.max_memory_bytes / kReadShare;
    options_.visit.cancelled = [] { return formats::interrupted(); };
    formats::quantized::ExaminedModel found = formats::quantized::examine_model(
        checkpoint_, model.tensors, about.config, settings, options_);
    out_.findings = std::move(found.findings);
    Json::Array schemes;
    for (const auto& [scheme, count] : found.weights) {
      out_.lines.push_back(cat("quantized: ", counted(count, "weight"), " of ", scheme, ", ",
                               settings.method, "; compared with ", about.name));
      schemes.emplace_back(Json::Object{{"scheme", scheme}, {"weights", count}});
    }
    if (found.weights.empty()) {
      out_.lines.push_back(
          cat("quantized: no weight, ", settings.method, "; compared with ", about.name));
    }
    for (const std::string& note : found.notes) out_.lines.push_back("noted: " + note);
    if (!found.left.empty()) out_.lines.push_back("not compared: " + found.left);
    out_.json = Json::Object{{"method", settings.method},
                             {"schemes", std::move(schemes)},
                             {"values", options_.values},
                             {"numbers", options_.values && options_.numbers},
                             {"notes", Json::Array(found.notes.begin(), found.notes.end())},
                             {"left", found.left.empty() ? Json() : Json(found.left)}};
  }

  void left(const std::string& why) {
    out_.json = Json::Object{{"method", nullptr}, {"schemes", Json::Array{}}, {"values", false},
                             {"numbers", false},  {"notes", Json::Array{}},   {"left", why}};
  }

  const formats::Checkpoint& checkpoint_;
  std::string path_;  // of the folder; empty: there is none
  const CommonOptions& common_;
  formats::quantized::ExamineOptions options_;
  QuantizationCheck out_;
};

}  // namespace

std::optional<QuantizationCheck> check_quantization(const formats::Checkpoint& checkpoint,
                                                    const std::string& path, bool values,
                                                    bool numbers, const CommonOptions& common) {
  return FolderCheck(checkpoint, path, values, numbers, common).run();
}

}  // namespace fsdp::cli
