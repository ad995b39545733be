// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt export: the model of a checkpoint as the folder that from_pretrained loads.
#include <optional>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/files/checkpoint_names.h"
#include "formats/hf/companions.h"
#include "formats/hf/completeness.h"
#include "formats/hf/model_content.h"
#include "formats/hf/model_output.h"
#include "formats/map/fitting.h"
#include "tools/conversion.h"
#include "tools/map_choice.h"
#include "tools/map_report.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::Value;
using formats::hf::Companions;
using formats::map::BuiltinMap;

// As large as the files of published models.
constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

const Json* config_of(const Companions& companions) {
  return companions.config ? &*companions.config : nullptr;
}

std::string model_type_of(const Companions& companions) {
  const Json* type = companions.config ? companions.config->find("model_type") : nullptr;
  return type == nullptr || type->as_string() == nullptr ? std::string() : *type->as_string();
}

bool ties(const Companions& companions) {
  const Json* tied = companions.config ? companions.config->find("tie_word_embeddings") : nullptr;
  return tied != nullptr && tied->as_bool() != nullptr && *tied->as_bool();
}

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
    options.text("--map", map_, "MAP",
                 "A built-in map, a file of rules, or none; by the names of tensors if not given");
    choice_.declare_parameters(options);
    options.text("--config", config_, "PATH",
                 "The model's config.json, or a folder that has its tokenizer, too: copied");
    options.text("--model", model_, "KEY", "Which model, where the checkpoint has several");
    options.text("--dtype", conversion_.dtype, "DTYPE",
                 "Cast floating tensors: float32 (fp32), bfloat16 (bf16), ...; integers stay");
    options.size("--max-shard-size", conversion_.max_shard_bytes,
                 "Files of at most SIZE, with an index; 5GB if not given");
    options.list(
        "--strip-prefix", conversion_.strip_prefixes, "auto|TEXT",
        "Take a prefix off names; auto, for those of FSDP, torch.compile and DDP, if not given");
    options.flag("--incomplete", incomplete_, "Write a model that lacks tensors");
  }

  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    Companions companions;
    if (!config_.empty()) companions = formats::hf::open_companions(config_);
    choice_.config = companions.config_name;
    conversion_.by_module = true;
    conversion_.strip_unasked = conversion_.strip_prefixes.empty();
    if (conversion_.strip_unasked) conversion_.strip_prefixes = {"auto"};
    const auto change = [&](const formats::Checkpoint& source, const Value& content,
                            ReportExtras& extras) {
      return exported(source, content, companions, extras);
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
  Changed exported(const formats::Checkpoint& source, const Value& content,
                   const Companions& companions, ReportExtras& extras) const {
    const formats::hf::FoundModel model = formats::hf::find_model(source, content, model_);
    extras.lines.push_back(
        cat("model: ", model.place.empty() ? "the top level" : formats::quote(model.place, 200)));
    if (model.values != 0)
      extras.lines.push_back(cat("left out: ", model.values, " values that are not tensors"));
    extras.members.emplace_back("model", model.place);
    extras.members.emplace_back("left_out_values", model.values);
    Changed out = mapped(source, model.tensors, companions, extras);
    const formats::Checkpoint& own = out.checkpoint == nullptr ? source : *out.checkpoint;
    check(source, out.content, companions);
    if (ties(companions)) out.content = formats::hf::without_tied_head(own, out.content);
    return out;
  }

  Changed mapped(const formats::Checkpoint& source, const Value& tensors,
                 const Companions& companions, ReportExtras& extras) const {
    std::string word = map_;
    if (word.empty()) word = guessed_map(tensors, companions);
    const bool guessed = map_.empty();
    if (word == kNoMap) {
      extras.lines.push_back(guessed ? cat("map: none, no built-in one takes these names",
                                           near_map_text(formats::hf::names_of(tensors)))
                                     : "map: none");
      extras.members.emplace_back("map", nullptr);
      extras.members.emplace_back("guessed", guessed);
      return {nullptr, tensors};
    }
    formats::map::MapOptions options = choice_.options(word, formats::map::Direction::kForward);
    try {
      formats::map::Mapped result = formats::map::map_content(source, tensors, options);
      extras.lines.push_back(cat("map: ", formats::escape(word),
                                 guessed ? ", the only one that takes these names" : ""));
      add_map_report(result, options, conversion_.writing.dry_run, extras);
      extras.members.emplace_back("guessed", guessed);
      return {std::move(result.checkpoint), std::move(result.content)};
    } catch (const Error& error) {
      if (!guessed || error.code() != ErrorCode::kShape) throw;
      throw Error(error.code(), cat(error.what(),
                                    "; the map was chosen by names alone, --map none "
                                    "keeps them as they are"));
    }
  }

  // Says which map was meant, perhaps, and what keeps it from fitting.
  static std::string near_map_text(const std::vector<std::string>& names) {
    const auto near = formats::map::nearest_map(names, formats::map::Direction::kForward);
    return near ? cat("; the nearest is ", near->name, ": ", near->why) : std::string();
  }

  static std::string guessed_map(const Value& tensors, const Companions& companions) {
    const std::vector<std::string> names = formats::hf::names_of(tensors);
    const std::vector<BuiltinMap> fitting = formats::map::fitting_maps(
        names, model_type_of(companions), formats::map::Direction::kForward);
    if (fitting.empty()) return kNoMap;
    if (fitting.size() == 1) return std::string(fitting[0].name);
    std::string list;
    for (const BuiltinMap& map : fitting) list += cat(list.empty() ? "" : ", ", map.name);
    throw Error(ErrorCode::kUsage,
                cat("several maps take these names: ", list, "; --map chooses one"));
  }

  void check(const formats::Checkpoint& source, const Value& tensors,
             const Companions& companions) const {
    const std::vector<std::string> names = formats::hf::names_of(tensors);
    const auto missing = formats::hf::missing_names(names, config_of(companions));
    if (!missing.empty() && !incomplete_) {
      std::string list;
      constexpr std::size_t kMaxListed = 6;
      for (std::size_t i = 0; i < missing.size() && i < kMaxListed; ++i)
        list += (i == 0 ? "" : ", ") + formats::quote(missing[i], 200);
      if (missing.size() > kMaxListed) list += ", ...";
      throw Error(ErrorCode::kKey,
                  cat(source.description().path, ": the model is incomplete, it lacks ", list,
                      "; --incomplete writes it all the same"));
    }
    if (!companions.config) return;
    const std::string wrong =
        formats::hf::embedding_contradiction(formats::hf::shapes_of(tensors), *companions.config);
    if (!wrong.empty()) {
      const formats::Json* rows = companions.config->find("vocab_size");
      const bool resizes = rows != nullptr && rows->as_int() != nullptr &&
                           wrong.find(" rows, and vocab_size is ") != std::string::npos;
      throw Error(ErrorCode::kShape,
                  cat(source.description().path, ": ", wrong, " (", companions.config_name, ")"),
                  resizes ? Hint{Remedy::kResizeTables, std::to_string(*rows->as_int())} : Hint{});
    }
  }

  // Lets config.json name the dtype that is written and whether it is quantized, and says what is
  // copied.
  static void report_companions(Prepared& prepared, Companions& companions) {
    const std::string quantized = formats::hf::quantized_name(prepared.content);
    if (quantized.empty()) {
      if (const auto method = formats::hf::drop_quantization(companions))
        prepared.extras.lines.push_back("config.json: left out its quantization_config, " +
                                        *method);
    } else if (companions.config && companions.config->find("quantization_config") == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  cat(companions.config_name, ": has no quantization_config, and ",
                      formats::quote(quantized, 200), " belongs to quantized weights"));
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
  MapChoice choice_;
  std::string to_ = "hf";
  std::string map_;
  std::string config_;
  std::string model_;
  bool incomplete_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_export() {
  return std::make_unique<ExportVerb>();
}

}  // namespace fsdp::cli
