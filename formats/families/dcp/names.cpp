// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/names.h"

#include <charconv>

namespace fsdp::formats::dcp {
namespace {

// Returns the number behind `front` at the start of `text`, and moves `text` past it.
std::optional<std::int64_t> take_number(std::string_view& text, std::string_view front) {
  if (!text.starts_with(front)) return std::nullopt;
  text.remove_prefix(front.size());
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || text[0] == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<std::int64_t> rank_of_data_file(std::string_view name) {
  const auto rank = take_number(name, "__");
  return rank && take_number(name, "_") && name == ".distcp" ? rank : std::nullopt;
}

std::optional<std::int64_t> rank_of_local_metadata(std::string_view name) {
  const auto rank = take_number(name, "__");
  return rank && name == ".metadata" ? rank : std::nullopt;
}

std::string_view state_file_of(std::string_view layout) {
  if (layout == "lightning") return kLightningMetaName;
  if (layout == kMegatronLayout) return kMegatronCommonName;
  return {};
}

bool is_megatron_layout(std::string_view layout) {
  return layout == kMegatronLayout || layout == kMegatronItemLayout;
}

bool is_state_file(std::string_view name) {
  return name == kLightningMetaName || name == kMegatronCommonName;
}

std::string data_file_name(std::int64_t rank, std::int64_t number) {
  return "__" + std::to_string(rank) + "_" + std::to_string(number) + ".distcp";
}

}  // namespace fsdp::formats::dcp
