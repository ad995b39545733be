// SPDX-License-Identifier: Apache-2.0
// Reads optimizer states that torchao keeps in 8 or 4 bits per element, with a scale for each
// block, and Transformer Engine's FP8 parameters, with one scale or one for each 128 rows and
// columns, as the floating tensors that they represent, like torch.distributed.checkpoint.
// Source: torchao/optim/subclass_8bit.py, subclass_4bit.py, subclass_fp8.py and quant_utils.py of
// torchao 0.18; transformer_engine/pytorch/tensor/float8_tensor.py, float8_blockwise_tensor.py and
// storage/ of Transformer Engine 2.20; docs/formats/dcp.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/families/torch/stream.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/chunk_data.h"

namespace fsdp::formats {

// An element is table[code] * scale, or code * scale if the codes are floats themselves; computed
// in float32, then rounded to `dtype`.
struct LowBitTensor {
  std::string cls;  // its class, with the module
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  TensorValue codes;                  // row-major; two in a byte if `nibbles`, the high one first
  TensorValue scale;                  // one for each run of numel / scales elements, float32
  std::optional<TensorValue> table;   // float32; none: the codes are floats
  DType code = DType::kFloat8E4M3FN;  // of codes that are floats
  bool nibbles = false;
  // Rows and columns with one element of `scale`, a matrix that may have more columns than are
  // used; 0: runs have one.
  std::int64_t tile = 0;
};

// Returns nothing if `value` is not of such a class.  Lifetime: that of `value`.
// Throws: kMetaType, kShape, kDtype if the parts of the tensor do not match; kUnsupported for
// Transformer Engine's other classes, and for a tensor that holds only its transpose.
std::optional<LowBitTensor> low_bit_tensor(const Value& value);

// Returns the elements, of `tensor.dtype` and row-major, computed while they are read.  The records
// that hold the parts are compared with their CRC-32 before the first element is returned.
ChunkData low_bit_data(const TorchFile& file, const LowBitTensor& tensor, const StreamPlace& place,
                       Spill& spill);
// Returns the class of the tensor if low_bit_data made the chunk; empty for all other chunks.
std::string low_bit_class_of(const ChunkData& data);

}  // namespace fsdp::formats
