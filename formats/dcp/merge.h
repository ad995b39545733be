// SPDX-License-Identifier: Apache-2.0
// Joins the metadata that each rank wrote for itself into that of the whole checkpoint.
#pragma once

#include "formats/dcp/metadata.h"

namespace fsdp::formats::dcp {

// Adds the rank-local metadata of one more rank to those read so far: tensors of one name join
// their chunks, what is there already (replicated values and chunks) stays once. Throws: kDtype,
// kShape, kMetaType where two ranks disagree on what a name is.
void merge_metadata(Metadata& whole, Metadata part);

}  // namespace fsdp::formats::dcp
