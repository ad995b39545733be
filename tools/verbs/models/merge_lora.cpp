// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt merge-lora: merges LoRA adapters into the weights for which they were trained.
#include <filesystem>
#include <limits>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/changes/lora/held_adapter.h"
#include "formats/changes/lora/merge.h"
#include "formats/families/checks/content_check.h"
#include "formats/families/hf/model_output.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/content/values_apart.h"
#include "formats/state/rewrite/optimizer_ids.h"
#include "tools/base/dtype_word.h"
#include "tools/base/reading.h"
#include "tools/base/verbs.h"
#include "tools/verbs/models/configured_model.h"
#include "tools/verbs/models/held_lora.h"
#include "tools/verbs/models/stacked_experts.h"
#include "tools/verbs/writing/conversion.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kTensorNames[] = {"adapter_model.safetensors", "adapter_model.bin"};

class MergeLoraVerb : public Verb {
 public:
  MergeLoraVerb()
      : Verb("merge-lora",
             "Merge LoRA adapters into their model: those of peft, or inside the checkpoint",
             {"fsdp-ckpt merge-lora model.safetensors adapter merged.safetensors",
              "fsdp-ckpt merge-lora step-400-with-lora merged.safetensors",
              "fsdp-ckpt merge-lora step-400-with-lora adapter --adapter-only",
              "fsdp-ckpt merge-lora step-400 adapter-a adapter-b merged --max-shard-size 5GB"}) {}
  void declare(OptionSet& options) override {
    options
        .more("MORE", more_,
              "Adapters, in their order (none if PATH holds one), and last OUT, the file or folder "
              "to write")
        .required = true;
    options.add("--config", &config_,
                ", which says what is tied; that beside PATH or in the run if not given; or none");
    options.add("--untied", &untied_);
    options.add("--adapter-config", &adapter_config_);
    options.add("--alpha", &alpha_, ", if no file has it; the rank comes from the matrices");
    options.add("--adapter-only", &adapter_only_);
    declare_conversion_options(options, conversion_, output_formats());
    declare_world_size(options, conversion_);
  }

  bool more_ends_in_output() const override { return true; }

  int run(const CommonOptions& common, const Streams& streams) override {
    const std::vector<std::string> paths = take_words();
    check_apart(common.path, conversion_.writing.destination);
    for (const std::string& path : paths) check_apart(path, conversion_.writing.destination);
    if (adapter_only_) return write_adapter(common, streams);
    const std::string format = output_format_of(conversion_);
    formats::LoraMergeOptions options;
    if (!conversion_.dtype.empty()) options.dtype = floating_dtype(conversion_.dtype);
    std::unique_ptr<formats::Checkpoint> opened = open_source(common.path, common, streams);
    if (format == "safetensors") opened = with_tensors_apart(std::move(opened), common);
    std::shared_ptr<const formats::Checkpoint> base = std::move(opened);
    formats::Value content = selected_content(*base, common);
    formats::check_before_copy(*base, content, [] { return formats::interrupted(); });
    base = by_module(std::move(base), content);
    std::vector<formats::LoraAdapter> adapters;
    std::vector<std::string> merged = paths;
    std::size_t dropped = 0;
    if (paths.empty() || formats::holds_adapter(content)) {
      formats::HeldAdapter held = formats::held_adapter(base->description().path, content);
      if (held.tensors == 0) {
        throw Error(ErrorCode::kMismatch, cat(base->description().path,
                                              ": holds only an adapter, without its base, which is "
                                              "given before it: fsdp-ckpt merge-lora BASE ",
                                              formats::escape(common.path), " OUT"));
      }
      adapters.push_back(
          {base->description().path, config_of(common.path).first, base, held.names});
      content = std::move(held.base);
      dropped = held.dropped;
      merged.insert(merged.begin(), common.path);
    }
    for (const std::string& path : paths) adapters.push_back(open_adapter(path, common));
    const formats::hf::Companions companions = companions_for(config_, common.path);
    options.facts = facts_of(companions, *base);
    std::vector<std::string> parameters;
    for (const formats::LoraAdapter& adapter : adapters) {
      const auto& own = adapter.config.parameters;
      parameters.insert(parameters.end(), own.begin(), own.end());
    }
    if (!parameters.empty()) content = formats::with_values(*base, content);
    const formats::Value before = content;
    const auto map = find_expert_map(*base, content, parameters, options.facts.model_type,
                                     companions.config_name);
    std::shared_ptr<const formats::Checkpoint> whole = base;
    if (map) {
      Changed stacked = map->mapped(*base, content, formats::map::Direction::kReverse);
      whole = std::move(stacked.checkpoint);
      content = std::move(stacked.content);
    }
    formats::LoraMerge merge = formats::merge_lora(whole, content, std::move(adapters), options);
    note_dropped_states(dropped, merge);
    Changed files{merge.checkpoint, merge.content};
    if (map) {
      files = map->mapped(*merge.checkpoint, merge.content, formats::map::Direction::kForward);
      merge.notes.push_back("merged under the names of the model's code, to which " + map->name +
                            " leads, and back");
    }
    const formats::Value result = formats::with_integer_ids(
        *files.checkpoint, formats::with_values(*files.checkpoint, files.content));
    ReportExtras extras = extras_of(merged, merge);
    formats::hf::Companions changed = companions;
    if (merge.untied) formats::hf::untie(changed);
    require_still(base->description().path, before, companions, files.content, changed, extras);
    return write_converted(name(), *files.checkpoint, result, format, conversion_, common, streams,
                           std::move(extras));
  }

