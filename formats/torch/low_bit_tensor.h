// SPDX-License-Identifier: Apache-2.0
// Optimizer states that torchao keeps in 8 or 4 bits an element, with a scale for each block: read
// as the floating tensors they stand for, as torch.distributed.checkpoint reads them.
// Source: torchao/optim/subclass_8bit.py, subclass_4bit.py, subclass_fp8.py and quant_utils.py of
// torchao 0.18; docs/formats/dcp.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/content/tensor_value.h"
#include "formats/model/chunk_data.h"
#include "formats/torch/stream.h"

namespace fsdp::formats {

// One element is table[code] * scale, or code * scale where the codes are floats themselves; in
// float32, then rounded to `dtype`.
struct LowBitTensor {
  std::string cls;  // its class, with the module
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  TensorValue codes;                 // row-major; two in a byte where `nibbles`, the high one first
  TensorValue scale;                 // of each run of numel / scales elements, float32
  std::optional<TensorValue> table;  // float32; none: the codes are float8_e4m3fn
  bool nibbles = false;
};

// Nothing where `value` is of no such class.  Lifetime: that of `value`.
// Throws: kMetaType, kShape, kDtype where its parts do not fit each other.
std::optional<LowBitTensor> low_bit_tensor(const Value& value);

// Its elements, of `tensor.dtype` and row-major, made while they are read.  The records behind them
// are compared with their CRC-32 before the first element is given.
ChunkData low_bit_data(const TorchFile& file, const LowBitTensor& tensor, const StreamPlace& place,
                       Spill& spill);
// The class of what low_bit_data makes the elements from; empty for all other chunks.
std::string low_bit_class_of(const ChunkData& data);

}  // namespace fsdp::formats
