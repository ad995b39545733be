// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/torch_globals.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "formats/base/checked_math.h"
#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/layout/tensor_value.h"

namespace fsdp::formats {
namespace {

// Longest storage key accepted; PyTorch writes decimal numbers.
constexpr std::size_t kMaxStorageKeyBytes = 4096;

struct Known {
  std::string_view module;
  std::string_view name;
  TorchGlobal meaning;
};

constexpr auto kPlain = TorchGlobal::kPlain;

// Names whose objects PyTorch, its distributed package, NumPy and trainers put into checkpoints.
// Constructing any of them runs no code that the file chooses.
constexpr std::array kKnown = {
    Known{"collections", "OrderedDict", TorchGlobal::kMapping},
    Known{"collections", "defaultdict", TorchGlobal::kMapping},
    Known{"collections", "Counter", TorchGlobal::kMapping},
    Known{"collections", "deque", kPlain},
    Known{"torch", "Size", TorchGlobal::kSize},
    Known{"torch", "device", kPlain},
    Known{"torch", "Tensor", kPlain},
    Known{"torch", "per_tensor_affine", kPlain},
    Known{"torch", "per_tensor_symmetric", kPlain},
    Known{"torch", "per_channel_affine", kPlain},
    Known{"torch", "per_channel_symmetric", kPlain},
    Known{"torch", "per_channel_affine_float_qparams", kPlain},
    Known{"torch", "contiguous_format", kPlain},
    Known{"torch", "preserve_format", kPlain},
    Known{"torch.serialization", "_get_layout", kPlain},
    Known{"torch.torch_version", "TorchVersion", kPlain},
    Known{"torch.nn.parameter", "Parameter", kPlain},
    Known{"torch.nn.parameter", "Buffer", kPlain},
    Known{"torch._utils", "_rebuild_tensor", TorchGlobal::kRebuildTensor},
    Known{"torch._utils", "_rebuild_tensor_v2", TorchGlobal::kRebuildTensorV2},
    Known{"torch._utils", "_rebuild_tensor_v3", TorchGlobal::kRebuildTensorV3},
    Known{"torch._utils", "_rebuild_parameter", TorchGlobal::kRebuildParameter},
    Known{"torch._utils", "_rebuild_parameter_with_state", TorchGlobal::kRebuildParameterWithState},
    Known{"torch._tensor", "_rebuild_from_type_v2", TorchGlobal::kRebuildFromTypeV2},
    Known{"torch._utils", "_rebuild_qtensor", TorchGlobal::kRebuildQuantized},
    Known{"torch._utils", "_rebuild_sparse_tensor", TorchGlobal::kRebuildSparse},
    Known{"torch._utils", "_rebuild_sparse_csr_tensor", TorchGlobal::kRebuildSparse},
    Known{"torch._utils", "_rebuild_meta_tensor_no_storage", TorchGlobal::kRebuildMeta},
    Known{"torch._utils", "_rebuild_nested_tensor", TorchGlobal::kRebuildNested},
    Known{"torch._utils", "_rebuild_wrapper_subclass", TorchGlobal::kRebuildWrapperSubclass},
    Known{"torch._utils", "_rebuild_device_tensor_from_numpy", TorchGlobal::kRebuildDeviceTensor},
    Known{"torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
          TorchGlobal::kRebuildDeviceTensor},
    Known{"torch._utils", "_rebuild_xla_tensor", TorchGlobal::kRebuildDeviceTensor},
    // Sharded tensors saved by each rank on its own.
    Known{"torch.distributed._shard.sharded_tensor.api", "ShardedTensor", kPlain},
    Known{"torch.distributed._shard.sharded_tensor.shard", "Shard", kPlain},
    Known{"torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata", kPlain},
    Known{"torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", kPlain},
    Known{"torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", kPlain},
    Known{"torch.distributed._shard.metadata", "ShardMetadata", kPlain},
    Known{"torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec", kPlain},
    Known{"torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec",
          kPlain},
    Known{"torch.distributed.remote_device", "_remote_device", kPlain},
    Known{"torch.distributed.tensor", "DTensor", kPlain},
    Known{"torch.distributed.tensor._dtensor_spec", "DTensorSpec", kPlain},
    Known{"torch.distributed.tensor._dtensor_spec", "TensorMeta", kPlain},
    Known{"torch.distributed.tensor._dtensor_spec", "ShardOrderEntry", kPlain},
    Known{"torch.distributed.tensor.placement_types", "Shard", kPlain},
    Known{"torch.distributed.tensor.placement_types", "Replicate", kPlain},
    Known{"torch.distributed.tensor.placement_types", "_StridedShard", kPlain},
    Known{"torch.distributed.tensor.placement_types", "Partial", kPlain},
    Known{"torch.distributed._tensor", "DTensor", kPlain},
    Known{"torch.distributed._tensor.api", "DTensor", kPlain},
    Known{"torch.distributed._tensor.placement_types", "DTensorSpec", kPlain},
    Known{"torch.distributed._tensor.placement_types", "TensorMeta", kPlain},
    Known{"torch.distributed._tensor.placement_types", "Shard", kPlain},
    Known{"torch.distributed._tensor.placement_types", "Replicate", kPlain},
    Known{"torch.distributed._tensor.placement_types", "_StridedShard", kPlain},
    Known{"torch.distributed._tensor.placement_types", "Partial", kPlain},
    Known{"torch.distributed.device_mesh", "DeviceMesh", kPlain},
    Known{"torch.distributed._mesh_layout", "_MeshLayout", kPlain},
    // DeepSpeed's own.
    Known{"deepspeed.runtime.fp16.loss_scaler", "LossScaler", kPlain},
    Known{"deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", kPlain},
    Known{"deepspeed.runtime.zero.config", "ZeroStageEnum", kPlain},
    Known{"deepspeed.utils.tensor_fragment", "fragment_address", kPlain},
    // Python's own data.
    Known{"builtins", "complex", kPlain},
    Known{"builtins", "set", kPlain},
    Known{"builtins", "frozenset", kPlain},
    Known{"builtins", "list", kPlain},
    Known{"builtins", "dict", kPlain},
    Known{"builtins", "tuple", kPlain},
    Known{"builtins", "int", kPlain},
    Known{"builtins", "float", kPlain},
    Known{"builtins", "bool", kPlain},
    Known{"builtins", "str", kPlain},
    Known{"builtins", "object", kPlain},
    Known{"builtins", "range", kPlain},
    Known{"builtins", "slice", kPlain},
    Known{"builtins", "bytearray", kPlain},
    Known{"builtins", "bytes", TorchGlobal::kBytesType},
    Known{"builtins", "getattr", TorchGlobal::kGetattr},
    Known{"_codecs", "encode", TorchGlobal::kCodecsEncode},
    Known{"copyreg", "_reconstructor", kPlain},
    Known{"argparse", "Namespace", kPlain},
    Known{"types", "SimpleNamespace", kPlain},
    Known{"datetime", "datetime", kPlain},
    Known{"datetime", "date", kPlain},
    Known{"datetime", "time", kPlain},
    Known{"datetime", "timedelta", kPlain},
    Known{"datetime", "timezone", kPlain},
    Known{"decimal", "Decimal", kPlain},
    Known{"fractions", "Fraction", kPlain},
    Known{"uuid", "UUID", kPlain},
    Known{"pathlib", "Path", kPlain},
    Known{"pathlib", "PosixPath", kPlain},
    Known{"pathlib", "WindowsPath", kPlain},
    Known{"pathlib", "PurePosixPath", kPlain},
    Known{"pathlib", "PureWindowsPath", kPlain},
    Known{"pathlib._local", "PosixPath", kPlain},
    Known{"pathlib._local", "WindowsPath", kPlain},
    Known{"pathlib._local", "PurePosixPath", kPlain},
    Known{"pathlib._local", "PureWindowsPath", kPlain},
    // NumPy 1 and 2.
    Known{"numpy.core.multiarray", "scalar", kPlain},
    Known{"numpy.core.multiarray", "_reconstruct", kPlain},
    Known{"numpy._core.multiarray", "scalar", kPlain},
    Known{"numpy._core.multiarray", "_reconstruct", kPlain},
    Known{"numpy", "dtype", kPlain},
    Known{"numpy", "ndarray", kPlain},
};

// What a value is to a getattr call: a name we know.
bool names_known_class(const Value& value) {
  return value.as_global() != nullptr && value.global_tag() >= 0 &&
         static_cast<TorchGlobal>(value.global_tag()) != TorchGlobal::kGetattr;
}

Error bad_call(std::string_view callable, std::string_view why) {
  return {ErrorCode::kReduce, cat("call of ", callable, ": ", why)};
}

// bytes as protocol 2 has them: text whose code points are the bytes.
std::optional<std::string> latin1_bytes(const std::string& utf8) {
  std::string out;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    if (c < 0x80) {
      out += utf8[i];
    } else if ((c == 0xC2 || c == 0xC3) && i + 1 < utf8.size()) {
      out +=
          static_cast<char>(((c & 0x03U) << 6U) | (static_cast<unsigned char>(utf8[++i]) & 0x3FU));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

// A name taken from a class: only public members of classes we know.
bool is_sound_getattr(std::span<const Value> args) {
  const std::string* member = args.size() == 2 ? args[1].as_string() : nullptr;
  return member != nullptr && !member->starts_with('_') && names_known_class(args[0]);
}

}  // namespace

UnknownGlobals unknown_globals_in(const Value& value) {
  UnknownGlobals unknown;
  std::unordered_set<const void*> seen;
  std::vector<Value> open = {value};
  while (!open.empty()) {
    const Value at = std::move(open.back());
    open.pop_back();
    if (at.identity() != nullptr && !seen.insert(at.identity()).second) continue;
    if (const GlobalName* name = at.as_global(); name != nullptr && at.global_tag() < 0)
      unknown.insert(name->dotted());
    open.insert(open.end(), at.items().begin(), at.items().end());
    const auto add_entries = [&](std::span<const Value::Entry> entries) {
      for (const auto& [key, member] : entries) {
        open.push_back(key);
        open.push_back(member);
      }
    };
    add_entries(at.entries());
    if (const ObjectData* object = at.as_object()) {
      const bool getattr =
          object->callable.as_global() != nullptr &&
          static_cast<TorchGlobal>(object->callable.global_tag()) == TorchGlobal::kGetattr;
      if (getattr && !is_sound_getattr(object->args.items())) unknown.insert("builtins.getattr");
      open.insert(open.end(), {object->callable, object->args, object->state});
      open.insert(open.end(), object->list_items.begin(), object->list_items.end());
      add_entries(object->dict_items);
    }
  }
  return unknown;
}

TorchGlobal known_global(std::string_view module, std::string_view name) {
  if (module == "__builtin__") module = "builtins";
  if (module == "copy_reg") module = "copyreg";
  const auto* const found = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) {
    return k.module == module && k.name == name;
  });
  if (found != kKnown.end()) return found->meaning;
  if (module == "torch" && dtype_from_torch_name(name)) return TorchGlobal::kDType;
  if ((module == "torch" || module == "torch.cuda" || module == "torch.storage") &&
      (dtype_from_storage_class(name) || name == "UntypedStorage")) {
    return TorchGlobal::kStorageClass;
  }
  // numpy.dtypes.Float64DType and its like.
  if (module == "numpy.dtypes" && name.ends_with("DType")) return TorchGlobal::kPlain;
  return TorchGlobal::kUnknown;
}

std::int32_t TorchPickleHost::global(std::string_view module, std::string_view name) {
  const TorchGlobal meaning = known_global(module, name);
  if (meaning == TorchGlobal::kUnknown)
    unknown_.insert(std::string(module) + "." + std::string(name));
  return static_cast<std::int32_t>(meaning);
}

Value TorchPickleHost::reduce(const Value& callable, Value args) {
  const GlobalName* name = callable.as_global();
  const auto items = args.items();
  if (name == nullptr) {
    // Only a name taken from a known class may be called: getattr(ShardedTensor,
    // "ProcessGroupState")(...).
    if (callable.as_object() == nullptr)
      throw Error(ErrorCode::kReduce, "call of something that is no name");
    return PickleHost::reduce(callable, std::move(args));
  }
  const auto meaning = static_cast<TorchGlobal>(callable.global_tag());
  switch (meaning) {
    case TorchGlobal::kCodecsEncode: {
      const std::string* text = items.empty() ? nullptr : items[0].as_string();
      const std::string* codec = items.size() == 2 ? items[1].as_string() : nullptr;
      const auto bytes = text != nullptr && codec != nullptr && *codec == "latin1"
                             ? latin1_bytes(*text)
                             : std::nullopt;
      if (!bytes)
        throw bad_call("_codecs.encode", "expected a text within latin1 and the codec 'latin1'");
      return Value::bytes(*bytes);
    }
    case TorchGlobal::kBytesType:
      if (items.empty()) return Value::bytes({});
      break;
    case TorchGlobal::kGetattr:
      if (!is_sound_getattr(items)) unknown_.insert("builtins.getattr");
      break;
    case TorchGlobal::kSize:
      if (items.size() != 1 || items[0].kind() != ValueKind::kTuple) {
        // A torch.Size is also pickled from a list by very old writers.
        if (items.size() != 1 || items[0].kind() != ValueKind::kList)
          throw bad_call("torch.Size", "expected one tuple");
      }
      break;
    default:
      break;
  }
  Value made = PickleHost::reduce(callable, std::move(args));
  check_tensor_call(made);
  return made;
}

Value TorchPickleHost::persistent_id(Value id) {
  const auto items = id.items();
  const auto refuse = [](ErrorCode code, std::string_view why) {
    return Error(code, cat("persistent id: ", why));
  };
  const std::string* kind = items.empty() ? nullptr : items[0].as_string();
  if (id.kind() != ValueKind::kTuple || kind == nullptr) {
    throw refuse(ErrorCode::kPersid, "expected a tuple ('storage', class, key, location, count)");
  }
  if (legacy_ && *kind == "module" && items.size() == 4)
    return items[1];  // the class; its source is ignored
  const std::size_t expected = legacy_ ? 6 : 5;
  if (*kind != "storage" || items.size() != expected) {
    throw refuse(ErrorCode::kPersid, cat("expected ('storage', ...) of ", expected,
                                         " items, found ", quote(*kind), " of ", items.size()));
  }
  const GlobalName* cls = items[1].as_global();
  if (cls == nullptr ||
      static_cast<TorchGlobal>(items[1].global_tag()) != TorchGlobal::kStorageClass) {
    throw refuse(ErrorCode::kStorage, cat("unknown storage type ",
                                          cls == nullptr ? "of no name" : quote(cls->dotted())));
  }
  const std::string* key = items[2].as_string();
  const std::string* location = items[3].as_string();
  const auto count = items[4].as_int();
  if (key == nullptr || key->empty() || key->size() > kMaxStorageKeyBytes ||
      key->find('\0') != std::string::npos) {
    throw refuse(ErrorCode::kStorage, "key is no text of 1 to 4096 bytes");
  }
  if (location == nullptr) throw refuse(ErrorCode::kStorage, "location is no text");
  if (!count || *count < 0) {
    throw refuse(ErrorCode::kStorage,
                 cat("storage ", quote(*key), " has no sound number of elements"));
  }
  if (legacy_ && !items[5].is_none()) {
    throw refuse(ErrorCode::kUnsupported,
                 cat("storage ", quote(*key), " is a view of another one"));
  }
  StorageRef storage;
  storage.key = *key;
  storage.untyped = cls->name == "UntypedStorage";
  storage.dtype = storage.untyped ? DType::kUInt8 : *dtype_from_storage_class(cls->name);
  storage.numel = static_cast<std::uint64_t>(*count);
  storage.location = *location;
  storage.archive = archive_;
  checked_mul(storage.numel, item_bytes(storage.dtype), "storage size");
  const auto [at, fresh] = by_key_.try_emplace(storage.key, storages_.size());
  if (fresh) {
    storages_.push_back(storage);
  } else {
    const StorageRef& first = storages_[at->second];
    if (first.dtype != storage.dtype || first.numel != storage.numel ||
        first.untyped != storage.untyped) {
      throw refuse(ErrorCode::kStorage, cat("storage ", quote(*key), " is first ", first.numel,
                                            " of ", torch_name(first.dtype), ", then ",
                                            storage.numel, " of ", torch_name(storage.dtype)));
    }
  }
  return Value::storage(std::move(storage));
}

}  // namespace fsdp::formats
