// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt extract-lora: the changes made by training, as a LoRA adapter.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <sstream>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/lora/extract.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/hf/model_content.h"
#include "formats/families/hf/model_output.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/model/select.h"
#include "tools/base/dtype_word.h"
#include "tools/base/progress.h"
#include "tools/base/reading.h"
#include "tools/base/selection.h"
#include "tools/base/verbs.h"
#include "tools/text/table.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

using formats::cat;

constexpr const char* kMatrices = "adapter_model.safetensors";
constexpr const char* kConfig = "adapter_config.json";
// The last components of the names that models of transformers give to an nn.Embedding.
constexpr std::array<std::string_view, 9> kEmbeddings = {"embed_tokens",
                                                         "embed_positions",
                                                         "wte",
                                                         "wpe",
                                                         "word_embeddings",
                                                         "position_embeddings",
                                                         "token_type_embeddings",
                                                         "tok_embeddings",
                                                         "shared"};

// Returns whether the weight's module is an embedding by its name.
bool is_known_embedding(const std::string& weight) {
  const std::string module = weight.substr(0, weight.rfind('.'));
  const std::string last = module.substr(module.rfind('.') + 1);
  return std::find(kEmbeddings.begin(), kEmbeddings.end(), last) != kEmbeddings.end();
}

class ExtractLoraVerb : public Verb {
 public:
  ExtractLoraVerb()
      : Verb("extract-lora",
             "Make a LoRA adapter of changes: of what training changed, in peft's layout",
             {"fsdp-ckpt extract-lora base.safetensors step-400 adapter --rank 16",
              "fsdp-ckpt extract-lora base tuned adapter --rank 64 -k '**.self_attn.*.weight'"}) {}
  void declare(OptionSet& options) override {
    options.positional("TUNED", tuned_, "The checkpoint that was trained from it");
    options.positional("OUT", writing_.destination, "Folder to write the adapter to");
    options.add("--rank", &rank_).required = true;
    options.add("--alpha", &alpha_,
                ": matrices are divided so that A / R times B A is the change; R if not given");
    options.add("--dtype", &dtype_, "; float32 if not given");
    options.add("--passes", &passes_);
    options.add("--embedding", &embeddings_);
    options.add("--modules-to-save", &whole_);
    options.add("--fan-in-fan-out", &fan_in_fan_out_);
    options.add("--model", &model_);
    declare_writing_options(options, writing_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    const formats::LoraExtractOptions checked = read_options(common);
    check_apart(common.path, writing_.destination);
    check_apart(tuned_, writing_.destination);
    const formats::ModelTensors base = open_model(common.path, common);
    const formats::ModelTensors tuned = open_model(tuned_, common);
    check_words(common, base);
    const formats::LoraExtraction result = extracted(base, tuned, checked, streams);
    formats::OutputOptions options = writing_.output(common);
    options.replaced = [](std::string_view file) {
      return file == kMatrices || file == kConfig || file == "README.md";
    };
    const auto output =
        formats::hf::plan_model_output(*result.checkpoint, result.content, writing_.destination,
                                       options, std::numeric_limits<std::uint64_t>::max(),
                                       {{kConfig, {}, nullptr, result.config}}, kMatrices);
    return write_output(name(), *result.checkpoint, *output, writing_, common, streams,
                        extras_of(result, common, streams));
  }

 private:
  formats::LoraExtractOptions read_options(const CommonOptions& common) const {
    formats::LoraExtractOptions options;
    options.rank = *rank_;
    options.alpha = alpha_.value_or(static_cast<double>(*rank_));
    if (!(options.alpha > 0) || options.alpha > std::numeric_limits<float>::max()) {
      throw Error(ErrorCode::kUsage,
                  cat("--alpha needs a positive float32, not ", short_number(options.alpha)));
    }
    if (!dtype_.empty()) options.dtype = floating_dtype(dtype_);
    options.fan_in_fan_out = fan_in_fan_out_;
    options.whole = whole_;
    options.passes = static_cast<int>(passes_.value_or(options.passes));
    options.threads = common.threads;
    options.wanted = [&keys = common.keys](const std::string& name) { return keys.selects(name); };
    options.embedding = [globs = formats::globs_of(embeddings_)](const std::string& name) {
      return is_known_embedding(name) || formats::any_matches(globs, name);
    };
    return options;
  }

  formats::ModelTensors open_model(const std::string& path, const CommonOptions& common) const {
    std::shared_ptr<const formats::Checkpoint> checkpoint =
        formats::open_checkpoint(path, {common.allowed_globals});
    const formats::Value content = formats::content_of(*checkpoint);
    formats::Value tensors = formats::hf::find_model(*checkpoint, content, model_).tensors;
    formats::check_before_copy(*checkpoint, tensors, [] { return formats::interrupted(); });
    return {std::move(checkpoint), std::move(tensors)};
  }

  static void check_words(const CommonOptions& common, const formats::ModelTensors& base) {
    if (common.keys.everything()) return;
    SelectionCheck check(common.keys);
    for (const std::string& name : formats::hf::names_of(base.tensors)) check.see(name);
    check.finish(formats::escape(common.path));
  }

  static formats::LoraExtraction extracted(const formats::ModelTensors& base,
                                           const formats::ModelTensors& tuned,
                                           formats::LoraExtractOptions options,
                                           const Streams& streams) {
    // The total is unknown: how often a weight is read depends on its rank.
    Progress progress(streams.err, streams.show_progress, "extract-lora", 0);
    std::uint64_t done = 0;
    options.on_bytes = [&](std::uint64_t bytes) { progress.update(done += bytes); };
    return formats::extract_lora(base, tuned, options);
  }

  ReportExtras extras_of(const formats::LoraExtraction& result, const CommonOptions& common,
                         const Streams& streams) const {
    ReportExtras extras;
    Table table({Column::kName, Column::kWhole, Column::kNumber, Column::kNumber},
                {"weight", "shape", "error", "energy"});
    formats::Json::Array weights;
    for (const formats::ExtractedWeight& weight : result.weights) {
      table.add({formats::escape(weight.name), formats::shape_text(weight.shape),
                 short_number(weight.error, 3), short_number(weight.energy)});
      weights.push_back(formats::Json::Object{
          {"name", weight.name},
          {"shape", formats::Json::Array(weight.shape.begin(), weight.shape.end())},
          {"error", weight.error},
          {"energy", weight.energy}});
    }
    if (!common.json) {
      std::ostringstream text;
      table.print(text, streams.columns);
      std::istringstream lines(text.str());
      for (std::string line; std::getline(lines, line);) extras.lines.push_back(line);
    }
    extras.lines.push_back(
        cat("rank ", *rank_, ": ", counted(result.weights.size(), "weight"), " extracted, ",
            counted(result.unchanged, "tensor"), " unchanged",
            result.whole == 0 ? "" : cat(", ", counted(result.whole, "tensor"), " whole")));
    extras.members = {{"tuned", tuned_},
                      {"rank", *rank_},
                      {"alpha", alpha_.value_or(static_cast<double>(*rank_))},
                      {"weights", std::move(weights)},
                      {"unchanged", result.unchanged},
                      {"whole", result.whole}};
    return extras;
  }

  std::string tuned_;
  WritingOptions writing_;
  std::optional<std::int64_t> rank_;
  std::optional<double> alpha_;
  std::string dtype_;
  std::optional<std::int64_t> passes_;
  std::vector<std::string> embeddings_;
  bool whole_ = false;
  bool fan_in_fan_out_ = false;
  std::string model_;
};

}  // namespace

std::unique_ptr<Verb> make_extract_lora() {
  return std::make_unique<ExtractLoraVerb>();
}

}  // namespace fsdp::cli
