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
  std::string folder;                // that it lies in, as it was named
  std::shared_ptr<const File> file;  // where it is copied from
  std::optional<std::string> text;   // what is written instead
};

struct Companions {
  std::optional<Json> config;  // of config.json
  std::string config_name;     // its path, for messages
  bool found = false;          // nobody named them (companion_search.h)
  std::vector<Companion> files;
};

// Returns whether a model's folder holds a file of that name beside its weights.  Code is not
// among them.
bool is_model_companion(std::string_view name);

// Returns whether it is one of the files of a tokenizer and its templates.
bool is_tokenizer_file(std::string_view name);

// Opens the companions of a folder; of a file, it is taken for config.json alone.
// A link in a folder stays in it, except into the blobs of the hub's cache.
// Throws: kNotFound, kJson, kLimitSize for a file that is larger than any such file, kPathEscape,
// kIo.
Companions open_companions(const std::filesystem::path& path);

// Opens the files of a tokenizer that a folder has.  Throws: like open_companions.
std::vector<Companion> open_tokenizer(const std::filesystem::path& folder);

// Returns a configuration with another vocabulary: `rows` as its vocab_size, and as each other one
// inside it (text_config, decoder) that is `old_rows`.
Json with_vocabulary(const Json& config, std::int64_t old_rows, std::int64_t rows);

// Lets config.json name this dtype, in the member that it has for it.  Returns the old name if it
// was another one.
std::optional<std::string> set_config_dtype(Companions& companions, DType dtype);

// Takes quantization_config out of config.json if its method is fp8 or mxfp4: weights that are not
// quantized any more would be refused, or read as if they were.  Returns the method if there was
// one.
std::optional<std::string> drop_quantization(Companions& companions);

// Lets config.json say that the input embedding and the head are two tensors.  Returns whether it
// said that they are one.
bool untie(Companions& companions);

}  // namespace fsdp::formats::hf
