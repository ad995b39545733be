// SPDX-License-Identifier: Apache-2.0
// Who asks: the keys of an account, and where they are found.
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

// Finds credentials where the tools of AWS find them, in their order: the environment, the role of
// a web identity, the role and then the keys of the profile, the container, the machine (IMDSv2).
// FSDP_CKPT_ANONYMOUS=1 asks for none.
// Throws: kAccess if there are none, telling where it looked; kUnsupported for a source that would
// start a program or a browser; kUsage for half of them; kNetwork.
Credentials amazon_credentials(HttpClient& client, const Profile& profile);
// The HMAC key of an account of Google: GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY.
// Throws: kAccess, kUsage.
Credentials google_credentials();

// Keeps credentials until shortly before they expire.  Thread-safe.
class CredentialCache {
 public:
  explicit CredentialCache(std::function<Credentials()> find) : find_(std::move(find)) {}

  // Throws: what `find` throws.
  Credentials current();
  // A server refuses `refused`, which `current` returned, as expired: the next call looks again.
  void forget(const Credentials& refused);

 private:
  const std::function<Credentials()> find_;
  std::mutex mutex_;
  std::optional<Credentials> found_;
};

}  // namespace fsdp::formats
