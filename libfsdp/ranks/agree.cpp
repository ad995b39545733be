// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/agree.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <c10/util/hash.h>

#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"

namespace fsdp {
using namespace internal;
namespace {

constexpr std::size_t kLineLength = 200;

std::string cut(std::string_view line) {
  std::string result("'");
  result.append(line.substr(0, kLineLength)).append("'");
  return line.size() <= kLineLength ? result : result + "...";
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const auto end = text.find('\n');
    result.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return result;
}

// Joins the lines for the comparison: a line break inside one would shift the lines after it.
std::string joined_lines(const std::vector<std::string>& lines) {
  std::string result;
  for (std::string line : lines) {
    std::replace(line.begin(), line.end(), '\n', ' ');
    result += line + '\n';
  }
  return result;
}

std::string line_or_end(const std::vector<std::string_view>& lines, std::size_t index) {
  return index < lines.size() ? cut(lines[index]) : "nothing";
}

}  // namespace

void agree(const std::shared_ptr<ProcessGroup>& group, const std::string& what,
           const std::function<void()>& body) {
  agree_and_tell(group, what, [&] {
    body();
    return std::string();
  });
}

std::vector<std::string> agree_and_tell(const std::shared_ptr<ProcessGroup>& group,
                                        const std::string& what,
                                        const std::function<std::string()>& body) {
  // A '.' and what the body returned, or a '!' and the message that it threw.
  std::string outcome;
  try {
    outcome = "." + body();
  } catch (const std::exception& error) {
    outcome = "!" + message_of(error);
  } catch (...) {
    outcome = "!an exception of unknown type";
  }
  // Each message with the ranks that gave it, so that a common problem is reported once.
  std::vector<std::pair<std::string, std::string>> failures;
  auto outcomes = all_gather_text(group, outcome, what);
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (outcomes[r].front() == '.') {
      outcomes[r].erase(0, 1);
      continue;
    }
    const std::string rank = std::to_string(group->global_rank(static_cast<int>(r)));
    const auto same = std::find_if(failures.begin(), failures.end(), [&](const auto& failure) {
      return failure.first == outcomes[r];
    });
    if (same == failures.end()) {
      failures.emplace_back(outcomes[r], "rank " + rank);
    } else {
      same->second += ", rank " + rank;
    }
  }
  std::string text;
  for (const auto& [message, ranks] : failures)
    text += (text.empty() ? " failed on " : "; on ") + ranks + ": " + message.substr(1);
  FSDP_CHECK(failures.empty(), what, text);
  return outcomes;
}

void require_same(const std::shared_ptr<ProcessGroup>& group, const std::string& what,
                  const std::vector<std::string>& lines) {
  // Texts travel only if they differ: they may be long, and every rank reads all of them.
  const std::string text = joined_lines(lines);
  // For an empty text c10::sha1 computes nothing, hence the prefix.
  const auto digests = all_gather_text(group, c10::sha1("lines\n" + text).str(), what);
  const auto differs = [&](const std::string& other) { return other != digests.front(); };
  if (std::none_of(digests.begin(), digests.end(), differs)) return;
  const auto texts = all_gather_text(group, text, what);
  const auto expected = lines_of(texts.front());
  for (std::size_t r = 1; r < texts.size(); ++r) {
    if (digests[r] == digests.front()) continue;
    const auto found = lines_of(texts[r]);
    std::size_t line = 0;
    while (line < expected.size() && line < found.size() && expected[line] == found[line]) ++line;
    FSDP_CHECK(false, what, ": rank ", group->global_rank(static_cast<int>(r)),
               " differs from rank ", group->global_rank(0), " in line ", line + 1, ": it has ",
               line_or_end(found, line), " instead of ", line_or_end(expected, line));
  }
}

}  // namespace fsdp