 private:
  // The last word is OUT.
  std::vector<std::string> take_words() {
    conversion_.writing.destination = more_.back();
    return {more_.begin(), more_.end() - 1};
  }

  // Returns the configuration of an adapter, and its file, if there is one.
  std::pair<formats::AdapterConfig, fs::path> config_of(const std::string& path) const {
    if (!adapter_config_.empty()) return {read_adapter_config(adapter_config_), adapter_config_};
    if (alpha_) {
      formats::AdapterConfig config;
      config.alpha = *alpha_;
      return {config, {}};
    }
    const fs::path found = find_adapter_config(path);
    if (!found.empty()) return {read_adapter_config(found), found};
    throw Error(
        ErrorCode::kNotFound,
        formats::escape(path) +
            ": holds no adapter_config.json, nor does the folder around it, nor "
            "lora_train_meta.json: lora_alpha is unknown; give the file with --adapter-config, or "
            "--alpha (torchtune has it in its recipe, Megatron-Bridge in run_config.yaml)");
  }

  formats::LoraAdapter open_adapter(const std::string& path, const CommonOptions& common) const {
    formats::LoraAdapter adapter;
    adapter.path = formats::escape(path);
    adapter.config = config_of(path).first;
    fs::path file(path);
    for (const char* const name : kTensorNames) {
      if (file != path || !formats::exists_at(fs::path(path) / name)) continue;
      file = fs::path(path) / name;
    }
    try {
      adapter.tensors = formats::open_checkpoint(file, {common.allowed_globals});
    } catch (const Error& error) {
      if (file != path || !formats::exists_at(fs::path(path) / kConfigName)) throw;
      throw Error(error.code(), cat(adapter.path,
                                    ": holds neither adapter_model.safetensors nor "
                                    "adapter_model.bin, and is not a checkpoint: ",
                                    error.what()));
    }
    formats::Value content = formats::content_of(*adapter.tensors);
    formats::check_before_copy(*adapter.tensors, content, [] { return formats::interrupted(); });
    adapter.tensors = by_module(std::move(adapter.tensors), content);
    if (file == path) {
      adapter.names = formats::held_adapter(adapter.path, content).names;
      return adapter;
    }
    const auto& entries = adapter.tensors->index().tensors;
    for (std::size_t t = 0; t < entries.size(); ++t) adapter.names.push_back({entries[t].key, t});
    return adapter;
  }

