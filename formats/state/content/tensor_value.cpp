// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/tensor_value.h"

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/torch_globals.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {
namespace {

// Most dimensions a tensor of a file may have; PyTorch's own limit.
constexpr std::size_t kMaxRank = 64;

TorchGlobal meaning_of(const Value& value) {
  const ObjectData* object = value.as_object();
  // An object made by NEWOBJ is not a call: its arguments were not checked.
  if (object == nullptr || object->by_new || object->callable.as_global() == nullptr)
    return TorchGlobal::kUnknown;
  return static_cast<TorchGlobal>(object->callable.global_tag());
}

std::string_view name_of(const Value& value) {
  return value.as_object()->callable.as_global()->name;
}

// Reads the flags of lazily conjugated or negated tensors: {"conj": True, "neg": True}.
void read_flags(const Value& metadata, TensorValue& tensor) {
  for (const auto& [key, value] : metadata.entries()) {
    const std::string* name = key.as_string();
    if (name == nullptr) continue;
    if (*name == "conj") tensor.conjugate = value.as_bool().value_or(false);
    if (*name == "neg") tensor.negate = value.as_bool().value_or(false);
  }
}

// Parses the view that a rebuild call describes.  Throws if its arguments are wrong.
TensorValue parse_view(const Value& call) {
  const TorchGlobal meaning = meaning_of(call);
  const auto args = call.as_object()->args.items();
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error(code, name_of(call), ": ", why);
  };
  const std::size_t least = meaning == TorchGlobal::kRebuildTensor      ? 4
                            : meaning == TorchGlobal::kRebuildTensorV3  ? 7
                            : meaning == TorchGlobal::kRebuildQuantized ? 7
                                                                        : 6;
  if (args.size() < least || args.size() > least + 1)
    throw refuse(ErrorCode::kReduce, cat("expected ", least, " arguments, found ", args.size()));
  TensorValue tensor;
  tensor.storage = args[0].as_storage();
  if (tensor.storage == nullptr) throw refuse(ErrorCode::kType, "argument 1 is not a storage");
  tensor.dtype = tensor.storage->dtype;
  std::uint64_t capacity = tensor.storage->numel;
  if (meaning == TorchGlobal::kRebuildTensorV3) {
    const GlobalName* dtype = args[6].as_global();
    const auto known = dtype != nullptr && dtype->module == "torch"
                           ? dtype_from_torch_name(dtype->name)
                           : std::nullopt;
    if (!known) throw refuse(ErrorCode::kType, "argument 7 is not a dtype");
    capacity = capacity * item_bytes(tensor.dtype) / item_bytes(*known);
    tensor.dtype = *known;
  } else if (tensor.storage->untyped) {
    throw refuse(ErrorCode::kType, "the storage is untyped, so the tensor has no dtype");
  }
  const auto offset = args[1].as_int();
  if (!offset || *offset < 0)
    throw refuse(ErrorCode::kType, "storage offset is not an integer of at least 0");
  tensor.storage_offset = static_cast<std::uint64_t>(*offset);
  const auto shape = integers(args[2]);
  const auto strides = integers(args[3]);
  if (!shape || !strides)
    throw refuse(ErrorCode::kType, "size or stride is not a tuple of integers");
  if (shape->size() != strides->size() || shape->size() > kMaxRank) {
    throw refuse(ErrorCode::kTensorBounds, cat("size has ", shape->size(), " dimensions, stride ",
                                               strides->size(), ", at most ", kMaxRank));
  }
  tensor.shape = *shape;
  tensor.strides = *strides;
  std::uint64_t reach = checked_add(tensor.storage_offset, 1, "storage offset");
  bool empty = false;
  for (std::size_t d = 0; d < shape->size(); ++d) {
    if ((*shape)[d] < 0 || (*strides)[d] < 0)
      throw refuse(ErrorCode::kTensorBounds, "negative size or stride");
    empty = empty || (*shape)[d] == 0;
    if ((*shape)[d] > 0) {
      const auto steps = static_cast<std::uint64_t>((*shape)[d] - 1);
      reach = checked_add(
          reach, checked_mul(steps, static_cast<std::uint64_t>((*strides)[d]), "tensor extent"),
          "tensor extent");
    }
  }
  checked_mul(checked_numel(tensor.shape, "tensor size"), item_bytes(tensor.dtype), "tensor size");
  if (!empty && reach > capacity) {
    throw refuse(ErrorCode::kTensorBounds,
                 cat("tensor of size ", shape_text(tensor.shape), ", stride ",
                     shape_text(tensor.strides), " at offset ", tensor.storage_offset, " needs ",
                     reach, " elements, storage ", quote(tensor.storage->key), " has ", capacity));
  }
  const bool may_have_flags =
      meaning == TorchGlobal::kRebuildTensorV2 || meaning == TorchGlobal::kRebuildTensorV3;
  if (may_have_flags && args.size() == least + 1) read_flags(args[least], tensor);
  return tensor;
}

// Returns the tensor inside a parameter or a tensor with attributes; `value` itself if it is
// neither.
Value unwrapped(Value value) {
  for (;;) {
    const TorchGlobal meaning = meaning_of(value);
    if (meaning == TorchGlobal::kRebuildParameter ||
        meaning == TorchGlobal::kRebuildParameterWithState) {
      const Value inner = value.as_object()->args.items()[0];
      value = inner;
    } else if (meaning == TorchGlobal::kRebuildFromTypeV2) {
      const auto args = value.as_object()->args.items();
      ObjectData call;
      call.callable = args[0];
      call.args = args[2];
      value = Value::object(std::move(call));
    } else {
      return value;
    }
  }
}

// Returns the class of an unwrapped tensor that wraps others: _rebuild_wrapper_subclass(cls, ...).
std::optional<GlobalName> subclass_of(const Value& inner) {
  if (meaning_of(inner) != TorchGlobal::kRebuildWrapperSubclass) return std::nullopt;
  const auto args = inner.as_object()->args.items();
  const GlobalName* cls = args.empty() ? nullptr : args[0].as_global();
  return cls == nullptr ? GlobalName{} : *cls;
}

bool is_view(TorchGlobal meaning) {
  return meaning == TorchGlobal::kRebuildTensor || meaning == TorchGlobal::kRebuildTensorV2 ||
         meaning == TorchGlobal::kRebuildTensorV3;
}

}  // namespace

