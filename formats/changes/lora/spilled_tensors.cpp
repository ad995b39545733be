// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/lora/spilled_tensors.h"

#include <utility>

#include "formats/bytes/base/error.h"

namespace fsdp::formats {

SpilledTensors::SpilledTensors(std::string path, std::function<void()> unchanged)
    : unchanged_(std::move(unchanged)), file_(std::make_shared<SpillFile>()) {
  description_.path = std::move(path);
  description_.format = "safetensors";
  description_.layout = "generic";
}

void SpilledTensors::add(std::string key, DType dtype, std::vector<std::int64_t> shape,
                         bool checked) {
  Location location;
  location.file = static_cast<std::uint32_t>(checked_.size());
  location.offset = added_bytes_;
  location.length = file_->size() - added_bytes_;
  added_bytes_ = file_->size();
  checked_.push_back(checked);
  TensorEntry entry{key, {key}, dtype, shape, ChunkList(shape.size())};
  const Box whole = whole_box(shape);
  entry.chunks.add(whole.offset, whole.size, location);
  index_.add(std::move(entry));
}

ChunkData SpilledTensors::chunk(const TensorEntry& tensor, std::size_t chunk) const {
  const Location& location = tensor.chunks.location(chunk);
  ChunkData data;
  data.source = file_;
  data.file = description_.path;
  data.storage_offset = location.offset;
  data.storage_bytes = location.length;
  data.file_offset = location.offset;
  data.self_checked = checked_.at(location.file);
  data.dtype = tensor.dtype;
  return data;
}

Value SpilledTensors::value(const ValueEntry& value) const {
  throw Error(ErrorCode::kKey, value.key + ": this checkpoint holds only tensors");
}

ChunkData SpilledTensors::storage(const StorageRef& /*storage*/) const {
  throw Error(ErrorCode::kStorage, "this checkpoint holds only tensors");
}

VerifyReport SpilledTensors::verify(const VerifyOptions& /*options*/) const {
  return {};
}

}  // namespace fsdp::formats
