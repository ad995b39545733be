// SPDX-License-Identifier: Apache-2.0
// A tensor as a view of its storage.
#pragma once

#include "formats/state/content/tensor_value.h"
#include "formats/state/model/chunk_data.h"

namespace fsdp::formats {

// Narrows a whole storage to the elements of `view`; the view's own storage is ignored.
void view_storage(ChunkData& storage, const TensorValue& view);

}  // namespace fsdp::formats
