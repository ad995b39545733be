// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/low_bit_tensor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/torch_globals.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

// Elements that are computed at once.
constexpr std::size_t kRun = 4096;
// Entries of the tables of codes of 8 and of 4 bits.
constexpr std::size_t kByteTable = 256;
constexpr std::size_t kNibbleTable = 16;
constexpr std::int64_t kTile = 128;  // of Float8BlockwiseQTensor

struct LowBitClass {
  std::string_view module;
  std::string_view name;
  std::size_t table;  // entries; 0: none
};
constexpr std::array kClasses = {
    LowBitClass{"torchao.optim.subclass_8bit", "OptimState8bit", kByteTable},
    LowBitClass{"torchao.optim.subclass_4bit", "OptimState4bit", kNibbleTable},
    LowBitClass{"torchao.optim.subclass_fp8", "OptimStateFp8", 0},
};

const LowBitClass* low_bit_class(const GlobalName& name) {
  const auto* const found = std::ranges::find_if(kClasses, [&](const auto& known) {
    return known.module == name.module && known.name == name.name;
  });
  return found == kClasses.end() ? nullptr : &*found;
}

// Returns a part as a dense row-major tensor.  `value`: null if there is none.
TensorValue part_of(const std::string& cls, const Value* value, std::string_view name,
                    DType dtype) {
  const auto tensor = value == nullptr ? std::nullopt : dense_tensor(*value);
  if (!tensor)
    throw Error(ErrorCode::kMetaType, cat(cls, ": has no tensor ", quote(std::string(name))));
  if (tensor->dtype != dtype) {
    throw Error(ErrorCode::kDtype, cat(cls, ": ", name, " is ", torch_name(tensor->dtype),
                                       ", expected ", torch_name(dtype)));
  }
  const auto dense = row_major_strides(tensor->shape);
  for (std::size_t d = 0; d < tensor->shape.size(); ++d) {
    if (tensor->shape[d] > 1 && tensor->strides[d] != dense[d])
      throw Error(ErrorCode::kMetaType, cat(cls, ": ", name, " is not contiguous"));
  }
  return *tensor;
}

// Returns the float8 that the argument names: DType(7), or getattr(DType, 'kFloat8E4M3') by Python
// 3.11.  Source: transformer_engine.h.
std::optional<DType> engine_dtype(const Value& value) {
  const auto is_enum = [](const GlobalName* name) {
    return name != nullptr && name->module == "transformer_engine.pytorch.constants" &&
           name->name == "DType";
  };
  const ObjectData* const object = value.as_object();
  if (object == nullptr) return std::nullopt;
  const GlobalName* const called = object->callable.as_global();
  const auto args = object->args.items();
  if (is_enum(called) && args.size() == 1) {
    if (args[0].as_int() == 7) return DType::kFloat8E4M3FN;
    if (args[0].as_int() == 8) return DType::kFloat8E5M2;
  }
  if (called != nullptr && called->name == "getattr" && args.size() == 2 &&
      is_enum(args[0].as_global()) && args[1].as_string() != nullptr) {
    if (*args[1].as_string() == "kFloat8E4M3") return DType::kFloat8E4M3FN;
    if (*args[1].as_string() == "kFloat8E5M2") return DType::kFloat8E5M2;
  }
  return std::nullopt;
}

// Where the arguments of a call that makes a tensor of Transformer Engine's are.
struct EngineCall {
  std::string_view name;
  std::string_view cls;
  std::size_t count;
  std::size_t data, code, scale, dtype, shape, transpose;
  bool tiles;
};
constexpr std::array kEngineCalls = {
    EngineCall{"_make_float8_tensor_in_reduce_ex", "float8_tensor.Float8Tensor", 6, 0, 1, 2, 3, 4,
               5, false},
    EngineCall{"_make_float8_blockwise_tensor_in_reduce_ex",
               "float8_blockwise_tensor.Float8BlockwiseQTensor", 10, 1, 5, 2, 6, 0, 3, true},
};
constexpr std::size_t kTwoDimensions = 8;  // the argument of blocks

// Returns the shape of the scales that are used.
std::vector<std::int64_t> scales_of(const std::vector<std::int64_t>& shape, bool tiles) {
  if (!tiles) return {1};
  const std::int64_t columns = shape.empty() ? 1 : shape.back();
  const auto rows = columns == 0 ? 0 : static_cast<std::int64_t>(numel_of(shape)) / columns;
  return {(rows + kTile - 1) / kTile, (columns + kTile - 1) / kTile};
}

