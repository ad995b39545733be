// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/torch_globals.h"

#include <algorithm>
#include <array>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/names/plain_names.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

// Longest storage key accepted; PyTorch writes decimal numbers.
constexpr std::size_t kMaxStorageKeyBytes = 4096;

struct Known {
  std::string_view module;
  std::string_view name;
  TorchGlobal meaning;
};

// The names that are more than plain data to a reader.
constexpr std::array kKnown = {
    Known{"collections", "OrderedDict", TorchGlobal::kMapping},
    Known{"collections", "defaultdict", TorchGlobal::kMapping},
    Known{"collections", "Counter", TorchGlobal::kMapping},
    Known{"torch", "Size", TorchGlobal::kSize},
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
    Known{"torch.nested._internal.nested_tensor", "_rebuild_njt", TorchGlobal::kRebuildNested},
    Known{"torch._utils", "_rebuild_wrapper_subclass", TorchGlobal::kRebuildWrapperSubclass},
    Known{"torch._utils", "_rebuild_device_tensor_from_numpy", TorchGlobal::kRebuildDeviceTensor},
    Known{"torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
          TorchGlobal::kRebuildDeviceTensor},
    Known{"torch._utils", "_rebuild_xla_tensor", TorchGlobal::kRebuildDeviceTensor},
    Known{"builtins", "bytes", TorchGlobal::kBytesType},
    Known{"builtins", "getattr", TorchGlobal::kGetattr},
    Known{"_codecs", "encode", TorchGlobal::kCodecsEncode},
};

Error bad_call(std::string_view callable, std::string_view why) {
  return {ErrorCode::kReduce, "call of ", callable, ": ", why};
}

// Decodes bytes as protocol 2 writes them: text whose code points are the bytes.
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

}  // namespace

TorchGlobal known_global(std::string_view module, std::string_view name) {
  const GlobalName known = python_3_name(module, name);
  const auto* const found = std::ranges::find_if(
      kKnown, [&](const Known& k) { return k.module == known.module && k.name == known.name; });
  if (found != kKnown.end()) return found->meaning;
  const auto dtype = known.module == "torch" ? dtype_from_torch_name(known.name) : std::nullopt;
  if (dtype && is_torch_dtype(*dtype)) return TorchGlobal::kDType;
  if (is_storage_class(known)) return TorchGlobal::kStorageClass;
  return plain_uses(known).any() ? TorchGlobal::kPlain : TorchGlobal::kUnknown;
}

std::int32_t TorchPickleHost::global(std::string_view module, std::string_view name) {
  return static_cast<std::int32_t>(known_global(module, name));
}

// Nothing is reset: the second pass meets the same names and storages.
bool TorchPickleHost::restart() {
  cyclic_ = true;
  return true;
}

Value TorchPickleHost::reduce(const Value& callable, Value args) {
  const GlobalName* name = callable.as_global();
  const auto items = args.items();
  if (name == nullptr) {
    // Only a name taken from a known class may be called: getattr(ShardedTensor,
    // "ProcessGroupState")(...).
    if (callable.as_object() == nullptr)
      throw Error(ErrorCode::kReduce, "call of something that is not a name");
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
      if (!bytes) throw bad_call("_codecs.encode", "expected Latin-1 text and the codec 'latin1'");
      return Value::bytes(*bytes);
    }
    case TorchGlobal::kBytesType:
      if (items.empty()) return Value::bytes({});
      break;
    case TorchGlobal::kSize:
      if (items.size() != 1 || items[0].kind() != ValueKind::kTuple) {
        // Very old writers also pickle a torch.Size from a list.
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
    return Error(code, "persistent id: ", why);
  };
  const std::string* kind = items.empty() ? nullptr : items[0].as_string();
  if (id.kind() != ValueKind::kTuple || kind == nullptr)
    throw refuse(ErrorCode::kPersid, "expected a tuple ('storage', class, key, location, count)");
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
    throw refuse(
        ErrorCode::kStorage,
        cat("unknown storage type ", cls == nullptr ? "without a name" : quote(cls->dotted())));
  }
  const std::string* key = items[2].as_string();
  const std::string* location = items[3].as_string();
  const auto count = items[4].as_int();
  if (key == nullptr || key->empty() || key->size() > kMaxStorageKeyBytes ||
      key->find('\0') != std::string::npos) {
    throw refuse(ErrorCode::kStorage, "key is not text of 1 to 4096 bytes");
  }
  if (location == nullptr) throw refuse(ErrorCode::kStorage, "location is not text");
  if (!count || *count < 0) {
    throw refuse(ErrorCode::kStorage,
                 cat("storage ", quote(*key), " has no valid number of elements"));
  }
  if (legacy_ && !items[5].is_none()) {
    throw refuse(
        ErrorCode::kUnsupported,
        cat("storage ", quote(*key), " is a view of another storage, which is not supported"));
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
