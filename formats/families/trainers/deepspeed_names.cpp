// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/deepspeed_names.h"

#include <algorithm>
#include <charconv>

namespace fsdp::formats::deepspeed {
namespace {

constexpr std::uint64_t kMaxTagBytes = 255;  // a tag is the name of a folder

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<StateFile> state_file(std::string_view name) {
  StateFile file;
  file.name = name;
  file.optimizer = name.ends_with("_optim_states.pt");
  // Files of a pipeline's layers have a hyphen there.
  if (!file.optimizer && !name.ends_with("_model_states.pt") && !name.ends_with("-model_states.pt"))
    return std::nullopt;
  std::string_view rest = name.substr(0, name.size() - std::string_view("_optim_states.pt").size());
  if (!take(rest, "bf16_")) take(rest, "fp16_");
  if (take(rest, "zero_pp_rank_")) {
    file.rank = take_number(rest);
    if (!file.rank || !take(rest, "_")) file.other = true;
  }
  const auto model_rank = take(rest, "mp_rank_") ? take_number(rest) : std::nullopt;
  file.model_rank = model_rank.value_or(0);
  file.other = file.other || !model_rank || !rest.empty();
  return file;
}

std::vector<StateFile> state_files(const Folder& folder) {
  std::vector<StateFile> files;
  for (const std::string& name : folder.list()) {
    if (auto file = state_file(name)) files.push_back(std::move(*file));
  }
  std::ranges::stable_sort(files, [](const StateFile& a, const StateFile& b) {
    return a.rank.value_or(0) < b.rank.value_or(0);
  });
  return files;
}

std::vector<std::string> beside_tags(const Folder& folder) {
  std::vector<std::string> names;
  for (const std::string& name : folder.list()) {
    const bool known = name == "latest" || name == "latest_universal" ||
                       (name.starts_with("zero_to_") && name.ends_with(".py"));
    const bool tag =
        folder.is_folder(name) && !state_files(*folder_at(folder.path() / name)).empty();
    if (!known && !tag) names.push_back(name);
  }
  return names;
}

std::optional<std::string> named_folder(const Folder& folder, const std::string& file) {
  if (folder.is_folder(file)) return std::nullopt;
  const auto latest = folder.open_member_if_present(file);
  if (latest == nullptr || latest->size() > kMaxTagBytes) return std::nullopt;
  const std::vector<std::byte> bytes = read_bytes(*latest, 0, latest->size());
  std::string tag(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' '))
    tag.pop_back();
  // The tag must be a name within the folder.
  if (tag.empty() || tag == "." || tag == ".." || tag.find('/') != std::string::npos ||
      tag.find('\0') != std::string::npos || !folder.is_folder(tag)) {
    return std::nullopt;
  }
  return tag;
}

std::optional<std::filesystem::path> tag_folder(const Listing& folder) {
  const auto is_model = [](const std::string& name) {
    const auto file = state_file(name);
    return file && (!file->other || name.starts_with("layer_"));
  };
  if (folder.any(is_model)) return folder.path();
  const auto tag = named_folder(*folder.folder, "latest");
  if (!tag || !Listing(folder.path() / *tag).any(is_model)) return std::nullopt;
  return folder.path() / *tag;
}

}  // namespace fsdp::formats::deepspeed
