// SPDX-License-Identifier: Apache-2.0
// The filters of HDF5's chunks, undone by our own code: fletcher32, deflate, shuffle.
// Source: HDF5 File Format Specification 3.0, IV.A.2.l; RFC 1950 for deflate's frame.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/families/hdf5/description.h"

namespace fsdp::formats::hdf5 {

// The checksum that HDF5 puts after a chunk, from parts of it in any order.
//
// Bytes form 16-bit words; the first byte of each pair is the high one (also a last byte without a
// partner).  With N words w_0.. the checksum is the pair of sums of w_i and of (N - i) w_i modulo
// 65535, where 65535 stands for a sum that is divisible but not 0.  Parts that are not given count
// as zeros.
class Fletcher32 {
 public:
  explicit Fletcher32(std::uint64_t bytes = 0) : words_((bytes + 1) / 2) {}
  // Adds the bytes from `offset` on.
  void add(std::uint64_t offset, std::span<const std::byte> bytes);
  // Adds the bytes of `part`, a sum over equally many bytes.
  void merge(const Fletcher32& part);
  std::uint32_t value() const;

 private:
  void add_word(std::uint64_t at, std::uint32_t word);

  std::uint64_t words_;
  std::uint64_t sum_ = 0;
  std::uint64_t weighted_ = 0;
  bool any_ = false;
};

std::uint32_t fletcher32(std::span<const std::byte> bytes);

// Returns whether `stored`, as it lies in the file, equals `computed`: libhdf5 before 1.6.3 swapped
// its bytes in pairs.
bool same_fletcher(std::uint32_t stored, std::uint32_t computed);

// Returns the bytes of one chunk as they were before its filters.
// Throws: kH5Checksum (fletcher32, and the Adler-32 of deflate), kH5Open if sizes do not follow
// from the filters, what inflate throws.  Requires: check_claim holds for the dataset.
std::vector<std::byte> undo_filters(const Dataset& dataset, const StoredChunk& chunk,
                                    const ByteSource& file);

}  // namespace fsdp::formats::hdf5
