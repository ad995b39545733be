// SPDX-License-Identifier: Apache-2.0
// Reading and comparing pickle values in tests, without any meaning given to the names in them.
#pragma once

#include <string>
#include <string_view>

#include "formats/containers/pickle/machine.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::test {

// Accepts every name.  Folds only values that the writer spells as a call because protocol 2 has no
// opcode for them: bytes, bytearrays, sets, frozen sets, nested names, storages.
class FoldingHost : public formats::PickleHost {
 public:
  std::int32_t global(std::string_view module, std::string_view name) override;
  formats::Value reduce(const formats::Value& callable, formats::Value args) override;
  formats::Value persistent_id(formats::Value id) override;
};

// Reads a whole stream with a FoldingHost.
formats::Value read_folded(std::string_view pickle, const formats::PickleLimits& limits = {});

// Reads a whole stream with that host.
formats::Value read_with(formats::PickleHost& host, std::string_view pickle,
                         const formats::PickleLimits& limits = {});

// Returns the place where two values differ, "" if they are equal.  Values shared in one must be
// shared in the other; strings and names are compared by content, storages by their written form.
std::string difference(const formats::Value& a, const formats::Value& b);

}  // namespace fsdp::test
