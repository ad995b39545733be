// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt merge-lora: LoRA adapters become part of the weights that they were trained for.
#include <filesystem>

#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"
#include "formats/checks/content_check.h"
#include "formats/content/content.h"
#include "formats/content/values_apart.h"
#include "formats/files/no_answer.h"
#include "formats/lora/merge.h"
#include "formats/model/shard_spec.h"
#include "formats/open.h"
#include "formats/rewrite/optimizer_ids.h"
#include "tools/conversion.h"
#include "tools/dtype_word.h"
#include "tools/reading.h"
#include "tools/rewriting.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kTensorNames[] = {"adapter_model.safetensors", "adapter_model.bin"};

formats::LoraAdapter open_adapter(const std::string& path, const CommonOptions& common) {
  formats::LoraAdapter adapter;
  adapter.path = formats::escape(path);
  const fs::path config = fs::path(path) / kConfigName;
  if (!formats::exists_at(config)) {
    throw Error(ErrorCode::kNotFound,
                adapter.path +
                    ": holds no adapter_config.json; an adapter is the folder that "
                    "peft's save_pretrained wrote");
  }
  try {
    adapter.config = formats::parse_adapter_config(read_text_file(config.native()));
  } catch (const Error& error) {
    throw error.in(formats::escape(config.native()));
  }
  for (const char* const name : kTensorNames) {
    const fs::path tensors = fs::path(path) / name;
    if (!formats::exists_at(tensors)) continue;
    adapter.tensors = formats::open_checkpoint(tensors, {common.allowed_globals});
    formats::check_before_copy(*adapter.tensors, formats::content_of(*adapter.tensors),
                               [] { return formats::interrupted(); });
    return adapter;
  }
  throw Error(ErrorCode::kNotFound, adapter.path +
                                        ": holds neither adapter_model.safetensors nor "
                                        "adapter_model.bin");
}

class MergeLoraVerb : public Verb {
 public:
  std::string name() const override { return "merge-lora"; }
  std::string description() const override {
    return "Merge LoRA adapters of peft into the checkpoint that they were trained for";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt merge-lora model.safetensors adapter merged.safetensors",
            "fsdp-ckpt merge-lora step-400 adapter-a adapter-b merged --max-shard-size 5GB"};
  }
  void declare(OptionSet& options) override {
    options.more("MORE", more_,
                 "Folders of adapters, in their order, and last OUT, the file or folder to write");
    options.required();
    declare_conversion_options(options, conversion_, output_formats());
    options.integer("-w,--world-size", world_size_, 1, formats::kMaxWorldSize, "N",
                    "Sharded formats: ranks to lay the folder out for; 1 if not given");
  }

  bool more_ends_in_output() const override { return true; }

  int run(const CommonOptions& common, const Streams& streams) override {
    const std::vector<std::string> paths = take_words();
    const std::string format = output_format_of(conversion_);
    std::optional<formats::DType> dtype;
    if (!conversion_.dtype.empty()) dtype = floating_dtype(conversion_.dtype);
    check_apart(common.path, conversion_.writing.destination);
    for (const std::string& path : paths) check_apart(path, conversion_.writing.destination);
    std::shared_ptr<const formats::Checkpoint> base = open_base(common, format);
    const formats::Value content = selected_content(*base, common);
    formats::check_before_copy(*base, content, [] { return formats::interrupted(); });
    std::vector<formats::LoraAdapter> adapters;
    for (const std::string& path : paths) adapters.push_back(open_adapter(path, common));
    formats::LoraMerge merge = formats::merge_lora(base, content, std::move(adapters), dtype);
    formats::Value whole = formats::with_values(*merge.checkpoint, merge.content);
    whole = formats::with_integer_ids(*merge.checkpoint, whole);
    return write_converted(name(), *merge.checkpoint, whole, format, conversion_, common, streams,
                           extras_of(paths, merge));
  }

 private:
  // The last word is OUT.
  std::vector<std::string> take_words() {
    if (more_.size() < 2) {
      throw Error(ErrorCode::kUsage,
                  "needs an adapter at least, and OUT behind it; see fsdp-ckpt merge-lora --help");
    }
    conversion_.writing.destination = more_.back();
    conversion_.world_size = world_size_.value_or(1);
    return {more_.begin(), more_.end() - 1};
  }

  static std::shared_ptr<const formats::Checkpoint> open_base(const CommonOptions& common,
                                                              const std::string& format) {
    auto base = open_source(common);
    if (format != "safetensors") return base;
    const auto selected = [&](const std::string& key) {
      return common.keys.everything() || common.keys.selects(key);
    };
    return formats::with_values_apart(std::move(base),
                                      {.wanted = selected, .only_with_tensors = true});
  }

  static ReportExtras extras_of(const std::vector<std::string>& paths,
                                const formats::LoraMerge& merge) {
    ReportExtras extras;
    std::string line =
        cat("merged ", counted(paths.size(), "adapter"), ": ", counted(merge.merged, "weight"),
            " with ", counted(merge.updates, "update"));
    if (merge.replaced != 0) line += cat(", ", counted(merge.replaced, "tensor"), " replaced");
    if (!merge.prefix.empty()) line += cat(", below ", formats::quote(merge.prefix, 200));
    extras.lines.push_back(std::move(line));
    formats::Json::Array names;
    for (const std::string& path : paths) names.emplace_back(path);
    extras.members = {{"adapters", std::move(names)},
                      {"prefix", merge.prefix},
                      {"merged", merge.merged},
                      {"updates", merge.updates},
                      {"replaced", merge.replaced}};
    return extras;
  }

  std::vector<std::string> more_;
  ConversionOptions conversion_;
  std::optional<std::int64_t> world_size_;
};

}  // namespace

std::unique_ptr<Verb> make_merge_lora() {
  return std::make_unique<MergeLoraVerb>();
}

}  // namespace fsdp::cli
