// SPDX-License-Identifier: Apache-2.0
// The credentials that sign requests, and where they are found.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "formats/bytes/http/http.h"
#include "formats/bytes/http/secret.h"
#include "formats/bytes/remote/profile_files.h"

namespace fsdp::formats {

struct Credentials {
  std::string id;  // empty: requests are not signed
  Secret key;
  Secret token;              // empty: none
  std::int64_t expires = 0;  // in seconds since the epoch; 0: never
};

// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; nullopt:
// neither id nor key is set.  Throws: kUsage if only one of them is set.
std::optional<Credentials> environment_keys();
// Reads aws_access_key_id, aws_secret_access_key and aws_session_token; nullopt: there is no id.
// Throws: kUsage for an id without a key.
std::optional<Credentials> profile_keys(const Profile& profile);
// Refuses a profile with an unsupported source of credentials, instead of using other credentials.
// Throws: kUnsupported.
void refuse_other_sources(const Profile& profile);

// Finds credentials where the tools of AWS find them, in their order: the environment, the role of
// a web identity, the role and then the keys of the profile, the container, the machine (IMDSv2).
// Returns empty ones for FSDP_CKPT_ANONYMOUS=1.
// Throws: kAccess if there are none, listing the places searched; kUnsupported for a source that
// would start a program or a browser; kUsage for an id without a key, or the reverse; kNetwork.
Credentials amazon_credentials(HttpClient& client, const Profile& profile);
// Returns the HMAC key of a Google account: GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY.
// Throws: kAccess, kUsage.
Credentials google_credentials();

// Keeps credentials until shortly before they expire.  Thread-safe.
class CredentialCache {
 public:
  explicit CredentialCache(std::function<Credentials()> find) : find_(std::move(find)) {}

  // Returns the credentials, found anew if they expire soon.  Throws: what `find` throws.
  Credentials current();
  // Drops `refused`, which `current` returned and a server refused as expired: the next call finds
  // new ones.
  void forget(const Credentials& refused);

 private:
  const std::function<Credentials()> find_;
  std::mutex mutex_;
  std::optional<Credentials> found_;
};

}  // namespace fsdp::formats
