// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/tied_names.h"

#include <algorithm>
#include <array>

#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/array_source.h"
#include "formats/changes/lora/peft_names.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

// The last components of the names of modules.
constexpr std::array<std::string_view, 7> kInputs = {
    "embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "shared", "embeddings"};
constexpr std::array<std::string_view, 5> kOutputs = {"lm_head", "embed_out", "proj_out",
                                                      "output_projection", "output"};
constexpr std::string_view kBertHead = "predictions.decoder.weight";

std::string_view last_of(std::string_view key) {
  if (!key.ends_with(kWeightSuffix)) return {};
  key.remove_suffix(kWeightSuffix.size());
  const std::size_t dot = key.rfind('.');
  return dot == key.npos ? key : key.substr(dot + 1);
}

bool names_a_head(const std::string& text, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return text.ends_with(end); });
}

}  // namespace

void read_base_facts(const Json& config, BaseFacts& facts) {
  const Json* tied = config.find("tie_word_embeddings");
  const Json* const inner = config.find("text_config");
  if ((tied == nullptr || tied->as_bool() == nullptr) && inner != nullptr)
    tied = inner->find("tie_word_embeddings");
  if (tied != nullptr && tied->as_bool() != nullptr) facts.tied = *tied->as_bool();
  const Json* const names = config.find("architectures");
  if (names != nullptr && names->as_array() != nullptr && !names->as_array()->empty() &&
      names->as_array()->front().as_string() != nullptr)
    facts.architecture = *names->as_array()->front().as_string();
  const Json* const type = config.find("model_type");
  if (type != nullptr && type->as_string() != nullptr) facts.model_type = *type->as_string();
}

bool is_input_embedding(std::string_view key) {
  return std::ranges::find(kInputs, last_of(key)) != kInputs.end();
}

bool is_output_embedding(std::string_view key) {
  return key.ends_with(kBertHead) || std::ranges::find(kOutputs, last_of(key)) != kOutputs.end();
}

std::size_t TiedNames::number_of(const std::string& key) const {
  return *tensor_number(leaves_.at(key).value);
}

std::vector<std::string> TiedNames::group_of(const std::string& key,
                                             std::vector<std::string>& notes) const {
  if (facts_.apart) return {key};
  const std::size_t own = number_of(key);
  const bool embeds = is_input_embedding(key) || is_output_embedding(key);
  std::vector<std::string> group;
  for (const auto& [other, leaf] : leaves_) {
    const std::size_t number = *tensor_number(leaf.value);
    if (other == key || number == own) {
      group.push_back(other);
      continue;
    }
    if (!embeds || facts_.tied == false ||
        !(is_input_embedding(other) || is_output_embedding(other)))
      continue;
    // Two inputs (tables of an encoder and a decoder), or two heads, are one only if the config
    // ties them.
    if (is_output_embedding(key) == is_output_embedding(other) && facts_.tied != true) continue;
    if (!arrays::equal_tensors(base_, own, number)) continue;
    group.push_back(other);
    if (!facts_.tied) {
      notes.push_back(cat(quote(key, 200), " and ", quote(other, 200),
                          " have the same bits and are treated as one tied tensor"));
    }
  }
  return group;
}

std::optional<std::string> TiedNames::embedding_for(const std::vector<std::int64_t>& shape) const {
  if (facts_.tied == false || facts_.apart) return std::nullopt;
  std::optional<std::string> found;
  for (const auto& [key, leaf] : leaves_) {
    if (!is_input_embedding(key)) continue;
    if (base_.index().tensors[number_of(key)].shape != shape) continue;
    if (found && number_of(*found) != number_of(key)) {
      const bool shared = last_of(key) == "shared";
      if (!shared && last_of(*found) != "shared") return std::nullopt;
      if (!shared) continue;
    }
    found = key;
  }
  return found;
}

TiedNames::Head TiedNames::head_of(const std::string& embedding, const std::string& task) const {
  if (facts_.tied == false || facts_.apart || !is_input_embedding(embedding)) return Head::kNone;
  if (!facts_.omits_tied) return Head::kNone;
  for (const auto& [key, leaf] : leaves_) {
    if (is_output_embedding(key)) return Head::kNone;
  }
  std::optional<bool> heads;
  if (task == "CAUSAL_LM" || task == "SEQ_2_SEQ_LM") {
    heads = true;
  } else if (!task.empty()) {
    heads = false;
  } else if (!facts_.architecture.empty()) {
    heads = names_a_head(facts_.architecture, {"ForCausalLM", "LMHeadModel", "ForMaskedLM",
                                               "ForConditionalGeneration", "ForPreTraining"});
  }
  if (!heads) return Head::kUnknown;
  return *heads ? Head::kTied : Head::kNone;
}

std::string TiedNames::head_name() const {
  constexpr std::string_view kBias = "cls.predictions.bias";
  for (const auto& [key, leaf] : leaves_) {
    if (key == kBias || key.ends_with(".cls.predictions.bias"))
      return "cls.predictions.decoder.weight";
  }
  if (facts_.model_type == "whisper") return "proj_out.weight";
  if (facts_.model_type.starts_with("gpt_neox")) return "embed_out.weight";
  return "lm_head.weight";
}

}  // namespace fsdp::formats
