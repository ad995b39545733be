// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/metadata_tables.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/huge_pages.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/names/plain_names.h"
#include "formats/containers/pickle/machine.h"

namespace fsdp::formats::dcp {
namespace {

constexpr std::size_t kMaxRank = 64;

// Least bytes of the stream that a chunk with its item takes.
constexpr std::uint64_t kChunkPickleBytes = 140;
constexpr std::uint64_t kMaxReservedRows = 4'000'000;

std::optional<MetadataClass> record_class(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, MetadataClass>, 8> kNames = {{
      {"Metadata", MetadataClass::kMetadata},
      {"TensorStorageMetadata", MetadataClass::kTensorStorage},
      {"TensorProperties", MetadataClass::kTensorProperties},
      {"ChunkStorageMetadata", MetadataClass::kChunk},
      {"BytesStorageMetadata", MetadataClass::kBytes},
      {"MetadataIndex", MetadataClass::kMetadataIndex},
      {"StorageMeta", MetadataClass::kStorageMeta},
      {"_MEM_FORMAT_ENCODING", MetadataClass::kMemoryFormat},
  }};
  for (const auto& [known, cls] : kNames) {
    if (known == name) return cls;
  }
  return std::nullopt;
}

// Returns the class of a name that a built-in writer can produce; nothing for other names.
std::optional<MetadataClass> known_class(std::string_view module, std::string_view name) {
  if (module == "torch.distributed.checkpoint.metadata" ||
      module == "torch.distributed._shard.checkpoint.metadata") {
    return record_class(name);
  }
  // OLMo-core's own class has the same fields.
  if (module == "torch.distributed.checkpoint.filesystem" ||
      module == "torch.distributed._shard.checkpoint.filesystem" ||
      module == "olmo_core.distributed.checkpoint.filesystem") {
    if (name == "_StorageInfo") return MetadataClass::kStorageInfo;
  }
  if (module == "torch.distributed.checkpoint.planner") {
    if (name == "SavePlan" || name == "WriteItem" || name == "TensorWriteData" ||
        name == "BytesIOWriteData") {
      return MetadataClass::kPlan;
    }
    if (name == "WriteItemType") return MetadataClass::kWriteItemType;
  }
  if (module == "torch.distributed._shard.sharded_tensor.metadata") {
    if (name == "TensorProperties") return MetadataClass::kTensorProperties;
    if (name == "MEM_FORMAT_ENCODING") return MetadataClass::kMemoryFormat;
  }
  if (module == "torch") {
    if (name == "Size") return MetadataClass::kSize;
    const auto dtype = dtype_from_torch_name(name);
    if (dtype && is_torch_dtype(*dtype)) return MetadataClass::kDType;
  }
  if (module == "torch.serialization" && name == "_get_layout") return MetadataClass::kGetLayout;
  if (module == "pathlib" || module == "pathlib._local") {
    if (name == "Path" || name == "PosixPath" || name == "WindowsPath" || name == "PurePosixPath" ||
        name == "PureWindowsPath") {
      return MetadataClass::kPath;
    }
  }
  if ((module == "builtins" || module == "__builtin__") && name == "getattr")
    return MetadataClass::kGetattr;
  if (module == "collections" && name == "OrderedDict") return MetadataClass::kOrderedDict;
  return std::nullopt;
}

Error bad_field(std::string_view cls, std::string_view field, std::string_view expected) {
  return {ErrorCode::kBuild, cat(cls, ": field ", field, ": expected ", expected)};
}

// The fields of a record's state, by name.
class Fields {
 public:
  Fields(std::string_view cls, const Value& state) : cls_(cls), state_(state) {
    if (state.kind() != ValueKind::kDict)
      throw Error(ErrorCode::kBuild, cat(cls, ": state is not a dict"));
  }
  const Value* find(std::string_view name) const { return state_.find(name); }
  const Value& get(std::string_view name) const {
    const Value* value = find(name);
    if (value == nullptr)
      throw Error(ErrorCode::kBuild, cat(cls_, ": field ", name, " is missing"));
    return *value;
  }
  std::uint64_t record(std::string_view name, MetadataClass cls) const {
    return record_of(get(name), cls, name);
  }
  std::uint64_t record_of(const Value& value, MetadataClass cls, std::string_view name) const {
    if (value.kind() != ValueKind::kOpaque ||
        value.opaque_tag() != static_cast<std::uint32_t>(cls)) {
      throw bad_field(cls_, name, "another record");
    }
    return value.opaque_payload();
  }
  std::int64_t integer(std::string_view name) const {
    const auto number = get(name).as_int();
    if (!number) throw bad_field(cls_, name, "an integer");
    return *number;
  }
  const std::string& text(std::string_view name) const {
    const std::string* text = get(name).as_string();
    if (text == nullptr) throw bad_field(cls_, name, "a text");
    return *text;
  }
  std::string_view cls() const { return cls_; }

