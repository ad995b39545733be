// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/http/patience.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/headers.h"

namespace fsdp::formats {
namespace {

using std::chrono::milliseconds;

unsigned positive_number(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing sets variables
  if (text == nullptr || *text == '\0') return otherwise;
  const auto number = parse_length(text);
  constexpr std::uint64_t kMost = 1'000'000;
  if (!number || *number == 0 || *number > kMost) {
    throw Error(ErrorCode::kUsage, name, " is ", quote(text), ", which is not a number from 1 to ",
                kMost);
  }
  return static_cast<unsigned>(*number);
}

void sleep_or_stop(milliseconds time) {
  constexpr milliseconds kStep{50};
  while (time.count() > 0) {
    throw_if_interrupted();
    const milliseconds now = std::min(time, kStep);
    std::this_thread::sleep_for(now);
    time -= now;
  }
  throw_if_interrupted();
}

}  // namespace

const NetworkLimits& network_limits() {
  static const NetworkLimits limits = [] {
    NetworkLimits read;
    read.tries = positive_number("FSDP_CKPT_NETWORK_TRIES", read.tries);
    read.deadline = std::chrono::seconds(
        positive_number("FSDP_CKPT_NETWORK_SECONDS", static_cast<unsigned>(read.deadline.count())));
    read.stall = std::chrono::seconds(
        positive_number("FSDP_CKPT_STALL_SECONDS", static_cast<unsigned>(read.stall.count())));
    return read;
  }();
  return limits;
}

milliseconds backoff(unsigned tried, double chance) {
  constexpr double kFirst = 100;
  constexpr double kMost = 10'000;
  const double whole =
      std::min(kFirst * static_cast<double>(1U << std::min(tried - 1, 20U)), kMost);
  return milliseconds(static_cast<std::int64_t>(whole / 2 + whole / 2 * chance));
}

Patience::Patience(std::string place, const NetworkLimits& limits)
    : place_(std::move(place)), limits_(limits), since_(std::chrono::steady_clock::now()) {}

milliseconds Patience::left() const {
  const auto spent =
      std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - since_);
  return std::max(milliseconds(limits_.deadline) - spent, milliseconds(1));
}

void Patience::progressed() {
  since_ = std::chrono::steady_clock::now();
  tried_ = 0;
}

void Patience::wait(const std::string& why, unsigned tries,
                    std::optional<std::chrono::seconds> at_least) {
  ++tried_;
  thread_local std::minstd_rand source{std::random_device()()};
  milliseconds pause = backoff(tried_, std::uniform_real_distribution<double>(0, 1)(source));
  if (at_least) pause = std::max(pause, milliseconds(*at_least));
  if (tried_ >= std::min(tries, limits_.tries) || pause >= left()) {
    const auto spent =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - since_);
    throw Error(ErrorCode::kNetwork, tried_ == 1 ? cat(place_, ": ", why)
                                                 : cat(place_, ": ", why, "; tried ", tried_,
                                                       " times in ", spent.count(), " s"));
  }
  sleep_or_stop(pause);
}

}  // namespace fsdp::formats
