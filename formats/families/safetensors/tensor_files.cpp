// SPDX-License-Identifier: Apache-2.0
#include "formats/families/safetensors/tensor_files.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/model/check.h"

namespace fsdp::formats::safetensors {

Value TensorFiles::value(const ValueEntry& value) const {
  throw Error(ErrorCode::kNotFound, quote(value.key) + ": safetensors files hold only tensors");
}

ChunkData TensorFiles::storage(const StorageRef& storage) const {
  throw Error(ErrorCode::kStorage, quote(storage.key) + ": safetensors files hold no storages");
}

VerifyReport TensorFiles::verify(const VerifyOptions& options) const {
  VerifyReport report;
  report.findings = findings_;
  for (const TensorEntry& tensor : index_.tensors) {
    check_coverage(tensor, report.findings);
    report.items += tensor.chunks.size();
    if (!options.fast) report.bytes_unchecked += tensor.bytes();
  }
  return report;
}

bool TensorFiles::expect_elements(const Location& location, DType dtype, ElementRange part) const {
  if (!folder_->read_by_requests()) return false;
  try {
    const std::uint64_t bytes = item_bytes(dtype);
    return pool_.get(location.file)
        ->read_ahead(location.offset + part.first * bytes, part.count * bytes);
  } catch (const Error&) {
    return false;  // reading meets the same error and reports it
  }
}

ChunkData TensorFiles::tensor_data(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes,
                                   DType dtype) const {
  const auto opened = pool_.get(file);
  ChunkData data;
  data.source = opened;
  data.file = opened->name();
  data.storage_offset = offset;
  data.file_offset = offset;
  data.storage_bytes = bytes;
  data.dtype = dtype;
  return data;
}

}  // namespace fsdp::formats::safetensors