 private:
  std::string_view cls_;
  const Value& state_;
};

class MetadataHost : public PickleHost {
 public:
  // `stream_bytes` bounds the number of rows, which are reserved: tables that grow by doubling
  // would copy and touch twice the memory, while unused reserved memory costs nothing.
  MetadataHost(const std::set<std::string>& allowed, std::uint64_t stream_bytes)
      : allowed_(allowed) {
    const auto rows =
        static_cast<std::size_t>(std::min(stream_bytes / kChunkPickleBytes, kMaxReservedRows));
    reserve_huge(t_.chunks, rows);
    reserve_huge(t_.item_keys, rows);
    reserve_huge(t_.items, rows);
    reserve_huge(t_.numbers, 6 * rows);
  }
  MetadataTables& tables() { return t_; }

  std::int32_t global(std::string_view module, std::string_view name) override {
    if (const auto cls = known_class(module, name)) return static_cast<std::int32_t>(*cls);
    const GlobalName wanted{std::string(module), std::string(name)};
    if (!allowed_.contains(wanted.dotted())) throw not_allowed(wanted);
    return static_cast<std::int32_t>(MetadataClass::kIgnored);
  }

  Value reduce(const Value& callable, Value args) override {
    const auto items = args.items();
    switch (static_cast<MetadataClass>(callable.global_tag())) {
      case MetadataClass::kSize:
        // torch.Size((2, 3)) becomes the tuple itself.
        if (items.size() != 1 || items[0].kind() != ValueKind::kTuple) {
          throw Error(ErrorCode::kReduce, "call of torch.Size: expected one tuple");
        }
        return items[0];
      case MetadataClass::kGetLayout:
        if (items.size() != 1 || items[0].as_string() == nullptr) {
          throw Error(ErrorCode::kReduce,
                      "call of torch.serialization._get_layout: expected one text");
        }
        return items[0];
      case MetadataClass::kGetattr:
        check_member(items);
        return {};
      case MetadataClass::kMemoryFormat:
      case MetadataClass::kWriteItemType:
      case MetadataClass::kPath:
        return {};
      case MetadataClass::kOrderedDict:
      case MetadataClass::kIgnored:
        return PickleHost::reduce(callable, std::move(args));
      default:
        break;
    }
    throw Error(ErrorCode::kReduce,
                cat("call of ", name_of(callable), ": not expected in a .metadata"));
  }

  Value new_object(const Value& cls, Value args) override {
    const auto tag = static_cast<MetadataClass>(cls.global_tag());
    if (cls.as_global() != nullptr && tag == MetadataClass::kIgnored)
      return PickleHost::new_object(cls, std::move(args));
    if (cls.as_global() == nullptr || tag < MetadataClass::kFirstRecord) {
      throw Error(ErrorCode::kReduce,
                  cat("object of ", name_of(cls), ": not expected in a .metadata"));
    }
    if (!args.items().empty()) {
      throw Error(ErrorCode::kReduce, cat("object of ", name_of(cls), ": expected no arguments"));
    }
    return Value::opaque(static_cast<std::uint32_t>(tag), new_row(tag));
  }

