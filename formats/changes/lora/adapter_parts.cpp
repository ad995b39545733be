// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/adapter_parts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/lora/base_names.h"
#include "formats/changes/lora/peft_names.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {
namespace {

using KeyWords = std::vector<std::string_view>;

constexpr std::array<std::string_view, 4> kWrappers = {
    "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"};
constexpr std::array<std::string_view, 5> kMatrices = {"lora_A", "lora_B", "lora_embedding_A",
                                                       "lora_embedding_B", "lora_magnitude_vector"};

// Megatron-Bridge's names, after "adapter.", for the parts of an adapter.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kBridgeParts = {
    {{"linear_in", "lora_A"},
     {"linear_out", "lora_B"},
     {"weight_magnitude", "lora_magnitude_vector"}}};

std::string words_joined(const KeyWords& words, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ".") + std::string(words[i]);
  return text;
}

void drop_wrappers(KeyWords& words) {
  std::erase_if(words, [](std::string_view word) {
    return std::ranges::find(kWrappers, word) != kWrappers.end();
  });
  for (;;) {
    if (words.size() > 2 && words[0] == "base_model" && words[1] == "model") {
      words.erase(words.begin(), words.begin() + 2);
    } else if (words.size() > 1 && words[0] == "module") {
      words.erase(words.begin());
    } else {
      return;
    }
  }
}

// Translates the names that torchtune (lora_a, lora_b) and Megatron-Bridge give to the parts of
// LoRA into peft's names.
void translate(KeyWords& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "lora_a") words[i] = "lora_A";
    if (words[i] == "lora_b") words[i] = "lora_B";
    if (words[i] == "to_wrap") words[i] = "base_layer";
    if (words[i] != "adapter" || i + 1 == words.size()) continue;
    const auto part = std::ranges::find_if(
        kBridgeParts, [&](const auto& one) { return one.first == words[i + 1]; });
    if (part == kBridgeParts.end()) continue;
    words[i + 1] = part->second;
    words.erase(words.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::size_t position_of(const KeyWords& words, std::string_view word) {
  return static_cast<std::size_t>(std::ranges::find(words, word) - words.begin());
}

// The words of a key, and the positions of those that peft adds; a position past the end: not
// present.
struct SplitKey {
  KeyWords words;
  std::size_t lora = 0;    // lora_A and the like
  std::size_t saved = 0;   // modules_to_save
  std::size_t origin = 0;  // original_module
  std::size_t token = 0;   // token_adapter
};

SplitKey split_key(std::string_view key) {
  SplitKey found;
  found.words = words_of(key);
  drop_wrappers(found.words);
  translate(found.words);
  const auto at = std::ranges::find_if(
      found.words, [](std::string_view word) { return word.starts_with("lora_"); });
  found.lora = static_cast<std::size_t>(at - found.words.begin());
  found.saved = position_of(found.words, "modules_to_save");
  found.origin = position_of(found.words, "original_module");
  found.token = position_of(found.words, "token_adapter");
  return found;
}

class PartReader {
 public:
  PartReader(const std::string& path, const Index& index) : path_(path), index_(index) {}

  AdapterParts run(const std::vector<AdapterTensor>& tensors) {
    for (const AdapterTensor& tensor : tensors) {
      key_ = &tensor.key;
      number_ = tensor.number;
      read();
    }
    for (auto& [place, pair] : pairs_) {
      if (!pair.a || !pair.b) {
        throw Error(ErrorCode::kMismatch,
                    cat(path_, ": ", quote(pair.module, 200),
                        pair.a ? " has matrix A without B" : " has matrix B without A"));
      }
      parts_.pairs.push_back(pair);
    }
    std::ranges::stable_sort(parts_.pairs, [](const AdapterPair& a, const AdapterPair& b) {
      return a.embedding && !b.embedding;
    });
    if (parts_.pairs.empty() && parts_.whole.empty() && parts_.tokens.empty())
      throw Error(ErrorCode::kMismatch, path_ + ": holds no tensor of an adapter");
    return std::move(parts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::kUnsupported, cat(path_, ": ", quote(*key_, 200), why));
  }

  void read() {
    const SplitKey key = split_key(*key_);
    const std::size_t end = key.words.size();
    if (key.token < end) return read_token(key);
    if (key.origin < end) return;  // the base's own, beside modules_to_save
    if (!is_floating(index_.tensors[number_].dtype)) refuse(" is not a tensor of floating numbers");
    if (key.lora < end) return read_matrix(key);
    read_whole(key);
  }

  // Takes the name of the adapter, which follows the matrices in the state dict of a model.
  void see_adapter(std::string_view name) {
    if (!name_) name_ = name;
    if (*name_ == name) return;
    throw Error(ErrorCode::kMismatch, cat(path_, ": holds two adapters, ", quote(*name_, 200),
                                          " and ", quote(name, 200)));
  }

  void read_matrix(const SplitKey& key) {
    const std::string_view what = key.words[key.lora];
    KeyWords rest(key.words.begin() + static_cast<std::ptrdiff_t>(key.lora) + 1, key.words.end());
    if (std::ranges::find(kMatrices, what) == kMatrices.end())
      refuse(" is of a kind of LoRA that is not merged");
    const bool parameter = what.starts_with("lora_embedding");
    const bool bias = !rest.empty() && rest.back() == "bias" && what == "lora_B";
    if (!parameter && !rest.empty() && (rest.back() == "weight" || bias)) {
      rest.pop_back();
    } else if (!parameter && what != "lora_magnitude_vector") {
      refuse(" is of a kind of LoRA that is not merged");
    }
    if (rest.size() > 1) refuse(" is of a kind of LoRA that is not merged");
    if (!rest.empty()) see_adapter(rest[0]);
    AdapterPair& pair = pair_of(key);
    auto& place = what == "lora_magnitude_vector" ? pair.magnitude
                  : bias                          ? pair.bias
                  : what.ends_with('A')           ? pair.a
                                                  : pair.b;
    if (place) refuse(" occurs twice");
    place = number_;
    pair.embedding = pair.embedding || parameter;
  }

  AdapterPair& pair_of(const SplitKey& key) {
    std::size_t end = key.lora;
    std::size_t depth = 0;
    while (end != 0 && key.words[end - 1] == "base_layer") {
      --end;
      ++depth;
    }
    KeyWords module(key.words.begin(), key.words.begin() + static_cast<std::ptrdiff_t>(end));
    std::erase(module, "base_layer");
    const std::string name = words_joined(module, module.size());
    AdapterPair& pair = pairs_[{name, depth}];
    pair.module = name;
    pair.depth = depth;
    return pair;
  }

  void read_token(const SplitKey& key) {
    const std::size_t end = key.words.size();
    const std::string module = words_joined(key.words, key.token);
    if (key.token + 1 == end) refuse(" is not known");
    const std::string_view what = key.words[key.token + 1];
    if (what == "base_layer") {
      KeyWords words = key.words;
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(key.token),
                  words.begin() + static_cast<std::ptrdiff_t>(key.token) + 2);
      return put_whole(words_joined(words, words.size()), true);
    }
    if (what != "trainable_tokens_delta") return;  // the rows before, and their positions
    if (key.token + 3 < end) refuse(" is not known");
    if (key.token + 2 < end) see_adapter(key.words[key.token + 2]);
    if (!is_floating(index_.tensors[number_].dtype)) refuse(" is not a tensor of floating numbers");
    if (!parts_.tokens.emplace(module, number_).second) refuse(" occurs twice");
  }

  void read_whole(const SplitKey& key) {
    KeyWords words = key.words;
    const bool saved = key.saved < words.size();
    if (saved) {
      if (key.saved + 1 >= words.size()) refuse(" is not known");
      // In files that peft did not write, the adapter's name follows modules_to_save.
      const std::ptrdiff_t named = key.saved + 2 < words.size() ? 1 : 0;
      if (named != 0) see_adapter(words[key.saved + 1]);
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(key.saved),
                  words.begin() + static_cast<std::ptrdiff_t>(key.saved) + 1 + named);
    }
    const bool wrapped = std::erase(words, "base_layer") != 0;
    put_whole(words_joined(words, words.size()), wrapped, saved);
  }

  void put_whole(std::string name, bool of_base, bool saved = false) {
    if (!parts_.whole.emplace(std::move(name), AdapterWhole{number_, of_base, saved}).second)
      refuse(" occurs twice");
  }

  const std::string& path_;
  const Index& index_;
  const std::string* key_ = nullptr;
  std::size_t number_ = 0;
  std::optional<std::string> name_;
  std::map<std::pair<std::string, std::size_t>, AdapterPair> pairs_;
  AdapterParts parts_;
};

}  // namespace

