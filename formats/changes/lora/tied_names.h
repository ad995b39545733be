// SPDX-License-Identifier: Apache-2.0
// Finds weights of a base that are one tensor, above all an input embedding and a language model's
// head.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

// What is known of the base beside its tensors.
struct BaseFacts {
  std::optional<bool> tied;  // tie_word_embeddings of its config.json
  std::string architecture;  // "LlamaForCausalLM"; empty if it is not known
  std::string model_type;
  bool omits_tied = false;  // its format writes a tied tensor under one name alone
  bool apart = false;       // the user says that no names are tied
};

// Reads tie_word_embeddings, architectures and model_type of a config.json.
void read_base_facts(const Json& config, BaseFacts& facts);

// Return whether the name is that of the weight of an input embedding, or of a language model's
// head, in models of transformers.
bool is_input_embedding(std::string_view key);
bool is_output_embedding(std::string_view key);

class TiedNames {
 public:
  // Lifetime: all outlive it.
  TiedNames(const Checkpoint& base, const std::map<std::string, Leaf>& leaves,
            const BaseFacts& facts)
      : base_(base), leaves_(leaves), facts_(facts) {}

  // Returns the keys that are one tensor with `key`, in order and with `key` itself: those of one
  // storage, and an embedding and a head with the same bits, unless the config says that they are
  // two.  Adds a line to `notes` if only the bits tell.
  std::vector<std::string> group_of(const std::string& key, std::vector<std::string>& notes) const;

  // Returns the input embedding that is one tensor with a head of this shape, which the base lacks;
  // nothing if there is none, if the config says that there are two, or if several may be meant.
  std::optional<std::string> embedding_for(const std::vector<std::int64_t>& shape) const;

  enum class Head : std::uint8_t { kNone, kTied, kUnknown };
  // Returns whether the model has a head that is one tensor with this input embedding, while the
  // base has no key of a head.  `task`: the adapter's, such as "CAUSAL_LM"; may be empty.
  Head head_of(const std::string& embedding, const std::string& task) const;
  // Returns the name of that head.
  std::string head_name() const;

 private:
  std::size_t number_of(const std::string& key) const;

  const Checkpoint& base_;
  const std::map<std::string, Leaf>& leaves_;
  const BaseFacts& facts_;
};

}  // namespace fsdp::formats
