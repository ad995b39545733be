// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/difference_rows.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kReadNumel = 64U << 10U;

}  // namespace

DifferenceRows::DifferenceRows(const DifferenceSide& base, const DifferenceSide& tuned,
                               std::function<void(std::uint64_t)> on_bytes)
    : base_input_(base.input),
      tuned_input_(tuned.input),
      base_(base.input, *base.checks),
      tuned_(tuned.input, *tuned.checks),
      rows_(static_cast<std::size_t>(base.input.entry().shape.at(0))),
      columns_(static_cast<std::size_t>(base.input.entry().shape.at(1))),
      on_bytes_(std::move(on_bytes)) {}

void DifferenceRows::read(std::size_t first, std::span<double> out) {
  std::uint64_t at = first * columns_;
  while (!out.empty()) {
    const auto part = out.first(std::min<std::uint64_t>(kReadNumel, out.size()));
    numbers_.resize(part.size());
    read_side(tuned_, tuned_input_, at, part);
    read_side(base_, base_input_, at, numbers_);
    for (std::size_t i = 0; i < part.size(); ++i) part[i] = part[i] - numbers_[i];
    at += part.size();
    out = out.subspan(part.size());
  }
}

void DifferenceRows::read_side(const InputReader& reader, const InputTensor& input,
                               std::uint64_t first, std::span<double> out) {
  elements_.resize(out.size() * item_bytes(reader.dtype()));
  scratch_.resize(elements_.size());
  reader.read(first, elements_, scratch_);
  cast(reader.dtype(), elements_, DType::kFloat64, std::as_writable_bytes(out));
  on_bytes_(elements_.size());
  const auto bad =
      std::find_if_not(out.begin(), out.end(), [](double number) { return std::isfinite(number); });
  if (bad == out.end()) return;
  const std::uint64_t position = first + static_cast<std::uint64_t>(bad - out.begin());
  throw Error(ErrorCode::kUnsupported,
              cat(input.checkpoint->description().path, ": ", quote(input.entry().key, 200),
                  " has ", std::isnan(*bad) ? "NaN" : "an infinite element", " at [",
                  position / columns_, ", ", position % columns_, "]"));
}

}  // namespace fsdp::formats
