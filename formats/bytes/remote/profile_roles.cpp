// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/profile_roles.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/headers.h"
#include "formats/bytes/remote/credential_services.h"
#include "formats/bytes/remote/token_service.h"

namespace fsdp::formats {
namespace {

// Follows source_profile to a profile with credentials of its own, then takes the roles in reverse
// order.
class RoleChain {
 public:
  RoleChain(HttpClient& client, const Profile& chosen) : client_(client), chosen_(chosen) {}

  std::optional<Credentials> role_of(const Profile& profile) {
    if (profile.find("role_arn").empty() || !profile.find("web_identity_token_file").empty())
      return std::nullopt;
    check(profile);
    const std::string source = profile.find("source_profile");
    const Credentials credentials =
        source.empty() ? from_source(profile) : from_profile(profile, source);
    return assume_role(client_, chosen_, profile, credentials);
  }

 private:
  static Error error_of(const Profile& profile, const std::string& symptom,
                        ErrorCode code = ErrorCode::kUsage) {
    return {code, "profile ", quote(profile.name()), ": ", symptom};
  }

  static void check(const Profile& profile) {
    if (!profile.find("mfa_serial").empty()) {
      throw error_of(profile,
                     "mfa_serial needs a code, which is not supported; `aws configure "
                     "export-credentials --format env` prints variables to set instead",
                     ErrorCode::kUnsupported);
    }
    const bool by_profile = !profile.find("source_profile").empty();
    const bool by_source = !profile.find("credential_source").empty();
    if (by_profile == by_source) {
      throw error_of(profile, by_profile
                                  ? "has source_profile and credential_source, which exclude each "
                                    "other"
                                  : "has role_arn, but neither source_profile nor "
                                    "credential_source");
    }
    // The service's bounds: 15 minutes to 12 hours.
    const std::string text = profile.find("duration_seconds");
    const auto duration = text.empty() ? std::optional<std::uint64_t>(900) : parse_length(text);
    if (!duration || *duration < 900 || *duration > 43'200) {
      throw error_of(profile, cat("duration_seconds is ", quote(text),
                                  " instead of a number from 900 to 43200"));
    }
  }

  Credentials from_source(const Profile& profile) {
    const std::string source = profile.find("credential_source");
    std::optional<Credentials> found;
    if (source == "Environment") {
      found = environment_keys();
    } else if (source == "EcsContainer") {
      found = container_credentials(client_);
    } else if (source == "Ec2InstanceMetadata") {
      found = instance_credentials(client_);
    } else {
      throw error_of(profile, cat("credential_source is ", quote(source),
                                  " instead of 'Environment', 'EcsContainer' or "
                                  "'Ec2InstanceMetadata'"));
    }
    if (!found) {
      throw error_of(profile, cat("credential_source ", source, " has no credentials"),
                     ErrorCode::kAccess);
    }
    return *std::move(found);
  }

  Credentials from_profile(const Profile& profile, const std::string& name) {
    visited_.push_back(profile.name());
    const Profile source = read_profile(name);
    if (!source.exists())
      throw error_of(profile, cat("its source_profile ", quote(name), " does not exist"));
    // A profile with keys ends the chain, so a profile may be its own source.
    if (auto found = profile_keys(source)) return *std::move(found);
    if (std::ranges::find(visited_, name) != visited_.end()) {
      throw error_of(profile, cat("its source_profile ", quote(name),
                                  " leads back to it, and no profile of this cycle has keys"));
    }
    if (auto found = role_of(source)) return *std::move(found);
    if (auto found = web_identity_credentials(client_, source)) return *std::move(found);
    refuse_other_sources(source);
    throw error_of(source, "has no credentials", ErrorCode::kAccess);
  }

  HttpClient& client_;
  const Profile& chosen_;
  std::vector<std::string> visited_;
};

}  // namespace

std::optional<Credentials> role_credentials(HttpClient& client, const Profile& profile) {
  return RoleChain(client, profile).role_of(profile);
}

}  // namespace fsdp::formats
