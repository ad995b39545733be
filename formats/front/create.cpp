// SPDX-License-Identifier: Apache-2.0
#include "formats/front/create.h"

#include <algorithm>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {

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
  return output->plan({format, source, content, destination, options});
}

}  // namespace fsdp::formats
