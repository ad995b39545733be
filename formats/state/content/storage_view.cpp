// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/storage_view.h"

#include "formats/state/model/box.h"

namespace fsdp::formats {

void view_storage(ChunkData& storage, const TensorValue& view) {
  storage.dtype = view.dtype;
  storage.first = view.storage_offset;
  bool dense = true;
  const std::vector<std::int64_t> row_major = row_major_strides(view.shape);
  for (std::size_t d = 0; d < view.shape.size(); ++d) {
    dense = dense && (view.shape[d] <= 1 || view.strides[d] == row_major[d]);
  }
  if (!dense) storage.strides = view.strides;
  storage.conjugate = view.conjugate && is_complex(view.dtype);
  storage.negate = view.negate;
}

}  // namespace fsdp::formats