// Returns Transformer Engine's tensor of one of the calls above.
std::optional<LowBitTensor> engine_tensor(const ObjectData& object) {
  constexpr std::string_view kTensors = "transformer_engine.pytorch.tensor.";
  const GlobalName* const name = object.callable.as_global();
  if (object.by_new || name == nullptr || !name->module.starts_with(kTensors) ||
      !name->name.starts_with("_make_"))
    return std::nullopt;
  const std::string cls = "Transformer Engine's tensor of " + name->module;
  const auto* const call = std::ranges::find(kEngineCalls, name->name, &EngineCall::name);
  const auto args = object.args.items();
  // Blocks of one dimension are those of activations.
  if (call == kEngineCalls.end() ||
      (call->tiles && args.size() == call->count && args[kTwoDimensions].as_bool() == false)) {
    throw Error(ErrorCode::kUnsupported,
                cat(cls,
                    ", which only that library takes apart; load it there, and save its "
                    "dequantize()"));
  }
  const bool whole = args.size() == call->count;
  const GlobalName* const dtype = whole ? args[call->dtype].as_global() : nullptr;
  const auto type = dtype == nullptr || dtype->module != "torch"
                        ? std::nullopt
                        : dtype_from_torch_name(dtype->name);
  const auto code = whole ? engine_dtype(args[call->code]) : std::nullopt;
  const auto shape = whole ? shape_of(args[call->shape]) : std::nullopt;
  if (!type || !code || !shape || !can_cast(DType::kFloat32, *type))
    throw Error(ErrorCode::kMetaType, cat(cls, ": lacks a type, a float8 type or a size"));
  if (args[call->data].is_none() && !args[call->transpose].is_none()) {
    throw Error(ErrorCode::kUnsupported,
                cat(cls, ": holds only its transpose; load it there, and save its dequantize()"));
  }
  LowBitTensor tensor;
  tensor.cls = cat(kTensors, call->cls);
  tensor.tile = call->tiles ? kTile : 0;
  tensor.dtype = *type;
  tensor.shape = *shape;
  tensor.code = *code;
  tensor.codes = part_of(cls, &args[call->data], "data", DType::kUInt8);
  tensor.scale = part_of(cls, &args[call->scale], "scale_inv", DType::kFloat32);
  const std::vector<std::int64_t> scales = scales_of(tensor.shape, call->tiles);
  std::vector<std::int64_t> has = tensor.scale.shape;
  if (call->tiles && has.size() == 2) has[1] = std::min(has[1], scales[1]);  // without padding
  if (tensor.codes.shape != tensor.shape || numel_of(tensor.shape) == 0 || has != scales) {
    throw Error(ErrorCode::kShape,
                cat(cls, ": data have shape ", shape_text(tensor.codes.shape), " and scale_inv ",
                    shape_text(tensor.scale.shape), ", expected ", shape_text(tensor.shape),
                    " and ", shape_text(scales)));
  }
  return tensor;
}

// The elements of a low-bit tensor as floats.
class LowBitSource : public ByteSource {
 public:
  LowBitSource(const LowBitTensor& tensor, ChunkData codes, ChunkData scale,
               std::optional<ChunkData> table)
      : cls_(tensor.cls),
        dtype_(tensor.dtype),
        code_(tensor.code),
        nibbles_(tensor.nibbles),
        numel_(numel_of(tensor.shape)),
        block_(numel_ / static_cast<std::uint64_t>(tensor.scale.shape[0])),
        tile_(static_cast<std::uint64_t>(tensor.tile)),
        columns_(tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(tensor.shape.back())),
        scale_shape_(tensor.scale.shape),
        codes_(std::move(codes)),
        scale_(std::move(scale)),
        table_(std::move(table)) {}

  const std::string& cls() const { return cls_; }
  std::uint64_t size() const override { return numel_ * item_bytes(dtype_); }

