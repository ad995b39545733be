// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/megatron.h"

#include <algorithm>
#include <string_view>

#include "formats/base/byte_source.h"
#include "formats/base/error.h"
#include "formats/base/json.h"
#include "formats/base/text.h"
#include "formats/dcp/names.h"

namespace fsdp::formats::dcp {
namespace {

// Four short members.
constexpr std::uint64_t kMaxMetadataJsonBytes = 64U << 10U;
constexpr std::string_view kBackend = "torch_dist";

Finding found(ErrorCode code, std::string message, Finding::Severity severity) {
  return {.code = code,
          .message = std::move(message),
          .file = std::string(kMegatronMetadataName),
          .key = {},
          .bytes = {},
          .severity = severity};
}

}  // namespace

std::optional<MegatronFolder> megatron_folder(const Directory& folder,
                                              const std::vector<std::string>& names) {
  const auto has = [&](std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const bool common = has(kMegatronCommonName);
  if (!common && !has(kMegatronMetadataName)) return std::nullopt;
  MegatronFolder result;
  result.common = common;
  const auto file = folder.open_member_if_present(std::string(kMegatronMetadataName));
  if (!file) {
    result.findings.push_back(found(ErrorCode::kNoMetadata,
                                    "is missing beside common.pt: Megatron-Core writes it last, "
                                    "and loads no folder without it",
                                    Finding::Severity::kWarning));
    return result;
  }
  try {
    if (file->size() > kMaxMetadataJsonBytes) {
      throw Error(ErrorCode::kLimitSize,
                  cat("has ", file->size(), " bytes, at most ", kMaxMetadataJsonBytes));
    }
    const std::vector<std::byte> bytes = read_bytes(*file, 0, file->size());
    const Json json = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    const Json* backend = json.find("sharded_backend");
    const std::string* name = backend == nullptr ? nullptr : backend->as_string();
    if (!common) {
      // Others call files metadata.json, too.
      if (name == nullptr || *name != kBackend) return std::nullopt;
      Finding missing =
          found(ErrorCode::kShardMissing, "is missing: Megatron-Core loads no folder without it",
                Finding::Severity::kDamage);
      missing.file = kMegatronCommonName;
      result.findings.push_back(std::move(missing));
    }
    if (name == nullptr || *name != kBackend) {
      result.findings.push_back(
          found(ErrorCode::kVersion,
                cat("sharded_backend is ", name == nullptr ? "missing" : quote(*name),
                    ", expected '", kBackend, "'"),
                Finding::Severity::kWarning));
    }
    const Json* version = json.find("sharded_backend_version");
    if (version != nullptr && version->as_int())
      result.version = std::to_string(*version->as_int());
  } catch (const Error& error) {
    if (!common) return std::nullopt;
    result.findings.push_back(found(error.code(), error.what(), severity_of(error.code())));
  }
  return result;
}

}  // namespace fsdp::formats::dcp
