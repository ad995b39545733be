// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt export: the model of a checkpoint as the folder that from_pretrained loads.
#include <memory>
#include <optional>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/files/checkpoint_names.h"
#include "formats/hf/companions.h"
#include "formats/hf/model_content.h"
#include "formats/hf/model_output.h"
#include "tools/conversion.h"
#include "tools/held_lora.h"
#include "tools/named_model.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::Value;
using formats::hf::Companions;

// As large as the files of published models.
constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

class ExportVerb : public Verb {
 public:
  std::string name() const override { return "export"; }
  std::string description() const override {
    return "Write the model as the folder that from_pretrained loads: names, config, tokenizer";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt export step-400 llama --config Llama-3.1-8B",
            "fsdp-ckpt export step-400 out --map rules.toml --dtype bf16 --config config.json"};
  }
  void declare(OptionSet& options) override {
    declare_out(options, conversion_.writing, "Folder to write");
    declare_writing_options(options, conversion_.writing);
    declare_resume(options, conversion_.writing);
    options.choice("--to", to_, {"hf"}, "KIND", "hf: a folder of Hugging Face's layout");
    options.text("--map", request_.map, "MAP",
                 "A built-in map, a file of rules, or none; by the names of tensors if not given");
    request_.choice.declare_parameters(options);
    options.text("--config", config_, "PATH",
                 "The model's config.json, or a folder that has its tokenizer, too: copied");
    options.text("--model", request_.model, "KEY", "Which model, where the checkpoint has several");
    options.text("--dtype", conversion_.dtype, "DTYPE",
                 "Cast floating tensors: float32 (fp32), bfloat16 (bf16), ...; integers stay");
    options.size("--max-shard-size", conversion_.max_shard_bytes,
                 "Files of at most SIZE, with an index; 5GB if not given");
    options.list(
        "--strip-prefix", conversion_.strip_prefixes, "auto|TEXT",
        "Take a prefix off names; auto, for those of FSDP, torch.compile and DDP, if not given");
    options.flag("--incomplete", request_.incomplete, "Write a model that lacks tensors");
  }

  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    Companions companions;
    if (!config_.empty()) companions = formats::hf::open_companions(config_);
    request_.choice.config = companions.config_name;
    request_.dry_run = conversion_.writing.dry_run;
    conversion_.by_module = true;
    conversion_.strip_unasked = conversion_.strip_prefixes.empty();
    if (conversion_.strip_unasked) conversion_.strip_prefixes = {"auto"};
    std::shared_ptr<const formats::Checkpoint> merged;  // what is named reads it
    const auto change = [&](const formats::Checkpoint& source, const Value& content,
                            ReportExtras& extras) {
      auto merge = merged_held_adapter(source, content, common.path, companions, extras);
      extras.members.emplace_back("merged", merge ? merge->merged : 0);
      if (merge) merged = merge->checkpoint;
      Changed named = named_model(merge ? *merged : source, merge ? merge->content : content,
                                  companions, request_, extras);
      refuse_adapter_names(source.description().path, formats::hf::names_of(named.content));
      if (named.checkpoint == nullptr) named.checkpoint = merged;
      return named;
    };
    Prepared prepared = prepare_conversion("safetensors", conversion_, common, change);
    report_companions(prepared, companions);
    formats::OutputOptions options = conversion_.writing.output(common);
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
  // Lets config.json name the dtype that is written and whether it is quantized, and says what is
  // copied.
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
    for (const formats::hf::Companion& companion : companions.files) {
      copied.emplace_back(companion.name);
      list += cat(list.empty() ? "" : ", ", formats::escape(companion.name));
    }
    if (!list.empty()) prepared.extras.lines.push_back("copied: " + list);
    prepared.extras.members.emplace_back("copied", std::move(copied));
    prepared.extras.members.emplace_back("config_dtype", was ? Json(now) : Json(nullptr));
  }

  ConversionOptions conversion_;
  ModelRequest request_;
  std::string to_ = "hf";
  std::string config_;
};

}  // namespace

std::unique_ptr<Verb> make_export() {
  return std::make_unique<ExportVerb>();
}

}  // namespace fsdp::cli
