// SPDX-License-Identifier: Apache-2.0
#include "tools/base/placed.h"

#include "formats/bytes/base/text.h"
#include "tools/base/reading.h"

namespace fsdp::cli {
namespace {

std::string& placed() {
  static std::string text;
  return text;
}

bool removal_noted = false;

}  // namespace

void note_placed(const std::string& destination) {
  placed() = "; " + formats::escape(destination) + " is in place";
}

void note_removed(std::string text) noexcept {
  placed().swap(text);
  removal_noted = true;
}

bool removed_anything() noexcept {
  return removal_noted;
}

std::string removed_text(std::size_t checkpoints) {
  return formats::cat("; removed before that: ", counted(checkpoints, "checkpoint"));
}

void forget_placed() {
  placed().clear();
  removal_noted = false;
}

std::string placed_text() {
  return placed();
}

}  // namespace fsdp::cli