  // Writes the adapter that PATH holds as peft's folder.
  int write_adapter(const CommonOptions& common, const Streams& streams) {
    if (more_.size() != 1)
      throw Error(ErrorCode::kUsage, "--adapter-only takes the adapter of PATH, and no other");
    std::shared_ptr<const formats::Checkpoint> source = open_source(common.path, common, streams);
    formats::Value content = selected_content(*source, common);
    formats::check_before_copy(*source, content, [] { return formats::interrupted(); });
    source = by_module(std::move(source), content);
    const std::string& path = source->description().path;
    const formats::HeldAdapter held = formats::held_adapter(path, content);
    const formats::AdapterParts parts = formats::adapter_parts(path, source->index(), held.names);
    auto [config, file] = config_of(common.path);
    std::vector<formats::Value::Entry> entries;
    for (const formats::AdapterTensor& tensor : formats::peft_tensors(parts)) {
      entries.emplace_back(formats::Value::string(tensor.key),
                           formats::tensor_reference(*source, tensor.number));
    }
    const std::size_t count = entries.size();
    std::string text = file.filename() == kConfigName || !adapter_config_.empty()
                           ? read_text_file(file.native())
                           : made_config(path, *source, parts, config);
    formats::OutputOptions options = conversion_.writing.output(common);
    options.replaced = [](std::string_view name) {
      return name == kTensorNames[0] || name == kConfigName || name == "README.md";
    };
    const formats::Value tensors = formats::Value::dict(std::move(entries));
    const auto output = formats::hf::plan_model_output(
        *source, tensors, conversion_.writing.destination, options,
        std::numeric_limits<std::uint64_t>::max(), {{kConfigName, {}, nullptr, std::move(text)}},
        kTensorNames[0]);
    formats::LoraMerge merge;
    ReportExtras extras = extras_of({}, merge);
    extras.lines = {cat("adapter of ", counted(parts.pairs.size(), "module"), ": ",
                        counted(count, "tensor"), ", for peft")};
    return write_output(name(), *source, *output, conversion_.writing, common, streams,
                        std::move(extras));
  }

  // peft needs the names of modules, and different ranks by name.
  static std::string made_config(const std::string& path, const formats::Checkpoint& source,
                                 const formats::AdapterParts& parts,
                                 formats::AdapterConfig config) {
    formats::AdapterModules modules;
    for (const formats::AdapterPair& pair : parts.pairs) {
      const std::int64_t rank = source.index().tensors[*pair.a].shape.at(0);
      if (config.rank == 0) config.rank = rank;
      if (rank != config.rank || pair.magnitude || pair.bias || pair.depth != 0) {
        throw Error(ErrorCode::kUnsupported,
                    cat(path, ": ", formats::quote(pair.module, 200),
                        " needs more than r and lora_alpha: give its adapter_config.json with "
                        "--adapter-config"));
      }
      modules.targets.push_back(pair.module);
    }
    for (const auto& [name, whole] : parts.whole) {
      const std::string module = name.substr(0, name.rfind('.'));
      if (modules.whole.empty() || modules.whole.back() != module) modules.whole.push_back(module);
    }
    return formats::adapter_config_text(config, modules);
  }

  formats::BaseFacts facts_of(const formats::hf::Companions& companions,
                              const formats::Checkpoint& base) const {
    formats::BaseFacts facts;
    facts.apart = untied_;
    facts.omits_tied = base.description().format == "safetensors";
    if (!companions.config) return facts;
    try {
      formats::read_base_facts(*companions.config, facts);
    } catch (const Error& error) {
      throw error.in(companions.config_name);
    }
    return facts;
  }

  static ReportExtras extras_of(const std::vector<std::string>& paths,
                                const formats::LoraMerge& merge) {
    ReportExtras extras;
    std::string line =
        cat("merged ", counted(paths.size(), "adapter"), ": ", counted(merge.merged, "weight"),
            " with ", counted(merge.updates, "update"));
    for (const std::string& note : merge.notes) extras.lines.push_back(note);
    if (merge.replaced != 0) line += cat(", ", counted(merge.replaced, "tensor"), " replaced");
    if (merge.added != 0) line += cat(", ", counted(merge.added, "tensor"), " added");
    if (!merge.prefix.empty()) line += cat(", below ", formats::quote(merge.prefix, 200));
    extras.lines.push_back(std::move(line));
    if (merge.untied) {
      extras.lines.push_back(
          "an embedding and a head that were tied are two tensors now: config.json of the result "
          "needs \"tie_word_embeddings\": false");
    }
    extras.members = {{"adapters", formats::Json::Array(paths.begin(), paths.end())},
                      {"prefix", merge.prefix},
                      {"merged", merge.merged},
                      {"updates", merge.updates},
                      {"replaced", merge.replaced},
                      {"added", merge.added},
                      {"untied", merge.untied},
                      {"notes", formats::Json::Array(merge.notes.begin(), merge.notes.end())}};
    return extras;
  }

  std::vector<std::string> more_;
  ConversionOptions conversion_;
  std::string config_;
  bool untied_ = false;
  std::string adapter_config_;
  std::optional<double> alpha_;
  bool adapter_only_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_merge_lora() {
  return std::make_unique<MergeLoraVerb>();
}

}  // namespace fsdp::cli
