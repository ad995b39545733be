// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/arrays/read_context.h"

#include <utility>

namespace fsdp::formats::arrays {

void ReadContext::finish() {
  const Scratch scratch(*this);
  checks_.finish(scratch.bytes(), {});
}

Scratch::Scratch(ReadContext& context) : context_(context) {
  const std::lock_guard lock(context.mutex_);
  // Room for every buffer's return: the destructor must not allocate.
  if (context.free_.empty()) {
    buffer_ = std::make_unique_for_overwrite<std::byte[]>(kScratchBytes);
    context.free_.reserve(context.free_.capacity() + 1);
    return;
  }
  buffer_ = std::move(context.free_.back());
  context.free_.pop_back();
}

Scratch::~Scratch() {
  const std::lock_guard lock(context_.mutex_);
  if (context_.free_.size() < context_.free_.capacity())
    context_.free_.push_back(std::move(buffer_));
}

}  // namespace fsdp::formats::arrays
