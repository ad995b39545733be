// SPDX-License-Identifier: Apache-2.0
// Runs many independent checks on several threads and gathers what they find in a stable order.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// The contribution of one check.
struct CheckResult {
  Findings findings;
  std::uint64_t bytes_checked = 0;
  std::uint64_t bytes_unchecked = 0;
  std::uint32_t crc = 0;  // of what was read, where `taken` needs it
};

// Calls check(i, buffer) for every i below `count`, each with a buffer of 1 MiB of its thread's
// own, and adds the results to `report` in the order of i.  An Error that a check throws becomes a
// finding through `describe(i, error)`.  `taken`, if there is one, gets every result in that order,
// after all checks; of a team (VerifyOptions::team), in every member.  `expect(i)`, if there is
// one, is called before check(i), some checks ahead: the hint that what it reads may be fetched. It
// returns whether hints for further checks are worth giving.
// Throws: kInterrupted; exceptions that are not an Error; what Team::exchange throws.
void run_checks(std::size_t count, const VerifyOptions& options, VerifyReport& report,
                const std::function<CheckResult(std::size_t, std::span<std::byte>)>& check,
                const std::function<Finding(std::size_t, const Error&)>& describe,
                const std::function<void(std::size_t, const CheckResult&)>& taken = {},
                const std::function<bool(std::size_t)>& expect = {});

// A finding from an error whose message begins with `context`, which the finding's fields already
// say.
Finding finding_from(const Error& error, std::string_view context);

// The finding for a name in a pickle that is not known to be plain data.
Finding global_finding(const std::string& name, const std::string& file, const std::string& key);

// The finding for a value that contains itself somewhere; nothing for others.
std::optional<Finding> cycle_finding(const Value& value, const std::string& file,
                                     const std::string& key);

}  // namespace fsdp::formats
