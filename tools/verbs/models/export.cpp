// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt export: the model of a checkpoint as the folder that from_pretrained loads.
#include <memory>
#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/families/hf/companions.h"
#include "formats/families/hf/model_content.h"
#include "formats/families/hf/model_output.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/verbs/models/configured_model.h"
#include "tools/verbs/models/dequantized_source.h"
#include "tools/verbs/models/export_check.h"
#include "tools/verbs/models/named_model.h"
#include "tools/verbs/models/quantized_result.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::Value;
using formats::hf::Companions;

// The size of the files of published models.
constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

class ExportVerb : public Verb {
 public:
  ExportVerb()
      : Verb("export",
             "Write what from_pretrained loads: names of the model's class, config, tokenizer",
             {"fsdp-ckpt export step-400 llama --config Llama-3.1-8B",
              "fsdp-ckpt export step-400 out --map rules.toml --dtype bf16 --config config.json"}) {
  }
  void declare(OptionSet& options) override {
    options.positional("OUT", conversion_.writing.destination, "Folder to write");
    declare_writing_options(options, conversion_.writing);
    options.add("--resume", &conversion_.writing.resume);
    options.add("--to", &to_, "hf, a folder of Hugging Face's layout").choices = {"hf"};
    options.add("--map", &request_.map, "; by the names of tensors if not given");
    options.add("--set", &request_.choice.parameters);
    options.add("--config", &config_,
                ", or a folder that also has its tokenizer, to copy; those beside PATH or in the "
                "run if not given; or none");
    options.add("--model", &request_.model);
    declare_averages(options, request_.average);
    options.add("--dtype", &conversion_.dtype, "; integers stay");
    options.add("--max-shard-size", &conversion_.max_shard_bytes, "; 5GB if not given");
    options.add("--strip-prefix", &conversion_.strip_prefixes, "; auto if not given");
    options.add("--dequantize", &dequantize_);
    declare_quantization(options, quantization_);
    options.add("--incomplete", &request_.incomplete);
    options.add("--check", &check_);
  }

  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    if (!request_.average.names.empty() && !request_.average.asked)
      throw Error(ErrorCode::kUsage, "--names is for the averages that --ema takes");
    if (request_.average.asked && !request_.model.empty())
      throw Error(ErrorCode::kUsage, "--ema and --model both say which weights: leave one out");
    Companions companions = companions_for(config_, common.path);
    if (!quantization_.scheme.empty() && !companions.config)
      throw Error(ErrorCode::kUsage,
                  "--quantize writes a quantization_config: --config names a config.json");
    request_.choice.config = companions.config_name;
    request_.dry_run = conversion_.writing.dry_run;
    conversion_.by_module = true;
    conversion_.with_optimizer = false;
    conversion_.strip_unasked = conversion_.strip_prefixes.empty();
    if (conversion_.strip_unasked) conversion_.strip_prefixes = {"auto"};
    if (check_ && formats::is_url(conversion_.writing.destination))
      throw Error(ErrorCode::kUsage, "--check reads only local files, and OUT is not local");
    const bool quantizes = !quantization_.scheme.empty();
    if (!quantizes && details_given(quantization_))
      throw Error(ErrorCode::kUsage,
                  "--quantize-dialect, --quantize-group and --quantize-skip are about --quantize "
                  "SCHEME");
    if (quantizes && check_)
      throw Error(ErrorCode::kUsage,
                  "--check compares bit for bit, and --quantize rounds: leave one out");
    NamedModel model;
    Changed plain;  // without quantized weights
    Changed exact;  // before --quantize
    Json quantization;
    ConversionOptions conversion = conversion_;
    if (quantizes) conversion.dtype.clear();  // before it rounds, and not the scales
    const auto change = [&](const formats::Checkpoint& source, const Value& content,
                            ReportExtras& extras) {
      plain = {nullptr, content};
      if (dequantize_) {
        plain = dequantized_source(source, content, common.path, request_.model, conversion_.dtype,
                                   companions, extras);
        request_.model.clear();
      }
      model = named_model(plain.checkpoint ? *plain.checkpoint : source, plain.content, common.path,
                          companions, request_, extras);
      if (model.result.checkpoint == nullptr) model.result.checkpoint = plain.checkpoint;
      if (!quantizes) return model.result;
      exact = model.result;
      return quantized_result(exact.checkpoint ? *exact.checkpoint : source, exact.content,
                              quantization_, conversion_.dtype, extras, quantization);
    };
    Prepared prepared = prepare_conversion("safetensors", conversion, common, streams, change);
    if (quantizes) formats::hf::set_quantization(companions, std::move(quantization));
    report_companions(prepared, companions);
    prepared.extras.members.emplace_back("check", check_);
    formats::OutputOptions options = conversion_.writing.output(common);
    std::optional<ExportCheck> checked;
    if (check_) {
      options.before_commit = [&,
                               look = options.before_commit](const std::filesystem::path& folder) {
        if (look) look(folder);
        checked = check_export(folder, model, *prepared.source, prepared.content, request_.choice,
                               common);
      };
    }
    prepared.extras.last = [&] { return check_text(checked) + loading(companions); };
    options.replaced = [](std::string_view file) {
      return formats::is_member_name(file) || formats::hf::is_model_companion(file);
    };
    const auto output = formats::hf::plan_model_output(
        *prepared.source, prepared.content, conversion_.writing.destination, options,
        conversion_.max_shard_bytes.value_or(kMaxShardBytes), companions.files);
    return write_output(name(), *prepared.source, *output, conversion_.writing, common, streams,
                        std::move(prepared.extras));
  }

 private:
  // Sets the written dtype and the quantization in config.json, and reports what is copied.
  static void report_companions(Prepared& prepared, Companions& companions) {
    const std::string quantized = formats::hf::quantized_name(prepared.content);
    if (quantized.empty()) {
      if (const auto method = formats::hf::drop_quantization(companions))
        prepared.extras.lines.push_back("config.json: left out its quantization_config, " +
                                        *method);
    }
    const formats::DType dtype = formats::hf::main_dtype(prepared.content);
    const auto was = formats::hf::set_config_dtype(companions, dtype);
    const std::string now(formats::torch_name(dtype));
    if (was) {
      prepared.extras.lines.push_back(
          cat("config.json: dtype ", formats::escape(*was), " -> ", now));
    }
    Json::Array copied;
    std::string list;
    std::string folder;
    for (const formats::hf::Companion& companion : companions.files) {
      copied.emplace_back(companion.name);
      // The user did not name these files, so the report tells their folder.
      const bool other = companions.found && companion.folder != folder;
      if (other) folder = companion.folder;
      list += cat(list.empty() ? "" : ", ", other ? "from " + formats::escape(folder) + ": " : "",
                  formats::escape(companion.name));
    }
    if (!list.empty()) prepared.extras.lines.push_back("copied: " + list);
    prepared.extras.members.emplace_back("copied", std::move(copied));
    prepared.extras.members.emplace_back(
        "config", companions.config ? Json(companions.config_name) : Json(nullptr));
    prepared.extras.members.emplace_back("config_dtype", was ? Json(now) : Json(nullptr));
  }

  static std::string check_text(const std::optional<ExportCheck>& checked) {
    if (!checked) return {};
    std::string text = cat("checked: ", counted(checked->tensors, "tensor"), ", ",
                           formats::human_bytes(checked->bytes), ", read again: bit for bit ",
                           checked->undone ? "the model's, by the inverse map"
                                           : "the result of the map, which has no inverse");
    if (!checked->left_out.empty()) {
      text += cat("; without ", formats::quote(checked->left_out[0], 200));
      if (checked->left_out.size() > 1) text += cat(" and ", checked->left_out.size() - 1, " more");
    }
    return text + "\n";
  }

  // Returns how the folder can be loaded.
  std::string loading(const Companions& companions) const {
    if (!companions.config)
      return "from_pretrained needs a config.json beside it: --config gives one";
    const ConfiguredModel model(companions);
    const Json* const classes = companions.config->find("architectures");
    const Json::Array* const named = classes == nullptr ? nullptr : classes->as_array();
    std::string name = model.architecture() ? model.architecture()->name() : "";
    if (name.empty() && named != nullptr && named->size() == 1 &&
        (*named)[0].as_string() != nullptr)
      name = formats::escape(*(*named)[0].as_string());
    if (name.empty()) return "loads with: the code of its class (config.json names none)";
    return cat("loads with: ", name, ".from_pretrained(",
               formats::quote(conversion_.writing.destination), ")");
  }

  ConversionOptions conversion_;
  ModelRequest request_;
  std::string to_ = "hf";
  std::string config_;
  bool check_ = false;
  bool dequantize_ = false;
  QuantizationOptions quantization_;
};

}  // namespace

std::unique_ptr<Verb> make_export() {
  return std::make_unique<ExportVerb>();
}

}  // namespace fsdp::cli
