// SPDX-License-Identifier: Apache-2.0
#include "tools/command/common_options.h"

#include <algorithm>
#include <thread>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

constexpr std::int64_t kMaxThreads = 1024;
constexpr std::uint64_t kMinMemory = 16U << 20U;

When when_of(const std::string& word) {
  if (word == "always") return When::kAlways;
  return word == "never" ? When::kNever : When::kAuto;
}

}  // namespace

void declare_path(OptionSet& options, TypedCommon& typed) {
  options.positional("PATH", typed.common.path, "Checkpoint: a folder or a file, of any format",
                     true);
}

void declare_common(OptionSet& options, TypedCommon& typed) {
  options.list("-k,--keys", typed.include, "GLOB",
               "Only keys that match GLOB: * stays within dots, ** does not");
  options.list("--exclude", typed.exclude, "GLOB", "Leave out keys that match GLOB");
  options.list("--allow-global", typed.globals, "MODULE.NAME",
               "Accept this Python name in a pickle as plain data");
  options.flag("--json", typed.common.json, "One JSON object on standard output");
  options.flag("-q,--quiet", typed.common.quiet, "No notes, warnings and summaries");
  options.choice("--progress", typed.progress, {"auto", "always", "never"}, "WHEN",
                 "Progress on standard error: auto, always or never");
  options.choice("--color", typed.color, {"auto", "always", "never"}, "WHEN",
                 "Colours: auto, always or never; NO_COLOR is heeded");
  options.integer("--threads", typed.threads, 1, kMaxThreads, "N",
                  "Threads; as many as cores if not given");
  options.size("--max-memory", typed.max_memory,
               "Memory limit; up to 256MiB, less for small files, if not given");
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
