// SPDX-License-Identifier: Apache-2.0
#include "tools/placed.h"

#include "formats/base/text.h"
#include "tools/reading.h"

namespace fsdp::cli {
namespace {

std::string& placed() {
  static std::string text;
  return text;
}

}  // namespace

void note_placed(const std::string& destination) {
  placed() = "; " + formats::escape(destination) + " is in place";
}

void note_removed(std::string text) noexcept {
  placed().swap(text);
}

std::string removed_text(std::size_t checkpoints) {
  return formats::cat("; removed before that: ", counted(checkpoints, "checkpoint"));
}

void forget_placed() {
  placed().clear();
}

std::string placed_text() {
  return placed();
}

}  // namespace fsdp::cli
