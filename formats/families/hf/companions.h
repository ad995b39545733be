// SPDX-License-Identifier: Apache-2.0
// The files that stand beside the weights of a Hugging Face model: its configuration, tokenizer and
// chat templates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/files/file.h"

namespace fsdp::formats::hf {

inline constexpr const char* kConfigFile = "config.json";

struct Companion {
  std::string name;
  std::string folder;                // the folder that it lies in, as the caller named it
  std::shared_ptr<const File> file;  // the source of the copy
  std::optional<std::string> text;   // written instead of the bytes of `file`
};

struct Companions {
  std::optional<Json> config;  // of config.json
  std::string config_name;     // its path, for messages
  bool found = false;          // by find_companions; false: named by the user
  std::vector<Companion> files;
};

// Returns whether a model's folder may hold a file of this name beside its weights.  Code is not a
// companion.
bool is_model_companion(std::string_view name);

// Returns whether it is one of the files of a tokenizer and its templates.
bool is_tokenizer_file(std::string_view name);

// Opens the companions in a folder.  A `path` that is a file is taken as config.json, the only
// companion.  A link must not lead out of the folder, except into the blobs of the hub's cache.
// Throws: kNotFound, kJson, kLimitSize (a file larger than any companion), kPathEscape, kIo.
Companions open_companions(const std::filesystem::path& path);

// Opens the files of a tokenizer that a folder has.  Throws: like open_companions.
std::vector<Companion> open_tokenizer(const std::filesystem::path& folder);

// Returns `config` with `rows` as its vocab_size.  A vocab_size inside a member (text_config,
// decoder) becomes `rows` too if it is `old_rows`, or if the level above has none.
Json with_vocabulary(const Json& config, std::int64_t old_rows, std::int64_t rows);

// Sets the dtype in config.json, in each member that names one (dtype, torch_dtype).  Returns the
// old name if it was another one.
std::optional<std::string> set_config_dtype(Companions& companions, DType dtype);

// Removes quantization_config from config.json if its method is fp8 or mxfp4, or if it is to go
// whatever its method is: readers would refuse weights that are no longer quantized, or misread
// them.  Returns the method if it was removed.
std::optional<std::string> drop_quantization(Companions& companions, bool any_method = false);

// Sets quantization_config in config.json, if there is one.
void set_quantization(Companions& companions, Json about);

// Makes config.json say that the input embedding and the head are two tensors.  Returns whether it
// said that they are one.
bool untie(Companions& companions);

// Finds the configuration and tokenizer that a training run keeps for the model of a checkpoint.

// Looks in the folder of the checkpoint (a file's own folder), in its parent, and in the parent of
// that, the run's; in each also in the subfolders "huggingface" (written by verl) and "tokenizer"
// (written by NeMo-RL).  Takes the first config.json that has model_type, architectures or
// tie_word_embeddings, with the companions beside it.  If these have no tokenizer, also takes the
// first tokenizer in the other folders.  Sets `found`; returns empty companions if there is no such
// config.json.  In a store looks only in the folder itself.
// Throws: what open_companions throws, except kJson.
Companions find_companions(const std::filesystem::path& checkpoint);

}  // namespace fsdp::formats::hf
