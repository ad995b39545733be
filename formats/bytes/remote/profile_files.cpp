// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/profile_files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/headers.h"
#include "formats/bytes/store/small_file.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostFileBytes = std::size_t{4} << 20U;

// Removes a comment: "#" or ";" after a blank.  Without the blank it belongs to the value, such as
// a key.
std::string_view without_comment(std::string_view value) {
  for (std::size_t i = 1; i < value.size(); ++i) {
    const bool blank = value[i - 1] == ' ' || value[i - 1] == '\t';
    if (blank && (value[i] == '#' || value[i] == ';')) return trimmed(value.substr(0, i));
  }
  return value;
}

// "[ profile  x ]" -> "profile x".
std::string section_name(std::string_view line) {
  const std::size_t end = line.find(']');
  if (end == std::string_view::npos) return {};
  std::string name;
  for (const char c : trimmed(line.substr(1, end - 1))) {
    const bool blank = c == ' ' || c == '\t';
    if (!blank) {
      name += c;
    } else if (name.back() != ' ') {
      name += ' ';
    }
  }
  return name;
}

fs::path file_of(const char* variable, const char* name) {
  const std::string named = environment_value(variable);
  if (!named.empty() && !named.starts_with("~/")) return named;
  const std::string home = environment_value("HOME");
  if (home.empty()) return {};
  return fs::path(home) / (named.empty() ? std::string(".aws/") + name : named.substr(2));
}

Secret text_of_file(const fs::path& path) {
  if (path.empty()) return {};
  std::string text = read_small_file(path, kMostFileBytes + 1).value_or("");
  if (text.size() > kMostFileBytes) {
    throw Error(ErrorCode::kUsage, escape(path.native()), ": has more than ",
                human_bytes(kMostFileBytes), ": not a file of profiles");
  }
  return Secret(std::move(text));
}

}  // namespace

std::string environment_value(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets any
  return value == nullptr ? std::string() : std::string(value);
}

std::string Profile::find(const std::string& setting) const {
  const auto at = values_.find(setting);
  return at == values_.end() ? std::string() : at->second.reveal();
}

Secret Profile::secret(const std::string& setting) const {
  const auto at = values_.find(setting);
  return at == values_.end() ? Secret() : at->second;
}

void Profile::add(std::string_view text, bool in_config, const std::string& path) {
  // The members of "services" sections, to which a profile refers by its setting "services".
  std::map<std::string, std::map<std::string, std::string>> services;
  enum class In { kNothing, kOurs, kServices } in = In::kNothing;
  std::string section;
  std::string outer;  // the setting whose own settings follow
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    const std::string_view words = trimmed(line);
    if (words.empty() || words[0] == '#' || words[0] == ';') continue;
    if (words[0] == '[') {
      section = section_name(words);
      outer.clear();
      const bool ours = section == (in_config && name_ != "default" ? "profile " + name_ : name_) ||
                        (in_config && name_ == "default" && section == "profile default");
      in = ours ? In::kOurs : section.starts_with("services ") ? In::kServices : In::kNothing;
      exists_ = exists_ || ours;
      continue;
    }
    const bool nested = line[0] == ' ' || line[0] == '\t';
    const std::size_t equals = words.find('=');
    if (equals == std::string_view::npos || equals == 0 || section.empty()) {
      // Skips a value's continuation line: no setting that is used here has one.
      if (nested && !section.empty()) continue;
      // The line itself may hold a key.
      throw Error(ErrorCode::kUsage, escape(path), ": line ", number,
                  " is neither \"[section]\" nor \"name = value\"");
    }
    std::string name = lower_case(trimmed(words.substr(0, equals)));
    const std::string_view value = without_comment(trimmed(words.substr(equals + 1)));
    if (!nested) outer = value.empty() ? name : std::string();
    if (nested && outer.empty()) continue;
    if (nested) name = cat(outer, ".", name);
    if (value.empty()) continue;
    if (in == In::kOurs) values_.try_emplace(name, Secret(std::string(value)));
    if (in == In::kServices) services[section.substr(9)].try_emplace(name, value);
  }
  for (const auto& [name, value] : services[find("services")])
    values_.try_emplace(name, Secret(value));
}

Profile read_profile(const std::string& name) {
  Profile profile(name);
  // Keys in the credentials file take precedence over those in the config file.
  const fs::path credentials = file_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  profile.add(text_of_file(credentials).reveal(), false, credentials.native());
  const fs::path config = file_of("AWS_CONFIG_FILE", "config");
  profile.add(text_of_file(config).reveal(), true, config.native());
  return profile;
}

Profile chosen_profile() {
  std::string name = environment_value("AWS_PROFILE");
  if (name.empty()) name = environment_value("AWS_DEFAULT_PROFILE");
  const bool named = !name.empty();
  Profile profile = read_profile(named ? name : "default");
  if (named && !profile.exists()) {
    throw Error(ErrorCode::kUsage, "AWS_PROFILE is ", quote(name),
                ", but neither ~/.aws/config nor ~/.aws/credentials (or the "
                "files that replace them) has a profile of that name");
  }
  return profile;
}

}  // namespace fsdp::formats
