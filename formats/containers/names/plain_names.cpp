// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/names/plain_names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <unordered_map>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/names/producer_names.h"

namespace fsdp::formats {

struct PlainUseBits {
  static constexpr std::uint32_t kArgumentRule = PlainUses::kArgumentRule;
  static constexpr std::uint32_t kTakesFunction = PlainUses::kTakesFunction;
};

namespace {

// Uses, as bits of PlainUses.
constexpr unsigned bit(NameUse use) {
  return 1U << static_cast<unsigned>(use);
}
constexpr unsigned kValue = bit(NameUse::kValue);
constexpr unsigned kCall = bit(NameUse::kCall);
constexpr unsigned kNew = bit(NameUse::kNew);
constexpr unsigned kState = bit(NameUse::kState);
constexpr unsigned kItems = bit(NameUse::kItems);
// Further marks.
constexpr unsigned kRuled = PlainUseBits::kArgumentRule;
constexpr unsigned kTakesFunction = PlainUseBits::kTakesFunction;
constexpr unsigned kRebuild = 1U << 16U;     // the function of _rebuild_from_type_v2
constexpr unsigned kTensorType = 1U << 17U;  // the class of a tensor

// A class or constant that stands for itself.
constexpr unsigned kType = kValue;
// A class whose instances copyreg pickles: NEWOBJ and BUILD.
constexpr unsigned kInstances = kValue | kNew | kState;
// A class that is called with its value: an enumeration, a path, a date.
constexpr unsigned kCalled = kValue | kCall;
// A function: only called.
constexpr unsigned kFunction = kCall;
constexpr unsigned kRebuilder = kCall | kRebuild;

struct Group {
  unsigned uses;
  std::string_view module;
  std::string_view names;  // with a space between them
};

// The names that PyTorch, its distributed package, NumPy, Python and trainers put into checkpoints.
// Constructing any of them runs no code that the file chooses, nor does setting its state.
constexpr std::array kGroups = {
    // Containers.
    Group{kCalled | kNew | kState | kItems, "collections", "OrderedDict"},
    Group{kCalled | kState | kItems | kRuled, "collections", "Counter"},
    Group{kCalled | kState | kItems | kRuled, "collections", "defaultdict"},
    Group{kCalled | kState | kItems | kRuled, "collections", "deque"},
    Group{kInstances, "collections", "ChainMap"},
    // Tensors.
    Group{kCalled, "torch", "Size device"},
    Group{kType | kTensorType, "torch", "Tensor"},
    Group{kType | kTensorType, "torch.nn.parameter", "Parameter Buffer"},
    Group{kType, "torch",
          "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric "
          "per_channel_affine_float_qparams contiguous_format preserve_format channels_last "
          "channels_last_3d"},
    Group{kFunction, "torch.serialization", "_get_layout"},
    Group{kCalled | kNew | kRuled, "torch.torch_version", "TorchVersion"},
    Group{kRebuilder, "torch._utils",
          "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
          "_rebuild_parameter_with_state _rebuild_qtensor _rebuild_sparse_tensor "
          "_rebuild_sparse_csr_tensor _rebuild_meta_tensor_no_storage _rebuild_nested_tensor "
          "_rebuild_device_tensor_from_numpy _rebuild_device_tensor_from_cpu_tensor "
          "_rebuild_xla_tensor"},
    // Jagged nested tensors.
    Group{kType | kTensorType, "torch.nested._internal.nested_tensor", "NestedTensor"},
    Group{kRebuilder, "torch.nested._internal.nested_tensor", "_rebuild_njt"},
    Group{kInstances, "torch._dynamo.decorators", "_DimRange"},
    Group{kRebuilder | kRuled, "torch._utils", "_rebuild_wrapper_subclass"},
    Group{kFunction | kRuled | kTakesFunction, "torch._tensor", "_rebuild_from_type_v2"},
    // Sharded tensors saved by each rank on its own.
    Group{kInstances | kTensorType, "torch.distributed._shard.sharded_tensor.api", "ShardedTensor"},
    Group{kInstances, "torch.distributed._shard.sharded_tensor.api",
          "ShardedTensor.ProcessGroupState"},
    Group{kInstances, "torch.distributed._shard.sharded_tensor.shard", "Shard"},
    Group{kInstances, "torch.distributed._shard.sharded_tensor.metadata",
          "ShardedTensorMetadata TensorProperties"},
    Group{kCalled, "torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"},
    Group{kType, "torch.distributed._shard.sharded_tensor.metadata",
          "MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST "
          "MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT"},
    Group{kInstances, "torch.distributed._shard.metadata", "ShardMetadata"},
    Group{kInstances, "torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec"},
    Group{kInstances, "torch.distributed._shard.sharding_spec.chunk_sharding_spec",
          "ChunkShardingSpec"},
    Group{kInstances, "torch.distributed.remote_device", "_remote_device"},
    Group{kType | kTensorType, "torch.distributed.tensor", "DTensor"},
    Group{kType | kTensorType, "torch.distributed._tensor", "DTensor"},
    Group{kType | kTensorType, "torch.distributed._tensor.api", "DTensor"},
    Group{kInstances, "torch.distributed.tensor._dtensor_spec",
          "DTensorSpec TensorMeta ShardOrderEntry"},
    Group{kInstances, "torch.distributed._tensor.placement_types", "DTensorSpec TensorMeta"},
    Group{kInstances | kCall, "torch.distributed.tensor.placement_types",
          "Shard Replicate _StridedShard Partial"},
    Group{kInstances | kCall, "torch.distributed._tensor.placement_types",
          "Shard Replicate _StridedShard Partial"},
    Group{kInstances, "torch.distributed.device_mesh", "DeviceMesh"},
    Group{kInstances, "torch.distributed._mesh_layout", "_MeshLayout"},
    // The `.metadata` of torch.distributed.checkpoint.
    Group{kInstances, "torch.distributed.checkpoint.metadata",
          "Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata "
          "BytesStorageMetadata MetadataIndex StorageMeta"},
    Group{kCalled, "torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
    Group{kType, "torch.distributed.checkpoint.metadata",
          "_MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT _MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST "
          "_MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT"},
    Group{kInstances, "torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    // Plans in `.metadata`, for Megatron-Core's next save.
    Group{kInstances, "torch.distributed.checkpoint.planner",
          "SavePlan WriteItem TensorWriteData BytesIOWriteData"},
    Group{kCalled, "torch.distributed.checkpoint.planner", "WriteItemType"},
    Group{kType, "torch.distributed.checkpoint.planner",
          "WriteItemType.TENSOR WriteItemType.SHARD WriteItemType.BYTE_IO"},
    Group{kInstances, "torch.distributed._shard.checkpoint.metadata",
          "Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata "
          "BytesStorageMetadata MetadataIndex StorageMeta"},
    Group{kInstances, "torch.distributed._shard.checkpoint.filesystem", "_StorageInfo"},
    // Python's own data types.
    Group{kCalled, "builtins", "complex range slice"},
    Group{kCalled | kRuled, "builtins", "set frozenset bytearray bytes"},
    Group{kType, "builtins", "Ellipsis NotImplemented"},
    Group{kType, "builtins", "list dict tuple int float bool str"},
    Group{kValue | kNew, "builtins", "object"},
    Group{kFunction | kRuled, "builtins", "getattr"},
    Group{kFunction | kRuled, "_codecs", "encode"},
    Group{kFunction | kRuled, "copyreg", "_reconstructor"},
    Group{kInstances, "argparse", "Namespace"},
    Group{kInstances | kCall, "types", "SimpleNamespace"},
    Group{kCalled, "datetime", "datetime date time timedelta timezone"},
    Group{kCalled, "decimal", "Decimal"},
    Group{kCalled | kRuled, "fractions", "Fraction"},
    Group{kInstances, "uuid", "UUID"},
    Group{kCalled, "pathlib", "Path PosixPath WindowsPath PurePosixPath PureWindowsPath"},
    Group{kCalled, "pathlib._local", "PosixPath WindowsPath PurePosixPath PureWindowsPath"},
    // NumPy 1 and 2.
    Group{kFunction | kRuled, "numpy.core.multiarray", "scalar _reconstruct"},
    Group{kFunction | kRuled, "numpy._core.multiarray", "scalar _reconstruct"},
    Group{kCalled | kState | kRuled, "numpy", "dtype"},
    Group{kType | kState | kRuled, "numpy", "ndarray"},
    Group{kCalled, "numpy.dtypes",
          "BoolDType Int8DType UInt8DType Int16DType UInt16DType Int32DType UInt32DType Int64DType "
          "UInt64DType ByteDType UByteDType ShortDType UShortDType IntDType UIntDType LongDType "
          "ULongDType LongLongDType ULongLongDType Float16DType Float32DType Float64DType "
          "LongDoubleDType Complex64DType Complex128DType CLongDoubleDType ObjectDType BytesDType "
          "StrDType VoidDType DateTime64DType TimeDelta64DType StringDType"},
};

// The longest path that getattr may lead to: nested calls make longer and longer paths.
constexpr std::size_t kMaxMemberBytes = 512;

std::string key_of(std::string_view module, std::string_view name) {
  return cat(module, "\n", name);
}

std::unordered_map<std::string, unsigned> make_table() {
  std::unordered_map<std::string, unsigned> table;
  for (const Group& group : kGroups) {
    for (std::string_view rest = group.names; !rest.empty();) {
      const std::size_t space = std::min(rest.find(' '), rest.size());
      table.emplace(key_of(group.module, rest.substr(0, space)), group.uses);
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
  }
  return table;
}

unsigned uses_of(ProducerUse use) {
  switch (use) {
    case ProducerUse::kType:
      return kType;
    case ProducerUse::kInstances:
      return kInstances;
    case ProducerUse::kCalled:
      return kCalled;
    case ProducerUse::kFunction:
      return kFunction;
    case ProducerUse::kTensor:
      return kType | kTensorType;
  }
  return 0;
}

// Returns the uses of a name, 0 if it is not in the list.
unsigned uses_of(const GlobalName& name) {
  static const std::unordered_map<std::string, unsigned> table = make_table();
  const auto found = table.find(key_of(name.module, name.name));
  if (found != table.end()) return found->second;
  // All dtypes and storages.
  if (name.module == "torch" && dtype_from_torch_name(name.name)) return kType;
  if (is_storage_class(name)) return kType;
  const ProducerName* const producer = producer_name(name.module, name.name);
  return producer == nullptr ? 0 : uses_of(producer->use);
}

using Kind = NameArgument::Kind;
using IsAllowed = std::function<bool(const GlobalName&)>;

bool is_name(const std::vector<NameArgument>& args, std::size_t index) {
  return index < args.size() && args[index].kind == Kind::kName;
}

// Returns whether the argument is a bool, or a number in its place.
bool is_flag(const NameArgument& argument) {
  return argument.kind == Kind::kData || argument.kind == Kind::kInt;
}

// Bytes or a list; a text in files of Python 2.
bool is_bytes(const NameArgument& argument) {
  return argument.kind == Kind::kData || argument.kind == Kind::kText;
}

bool is_shape(const NameArgument& argument) {
  return argument.kind == Kind::kTuple &&
         std::ranges::all_of(argument.items, [](const NameArgument& item) {
           return item.kind == Kind::kInt && item.number >= 0;
         });
}

CallJudgement unsound(const GlobalName& name) {
  return {{name}, {}, {}};
}

// getattr(class, 'member'): exactly the pairs in the list.
CallJudgement judge_getattr(const GlobalName& callable, const std::vector<NameArgument>& args,
                            const IsAllowed& is_allowed) {
  if (args.size() != 2 || !is_name(args, 0) || args[1].kind != Kind::kText)
    return unsound(callable);
  if (args[0].name.name.size() + args[1].text.size() > kMaxMemberBytes) return unsound(callable);
  GlobalName member{args[0].name.module, cat(args[0].name.name, ".", args[1].text)};
  CallJudgement judgement;
  if (uses_of(member) == 0 && !is_allowed(member)) judgement.unsafe.push_back(member);
  judgement.name = std::move(member);
  return judgement;
}

// _reconstructor(cls, object, None), the form of instances in protocols 0 and 1.
CallJudgement judge_reconstructor(const GlobalName& callable, const std::vector<NameArgument>& args,
                                  const IsAllowed& is_allowed) {
  if (args.size() != 3 || !is_name(args, 0) || !is_name(args, 1)) return unsound(callable);
  const GlobalName& cls = args[0].name;
  const bool is_sound = (uses_of(cls) & kNew) != 0 && args[1].name.dotted() == "builtins.object";
  if (!is_sound && !is_allowed(cls)) return unsound(callable);
  return {{}, {}, cls};
}

// _rebuild_from_type_v2(function, class, arguments, state).
CallJudgement judge_from_type(const GlobalName& callable, const std::vector<NameArgument>& args,
                              const IsAllowed& is_allowed) {
  if (args.size() != 4 || !is_name(args, 0) || !is_name(args, 1)) return unsound(callable);
  CallJudgement judgement;
  const GlobalName& function = args[0].name;
  const GlobalName& cls = args[1].name;
  const bool is_rebuild = (uses_of(function) & kRebuild) != 0;
  if (!is_rebuild && !is_allowed(function)) judgement.unsafe.push_back(function);
  if ((uses_of(cls) & kTensorType) == 0 && !is_allowed(cls)) judgement.unsafe.push_back(cls);
  if (is_rebuild && (uses_of(function) & kRuled) != 0) {
    const CallJudgement inner = judge_call(function, args[2].items, is_allowed);
    judgement.unsafe.insert(judgement.unsafe.end(), inner.unsafe.begin(), inner.unsafe.end());
  }
  return judgement;
}

// _rebuild_wrapper_subclass(class, ...).
CallJudgement judge_wrapper(const GlobalName& callable, const std::vector<NameArgument>& args,
                            const IsAllowed& is_allowed) {
  if (!is_name(args, 0)) return unsound(callable);
  const GlobalName& cls = args[0].name;
  if ((uses_of(cls) & kTensorType) == 0 && !is_allowed(cls)) return unsound(cls);
  return {};
}

// defaultdict(factory): None, or a container or number of Python's own.
CallJudgement judge_defaultdict(const std::vector<NameArgument>& args,
                                const IsAllowed& is_allowed) {
  if (args.empty() || args[0].kind != Kind::kName) return {};
  const GlobalName& factory = args[0].name;
  const bool is_sound = (factory.module == "builtins" || factory.module == "collections") &&
                        (uses_of(factory) & kValue) != 0;
  return is_sound || is_allowed(factory) ? CallJudgement() : unsound(factory);
}

// encode(text, 'latin1'): another codec may be any registered function.
CallJudgement judge_encode(const GlobalName& callable, const std::vector<NameArgument>& args) {
  const bool is_sound = args.size() == 2 && args[0].kind == Kind::kText &&
                        args[1].kind == Kind::kText && args[1].text == "latin1";
  return is_sound ? CallJudgement() : unsound(callable);
}

// TorchVersion('2.11.0'): any other argument is made a text by a method of its own.
CallJudgement judge_torch_version(const GlobalName& callable,
                                  const std::vector<NameArgument>& args) {
  const bool is_sound = args.size() == 1 && args[0].kind == Kind::kText;
  return is_sound ? CallJudgement() : unsound(callable);
}

// The kinds of dtypes whose states differ, in the upper bits of a mark.  The lower bits hold the
// number in the name of a dtype S, U or V.
enum class DTypeKind : std::uint32_t { kOther, kFixed, kObject, kTime, kBytes, kText, kVoid };
constexpr unsigned kDTypeShift = 28;

// dtype('f4', False, True): text of a type without fields.
CallJudgement judge_dtype(const GlobalName& callable, const std::vector<NameArgument>& args) {
  CallJudgement judgement = unsound(callable);
  if (args.size() != 3 || args[0].kind != Kind::kText || !is_flag(args[1]) || !is_flag(args[2]))
    return judgement;
  std::string_view text = args[0].text;
  if (!text.empty() && std::string_view("<>=|").find(text[0]) != text.npos) text.remove_prefix(1);
  if (text.empty()) return judgement;
  std::uint32_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + 1, end, number);
  const bool has_number = text.size() > 1 && error == std::errc() && stop == end;
  auto kind = DTypeKind::kOther;
  if (std::string_view("biufc").find(text[0]) != text.npos && has_number) kind = DTypeKind::kFixed;
  if (text == "O8" || text == "O4" || text == "O") kind = DTypeKind::kObject;
  if (text == "M8" || text == "m8") kind = DTypeKind::kTime;
  if (has_number && number < 1U << kDTypeShift) {
    if (text[0] == 'S') kind = DTypeKind::kBytes;
    if (text[0] == 'U') kind = DTypeKind::kText;
    if (text[0] == 'V') kind = DTypeKind::kVoid;
  }
  const bool counts = kind >= DTypeKind::kBytes;
  judgement.mark = static_cast<std::uint32_t>(kind) << kDTypeShift | (counts ? number : 0);
  if (kind != DTypeKind::kOther) judgement.unsafe.clear();
  return judgement;
}

// Returns the kind of an object that is a dtype; kOther if it is not one.
DTypeKind dtype_kind(const NameArgument& argument) {
  if (argument.kind != Kind::kObject || argument.name.dotted() != "numpy.dtype")
    return DTypeKind::kOther;
  return static_cast<DTypeKind>(argument.mark >> kDTypeShift);
}

// scalar(dtype, bytes): for a dtype of objects the bytes would be a pointer.
CallJudgement judge_scalar(const GlobalName& callable, const std::vector<NameArgument>& args) {
  if (args.empty() || args.size() > 2) return unsound(callable);
  const DTypeKind kind = dtype_kind(args[0]);
  const bool is_sound = kind != DTypeKind::kOther && kind != DTypeKind::kObject &&
                        (args.size() == 1 || is_bytes(args[1]));
  return is_sound ? CallJudgement() : unsound(callable);
}

// (1, shape, dtype, is Fortran's order, bytes or a list of objects).
bool is_plain_array_state(const std::vector<NameArgument>& items) {
  return items.size() == 5 && items[0].kind == Kind::kInt && is_shape(items[1]) &&
         dtype_kind(items[2]) != DTypeKind::kOther && is_flag(items[3]) && is_bytes(items[4]);
}

// ({}, (b'ns', 1, 1, 1)): a unit of time, its count and divisor.
bool is_plain_unit(const NameArgument& argument) {
  if (argument.kind != Kind::kTuple || argument.items.size() != 2) return false;
  const std::vector<NameArgument>& unit = argument.items[1].items;
  return argument.items[0].kind == Kind::kData && unit.size() == 4 && is_bytes(unit[0]) &&
         std::all_of(unit.begin() + 1, unit.end(), [](const NameArgument& item) {
           return item.kind == Kind::kInt && item.number > 0;
         });
}

// (3, '<', None, None, None, itemsize, alignment, flags); for times version 4, and their unit.
bool is_plain_dtype_state(std::uint32_t mark, const std::vector<NameArgument>& items) {
  const auto kind = static_cast<DTypeKind>(mark >> kDTypeShift);
  const auto count = std::int64_t{mark & ((1U << kDTypeShift) - 1)};
  const std::size_t size = kind == DTypeKind::kTime ? 9 : 8;
  if (kind == DTypeKind::kOther || items.size() != size) return false;
  const auto is = [&](std::size_t item, std::initializer_list<std::int64_t> numbers) {
    return items[item].kind == Kind::kInt &&
           std::ranges::find(numbers, items[item].number) != numbers.end();
  };
  const bool order =
      items[1].kind == Kind::kText && (items[1].text == "<" || items[1].text == ">" ||
                                       items[1].text == "|" || items[1].text == "=");
  const bool no_parts = std::all_of(items.begin() + 2, items.begin() + 5,
                                    [](const auto& item) { return item.kind == Kind::kNone; });
  if (!is(0, {3, 4}) || !order || !no_parts) return false;
  if (kind == DTypeKind::kTime && !is_plain_unit(items[8])) return false;
  switch (kind) {
    case DTypeKind::kBytes:
    case DTypeKind::kVoid:
      return is(5, {count}) && is(6, {1}) && is(7, {0});
    case DTypeKind::kText:
      return is(5, {4 * count}) && is(6, {4}) && is(7, {0, 8});
    case DTypeKind::kObject:
      return is(5, {-1}) && is(6, {-1}) && is(7, {63});
    default:
      return is(5, {-1}) && is(6, {-1}) && is(7, {0});
  }
}

// _reconstruct(ndarray, (0,), b'b').
CallJudgement judge_reconstruct(const GlobalName& callable, const std::vector<NameArgument>& args,
                                const IsAllowed& is_allowed) {
  if (args.size() != 3 || !is_name(args, 0)) return unsound(callable);
  const GlobalName& cls = args[0].name;
  if (cls.dotted() != "numpy.ndarray" && !is_allowed(cls)) return unsound(cls);
  const bool is_empty = is_shape(args[1]) && args[1].items.size() == 1 &&
                        args[1].items[0].number == 0 && is_bytes(args[2]);
  if (!is_empty) return unsound(callable);
  return {{}, {}, cls};
}

// set([...]), deque((), length), Counter({...}): the items must be in the file.  An object instead
// of items may have no end (range).
CallJudgement judge_container(const GlobalName& callable, const std::vector<NameArgument>& args) {
  const std::size_t most = callable.name == "deque" ? 2 : 1;
  const bool is_sound = args.size() <= most && (args.empty() || args[0].kind == Kind::kData ||
                                                args[0].kind == Kind::kTuple);
  return is_sound ? CallJudgement() : unsound(callable);
}

// bytearray('a', 'latin-1'), bytearray(b'a'), bytes(b'a'): a number would be a length.
CallJudgement judge_bytes(const GlobalName& callable, const std::vector<NameArgument>& args) {
  const bool is_text = args.size() == 2 && args[0].kind == Kind::kText &&
                       args[1].kind == Kind::kText &&
                       (args[1].text == "latin-1" || args[1].text == "latin1");
  const bool is_data = args.size() <= 1 && (args.empty() || args[0].kind == Kind::kData);
  return is_text || is_data ? CallJudgement() : unsound(callable);
}

// Fraction(1, 3), Fraction('1/3'): Python expands an exponent to all its digits.
CallJudgement judge_fraction(const GlobalName& callable, const std::vector<NameArgument>& args) {
  const bool is_pair = args.size() == 2 && args[0].kind == Kind::kInt && args[1].kind == Kind::kInt;
  const bool is_text = args.size() == 1 && args[0].kind == Kind::kText && !args[0].text.empty() &&
                       args[0].text.find_first_not_of("0123456789-/") == std::string::npos;
  return is_pair || is_text ? CallJudgement() : unsound(callable);
}

}  // namespace

GlobalName python_3_name(std::string_view module, std::string_view name) {
  if (module == "__builtin__") {
    module = "builtins";
    // The Python 3 names of Python 2 types, which protocol 2 writes.
    if (name == "long") name = "int";
    if (name == "unicode") name = "str";
    if (name == "xrange") name = "range";
  }
  if (module == "copy_reg") module = "copyreg";
  return {std::string(module), std::string(name)};
}

bool is_bytes_call(const GlobalName& name) {
  return (name.module == "_codecs" && name.name == "encode") ||
         (name.module == "builtins" && name.name == "bytes");
}

bool is_storage_class(const GlobalName& name) {
  const bool has_storages =
      name.module == "torch" || name.module == "torch.cuda" || name.module == "torch.storage";
  return has_storages && (dtype_from_storage_class(name.name) || name.name == "UntypedStorage");
}

PlainUses plain_uses(const GlobalName& name) {
  return PlainUses(uses_of(name));
}

CallJudgement judge_call(const GlobalName& callable, const std::vector<NameArgument>& args,
                         const IsAllowed& is_allowed) {
  if (callable.name == "getattr") return judge_getattr(callable, args, is_allowed);
  if (callable.name == "_reconstructor") return judge_reconstructor(callable, args, is_allowed);
  if (callable.name == "_rebuild_from_type_v2") return judge_from_type(callable, args, is_allowed);
  if (callable.name == "_rebuild_wrapper_subclass")
    return judge_wrapper(callable, args, is_allowed);
  if (callable.name == "defaultdict") return judge_defaultdict(args, is_allowed);
  if (callable.name == "encode") return judge_encode(callable, args);
  if (callable.name == "TorchVersion") return judge_torch_version(callable, args);
  if (callable.name == "dtype") return judge_dtype(callable, args);
  if (callable.name == "scalar") return judge_scalar(callable, args);
  if (callable.name == "bytes" || callable.name == "bytearray") return judge_bytes(callable, args);
  if (callable.name == "Fraction") return judge_fraction(callable, args);
  if (callable.module == "builtins" || callable.module == "collections")
    return judge_container(callable, args);
  return judge_reconstruct(callable, args, is_allowed);
}

bool is_plain_state(const GlobalName& name, std::uint32_t mark,
                    const std::vector<NameArgument>& items) {
  if (name.name == "ndarray") return is_plain_array_state(items);
  return name.name != "dtype" || is_plain_dtype_state(mark, items);
}

}  // namespace fsdp::formats
