// SPDX-License-Identifier: Apache-2.0
// The error for a file of a store that may or may not exist.
#pragma once

#include <string>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

// A store answered neither the request that makes a file appear, nor the check that followed.
// Thrown by StoreUpload::complete and Store::put.
class UncertainError : public Error {
 public:
  explicit UncertainError(const std::string& message) : Error(ErrorCode::kNetwork, message) {}
};

}  // namespace fsdp::formats