std::string without_wrappers(std::string_view key) {
  KeyWords words = words_of(key);
  drop_wrappers(words);
  return words_joined(words, words.size());
}

bool is_adapter_key(std::string_view key) {
  const SplitKey found = split_key(key);
  const std::size_t end = found.words.size();
  if (found.token < end) {
    return found.token + 1 < end && found.token + 3 >= end &&
           found.words[found.token + 1] == "trainable_tokens_delta";
  }
  const bool weight = found.words.back() == "weight" || found.words.back() == "bias";
  if (found.saved < end) return weight && found.saved + 2 < end;
  if (found.lora == end || found.lora + 3 < end) return false;
  const std::string_view what = found.words[found.lora];
  if (std::ranges::find(kMatrices, what) == kMatrices.end()) return false;
  if (what == "lora_A" || what == "lora_B") return weight;
  return what == "lora_magnitude_vector" || found.lora + 2 >= end;
}

std::vector<AdapterTensor> peft_tensors(const AdapterParts& parts) {
  std::vector<AdapterTensor> tensors;
  const auto put = [&](std::string key, std::optional<std::size_t> number) {
    if (number) tensors.push_back({std::move(key), *number});
  };
  for (const AdapterPair& pair : parts.pairs) {
    std::string module = pair.module;
    for (std::size_t d = 0; d < pair.depth; ++d) module += ".base_layer";
    const PeftKeys keys = peft_keys(module, pair.embedding);
    put(keys.a, pair.a);
    put(keys.b, pair.b);
    put(peft_whole_key(module + ".lora_B.bias"), pair.bias);
    put(peft_whole_key(module + ".lora_magnitude_vector"), pair.magnitude);
  }
  for (const auto& [name, whole] : parts.whole) put(peft_whole_key(name), whole.number);
  for (const auto& [module, number] : parts.tokens)
    put(peft_whole_key(module + ".token_adapter.trainable_tokens_delta"), number);
  std::ranges::sort(tensors,
                    [](const AdapterTensor& a, const AdapterTensor& b) { return a.key < b.key; });
  return tensors;
}

AdapterParts adapter_parts(const std::string& path, const Index& index,
                           const std::vector<AdapterTensor>& tensors) {
  return PartReader(path, index).run(tensors);
}

}  // namespace fsdp::formats