  void read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset) {
      throw Error(ErrorCode::kTruncated, cat(codes_.file, ": ", out.size(), " bytes at byte ",
                                             offset, " of ", size(), " elements' bytes"));
    }
    std::call_once(checked_, [this] { check(); });
    const std::uint64_t item = item_bytes(dtype_);
    std::array<std::byte, kRun * sizeof(double)> made{};
    for (std::size_t done = 0; done < out.size();) {
      const std::uint64_t at = offset + done;
      const std::uint64_t first = at / item;
      const std::uint64_t skip = at % item;  // offset of `out` within an element
      const std::uint64_t wanted = (skip + (out.size() - done) + item - 1) / item;
      const std::uint64_t count = std::min<std::uint64_t>(wanted, kRun);
      const auto elements = std::span(made).first(static_cast<std::size_t>(count * item));
      make(first, count, elements);
      const std::size_t bytes = std::min<std::size_t>(
          elements.size() - static_cast<std::size_t>(skip), out.size() - done);
      std::memcpy(out.data() + done, elements.data() + skip, bytes);
      done += bytes;
    }
  }

 private:
  // Compares the checksums of the elements' sources, and reads the table of code values.
  void check() const {
    check(codes_);
    check(scale_);
    if (tile_ != 0) {
      tiles_.resize(static_cast<std::size_t>(numel_of(scale_shape_)));
      read_elements(scale_, 0, std::as_writable_bytes(std::span(tiles_)));
    }
    if (!table_) return;
    check(*table_);
    std::vector<float> entries(nibbles_ ? kNibbleTable : kByteTable);
    read_elements(*table_, 0, std::as_writable_bytes(std::span(entries)));
    entries_ = std::move(entries);
  }

  static void check(const ChunkData& data) {
    if (!data.crc) return;
    std::vector<std::byte> buffer(
        static_cast<std::size_t>(std::min<std::uint64_t>(data.storage_bytes, 1U << 16U)));
    std::uint32_t crc = 0;
    read_parts(*data.source, data.storage_offset, data.storage_bytes, buffer,
               [&](std::uint64_t, std::span<const std::byte> part) { crc = crc32(crc, part); });
    if (crc == *data.crc) return;
    throw Error(data.mismatch,
                cat(data.file, ": the record at byte ", data.file_offset, ": CRC-32 stored ",
                    hex32(*data.crc), ", computed ", hex32(crc)));
  }

  // Reads elements of `data` from number `first` on.
  static void read_elements(const ChunkData& data, std::uint64_t first, std::span<std::byte> out) {
    const std::uint64_t at = (data.first + first) * item_bytes(data.dtype);
    data.source->read_at(data.storage_offset + at, out);
    transform_elements(data, out);
  }
  void make(std::uint64_t first, std::uint64_t count, std::span<std::byte> out) const {
    std::array<float, kRun> values{};
    const auto floats = std::span(values).first(static_cast<std::size_t>(count));
    read_codes(first, floats);
    if (tile_ != 0) {
      scale_tiles(first, floats);
    } else {
      scale_runs(first, floats);
    }
    if (dtype_ == DType::kFloat32) {
      std::memcpy(out.data(), floats.data(), out.size());
    } else {
      cast(DType::kFloat32, std::as_bytes(floats), dtype_, out);
    }
  }

  void scale_runs(std::uint64_t first, std::span<float> floats) const {
    // The scales of the blocks that hold these elements; a block may be one element.
    std::array<float, kRun> scales{};
    const std::uint64_t begin = first / block_;
    const auto used = std::span(scales).first(
        static_cast<std::size_t>((first + floats.size() - 1) / block_ - begin + 1));
    read_elements(scale_, begin, std::as_writable_bytes(used));
    for (std::size_t i = 0; i < floats.size(); ++i)
      floats[i] *= used[static_cast<std::size_t>((first + i) / block_ - begin)];
  }
  void scale_tiles(std::uint64_t first, std::span<float> floats) const {
    const auto in_row = static_cast<std::uint64_t>(scale_shape_[1]);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const std::uint64_t row = (first + i) / columns_ / tile_;
      const std::uint64_t column = (first + i) % columns_ / tile_;
      floats[i] *= tiles_[static_cast<std::size_t>(row * in_row + column)];
    }
  }

  void read_codes(std::uint64_t first, std::span<float> out) const {
    std::array<std::byte, kRun + 2> bytes{};
    if (!table_) {
      const auto codes = std::span(bytes).first(out.size());
      read_elements(codes_, first, codes);
      cast(code_, codes, DType::kFloat32, std::as_writable_bytes(out));
      return;
    }
    const unsigned shift = nibbles_ ? 1 : 0;
    const std::uint64_t from = first >> shift;
    const auto codes = std::span(bytes).first(
        static_cast<std::size_t>(((first + out.size() - 1) >> shift) - from + 1));
    read_elements(codes_, from, codes);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t element = first + i;
      auto code = static_cast<unsigned>(codes[static_cast<std::size_t>((element >> shift) - from)]);
      if (nibbles_) code = element % 2 == 0 ? code >> 4U : code & 15U;
      out[i] = entries_[code];
    }
  }

  std::string cls_;
  DType dtype_;
  DType code_;  // without a table
  bool nibbles_;
  std::uint64_t numel_;
  std::uint64_t block_;  // elements per scale
  std::uint64_t tile_;   // rows and columns per scale; 0: block_ counts
  std::uint64_t columns_;
  std::vector<std::int64_t> scale_shape_;
  ChunkData codes_;
  ChunkData scale_;
  std::optional<ChunkData> table_;
  mutable std::once_flag checked_;
  mutable std::vector<float> entries_;  // entries of the table, once `checked_`
  mutable std::vector<float> tiles_;    // all scales of tiles, once `checked_`
};

}  // namespace