  Value build(Value object, Value state, bool shared) override {
    if (object.kind() != ValueKind::kOpaque)
      return PickleHost::build(std::move(object), std::move(state), shared);
    const std::uint64_t row = object.opaque_payload();
    switch (static_cast<MetadataClass>(object.opaque_tag())) {
      case MetadataClass::kChunk:
        build_chunk(t_.chunks[row], state);
        break;
      case MetadataClass::kMetadataIndex:
        build_item_key(t_.item_keys[row], state);
        break;
      case MetadataClass::kStorageInfo:
        build_item(t_.items[row], state);
        break;
      case MetadataClass::kTensorStorage:
        build_tensor(t_.tensors[row], state);
        break;
      case MetadataClass::kTensorProperties:
        build_properties(t_.properties[row], state);
        break;
      case MetadataClass::kMetadata:
        build_root(state);
        break;
      case MetadataClass::kStorageMeta:  // place and time of the save
      case MetadataClass::kPlan:
        break;
      default:
        throw Error(ErrorCode::kBuild, "a state for an object that has none");
    }
    return object;
  }

 private:
  // Throws unless the call of getattr names plain data.
  void check_member(std::span<const Value> args) const {
    const GlobalName* cls = args.size() == 2 ? args[0].as_global() : nullptr;
    const std::string* member = args.size() == 2 ? args[1].as_string() : nullptr;
    if (cls == nullptr || member == nullptr)
      throw Error(ErrorCode::kReduce, "call of getattr: expected a class and a text");
    const GlobalName name{cls->module, cat(cls->name, ".", *member)};
    if (!plain_uses(name).any() && !allowed_.contains(name.dotted())) throw not_allowed(name);
  }

  static Error not_allowed(const GlobalName& name) {
    return {
        ErrorCode::kGlobal,
        cat("global ", quote(name.dotted()), " is not allowed; only a custom planner writes it"),
        {Remedy::kAllowGlobal, name.dotted()}};
  }

  static std::string name_of(const Value& value) {
    return value.as_global() == nullptr ? "something that is not a name"
                                        : quote(value.as_global()->dotted());
  }

  template <typename Row>
  static std::uint64_t append(std::vector<Row>& table) {
    table.emplace_back();
    return table.size() - 1;
  }

  std::uint64_t new_row(MetadataClass cls) {
    switch (cls) {
      case MetadataClass::kChunk:
        return append(t_.chunks);
      case MetadataClass::kMetadataIndex:
        return append(t_.item_keys);
      case MetadataClass::kStorageInfo:
        return append(t_.items);
      case MetadataClass::kTensorStorage:
        return append(t_.tensors);
      case MetadataClass::kTensorProperties:
        return append(t_.properties);
      default:
        return 0;
    }
  }

  MetadataDims take_dims(const Fields& fields, std::string_view name) {
    const Value& value = fields.get(name);
    if (value.kind() != ValueKind::kTuple) throw bad_field(fields.cls(), name, "a torch.Size");
    const auto items = value.items();
    if (items.size() > kMaxRank) throw bad_field(fields.cls(), name, "at most 64 dimensions");
    const MetadataDims dims{t_.numbers.size(), static_cast<std::uint32_t>(items.size())};
    for (const Value& item : items) {
      const auto number = item.as_int();
      if (!number)
        throw Error(ErrorCode::kType,
                    cat(fields.cls(), ": field ", name, ": a dimension is not an integer"));
      t_.numbers.push_back(*number);
    }
    return dims;
  }

  std::uint32_t key_number(const std::string& key) {
    const auto [at, fresh] =
        t_.key_numbers.try_emplace(key, static_cast<std::uint32_t>(t_.keys.size()));
    if (fresh) {
      if (key.size() > kMaxKeyBytes) {
        throw Error(ErrorCode::kName,
                    cat("key ", quote(key), " has ", key.size(), " bytes, at most ", kMaxKeyBytes));
      }
      t_.keys.push_back(key);
    }
    return at->second;
  }

  void build_chunk(MetadataTables::Chunk& row, const Value& state) {
    const Fields fields("ChunkStorageMetadata", state);
    row.offset = take_dims(fields, "offsets");
    row.size = take_dims(fields, "sizes");
  }

  void build_item_key(MetadataTables::ItemKey& row, const Value& state) {
    const Fields fields("MetadataIndex", state);
    row.key = key_number(fields.text("fqn"));
    // Absent for values (and None from writers that spell it out).
    const Value* offset = fields.find("offset");
    row.has_offset = offset != nullptr && !offset->is_none();
    if (row.has_offset) row.offset = take_dims(fields, "offset");
    // `index` is a hint at the chunk's position and may be stale.
  }

