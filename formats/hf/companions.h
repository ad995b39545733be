// SPDX-License-Identifier: Apache-2.0
// The files that stand beside the weights of a Hugging Face model: its configuration, tokenizer and
// chat templates.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/dtype.h"
#include "formats/base/json.h"
#include "formats/files/file.h"

namespace fsdp::formats::hf {

struct Companion {
  std::string name;
  std::shared_ptr<const File> file;  // where it is copied from
  std::optional<std::string> text;   // what is written instead
};

struct Companions {
  std::optional<Json> config;  // of config.json
  std::string config_name;     // its path, for messages
  std::vector<Companion> files;
};

// Returns whether a model's folder holds a file of that name beside its weights.  Code is not
// among them.
bool is_model_companion(std::string_view name);

// Opens the companions of a folder; of a file, it is taken for config.json alone.
// A link in a folder stays in it, except into the blobs of the hub's cache.
// Throws: kNotFound, kJson, kLimitSize for a file that is larger than any such file, kPathEscape,
// kIo.
Companions open_companions(const std::filesystem::path& path);

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
