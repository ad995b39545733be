// SPDX-License-Identifier: Apache-2.0
// Nobody knows whether a file of a store is there.
#pragma once

#include <string>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// A store gave no answer to the request that makes a file appear, and none to the look that
// followed.  Thrown by StoreUpload::complete and Store::put.
class UncertainError : public Error {
 public:
  explicit UncertainError(const std::string& message) : Error(ErrorCode::kNetwork, message) {}
};

}  // namespace fsdp::formats