void check_tensor_call(const Value& value) {
  const TorchGlobal meaning = meaning_of(value);
  if (is_view(meaning) || meaning == TorchGlobal::kRebuildQuantized) {
    parse_view(value);
    return;
  }
  const auto args =
      value.as_object() == nullptr ? std::span<const Value>() : value.as_object()->args.items();
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kReduce, name_of(value), ": ", why);
  };
  if (meaning == TorchGlobal::kRebuildParameter && args.size() != 3)
    throw refuse(cat("expected 3 arguments, found ", args.size()));
  if (meaning == TorchGlobal::kRebuildParameterWithState && args.size() != 4)
    throw refuse(cat("expected 4 arguments, found ", args.size()));
  if (meaning == TorchGlobal::kRebuildFromTypeV2) {
    if (args.size() != 4 || args[0].as_global() == nullptr || args[2].kind() != ValueKind::kTuple)
      throw refuse("expected (function, type, arguments, state)");
    ObjectData inner;
    inner.callable = args[0];
    inner.args = args[2];
    check_tensor_call(Value::object(std::move(inner)));
  }
}

std::optional<TensorValue> dense_tensor(const Value& value) {
  const Value inner = unwrapped(value);
  if (!is_view(meaning_of(inner))) return std::nullopt;
  return parse_view(inner);
}

bool is_tensor(const Value& value) {
  return dense_tensor(value).has_value() || !special_tensor(value).empty();
}

std::string special_tensor_text(const Value& value) {
  std::string special = special_tensor(value);
  return special == "subclass" ? "a " + escape(subclass_of(unwrapped(value))->dotted()) : special;
}

std::string special_tensor(const Value& value) {
  const Value inner = unwrapped(value);
  switch (meaning_of(inner)) {
    case TorchGlobal::kRebuildQuantized:
      return "quantized";
    case TorchGlobal::kRebuildSparse:
      return "sparse";
    case TorchGlobal::kRebuildMeta:
      return "meta";
    case TorchGlobal::kRebuildNested:
      return "nested";
    case TorchGlobal::kRebuildWrapperSubclass: {
      const GlobalName cls = *subclass_of(inner);
      const bool sharded = (cls.name == "DTensor" || cls.name == "ShardedTensor") &&
                           cls.module.starts_with("torch.distributed.");
      return sharded ? "sharded" : "subclass";
    }
    case TorchGlobal::kRebuildDeviceTensor:
      return "device";
    default:
      return {};
  }
}

Value make_dense_tensor(DType dtype, const std::vector<std::int64_t>& shape, StorageRef storage) {
  const auto numbers = [](const std::vector<std::int64_t>& values) {
    std::vector<Value> items;
    items.reserve(values.size());
    for (const std::int64_t number : values) items.push_back(Value::integer(number));
    return Value::tuple(std::move(items));
  };
  ObjectData hooks;
  hooks.callable =
      Value::global("collections", "OrderedDict", static_cast<std::int32_t>(TorchGlobal::kMapping));
  hooks.args = Value::tuple({});
  const bool typed = !storage_class(dtype).empty();
  storage.untyped = !typed;
  storage.dtype = typed ? dtype : DType::kUInt8;
  storage.location = "cpu";
  std::vector<Value> args = {
      Value::storage(std::move(storage)), Value::integer(0),     numbers(shape),
      numbers(row_major_strides(shape)),  Value::boolean(false), Value::object(std::move(hooks))};
  ObjectData call;
  const auto tag = static_cast<std::int32_t>(typed ? TorchGlobal::kRebuildTensorV2
                                                   : TorchGlobal::kRebuildTensorV3);
  call.callable =
      Value::global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3", tag);
  if (!typed) {
    args.push_back(Value::global("torch", std::string(torch_name(dtype)),
                                 static_cast<std::int32_t>(TorchGlobal::kDType)));
  }
  call.args = Value::tuple(std::move(args));
  return Value::object(std::move(call));
}

void view_storage(ChunkData& storage, const TensorValue& view) {
  storage.dtype = view.dtype;
  storage.first = view.storage_offset;
  bool dense = true;
  const std::vector<std::int64_t> row_major = row_major_strides(view.shape);
  for (std::size_t d = 0; d < view.shape.size(); ++d)
    dense = dense && (view.shape[d] <= 1 || view.strides[d] == row_major[d]);
  if (!dense) storage.strides = view.strides;
  storage.conjugate = view.conjugate && is_complex(view.dtype);
  storage.negate = view.negate;
}

}  // namespace fsdp::formats