std::optional<LowBitTensor> low_bit_tensor(const Value& value) {
  // _rebuild_from_type_v2(_rebuild_wrapper_subclass, class, (class, dtype, size, ...), attributes)
  const ObjectData* object = value.as_object();
  if (object == nullptr) return std::nullopt;
  if (auto tensor = engine_tensor(*object)) return tensor;
  if (object->by_new || object->callable.as_global() == nullptr ||
      static_cast<TorchGlobal>(object->callable.global_tag()) != TorchGlobal::kRebuildFromTypeV2)
    return std::nullopt;
  const auto args = object->args.items();
  if (args.size() != 4 || args[0].as_global() == nullptr ||
      static_cast<TorchGlobal>(args[0].global_tag()) != TorchGlobal::kRebuildWrapperSubclass)
    return std::nullopt;
  const auto made = args[2].items();
  if (made.empty() || made[0].as_global() == nullptr) return std::nullopt;
  const LowBitClass* known = low_bit_class(*made[0].as_global());
  if (known == nullptr) return std::nullopt;

  LowBitTensor tensor;
  tensor.cls = made[0].as_global()->dotted();
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error(code, cat(tensor.cls, ": ", why));
  };
  const GlobalName* dtype = made.size() < 3 ? nullptr : made[1].as_global();
  const auto type = dtype == nullptr || dtype->module != "torch"
                        ? std::nullopt
                        : dtype_from_torch_name(dtype->name);
  const auto shape = made.size() < 3 ? std::nullopt : shape_of(made[2]);
  if (!type || !shape || !can_cast(DType::kFloat32, *type))
    throw refuse(ErrorCode::kMetaType, "lacks a floating type or a size");
  tensor.dtype = *type;
  tensor.shape = *shape;
  tensor.nibbles = known->table == kNibbleTable;
  tensor.codes = part_of(tensor.cls, member(args[3], "codes"), "codes",
                         known->table == 0 ? DType::kFloat8E4M3FN : DType::kUInt8);
  tensor.scale = part_of(tensor.cls, member(args[3], "scale"), "scale", DType::kFloat32);
  if (known->table != 0)
    tensor.table = part_of(tensor.cls, member(args[3], "qmap"), "qmap", DType::kFloat32);

  const auto numel = static_cast<std::int64_t>(numel_of(tensor.shape));
  const bool packed = tensor.nibbles && tensor.codes.shape.size() == 1 && numel % 2 == 0 &&
                      tensor.codes.shape[0] == numel / 2;
  if (tensor.nibbles ? !packed : tensor.codes.shape != tensor.shape) {
    throw refuse(ErrorCode::kShape,
                 cat("codes have shape ", shape_text(tensor.codes.shape),
                     ", which do not fit a tensor of ", shape_text(tensor.shape)));
  }
  if (tensor.scale.shape.size() != 1 || tensor.scale.shape[0] < 1 ||
      numel % tensor.scale.shape[0] != 0 || numel == 0) {
    throw refuse(ErrorCode::kShape,
                 cat("scale has shape ", shape_text(tensor.scale.shape), ", which does not divide ",
                     numel, " elements into equal blocks"));
  }
  if (tensor.table &&
      tensor.table->shape != std::vector<std::int64_t>{static_cast<std::int64_t>(known->table)}) {
    throw refuse(ErrorCode::kShape, cat("qmap has shape ", shape_text(tensor.table->shape),
                                        ", expected [", known->table, "]"));
  }
  return tensor;
}

ChunkData low_bit_data(const TorchFile& file, const LowBitTensor& tensor, const StreamPlace& place,
                       Spill& spill) {
  ChunkData codes = tensor_data(file, tensor.codes, place, spill);
  ChunkData scale = tensor_data(file, tensor.scale, place, spill);
  std::optional<ChunkData> table;
  if (tensor.table) table = tensor_data(file, *tensor.table, place, spill);
  ChunkData data;
  data.file = place.file;
  data.file_offset = codes.file_offset;
  data.self_checked = codes.crc && scale.crc && (!table || table->crc);
  data.dtype = tensor.dtype;
  const auto source =
      std::make_shared<LowBitSource>(tensor, std::move(codes), std::move(scale), std::move(table));
  data.storage_bytes = source->size();
  data.source = source;
  return data;
}

std::string low_bit_class_of(const ChunkData& data) {
  const auto* source = dynamic_cast<const LowBitSource*>(data.source.get());
  return source == nullptr ? std::string() : source->cls();
}

}  // namespace fsdp::formats
