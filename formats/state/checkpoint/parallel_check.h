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

// Calls check(i, buffer) for every i below `count` and adds the results to `report` in the order of
// i.  Each thread has its own buffer of 1 MiB.  An Error that a check throws becomes a finding
// through `describe(i, error)`.
// `taken`, if set, gets every result in that order, after all checks; in a team
// (VerifyOptions::team), on every member.
// `expect(i)`, if set, is called some checks ahead of check(i): a hint that the data of check(i)
// may be fetched.  Returns whether hints for further checks are worth giving.
// Throws: kInterrupted; exceptions that are not an Error; the errors of Team::exchange.
void run_checks(std::size_t count, const VerifyOptions& options, VerifyReport& report,
                const std::function<CheckResult(std::size_t, std::span<std::byte>)>& check,
                const std::function<Finding(std::size_t, const Error&)>& describe,
                const std::function<void(std::size_t, const CheckResult&)>& taken = {},
                const std::function<bool(std::size_t)>& expect = {});

// Returns a finding for an error.  If the message begins with `context`, that is left out: the
// finding's fields already say it.
Finding finding_from(const Error& error, std::string_view context);

// Returns the finding for a name in a pickle that is not known to be plain data.
Finding global_finding(const std::string& name, const std::string& file, const std::string& key);

// Returns the finding for a value that contains itself somewhere; nothing for other values.
std::optional<Finding> cycle_finding(const Value& value, const std::string& file,
                                     const std::string& key);

}  // namespace fsdp::formats
