// SPDX-License-Identifier: Apache-2.0
#include "tools/command/common_options.h"

#include <algorithm>
#include <thread>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

constexpr std::uint64_t kMinMemory = 16U << 20U;

When when_of(const std::string& word) {
  if (word == "always") return When::kAlways;
  return word == "never" ? When::kNever : When::kAuto;
}

}  // namespace

void declare_common(OptionSet& options, TypedCommon& typed) {
  options.add("--keys", &typed.include);
  options.add("--exclude", &typed.exclude);
  options.add("--allow-global", &typed.globals);
  options.add("--json", &typed.common.json);
  options.add("--quiet", &typed.common.quiet);
  options.add("--progress", &typed.progress).choices = {"auto", "always", "never"};
  options.add("--color", &typed.color).choices = {"auto", "always", "never"};
  options.add("--threads", &typed.threads);
  options.add("--max-memory", &typed.max_memory);
}

CommonOptions interpret(const TypedCommon& typed) {
  CommonOptions common = typed.common;
  common.progress = when_of(typed.progress);
  common.color = when_of(typed.color);
  common.threads = typed.threads ? static_cast<unsigned>(*typed.threads)
                                 : std::max(1U, std::thread::hardware_concurrency());
  if (typed.max_memory && *typed.max_memory < kMinMemory) {
    throw Error(ErrorCode::kUsage,
                formats::cat("--max-memory is ", formats::human_bytes(*typed.max_memory),
                             ", but at least ", formats::human_bytes(kMinMemory), " is needed"));
  }
  common.allowed_globals.insert(typed.globals.begin(), typed.globals.end());
  common.keys = {formats::globs_of(typed.include), formats::globs_of(typed.exclude)};
  return common;
}

}  // namespace fsdp::cli
