// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/team.h"

#include <algorithm>
#include <cstring>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr char kGoesOn = '+';
constexpr char kFailed = '!';
constexpr std::size_t kPortionBytes = 16U << 20U;

std::string failure_text(const Error& error) {
  return kFailed + Packed()
                       .number(static_cast<std::uint64_t>(error.code()))
                       .number(static_cast<std::uint64_t>(error.hint().remedy))
                       .text(error.hint().subject)
                       .text(error.what())
                       .take();
}

Error failure_from(std::string_view text) {
  Unpacked fields(text.substr(1));
  const auto code = static_cast<ErrorCode>(fields.number());
  const auto remedy = static_cast<Remedy>(fields.number());
  const std::string subject(fields.text());
  return {code, std::string(fields.text()), {remedy, subject}};
}

bool is_failure(const std::string& message) {
  return !message.empty() && message.front() == kFailed;
}

}  // namespace

Packed& Packed::number(std::uint64_t value) {
  return object(value);
}

Packed& Packed::text(std::string_view value) {
  number(value.size());
  bytes_ += value;
  return *this;
}

void Unpacked::take(void* out, std::size_t size) {
  if (size > rest_.size())
    throw Error(ErrorCode::kTruncated, "the message of another process ends early");
  std::memcpy(out, rest_.data(), size);
  rest_.remove_prefix(size);
}

std::uint64_t Unpacked::number() {
  return object<std::uint64_t>();
}

std::string_view Unpacked::text() {
  const std::uint64_t size = number();
  if (size > rest_.size())
    throw Error(ErrorCode::kTruncated, "the message of another process ends early");
  const std::string_view value = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return value;
}

// Takes the step's name off the messages.  Throws: the errors listed for `exchange`.
std::vector<std::string> Team::opened(std::vector<std::string> messages, std::string_view step) {
  const auto bad = std::ranges::find_if(messages, is_failure);
  if (bad != messages.end()) {
    const bool all_the_same =
        std::ranges::all_of(messages, [&](const auto& m) { return m == *bad; });
    const auto who = bad - messages.begin();
    failure_ = failure_from(*bad);
    // A request to stop that also reached this member is not the error of another one.
    const bool same = all_the_same || (stopped() && interrupted());
    if (!same && who != 0) failure_ = failure_->in(cat("rank ", who));
    throw Error(*failure_);
  }
  std::vector<std::string> texts;
  texts.reserve(messages.size());
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    Unpacked fields(std::string_view(messages[rank]).substr(1));
    const std::string_view at = fields.text();
    if (at != step) {
      failure_ = Error(ErrorCode::kMismatch, "rank ", rank, " is at step ", quote(at),
                       ", but rank ", rank_, " is at step ", quote(step));
      throw Error(*failure_);
    }
    texts.emplace_back(fields.text());
  }
  return texts;
}

Team& this_process() {
  static Team team;
  return team;
}

std::vector<std::string> Team::exchange(std::string_view step, const std::string& mine) {
  if (alone()) return {mine};
  if (failure_) throw Error(*failure_);
  std::vector<std::string> messages;
  try {
    messages = gather(kGoesOn + Packed().text(step).text(mine).take());
  } catch (const Error& error) {
    // The connection must not be used any more.
    failure_ = leads() ? error : error.in(cat("rank ", rank_));
    lost_ = true;
    throw Error(*failure_);
  }
  return opened(std::move(messages), step);
}

std::string Team::from_leader(std::string_view step, std::string mine) {
  const std::string size = leads() ? Packed().number(mine.size()).take() : std::string();
  mine.resize(static_cast<std::size_t>(Unpacked(exchange(step, size).front()).number()));
  // In portions: an exchange holds its text several times.
  for (std::size_t at = 0; at < mine.size(); at += kPortionBytes) {
    const std::string part =
        exchange(step, leads() ? mine.substr(at, kPortionBytes) : std::string()).front();
    if (!leads()) mine.replace(at, part.size(), part);
  }
  return mine;
}

void Team::agree(std::string_view step, const std::string& mine, std::string_view what) {
  const std::vector<std::string> texts = exchange(step, mine);
  const auto other =
      std::ranges::find_if(texts, [&](const std::string& text) { return text != texts[0]; });
  if (other == texts.end()) return;
  // All members see the same texts, so none has to tell the others.
  failure_ = Error(ErrorCode::kMismatch, "rank ", other - texts.begin(), " ", what, " than rank 0");
  throw Error(*failure_);
}

Error Team::fail(const Error& error) {
  if (alone()) return error;
  if (failure_) return *failure_;
  try {
    opened(gather(failure_text(error)), {});
  } catch (const Error& known) {
    lost_ = !failure_;
    // The connection must not be used any more.
    if (!failure_) failure_ = leads() ? error : error.in(cat("rank ", rank_));
  }
  return *failure_;
}

}  // namespace fsdp::formats
