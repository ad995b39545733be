// SPDX-License-Identifier: Apache-2.0
// The ways in which FSDP1 may have laid parameters into a flat one.
// Source: FlatParamHandle._init_flat_param_and_metadata and _get_shard in
// torch/distributed/fsdp/_flat_param.py of PyTorch 2.11; docs/formats/fsdp1_local.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::formats::flat {

// Elements [begin, end) of a flat parameter.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const FlatRange&) const = default;
};

// A flat parameter as its files have it.
struct FlatSize {
  std::int64_t numel = 0;  // of all ranks together
  std::int64_t shard = 0;  // of each rank but the last ones, which may have fewer
  // The last ranks still have the padding that makes their parts as long as the others';
  // LOCAL_STATE_DICT removes it.
  bool padded = false;
};

struct Division {
  // Each parameter begins at a multiple of it; 0: one follows the other (use_orig_params=False, and
  // PyTorch before 2.1).
  std::int64_t alignment = 0;
  std::vector<std::int64_t> begins;  // of each parameter
  std::vector<FlatRange> padding;    // what belongs to no parameter
  bool operator==(const Division& other) const {
    return begins == other.begins && padding == other.padding;
  }
};

// What FSDP writes into the padding between parameters, and at the end if parameters are aligned.
// The padding of parameters that are not aligned is zeros.
inline constexpr double kPaddingValue = 42;

// Returns the different divisions of a flat parameter into parameters with so many elements each,
// in their order, that have the size: the elements together, the padding between them and at the
// end are exactly those of the flat one.  Several divisions differ in the place of a parameter.
std::vector<Division> divisions(std::span<const std::int64_t> numels, const FlatSize& flat);

}  // namespace fsdp::formats::flat
