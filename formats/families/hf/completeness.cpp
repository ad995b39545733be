// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/completeness.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::hf {
namespace {

// No model has as many layers or experts; a larger number is part of a name.
constexpr std::size_t kMaxNumbers = 65536;

// The most names that are listed: a hostile count of layers or experts would ask for millions.
constexpr std::size_t kMaxMissing = 1000;

// A name split at its first number between dots: model.layers.|3|.mlp.up_proj.weight.
struct Numbered {
  std::string front;
  std::size_t number;
  std::string back;
};

std::optional<Numbered> numbered(const std::string& name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.size() <= 5 && (part == "0" || part[0] != '0') &&
        std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) {
      return Numbered{name.substr(0, begin), std::stoul(part), name.substr(end)};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

// The most kinds of layers that any model has; with more, layers are not compared with each other.
constexpr std::size_t kMaxKinds = 16;

using Layers = std::map<std::size_t, std::set<std::string>>;  // the rests of names, by layer number

std::optional<std::size_t> config_number(const Json* config,
                                         std::initializer_list<const char*> names) {
  if (config == nullptr) return std::nullopt;
  for (const char* name : names) {
    const Json* member = config->find(name);
    const std::int64_t* number = member == nullptr ? nullptr : member->as_int();
    if (number != nullptr && *number > 0 && static_cast<std::uint64_t>(*number) <= kMaxNumbers)
      return static_cast<std::size_t>(*number);
  }
  return std::nullopt;
}

class Search {
 public:
  Search(std::span<const std::string> names, const Json* config, std::size_t most)
      : config_(config), most_(most) {
    for (const auto& [front, layers] : stacks_of(names)) {
      std::optional<std::size_t> count;
      if (front == "model.layers." || front == "transformer.h.")
        count = config_number(config_, {"num_hidden_layers", "n_layer"});
      check_stack(front, layers, count);
      for (const auto& [number, backs] : layers) check_experts(cat(front, number), backs);
    }
  }

  std::vector<std::string> take() { return std::move(missing_); }

 private:
  template <typename Names>
  static std::map<std::string, Layers> stacks_of(const Names& names) {
    std::map<std::string, Layers> stacks;
    for (const std::string& name : names) {
      if (auto found = numbered(name))
        stacks[found->front][found->number].insert(std::move(found->back));
    }
    return stacks;
  }

  void check_experts(const std::string& layer, const std::set<std::string>& backs) {
    for (const auto& [front, experts] : stacks_of(backs)) {
      if (!front.ends_with(".experts.")) continue;
      check_stack(layer + front, experts,
                  config_number(config_, {"num_experts", "num_local_experts", "n_routed_experts"}));
    }
  }

  void check_stack(const std::string& front, const Layers& layers,
                   std::optional<std::size_t> expected) {
    if (!expected && are_single_modules(layers)) return;
    const std::size_t count = std::max(expected.value_or(0), layers.rbegin()->first + 1);
    if (count > kMaxNumbers) return;
    const std::set<std::string>& like = layers.begin()->second;
    // The distinct sets of names: layers are of few kinds.
    std::set<std::set<std::string>> kinds;
    for (const auto& [number, backs] : layers) {
      if (kinds.size() > kMaxKinds) break;
      kinds.insert(backs);
    }
    if (kinds.size() > kMaxKinds) kinds.clear();
    for (std::size_t number = 0; number < count && missing_.size() < kMaxMissing; ++number) {
      const auto found = layers.find(number);
      if (found == layers.end()) {
        add_some(front, number, like);
        continue;
      }
      const std::set<std::string>* fuller = fuller_kind(kinds, found->second);
      if (fuller == nullptr) continue;
      std::set<std::string> lacks;
      std::set_difference(fuller->begin(), fuller->end(), found->second.begin(),
                          found->second.end(), std::inserter(lacks, lacks.end()));
      add_some(front, number, lacks);
    }
  }

  // Returns whether each layer is one module, such as a Linear or a norm.  Activations between them
  // have no names.
  static bool are_single_modules(const Layers& layers) {
    return std::ranges::all_of(layers, [](const auto& layer) {
      return std::ranges::all_of(layer.second, [](const std::string& back) {
        return back.find('.', 1) == std::string::npos;
      });
    });
  }

  // Returns the largest kind that has all these names and more; nullptr: there is none.
  static const std::set<std::string>* fuller_kind(const std::set<std::set<std::string>>& kinds,
                                                  const std::set<std::string>& backs) {
    const std::set<std::string>* fuller = nullptr;
    for (const std::set<std::string>& kind : kinds) {
      if (kind.size() > backs.size() && (fuller == nullptr || kind.size() > fuller->size()) &&
          std::includes(kind.begin(), kind.end(), backs.begin(), backs.end()))
        fuller = &kind;
    }
    return fuller;
  }

  void add_some(const std::string& front, std::size_t number, const std::set<std::string>& backs) {
    std::size_t added = 0;
    for (const std::string& back : backs) {
      if (added++ == most_) return;
      missing_.push_back(cat(front, number, back));
    }
  }

  const Json* config_;
  std::size_t most_;
  std::vector<std::string> missing_;
};

}  // namespace

bool is_embedding(const std::string& name) {
  return name == "model.embed_tokens.weight" || name == "transformer.wte.weight";
}

std::vector<std::string> missing_names(std::span<const std::string> names, const Json* config,
                                       std::size_t most) {
  std::vector<std::string> missing = Search(names, config, most).take();
  const Json* tied = config == nullptr ? nullptr : config->find("tie_word_embeddings");
  const bool apart = tied != nullptr && tied->as_bool() != nullptr && !*tied->as_bool();
  if (apart && std::ranges::any_of(names, is_embedding) &&
      std::ranges::find(names, kHead) == names.end())
    missing.emplace_back(kHead);
  return missing;
}

std::string embedding_contradiction(
    std::span<const std::pair<std::string, std::vector<std::int64_t>>> shapes, const Json& config) {
  const auto hidden = config_number(&config, {"hidden_size", "n_embd"});
  for (const auto& [name, shape] : shapes) {
    if ((!is_embedding(name) && name != kHead) || shape.size() != 2) continue;
    const Json* rows = config.find("vocab_size");
    const std::int64_t* expected = rows == nullptr ? nullptr : rows->as_int();
    if (expected != nullptr && shape[0] != *expected) {
      return cat(quote(name, 200), " ", shape_text(shape), " has ", shape[0],
                 " rows, and vocab_size is ", *expected);
    }
    if (hidden && shape[1] != static_cast<std::int64_t>(*hidden)) {
      return cat(quote(name, 200), " ", shape_text(shape), " has ", shape[1],
                 " columns, and the hidden size is ", *hidden);
    }
  }
  return {};
}

}  // namespace fsdp::formats::hf
