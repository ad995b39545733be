// SPDX-License-Identifier: Apache-2.0
#include "formats/checkpoint/parallel_check.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>

#include "formats/base/text.h"
#include "formats/base/threads.h"
#include "formats/pickle/back_reference.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kBufferBytes = 1U << 20U;

}  // namespace

void run_checks(std::size_t count, const VerifyOptions& options, VerifyReport& report,
                const std::function<CheckResult(std::size_t, std::span<std::byte>)>& check,
                const std::function<Finding(std::size_t, const Error&)>& describe) {
  std::mutex mutex;
  std::size_t next = 0;
  std::exception_ptr failure;
  std::map<std::size_t, Findings> found;
  const auto take = [&]() -> std::optional<std::size_t> {
    const std::lock_guard lock(mutex);
    if (failure || next == count) return std::nullopt;
    if (options.cancelled && options.cancelled())
      throw Error(ErrorCode::kInterrupted, "interrupted");
    return next++;
  };
  const auto work = [&] {
    try {
      const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
      while (const auto i = take()) {
        CheckResult result;
        try {
          result = check(*i, {buffer.get(), kBufferBytes});
        } catch (const Error& error) {
          result.findings.push_back(describe(*i, error));
        }
        const std::lock_guard lock(mutex);
        report.bytes_checked += result.bytes_checked;
        report.bytes_unchecked += result.bytes_unchecked;
        ++report.items;
        if (!result.findings.empty()) found.emplace(*i, std::move(result.findings));
        if (options.on_progress) options.on_progress(report.bytes_checked + report.bytes_unchecked);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    const std::size_t threads =
        std::min<std::size_t>(std::max(1U, options.threads), std::max<std::size_t>(1, count));
    const auto others = start_helpers(threads - 1, [&](std::size_t) { work(); });
    work();
  }
  if (failure) std::rethrow_exception(failure);
  for (auto& [i, findings] : found) {
    report.findings.insert(report.findings.end(), std::make_move_iterator(findings.begin()),
                           std::make_move_iterator(findings.end()));
  }
}

Finding finding_from(const Error& error, std::string_view context) {
  std::string_view message = error.what();
  const std::string prefix = std::string(context) + ": ";
  if (message.starts_with(prefix)) message.remove_prefix(prefix.size());
  return {.code = error.code(),
          .message = std::string(message),
          .file = {},
          .key = {},
          .bytes = {},
          .severity = severity_of(error.code()),
          .hint = error.hint()};
}

Finding global_finding(const std::string& name, const std::string& file, const std::string& key) {
  return {.code = ErrorCode::kGlobal,
          .message = cat("global ", quote(name),
                         " is not known to be plain data: loading it with Python runs code of "
                         "its choice"),
          .file = file,
          .key = key,
          .bytes = {},
          .severity = Finding::Severity::kUnsafe,
          .hint = {Remedy::kAllowGlobal, name}};
}

std::optional<Finding> cycle_finding(const Value& value, const std::string& file,
                                     const std::string& key) {
  if (!holds_back_reference(value)) return std::nullopt;
  const ObjectData* const object = value.as_object();
  const GlobalName* const name = object == nullptr ? nullptr : object->callable.as_global();
  return Finding{.code = ErrorCode::kCycle,
                 .message = cat("holds itself (",
                                name != nullptr ? escape(name->dotted()) : kind_name(value.kind()),
                                "): kept as it stands, not taken apart"),
                 .file = file,
                 .key = key,
                 .bytes = {},
                 .severity = Finding::Severity::kUnknown};
}

}  // namespace fsdp::formats
