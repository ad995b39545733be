// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/held_lora.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/changes/lora/held_adapter.h"
#include "formats/changes/megatron/form.h"
#include "formats/state/content/content.h"
#include "tools/base/reading.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;
using formats::Json;

constexpr const char* kPeftConfig = "adapter_config.json";
constexpr const char* kVerlMeta = "lora_train_meta.json";
constexpr std::size_t kNameText = 200;

// Returns whether a component of the name is one that peft, torchtune or Megatron-Bridge put around
// a module with an adapter.
bool is_of_adapter(const std::string& name) {
  const std::string own = "." + name;
  for (const char* const words : {".lora_", ".base_layer.", ".modules_to_save.", ".token_adapter.",
                                  ".to_wrap.", ".adapter.linear_", ".adapter.adapter_"}) {
    if (own.find(words) != own.npos) return true;
  }
  return false;
}

}  // namespace

formats::AdapterConfig read_adapter_config(const fs::path& path) {
  try {
    const std::string text = read_text_file(path.native());
    return path.filename() == kVerlMeta ? formats::parse_lora_meta(text)
                                        : formats::parse_adapter_config(text);
  } catch (const Error& error) {
    throw error.in(formats::escape(path.native()));
  }
}

fs::path find_adapter_config(const std::string& path) {
  const fs::path own(path);
  const fs::path around = fs::absolute(own).lexically_normal().parent_path();
  for (const char* const name : {kPeftConfig, kVerlMeta}) {
    for (const fs::path& folder : {own, around}) {
      if (formats::exists_at(folder / name)) return folder / name;
    }
  }
  return {};
}

std::shared_ptr<const formats::Checkpoint> by_module(
    std::shared_ptr<const formats::Checkpoint> source, formats::Value& content) {
  using formats::megatron::Form;
  const Form form = formats::megatron::form_of(source->description());
  if (form == Form::kStateDict) return source;
  content = formats::with_values(*source, content);
  auto reformed = formats::megatron::reformed(*source, content, form, Form::kStateDict);
  content = std::move(reformed.content);
  struct Kept {
    std::shared_ptr<const formats::Checkpoint> original;
    std::unique_ptr<formats::Checkpoint> own;
  };
  const auto kept = std::make_shared<Kept>(Kept{std::move(source), std::move(reformed.checkpoint)});
  return {kept, kept->own.get()};
}

void note_dropped_states(std::size_t dropped, formats::LoraMerge& merge) {
  if (dropped == 0) return;
  merge.notes.push_back(
      cat("left out: ", counted(dropped, "state"), " of optimizers that the adapter has"));
}

std::optional<formats::LoraMerge> merged_held_adapter(const formats::Checkpoint& source,
                                                      const formats::Value& content,
                                                      const std::string& path,
                                                      formats::hf::Companions& companions,
                                                      ReportExtras& extras) {
  if (!formats::holds_adapter(content)) return std::nullopt;
  const std::string& own = source.description().path;
  formats::HeldAdapter held = formats::held_adapter(own, content);
  if (held.tensors == 0) {
    throw Error(ErrorCode::kMismatch,
                cat(own, ": holds only an adapter, without its base; fsdp-ckpt merge-lora BASE ",
                    formats::escape(path), " OUT merges the two"));
  }
  const fs::path settings = find_adapter_config(path);
  if (settings.empty()) {
    throw Error(
        ErrorCode::kNotFound,
        cat(own,
            ": holds a LoRA adapter beside its base, but neither adapter_config.json nor "
            "lora_train_meta.json lies in its folder or the one around it; fsdp-ckpt merge-lora ",
            formats::escape(path),
            " OUT --adapter-config FILE merges it (or --alpha A, which torchtune has in its "
            "recipe and Megatron-Bridge in run_config.yaml), and export takes OUT"));
  }
  // Does not own: the verb keeps the source.
  const std::shared_ptr<const formats::Checkpoint> base(
      std::shared_ptr<const formats::Checkpoint>{}, &source);
  formats::LoraMergeOptions options;
  options.facts.omits_tied = source.description().format == "safetensors";
  if (companions.config) formats::read_base_facts(*companions.config, options.facts);
  formats::LoraMerge merge = formats::merge_lora(
      base, held.base, {{own, read_adapter_config(settings), base, std::move(held.names)}},
      options);
  note_dropped_states(held.dropped, merge);
  for (const std::string& note : merge.notes) extras.lines.push_back(note);
  extras.lines.push_back(cat("merged: the adapter that it holds, ", counted(merge.merged, "weight"),
                             " with ", counted(merge.updates, "update"), ", by ",
                             formats::escape(settings.native())));
  if (merge.untied && formats::hf::untie(companions))
    extras.lines.emplace_back("config.json: tie_word_embeddings true -> false");
  return merge;
}

void refuse_adapter_names(const std::string& path, const std::vector<std::string>& names) {
  const auto found = std::find_if(names.begin(), names.end(), is_of_adapter);
  if (found == names.end()) return;
  throw Error(ErrorCode::kUnsupported,
              cat(path, ": ", formats::quote(*found, kNameText),
                  " is an adapter's name that merge-lora does not know; merge it where it was "
                  "trained, or give it peft's names with fsdp-ckpt rename"));
}

}  // namespace fsdp::cli
