// SPDX-License-Identifier: Apache-2.0
// Any bytes read as JSON, as the index of several safetensors files and as the offsets of a rank's
// file.  Accepted input is written again and must read back as the same.
#include <cstdlib>
#include <string>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/families/safetensors/index.h"

namespace fsdp::formats {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void fuzz_json(std::string_view text) {
  Json json;
  try {
    json = parse_json(text);
  } catch (const Error& e) {
    require(e.code() == ErrorCode::kJson || e.code() == ErrorCode::kJsonDepth);
    return;
  }
  const std::string written = to_text(json);
  require(to_text(parse_json(written)) == written);
  require(to_text(parse_json(to_text(json, 2))) == written);
}

void fuzz_index(std::string_view text) {
  safetensors::FileIndex index;
  try {
    index = safetensors::parse_index(text);
  } catch (const Error&) {
    return;
  }
  const std::string written = safetensors::make_index(index);
  const safetensors::FileIndex again = safetensors::parse_index(written);
  require(safetensors::make_index(again) == written &&
          again.weight_map.size() == index.weight_map.size());
  require(safetensors::files_of(index).size() <= index.weight_map.size());
}

void fuzz_offsets(std::string_view text) {
  safetensors::Header header;
  header.tensors = {{"w", DType::kFloat32, {2, 3}, 0, 24}, {"s", DType::kFloat32, {}, 24, 4}};
  header.metadata = {{"DCP_SHARDING_INFO", std::string(text)}};
  try {
    const auto offsets = safetensors::saved_offsets(header);
    require(offsets && offsets->size() == 2 && offsets->front().offsets.size() == 2);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  fsdp::formats::fuzz_json(text);
  fsdp::formats::fuzz_index(text);
  fsdp::formats::fuzz_offsets(text);
  return 0;
}
