// SPDX-License-Identifier: Apache-2.0
// Joins the metadata that each rank wrote for itself into that of the whole checkpoint.
#pragma once

#include "formats/families/dcp/metadata.h"

namespace fsdp::formats::dcp {

// Adds the rank-local metadata of one more rank to those read so far.  Chunks of tensors with the
// same name are joined; replicated values are kept once; replicated chunks become replicas of the
// first one.
// Throws: kDtype, kShape, kMetaType if two ranks disagree on a name.
void merge_metadata(Metadata& whole, Metadata part);

}  // namespace fsdp::formats::dcp
