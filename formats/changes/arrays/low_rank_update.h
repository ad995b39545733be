// SPDX-License-Identifier: Apache-2.0
// Adds products of two thin matrices to a weight.
#pragma once

#include <cstdint>
#include <vector>

#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

// W + scale * B * A, as peft names the matrices of LoRA: A is [rank, in], B [out, rank], W [out,
// in].  If `turned`, W is [in, out] and the product is transposed.
struct LowRankTerms {
  Array a;
  Array b;
  double scale = 1;
  bool turned = false;
  // The number of weights stacked in a tensor of three dimensions, each with its own matrices: A is
  // [experts * rank, in], with the rows of each expert together; B is [out, rank * experts], with a
  // column of each expert for each rank (peft 0.21's ParamWrapper.get_delta_weight).
  std::uint64_t experts = 1;
};

// Returns the weight with one update after the other, computed block by block in the order of Note
// [order of a low-rank update] of formats/changes/arithmetic/low_rank.h.  Memory while it is read:
// the matrices in the type of the computation.  Requires: shapes fit; the weight has elements.
Array with_low_rank_updates(const Array& weight, std::vector<LowRankTerms> terms, DType to);

// Does the same for a matrix and one update, and keeps its dtype.  Throws: kDtype, kShape.
Array with_low_rank_update(const Array& weight, LowRankTerms terms);

}  // namespace fsdp::formats::arrays
