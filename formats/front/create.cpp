// SPDX-License-Identifier: Apache-2.0
#include "formats/front/create.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/dcp/names.h"
#include "formats/families/dcp/output.h"
#include "formats/families/hdf5/output.h"
#include "formats/families/safetensors/output.h"
#include "formats/families/torch/output.h"
#include "formats/families/trainers/framework_output.h"
#include "formats/families/trainers/torch_checkpointing_output.h"
#include "formats/state/content/content.h"

namespace fsdp::formats {
namespace {

struct Suffix {
  std::string_view suffix;
  std::string_view format;
};
constexpr std::array kSuffixes = {
    Suffix{".pt", "pt"},
    Suffix{".pth", "pt"},
    Suffix{".bin", "pt"},
    Suffix{".ckpt", "pt"},
    Suffix{".h5", "hdf5"},
    Suffix{".hdf5", "hdf5"},
    Suffix{".safetensors", "safetensors"},
};

}  // namespace

bool is_torch_dist(std::string_view format) {
  return std::find(kTorchDistFormats.begin(), kTorchDistFormats.end(), format) !=
         kTorchDistFormats.end();
}

std::string torch_dist_layout(std::string_view format, std::string_view source) {
  if (format == kTorchDistFormats.front() && dcp::is_megatron_layout(source))
    return std::string(source);
  const bool item = format == kTorchDistFormats.front() || format == kTorchDistFormats.back();
  return std::string(item ? dcp::kMegatronItemLayout : dcp::kMegatronLayout);
}

std::string format_from_suffix(const std::filesystem::path& destination) {
  const std::string suffix = destination.extension();
  for (const Suffix& known : kSuffixes) {
    if (known.suffix == suffix) return std::string(known.format);
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
  if (format == "pt") return plan_torch_output(source, content, destination, options.output);
  if (format == "dcp" || is_torch_dist(format) || format == "fsdp_dtensor") {
    DcpOutputOptions dcp;
    dcp.world_size = options.world_size;
    if (is_torch_dist(format)) {
      dcp.layout = options.layout.empty() ? torch_dist_layout(format, source.description().layout)
                                          : options.layout;
    }
    if (format == "fsdp_dtensor") dcp.layout = format;
    return plan_dcp_output(source, content, destination, options.output, dcp);
  }
  if (format == "hdf5") return hdf5::plan_hdf5_output(source, content, destination, options.output);
  if (format == "safetensors") {
    if (tensor_number(content)) {
      throw Error(ErrorCode::kUnsupported,
                  source.description().path +
                      ": is a single tensor without a name, but safetensors names every tensor; "
                      "write a .pt or .h5 file, which keeps it as it is");
    }
    return safetensors::plan_output(source, content, destination, options.output,
                                    {options.max_shard_bytes}, options.drop_values);
  }
  if (format == "torch-checkpointing") {
    return torch_checkpointing::plan_output(source, content, destination, options.output,
                                            options.world_size);
  }
  if (is_framework_format(format)) {
    return plan_framework_output(format, source, content, destination,
                                 {options.output, options.world_size, options.drop_values});
  }
  throw Error(ErrorCode::kUsage, "unknown format " + quote(format));
}

}  // namespace fsdp::formats
