// SPDX-License-Identifier: Apache-2.0
#include "formats/state/checkpoint/parallel_check.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>

#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/containers/pickle/back_reference.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kBufferBytes = 1U << 20U;
// Hints are given at least this many checks ahead.
constexpr std::size_t kChecksExpected = 16;

// Returns the first check of a member's share.
std::size_t share_begin(std::size_t count, std::size_t rank, std::size_t ranks) {
  return count / ranks * rank + std::min(count % ranks, rank);
}

void pack(Packed& packed, const Finding& finding) {
  packed.number(static_cast<std::uint64_t>(finding.code)).text(finding.message);
  packed.text(finding.file).text(finding.key).number(finding.bytes ? 1 : 0);
  const ByteRange bytes = finding.bytes.value_or(ByteRange{});
  packed.number(bytes.begin).number(bytes.end);
  packed.number(static_cast<std::uint64_t>(finding.severity));
  packed.number(static_cast<std::uint64_t>(finding.hint.remedy)).text(finding.hint.subject);
}

Finding unpack_finding(Unpacked& fields) {
  Finding finding;
  finding.code = static_cast<ErrorCode>(fields.number());
  finding.message = fields.text();
  finding.file = fields.text();
  finding.key = fields.text();
  const bool has_bytes = fields.number() != 0;
  const std::uint64_t begin = fields.number();
  const std::uint64_t end = fields.number();
  if (has_bytes) finding.bytes = ByteRange{begin, end};
  finding.severity = static_cast<Finding::Severity>(fields.number());
  finding.hint.remedy = static_cast<Remedy>(fields.number());
  finding.hint.subject = fields.text();
  return finding;
}

// Sums over the checks, and the results that hold findings or are wanted one by one.
struct Results {
  std::uint64_t bytes_checked = 0;
  std::uint64_t bytes_unchecked = 0;
  std::map<std::size_t, CheckResult> kept;

  void add(std::size_t number, CheckResult result, bool keep) {
    bytes_checked += result.bytes_checked;
    bytes_unchecked += result.bytes_unchecked;
    if (keep || !result.findings.empty()) kept.emplace(number, std::move(result));
  }

  // Adds the results of the other members.
  void join(Team& team) {
    if (team.alone()) return;
    Packed mine;
    mine.number(bytes_checked).number(bytes_unchecked).number(kept.size());
    for (const auto& [number, result] : kept) {
      mine.number(number).number(result.crc).number(result.findings.size());
      for (const Finding& finding : result.findings) pack(mine, finding);
    }
    const std::vector<std::string> all = team.exchange("checks", mine.take());
    *this = {};
    for (const std::string& sent : all) {
      Unpacked fields(sent);
      bytes_checked += fields.number();
      bytes_unchecked += fields.number();
      for (std::uint64_t left = fields.number(); left != 0; --left) {
        CheckResult& result = kept[fields.number()];
        result.crc = static_cast<std::uint32_t>(fields.number());
        for (std::uint64_t more = fields.number(); more != 0; --more)
          result.findings.push_back(unpack_finding(fields));
      }
    }
  }
};

}  // namespace

void run_checks(std::size_t count, const VerifyOptions& options, VerifyReport& report,
                const std::function<CheckResult(std::size_t, std::span<std::byte>)>& check,
                const std::function<Finding(std::size_t, const Error&)>& describe,
                const std::function<void(std::size_t, const CheckResult&)>& taken,
                const std::function<bool(std::size_t)>& expect) {
  std::mutex mutex;
  Results found;
  Team& team = *options.team;
  std::size_t next = share_begin(count, team.rank(), team.size());
  const std::size_t end = share_begin(count, team.rank() + 1, team.size());
  const std::size_t own = end - next;
  std::size_t expected = next;
  bool memory_ahead = false;  // hints are kept in memory: each check makes room for another one
  std::exception_ptr failure;
  std::uint64_t bytes = report.bytes_checked + report.bytes_unchecked;
  const auto take = [&]() -> std::optional<std::size_t> {
    const std::lock_guard lock(mutex);
    if (failure || next == end) return std::nullopt;
    if (options.cancelled && options.cancelled())
      throw Error(ErrorCode::kInterrupted, "interrupted");
    bool more = memory_ahead;
    for (; expect && expected < end && (more || expected < next + kChecksExpected); ++expected) {
      try {
        more = expect(expected);
      } catch (const Error&) {
        more = false;  // the check meets the same error
      }
      memory_ahead = memory_ahead || more;
    }
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
        bytes += result.bytes_checked + result.bytes_unchecked;
        found.add(*i, std::move(result), static_cast<bool>(taken));
        if (options.on_progress) options.on_progress(team.progress(bytes));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    const std::size_t threads =
        std::min<std::size_t>(std::max(1U, options.threads), std::max<std::size_t>(1, own));
    const auto others = start_helpers(threads - 1, [&](std::size_t) { work(); });
    work();
  }
  if (failure) std::rethrow_exception(failure);
  found.join(team);
  report.items += count;
  report.bytes_checked += found.bytes_checked;
  report.bytes_unchecked += found.bytes_unchecked;
  for (auto& [i, result] : found.kept) {
    if (taken) taken(i, result);
    report.findings.insert(report.findings.end(), std::make_move_iterator(result.findings.begin()),
                           std::make_move_iterator(result.findings.end()));
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
          .message =
              cat("global ", quote(name),
                  " is not known to be plain data: loading it with Python may run arbitrary code"),
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
                 .message = cat("contains itself (",
                                name != nullptr ? escape(name->dotted()) : kind_name(value.kind()),
                                "): kept unchanged, not taken apart"),
                 .file = file,
                 .key = key,
                 .bytes = {},
                 .severity = Finding::Severity::kUnknown};
}

}  // namespace fsdp::formats
