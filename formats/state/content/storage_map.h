// SPDX-License-Identifier: Apache-2.0
// Changes the storages that a value refers to.
#pragma once

#include <functional>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Returns `value` with every storage in it passed through `change`; shared parts stay shared.
Value with_storages(const Value& value, const std::function<void(StorageRef&)>& change);

}  // namespace fsdp::formats
