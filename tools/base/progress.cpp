// SPDX-License-Identifier: Apache-2.0
#include "tools/base/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{200};
// Carriage return, then "erase to the end of the line".
constexpr const char* kRewrite = "\r\x1b[K";

}  // namespace

Progress::Progress(std::ostream& err, bool shown, std::string what, std::uint64_t total_bytes)
    : err_(err),
      shown_(shown),
      what_(std::move(what)),
      total_(total_bytes),
      last_(begin_ - kInterval) {}

Progress::~Progress() {
  if (printed_) err_ << kRewrite << std::flush;
}

void Progress::update(std::uint64_t bytes) {
  const Clock::time_point now = Clock::now();
  if (!shown_ || now - last_ < kInterval) return;
  last_ = now;
  printed_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  std::string line = what_ + "  " + formats::human_bytes(bytes);
  if (total_ != 0) line += " of " + formats::human_bytes(total_);
  line += "  " + formats::human_bytes(static_cast<std::uint64_t>(rate)) + "/s";
  if (total_ != 0 && rate > 0) {
    const double left = static_cast<double>(total_ - std::min(bytes, total_)) / rate;
    std::array<char, 64> text{};
    std::snprintf(
        text.data(), text.size(), "  %d %%  %d s left",
        static_cast<int>(100.0 * static_cast<double>(bytes) / static_cast<double>(total_)),
        static_cast<int>(std::lround(left)));
    line += text.data();
  }
  err_ << kRewrite << line << std::flush;
}

}  // namespace fsdp::cli
