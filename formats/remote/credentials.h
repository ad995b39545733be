// SPDX-License-Identifier: Apache-2.0
// Who asks: the keys of an account, and where they are found.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "formats/remote/http.h"
#include "formats/remote/profile_files.h"
#include "formats/remote/secret.h"

namespace fsdp::formats {

struct Credentials {
  std::string id;  // empty: requests are not signed
  Secret key;
  Secret token;              // empty: none
  std::int64_t expires = 0;  // in seconds since the epoch; 0: never
};

// Finds credentials where the tools of AWS find them, in their order: the environment, a web
// identity, the profile in the shared files, the container, the machine (IMDSv2).  Keeps what it
// found until shortly before it expires.  FSDP_CKPT_ANONYMOUS=1 asks for none.  Thread-safe.
class CredentialChain {
 public:
  // `client` outlives it.
  CredentialChain(HttpClient& client, const Profile& profile);

  // Throws: kAccess if there are none, telling where it looked; kUnsupported for a source that would
  // start a program; kNetwork.
  Credentials current();
  // What `current` returned is refused as expired: look again.
  void forget();

 private:
  Credentials find() const;

  HttpClient& client_;
  const Profile profile_;
  std::mutex mutex_;
  bool known_ = false;
  Credentials found_;
};

}  // namespace fsdp::formats