  void build_item(Location& row, const Value& state) {
    const Fields fields("_StorageInfo", state);
    const std::string& path = fields.text("relative_path");
    const auto [at, fresh] =
        t_.file_numbers.try_emplace(path, static_cast<std::uint32_t>(t_.files.size()));
    if (fresh) t_.files.push_back(path);
    const std::int64_t offset = fields.integer("offset");
    const std::int64_t length = fields.integer("length");
    if (offset < 0 || length < 0) {
      throw Error(ErrorCode::kExtent,
                  cat("item of ", quote(path), " at byte ", offset, " has ", length, " bytes"));
    }
    checked_add(static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length),
                "end of an item");
    row = {at->second, 0, static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length)};
    const Value* transforms = fields.find("transform_descriptors");
    if (transforms == nullptr || transforms->is_none()) return;
    if (transforms->kind() != ValueKind::kList && transforms->kind() != ValueKind::kTuple) {
      throw bad_field(fields.cls(), "transform_descriptors", "a list of texts");
    }
    std::vector<std::string> names;
    for (const Value& name : transforms->items()) {
      if (name.as_string() == nullptr)
        throw bad_field(fields.cls(), "transform_descriptors", "a list of texts");
      names.push_back(*name.as_string());
    }
    auto found = std::ranges::find(t_.transforms, names);
    if (found == t_.transforms.end()) found = t_.transforms.insert(found, names);
    row.transform = static_cast<std::uint32_t>(found - t_.transforms.begin());
  }

  void build_tensor(MetadataTables::Tensor& row, const Value& state) {
    const Fields fields("TensorStorageMetadata", state);
    row.properties = fields.record("properties", MetadataClass::kTensorProperties);
    row.size = take_dims(fields, "size");
    const Value& chunks = fields.get("chunks");
    if (chunks.kind() != ValueKind::kList) throw bad_field(fields.cls(), "chunks", "a list");
    row.chunks.reserve(chunks.items().size());
    for (const Value& chunk : chunks.items()) {
      row.chunks.push_back(
          static_cast<std::uint32_t>(fields.record_of(chunk, MetadataClass::kChunk, "chunks")));
    }
  }

  // Reads a tuple (dtype, layout, requires_grad, memory format, pin_memory[, strides]), or a dict
  // of the same.
  void build_properties(MetadataTables::Properties& row, const Value& state) {
    const Value* dtype = nullptr;
    const Value* layout = nullptr;
    if (state.kind() == ValueKind::kTuple) {
      const auto items = state.items();
      if (items.size() < 5 || items.size() > 6) {
        throw Error(ErrorCode::kBuild,
                    cat("TensorProperties: expected 5 or 6 fields, found ", items.size()));
      }
      dtype = &items[0];
      layout = &items[1];
    } else {
      const Fields fields("TensorProperties", state);
      dtype = &fields.get("dtype");
      layout = fields.find("layout");
    }
    if (dtype->as_global() == nullptr ||
        static_cast<MetadataClass>(dtype->global_tag()) != MetadataClass::kDType) {
      throw Error(ErrorCode::kType, "TensorProperties: field dtype is not a dtype");
    }
    row.dtype = *dtype_from_torch_name(dtype->as_global()->name);
    if (layout != nullptr && layout->as_string() != nullptr) row.layout = *layout->as_string();
  }

  void build_root(const Value& state) {
    const Fields fields("Metadata", state);
    t_.root.seen = true;
    if (const Value* value = fields.find("state_dict_metadata"))
      t_.root.state_dict_metadata = *value;
    if (const Value* value = fields.find("planner_data")) {
      t_.root.planner_data = *value;
      t_.root.has_planner_data = true;
    }
    if (const Value* value = fields.find("storage_data")) t_.root.storage_data = *value;
    if (const Value* value = fields.find("version")) t_.root.version = *value;
  }

  const std::set<std::string>& allowed_;
  MetadataTables t_;
};

}  // namespace

bool is_record(const Value& value, MetadataClass cls) {
  return value.kind() == ValueKind::kOpaque &&
         value.opaque_tag() == static_cast<std::uint32_t>(cls);
}

MetadataTables read_metadata_tables(const ByteSource& source,
                                    const std::set<std::string>& allowed_globals) {
  MetadataHost host(allowed_globals, source.size());
  read_pickle(source, host);
  return std::move(host.tables());
}

}  // namespace fsdp::formats::dcp
