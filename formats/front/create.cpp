// SPDX-License-Identifier: Apache-2.0
#include "formats/front/create.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {

namespace {

// Throws if the content has a tensor of a dtype that PyTorch lacks.
void refuse_other_dtypes(const Checkpoint& source, const Value& content,
                         const std::string& format) {
  const auto& tensors = source.index().tensors;
  if (std::ranges::all_of(tensors, is_torch_dtype, &TensorEntry::dtype)) return;
  for (const Leaf& leaf : leaves_of(content)) {
    const auto number = tensor_number(leaf.value);
    if (!number || is_torch_dtype(tensors[*number].dtype)) continue;
    throw Error(ErrorCode::kUnsupported,
                cat(source.description().path, ": ", quote(leaf.key, 200), " is ",
                    torch_name(tensors[*number].dtype), ", which PyTorch lacks, and so does ",
                    format, "; --to safetensors keeps it, --exclude leaves it out"));
  }
}

}  // namespace

std::string format_from_suffix(const std::filesystem::path& destination) {
  const std::string suffix = destination.extension();
  for (const Format& format : format_table()) {
    for (const OutputFormat& output : format.outputs) {
      if (std::ranges::find(output.suffixes, suffix) != output.suffixes.end())
        return std::string(output.word);
    }
  }
  throw Error(ErrorCode::kUsage,
              cat(escape(destination.native()), ": the suffix ", quote(suffix),
                  " does not name a format; use .pt, .safetensors or .h5"),
              {Remedy::kNameFormat});
}

std::unique_ptr<Output> plan_output(const std::string& format, const Checkpoint& source,
                                    const Value& content, const std::filesystem::path& destination,
                                    const CreateOptions& options) {
  if (options.max_shard_bytes && format != "safetensors") {
    throw Error(ErrorCode::kUsage,
                cat("only safetensors outputs are split into shards; the format is ", format));
  }
  const OutputFormat* const output = output_format(format);
  if (output == nullptr) throw Error(ErrorCode::kUsage, "unknown format " + quote(format));
  if (format != "safetensors") refuse_other_dtypes(source, content, format);
  return output->plan({format, source, content, destination, options});
}

}  // namespace fsdp::formats
