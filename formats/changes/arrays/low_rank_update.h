// SPDX-License-Identifier: Apache-2.0
// Adds a product of two thin matrices to a weight.
#pragma once

#include "formats/changes/arrays/array.h"

namespace fsdp::formats::arrays {

// W + scale * B * A, as peft names the matrices of LoRA: A is [rank, in], B [out, rank], W [out,
// in].  If `turned`, W is [in, out] and the product is transposed.  The result is computed block by
// block in the order of Note [order of a low-rank update] of formats/changes/arithmetic/low_rank.h.
// Its dtype is that of W.  Memory while it is read: A and B in the type of the computation. Throws:
// kDtype, kShape.
struct LowRankTerms {
  Array weight;
  Array a;
  Array b;
  double scale = 1;
  bool turned = false;
};
Array with_low_rank_update(LowRankTerms terms);

}  // namespace fsdp::formats::arrays
