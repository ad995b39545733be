// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/megatron.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/families/dcp/names.h"

namespace fsdp::formats::dcp {
namespace {

// Enough for four short members.
constexpr std::uint64_t kMaxMetadataJsonBytes = 64U << 10U;
constexpr std::string_view kBackend = "torch_dist";
constexpr std::string_view kSharded = "sharded_backend";
constexpr std::string_view kShardedVersion = "sharded_backend_version";

// The members of metadata.json after the first, with their only known values as JSON text.
struct Member {
  std::string_view name;
  std::string_view value;
  bool of_file;  // says that the common state is a file
};
constexpr std::array<Member, 3> kMembers = {{
    {kShardedVersion, "1", false},
    {"common_backend", "\"torch\"", true},
    {"common_backend_version", "1", true},
}};
// Limit of the bytes of a value of metadata.json in messages.
constexpr std::size_t kMaxShown = 80;

Finding found(ErrorCode code, std::string message, Finding::Severity severity,
              std::string_view file = kMegatronMetadataName) {
  return {
      .code = code, .message = std::move(message), .file = std::string(file), .severity = severity};
}

// Warns of members that no version writes with these values.  No damage: Megatron-Core 0.17 and
// later read only the first member.
void check_members(const Json& json, MegatronFolder& result) {
  const auto warn = [&](std::string message) {
    result.findings.push_back(
        found(ErrorCode::kVersion, std::move(message), Finding::Severity::kWarning));
  };
  const Json::Object* members = json.as_object();
  if (members == nullptr) return;
  for (const auto& one : *members) {
    const std::string& name = one.first;
    if (name == kSharded) continue;
    const auto known =
        std::ranges::find_if(kMembers, [&](const Member& member) { return member.name == name; });
    if (known == kMembers.end()) {
      warn(cat(quote(name), " is not a member that Megatron-Core 0.9 to 0.19 write"));
    } else if (const std::string text = to_text(one.second); text != known->value) {
      warn(cat(name, " is ", quote(text, kMaxShown), ", expected ", known->value));
    } else if (known->of_file && result.common == MegatronFolder::Common::kItem) {
      warn(cat(name, " is present, although the common state is the item '", kMegatronCommonKey,
               "': Megatron-Core up to 0.18 does not load a folder without ", kMegatronCommonName));
    }
  }
}

}  // namespace

bool is_torch_dist(std::string_view word) {
  return word.starts_with(kBackend);
}

std::string written_layout(std::string_view word, std::string_view source) {
  if (word == "fsdp_dtensor") return std::string(word);
  if (!is_torch_dist(word)) return {};
  if (word == kBackend && is_megatron_layout(source)) return std::string(source);
  const bool item = word == kBackend || word.ends_with("-0.19");
  return std::string(item ? kMegatronItemLayout : kMegatronLayout);
}

std::string_view megatron_metadata(std::string_view layout) {
  return layout == kMegatronItemLayout
             ? R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1})"
             : R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1})";
}

std::optional<MegatronFolder> megatron_folder(const Folder& folder,
                                              const std::vector<std::string>& names, bool item) {
  using Common = MegatronFolder::Common;
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  const bool common = has(kMegatronCommonName);
  if (!common && !item && !has(kMegatronMetadataName)) return std::nullopt;
  MegatronFolder result;
  result.common = common == item ? Common::kUnclear : common ? Common::kFile : Common::kItem;
  result.layout = item && !common ? kMegatronItemLayout : kMegatronLayout;
  if (common && item) {
    result.findings.push_back(
        found(ErrorCode::kExtraFile,
              cat("lies beside the item '", kMegatronCommonKey,
                  "': the folder has two common states, of different saves or versions; "
                  "Megatron-Core loads the file"),
              Finding::Severity::kDamage, kMegatronCommonName));
  }
  const auto file = folder.open_member_if_present(std::string(kMegatronMetadataName));
  if (!file) {
    result.findings.push_back(found(
        ErrorCode::kNoMetadata,
        cat("is missing beside ",
            common ? std::string(kMegatronCommonName) : cat("the item '", kMegatronCommonKey, "'"),
            ": Megatron-Core writes it last, and does not load a folder without it"),
        Finding::Severity::kWarning));
    return result;
  }
  try {
    const Json json = parse_json(read_text(*file, kMaxMetadataJsonBytes));
    const Json* backend = json.find(kSharded);
    const std::string* name = backend == nullptr ? nullptr : backend->as_string();
    const bool known = name != nullptr && *name == kBackend;
    if (!common && !item) {
      // Other programs write files named metadata.json, too.
      if (!known) return std::nullopt;
      result.findings.push_back(found(ErrorCode::kShardMissing,
                                      cat("is missing, and so is the item '", kMegatronCommonKey,
                                          "', which Megatron-Core writes in its place from 0.19 "
                                          "on: it does not load a folder that has neither"),
                                      Finding::Severity::kDamage, kMegatronCommonName));
    }
    if (!known) {
      result.findings.push_back(
          found(ErrorCode::kVersion,
                cat(kSharded, " is ", name == nullptr ? "missing" : quote(*name), ", expected '",
                    kBackend, "'"),
                Finding::Severity::kWarning));
    }
    check_members(json, result);
    const Json* version = json.find(kShardedVersion);
    if (version != nullptr && version->as_int())
      result.version = std::to_string(*version->as_int());
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    if (!common && !item) return std::nullopt;
    result.findings.push_back(found(error.code(), error.what(), severity_of(error.code())));
  }
  return result;
}

const Value* common_state_of(const Value& root) {
  if (root.kind() != ValueKind::kList || root.items().size() != 1) return nullptr;
  const Value& state = root.items()[0];
  return mapping_entries(state) ? &state : nullptr;
}

Value common_state_item(Value state) {
  return Value::list({std::move(state)});
}

}  // namespace fsdp::formats::dcp
