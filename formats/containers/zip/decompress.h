// SPDX-License-Identifier: Apache-2.0
// Decodes streams of deflate (zip method 8) and zstd (the checkpoint extension stream.zstd), in
// bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "formats/bytes/base/byte_source.h"

namespace fsdp::formats {

// Receives decompressed bytes in order.
using ByteSink = std::function<void(std::span<const std::byte>)>;

// Both functions charge their output to the process's budget (formats/bytes/base/budget.h:
// OverWork).

// Inflates the raw deflate stream that fills `source`; exactly `expected_bytes` must come out.
// Throws: kLimitRatio if more would come out, or `expected_bytes` cannot, kTruncated, kZipMismatch
// if it is not a deflate stream, kInterrupted.
void inflate(const ByteSource& source, std::uint64_t expected_bytes, const ByteSink& sink);

// Decodes the zstd frames that fill `source`.
// Throws: kLimitRatio above `max_bytes`, kTruncated, kUnsupported if it is not a zstd stream or
// needs a window above 128 MiB, OverBudget for one above the budget, kInterrupted.
void unzstd(const ByteSource& source, std::uint64_t max_bytes, const ByteSink& sink);

}  // namespace fsdp::formats
