// SPDX-License-Identifier: Apache-2.0
#include "tools/placed.h"

#include "formats/base/text.h"

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

void forget_placed() {
  placed().clear();
}

std::string placed_text() {
  return placed();
}

}  // namespace fsdp::cli
