// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/dcp_metadata.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <unordered_map>

#include "formats/base/checked_math.h"
#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/container/pickle_machine.h"
#include "formats/layout/dcp_names.h"

namespace fsdp::formats::dcp {
namespace {

constexpr std::size_t kMaxRank = 64;
constexpr std::size_t kMaxKeyBytes = 64U << 10U;
// Levels of nesting in a state dict; real ones have some ten.
constexpr std::size_t kMaxPathSteps = 256;
// The one version of the folder's structure PyTorch has named so far (2.9 on).
constexpr std::string_view kKnownVersion = "1.0.0";
// Findings of one kind beyond these say nothing new.
constexpr std::size_t kMaxFindingsOfAKind = 20;

// A chunk with its item takes at least these many bytes of the stream.
constexpr std::uint64_t kChunkPickleBytes = 140;
constexpr std::uint64_t kMaxReservedRows = 4'000'000;

// The classes of the pickle.  Those from kFirstRecord on are folded into tables while the stream is read.
enum class Class : std::int32_t {
  kIgnored,   // told apart from nothing: allowed by the caller
  kSize,
  kDType,
  kGetLayout,
  kMemoryFormat,
  kPath,
  kGetattr,
  kOrderedDict,
  kFirstRecord,
  kMetadata = kFirstRecord,
  kTensorStorage,
  kTensorProperties,
  kChunk,
  kBytes,
  kMetadataIndex,
  kStorageInfo,
  kStorageMeta,
};

std::optional<Class> record_class(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Class>, 8> kNames = {{
      {"Metadata", Class::kMetadata},
      {"TensorStorageMetadata", Class::kTensorStorage},
      {"TensorProperties", Class::kTensorProperties},
      {"ChunkStorageMetadata", Class::kChunk},
      {"BytesStorageMetadata", Class::kBytes},
      {"MetadataIndex", Class::kMetadataIndex},
      {"StorageMeta", Class::kStorageMeta},
      {"_MEM_FORMAT_ENCODING", Class::kMemoryFormat},
  }};
  for (const auto& [known, cls] : kNames) {
    if (known == name) return cls;
  }
  return std::nullopt;
}

// Every name that a built-in writer can produce.
std::optional<Class> known_class(std::string_view module, std::string_view name) {
  if (module == "torch.distributed.checkpoint.metadata" || module == "torch.distributed._shard.checkpoint.metadata") {
    return record_class(name);
  }
  if (module == "torch.distributed.checkpoint.filesystem" ||
      module == "torch.distributed._shard.checkpoint.filesystem") {
    if (name == "_StorageInfo") return Class::kStorageInfo;
  }
  if (module == "torch.distributed._shard.sharded_tensor.metadata") {
    if (name == "TensorProperties") return Class::kTensorProperties;
    if (name == "MEM_FORMAT_ENCODING") return Class::kMemoryFormat;
  }
  if (module == "torch") {
    if (name == "Size") return Class::kSize;
    if (dtype_from_torch_name(name)) return Class::kDType;
  }
  if (module == "torch.serialization" && name == "_get_layout") return Class::kGetLayout;
  if (module == "pathlib" || module == "pathlib._local") {
    if (name == "Path" || name == "PosixPath" || name == "WindowsPath" || name == "PurePosixPath" ||
        name == "PureWindowsPath") {
      return Class::kPath;
    }
  }
  if ((module == "builtins" || module == "__builtin__") && name == "getattr") return Class::kGetattr;
  if (module == "collections" && name == "OrderedDict") return Class::kOrderedDict;
  return std::nullopt;
}

// Numbers of shapes and offsets, packed one behind the other.
struct Dims {
  std::uint64_t at = 0;
  std::uint32_t rank = 0;
};

// What the records of the stream become.  A record's opaque value holds its position in the table of its class.
struct Tables {
  struct Chunk {
    Dims offset;
    Dims size;
  };
  struct Properties {
    DType dtype = DType::kFloat32;
    std::string layout = "torch.strided";
  };
  struct Tensor {
    std::uint64_t properties = 0;
    Dims size;
    std::vector<std::uint32_t> chunks;
  };
  struct ItemKey {
    std::uint32_t key = 0;  // position in `keys`
    bool has_offset = false;
    Dims offset;
  };
  struct Item {
    Location location;
  };
  struct Root {
    Value state_dict_metadata;
    Value planner_data;
    Value storage_data;
    Value version;
    bool seen = false;
  };

  std::vector<std::int64_t> numbers;
  std::vector<Chunk> chunks;
  std::vector<Properties> properties;
  std::vector<Tensor> tensors;
  std::vector<ItemKey> item_keys;
  std::vector<Item> items;
  Root root;
  std::vector<std::string> keys;
  std::unordered_map<std::string, std::uint32_t> key_numbers;
  std::vector<std::string> files;
  std::unordered_map<std::string, std::uint32_t> file_numbers;
  std::vector<std::vector<std::string>> transforms = {{}};

  std::span<const std::int64_t> dims(const Dims& d) const { return std::span(numbers).subspan(d.at, d.rank); }
  bool same(const Dims& a, const Dims& b) const {
    const auto x = dims(a);
    const auto y = dims(b);
    return x.size() == y.size() && std::equal(x.begin(), x.end(), y.begin());
  }
};

Error bad_field(std::string_view cls, std::string_view field, std::string_view expected) {
  return {ErrorCode::kBuild, cat(cls, ": field ", field, ": expected ", expected)};
}

// The fields of a record's state, by name.
class Fields {
 public:
  Fields(std::string_view cls, const Value& state) : cls_(cls), state_(state) {
    if (state.kind() != ValueKind::kDict) throw Error(ErrorCode::kBuild, cat(cls, ": state is no dict"));
  }
  const Value* find(std::string_view name) const { return state_.find(name); }
  const Value& get(std::string_view name) const {
    const Value* value = find(name);
    if (value == nullptr) throw Error(ErrorCode::kBuild, cat(cls_, ": field ", name, " is missing"));
    return *value;
  }
  std::uint64_t record(std::string_view name, Class cls) const { return record_of(get(name), cls, name); }
  std::uint64_t record_of(const Value& value, Class cls, std::string_view name) const {
    if (value.kind() != ValueKind::kOpaque || value.opaque_tag() != static_cast<std::uint32_t>(cls)) {
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
  // `stream_bytes` tells how many rows there may be: tables that grow by doubling would copy and touch twice the
  // memory, and what is reserved and not used costs nothing.
  MetadataHost(const std::set<std::string>& allowed, std::uint64_t stream_bytes) : allowed_(allowed) {
    const auto rows = static_cast<std::size_t>(std::min(stream_bytes / kChunkPickleBytes, kMaxReservedRows));
    t_.chunks.reserve(rows);
    t_.item_keys.reserve(rows);
    t_.items.reserve(rows);
    t_.numbers.reserve(6 * rows);
  }
  Tables& tables() { return t_; }

  std::int32_t global(std::string_view module, std::string_view name) override {
    if (const auto cls = known_class(module, name)) return static_cast<std::int32_t>(*cls);
    const std::string dotted = std::string(module) + "." + std::string(name);
    if (allowed_.contains(dotted)) return static_cast<std::int32_t>(Class::kIgnored);
    throw Error(ErrorCode::kGlobal, cat("global ", quote(dotted),
                                        " is not allowed; a checkpoint has no use for it, unless a planner of your own "
                                        "wrote it: then --allow-global ", escape(dotted)));
  }

  Value reduce(const Value& callable, Value args) override {
    const auto items = args.items();
    switch (static_cast<Class>(callable.global_tag())) {
      case Class::kSize:
        // torch.Size((2, 3)) becomes the tuple itself.
        if (items.size() != 1 || items[0].kind() != ValueKind::kTuple) {
          throw Error(ErrorCode::kReduce, "call of torch.Size: expected one tuple");
        }
        return items[0];
      case Class::kGetLayout:
        if (items.size() != 1 || items[0].as_string() == nullptr) {
          throw Error(ErrorCode::kReduce, "call of torch.serialization._get_layout: expected one text");
        }
        return items[0];
      case Class::kMemoryFormat:
      case Class::kGetattr:
      case Class::kPath:
        return {};
      case Class::kOrderedDict:
      case Class::kIgnored:
        return PickleHost::reduce(callable, std::move(args));
      default:
        break;
    }
    throw Error(ErrorCode::kReduce, cat("call of ", name_of(callable), ": it is not called in a .metadata"));
  }

  Value new_object(const Value& cls, Value args) override {
    const auto tag = static_cast<Class>(cls.global_tag());
    if (cls.as_global() != nullptr && tag == Class::kIgnored) return PickleHost::new_object(cls, std::move(args));
    if (cls.as_global() == nullptr || tag < Class::kFirstRecord) {
      throw Error(ErrorCode::kReduce, cat("object of ", name_of(cls), ": it is no class of a .metadata"));
    }
    if (!args.items().empty()) {
      throw Error(ErrorCode::kReduce, cat("object of ", name_of(cls), ": expected no arguments"));
    }
    return Value::opaque(static_cast<std::uint32_t>(tag), new_row(tag));
  }

  Value build(Value object, Value state, bool shared) override {
    if (object.kind() != ValueKind::kOpaque) return PickleHost::build(std::move(object), std::move(state), shared);
    const std::uint64_t row = object.opaque_payload();
    switch (static_cast<Class>(object.opaque_tag())) {
      case Class::kChunk: build_chunk(t_.chunks[row], state); break;
      case Class::kMetadataIndex: build_item_key(t_.item_keys[row], state); break;
      case Class::kStorageInfo: build_item(t_.items[row], state); break;
      case Class::kTensorStorage: build_tensor(t_.tensors[row], state); break;
      case Class::kTensorProperties: build_properties(t_.properties[row], state); break;
      case Class::kMetadata: build_root(state); break;
      case Class::kStorageMeta: break;  // where and when it was saved: of no use to a reader
      default: throw Error(ErrorCode::kBuild, "state of a record that has none");
    }
    return object;
  }

 private:
  static std::string name_of(const Value& value) {
    return value.as_global() == nullptr ? "something that is no name" : quote(value.as_global()->dotted());
  }

  template <typename Row>
  static std::uint64_t append(std::vector<Row>& table) {
    table.emplace_back();
    return table.size() - 1;
  }

  std::uint64_t new_row(Class cls) {
    switch (cls) {
      case Class::kChunk: return append(t_.chunks);
      case Class::kMetadataIndex: return append(t_.item_keys);
      case Class::kStorageInfo: return append(t_.items);
      case Class::kTensorStorage: return append(t_.tensors);
      case Class::kTensorProperties: return append(t_.properties);
      default: return 0;
    }
  }

  Dims take_dims(const Fields& fields, std::string_view name) {
    const Value& value = fields.get(name);
    if (value.kind() != ValueKind::kTuple) throw bad_field(fields.cls(), name, "a torch.Size");
    const auto items = value.items();
    if (items.size() > kMaxRank) throw bad_field(fields.cls(), name, "at most 64 dimensions");
    const Dims dims{t_.numbers.size(), static_cast<std::uint32_t>(items.size())};
    for (const Value& item : items) {
      const auto number = item.as_int();
      if (!number) throw Error(ErrorCode::kType, cat(fields.cls(), ": field ", name, ": a dimension is no integer"));
      t_.numbers.push_back(*number);
    }
    return dims;
  }

  std::uint32_t key_number(const std::string& key) {
    const auto [at, fresh] = t_.key_numbers.try_emplace(key, static_cast<std::uint32_t>(t_.keys.size()));
    if (fresh) {
      if (key.size() > kMaxKeyBytes) {
        throw Error(ErrorCode::kName, cat("key ", quote(key), " has ", key.size(), " bytes, at most ", kMaxKeyBytes));
      }
      t_.keys.push_back(key);
    }
    return at->second;
  }

  void build_chunk(Tables::Chunk& row, const Value& state) {
    const Fields fields("ChunkStorageMetadata", state);
    row.offset = take_dims(fields, "offsets");
    row.size = take_dims(fields, "sizes");
  }

  void build_item_key(Tables::ItemKey& row, const Value& state) {
    const Fields fields("MetadataIndex", state);
    row.key = key_number(fields.text("fqn"));
    // Absent for values (and None where another writer spells it out).
    const Value* offset = fields.find("offset");
    row.has_offset = offset != nullptr && !offset->is_none();
    if (row.has_offset) row.offset = take_dims(fields, "offset");
    // `index` is a hint where the chunk stands, which may be stale.
  }

  void build_item(Tables::Item& row, const Value& state) {
    const Fields fields("_StorageInfo", state);
    const std::string& path = fields.text("relative_path");
    const auto [at, fresh] = t_.file_numbers.try_emplace(path, static_cast<std::uint32_t>(t_.files.size()));
    if (fresh) t_.files.push_back(path);
    const std::int64_t offset = fields.integer("offset");
    const std::int64_t length = fields.integer("length");
    if (offset < 0 || length < 0) {
      throw Error(ErrorCode::kExtent, cat("item of ", quote(path), " at byte ", offset, " has ", length, " bytes"));
    }
    checked_add(static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length), "end of an item");
    row.location = {at->second, 0, static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length)};
    const Value* transforms = fields.find("transform_descriptors");
    if (transforms == nullptr || transforms->is_none()) return;
    if (transforms->kind() != ValueKind::kList && transforms->kind() != ValueKind::kTuple) {
      throw bad_field(fields.cls(), "transform_descriptors", "a list of texts");
    }
    std::vector<std::string> names;
    for (const Value& name : transforms->items()) {
      if (name.as_string() == nullptr) throw bad_field(fields.cls(), "transform_descriptors", "a list of texts");
      names.push_back(*name.as_string());
    }
    auto found = std::find(t_.transforms.begin(), t_.transforms.end(), names);
    if (found == t_.transforms.end()) found = t_.transforms.insert(found, names);
    row.location.transform = static_cast<std::uint32_t>(found - t_.transforms.begin());
  }

  void build_tensor(Tables::Tensor& row, const Value& state) {
    const Fields fields("TensorStorageMetadata", state);
    row.properties = fields.record("properties", Class::kTensorProperties);
    row.size = take_dims(fields, "size");
    const Value& chunks = fields.get("chunks");
    if (chunks.kind() != ValueKind::kList) throw bad_field(fields.cls(), "chunks", "a list");
    row.chunks.reserve(chunks.items().size());
    for (const Value& chunk : chunks.items()) {
      row.chunks.push_back(static_cast<std::uint32_t>(fields.record_of(chunk, Class::kChunk, "chunks")));
    }
  }

  // A tuple (dtype, layout, requires_grad, memory format, pin_memory[, strides]), or a dict of the same.
  void build_properties(Tables::Properties& row, const Value& state) {
    const Value* dtype = nullptr;
    const Value* layout = nullptr;
    if (state.kind() == ValueKind::kTuple) {
      const auto items = state.items();
      if (items.size() < 5 || items.size() > 6) {
        throw Error(ErrorCode::kBuild, cat("TensorProperties: expected 5 or 6 fields, found ", items.size()));
      }
      dtype = &items[0];
      layout = &items[1];
    } else {
      const Fields fields("TensorProperties", state);
      dtype = &fields.get("dtype");
      layout = fields.find("layout");
    }
    if (dtype->as_global() == nullptr || static_cast<Class>(dtype->global_tag()) != Class::kDType) {
      throw Error(ErrorCode::kType, "TensorProperties: field dtype is no dtype");
    }
    row.dtype = *dtype_from_torch_name(dtype->as_global()->name);
    if (layout != nullptr && layout->as_string() != nullptr) row.layout = *layout->as_string();
  }

  void build_root(const Value& state) {
    const Fields fields("Metadata", state);
    t_.root.seen = true;
    if (const Value* value = fields.find("state_dict_metadata")) t_.root.state_dict_metadata = *value;
    if (const Value* value = fields.find("planner_data")) t_.root.planner_data = *value;
    if (const Value* value = fields.find("storage_data")) t_.root.storage_data = *value;
    if (const Value* value = fields.find("version")) t_.root.version = *value;
  }

  const std::set<std::string>& allowed_;
  Tables t_;
};

// The path of a key: ('model', 'layers', 0, 'weight').
std::optional<KeyPath> path_of(const Value& value) {
  if (value.kind() != ValueKind::kTuple && value.kind() != ValueKind::kList) return std::nullopt;
  KeyPath path;
  for (const Value& step : value.items()) {
    if (step.as_string() != nullptr) {
      path.emplace_back(*step.as_string());
    } else if (step.as_int() && *step.as_int() >= 0) {
      path.emplace_back(*step.as_int());
    } else {
      return std::nullopt;
    }
  }
  if (path.empty()) return std::nullopt;
  return path;
}

// Puts the tables together: which chunk lies where.
class Assembler {
 public:
  Assembler(Tables& tables, std::string name) : t_(tables), name_(std::move(name)) {}

  Metadata run() {
    if (!t_.root.seen) throw Error(ErrorCode::kMetaType, "the pickle holds no Metadata");
    const auto entries = mapping_entries(t_.root.state_dict_metadata);
    if (!entries) throw Error(ErrorCode::kMetaType, "state_dict_metadata is no dict");
    read_version();
    read_paths();
    group_items();
    for (const std::string& file : t_.files) {
      out_.index.files.push_back({.name = file, .bytes = {}, .rank = rank_of_data_file(file)});
    }
    out_.index.transforms = t_.transforms;
    std::vector<char> used(t_.keys.size(), 0);
    for (const auto& [key, value] : *entries) {
      const std::string* name = key.as_string();
      if (name == nullptr) throw Error(ErrorCode::kKey, "state_dict_metadata: a key is no text");
      if (name->size() > kMaxKeyBytes) {
        throw Error(ErrorCode::kName, cat("key ", quote(*name), " has ", name->size(), " bytes, at most ", kMaxKeyBytes));
      }
      const auto number = t_.key_numbers.find(*name);
      if (number != t_.key_numbers.end()) used[number->second] = 1;
      add_entry(*name, value, number == t_.key_numbers.end() ? std::span<std::uint32_t>() : items_of(number->second));
    }
    for (std::uint32_t key = 0; key < used.size(); ++key) {
      if (used[key] == 0) {
        report(ErrorCode::kOrphan, t_.keys[key], "an item is stored for a key that state_dict_metadata lacks");
      }
    }
    return std::move(out_);
  }

 private:
  void report(ErrorCode code, const std::string& key, std::string message) {
    if (++counts_[code] > kMaxFindingsOfAKind) return;
    out_.findings.push_back({.code = code, .message = std::move(message), .file = name_, .key = key, .bytes = {}});
  }

  void read_version() {
    const std::string* version = t_.root.version.as_string();
    if (version == nullptr) return;
    out_.version = *version;
    if (*version != kKnownVersion) {
      out_.findings.push_back({.code = ErrorCode::kVersion,
                               .message = cat("version is ", quote(*version), ", known is '", kKnownVersion, "'"),
                               .file = name_,
                               .key = {},
                               .bytes = {},
                               .severity = Finding::Severity::kWarning});
    }
  }

  void read_paths() {
    const auto entries = mapping_entries(t_.root.planner_data);
    out_.nested = entries && !entries->empty();
    if (!entries) return;
    for (const auto& [key, value] : *entries) {
      if (key.as_string() != nullptr && value.items().size() > kMaxPathSteps) {
        throw Error(ErrorCode::kLimitDepth, cat(quote(*key.as_string()), ": its path has ", value.items().size(),
                                                " steps, at most ", kMaxPathSteps));
      }
      const auto path = path_of(value);
      if (key.as_string() == nullptr || !path) {
        // A planner of someone's own: keys then stand where they are named.
        out_.nested = false;
        paths_.clear();
        return;
      }
      paths_.emplace(*key.as_string(), *path);
    }
  }

  // Sorts the items of storage_data by key, in the order they come.
  void group_items() {
    const auto entries = mapping_entries(t_.root.storage_data);
    if (!entries) throw Error(ErrorCode::kMetaType, "storage_data is no dict");
    begin_.assign(t_.keys.size() + 1, 0);
    const auto is = [](const Value& v, Class cls) {
      return v.kind() == ValueKind::kOpaque && v.opaque_tag() == static_cast<std::uint32_t>(cls);
    };
    for (const auto& [key, value] : *entries) {
      if (!is(key, Class::kMetadataIndex)) throw Error(ErrorCode::kKey, "storage_data: a key is no MetadataIndex");
      if (!is(value, Class::kStorageInfo)) throw Error(ErrorCode::kType, "storage_data: a value is no _StorageInfo");
      ++begin_[t_.item_keys[key.opaque_payload()].key + 1];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    entry_keys_.resize(entries->size());
    entry_items_.resize(entries->size());
    std::vector<std::uint64_t> at(begin_.begin(), begin_.end() - 1);
    for (const auto& [key, value] : *entries) {
      const std::uint64_t slot = at[t_.item_keys[key.opaque_payload()].key]++;
      entry_keys_[slot] = static_cast<std::uint32_t>(key.opaque_payload());
      entry_items_[slot] = static_cast<std::uint32_t>(value.opaque_payload());
    }
    order_.resize(entries->size());
    std::iota(order_.begin(), order_.end(), 0U);
    t_.root.storage_data = {};
  }

  // Slots of the items of a key.
  std::span<std::uint32_t> items_of(std::uint32_t key) {
    return std::span(order_).subspan(begin_[key], begin_[key + 1] - begin_[key]);
  }

  KeyPath path(const std::string& key) const {
    const auto found = paths_.find(key);
    return found == paths_.end() ? KeyPath{key} : found->second;
  }

  void add_entry(const std::string& key, const Value& value, std::span<std::uint32_t> slots) {
    if (value.kind() == ValueKind::kOpaque && value.opaque_tag() == static_cast<std::uint32_t>(Class::kBytes)) {
      add_value(key, slots);
    } else if (value.kind() == ValueKind::kOpaque &&
               value.opaque_tag() == static_cast<std::uint32_t>(Class::kTensorStorage)) {
      add_tensor(key, t_.tensors[value.opaque_payload()], slots);
    } else {
      throw Error(ErrorCode::kMetaType, cat("state_dict_metadata: ", quote(key), " is neither a tensor nor bytes"));
    }
  }

  void add_value(const std::string& key, std::span<std::uint32_t> slots) {
    const std::uint32_t* found = nullptr;
    for (const std::uint32_t& slot : slots) {
      if (t_.item_keys[entry_keys_[slot]].has_offset) {
        report(ErrorCode::kOrphan, key, "an item of a tensor is stored under the key of a value");
      } else if (found != nullptr) {
        report(ErrorCode::kKey, key, "two items are stored for one value");
      } else {
        found = &slot;
      }
    }
    if (found == nullptr) {
      report(ErrorCode::kChunkMissing, key, "no item is stored for the value");
      return;
    }
    out_.index.add(ValueEntry{key, path(key), t_.items[entry_items_[*found]].location});
  }

  void add_tensor(const std::string& key, const Tables::Tensor& row, std::span<std::uint32_t> slots) {
    TensorEntry tensor;
    tensor.key = key;
    tensor.path = path(key);
    tensor.dtype = t_.properties[row.properties].dtype;
    const auto shape = t_.dims(row.size);
    tensor.shape.assign(shape.begin(), shape.end());
    for (const std::int64_t size : shape) {
      if (size < 0) {
        report(ErrorCode::kBounds, key, cat("shape ", shape_text(shape), " has a negative dimension"));
        return;
      }
    }
    try {
      checked_mul(checked_numel(shape, "number of elements"), item_bytes(tensor.dtype), "number of bytes");
    } catch (const Error& error) {
      throw error.in(quote(key));
    }
    if (const std::string& layout = t_.properties[row.properties].layout; layout != "torch.strided") {
      report(ErrorCode::kUnsupported, key, cat("layout is ", quote(layout), ", expected 'torch.strided'"));
    }
    tensor.chunks = ChunkList(shape.size());
    tensor.chunks.reserve(row.chunks.size());
    std::vector<char> taken(slots.size(), 0);
    std::vector<std::uint32_t> sorted;  // slots by offset, made at the first chunk whose hint does not lead to it
    for (std::size_t i = 0; i < row.chunks.size(); ++i) {
      const Tables::Chunk& chunk = t_.chunks[row.chunks[i]];
      const auto offset = t_.dims(chunk.offset);
      const auto size = t_.dims(chunk.size);
      if (offset.size() != shape.size() || size.size() != shape.size()) {
        report(ErrorCode::kRank, key, cat("chunk at ", shape_text(offset), " of size ", shape_text(size),
                                          " has another rank than the tensor of shape ", shape_text(shape)));
        continue;
      }
      const auto slot = slot_of(chunk.offset, i, slots, sorted);
      if (!slot) {
        report(ErrorCode::kChunkMissing, key, cat("no item is stored for the chunk ", box_text({offset, size})));
        continue;
      }
      taken[*slot] = 1;
      bool negative = false;
      for (std::size_t d = 0; d < shape.size(); ++d) negative = negative || offset[d] < 0 || size[d] < 0;
      if (negative) {
        report(ErrorCode::kBounds, key, cat("chunk at ", shape_text(offset), " of size ", shape_text(size),
                                            " has a negative number"));
        continue;
      }
      tensor.chunks.add(offset, size, t_.items[entry_items_[slots[*slot]]].location);
    }
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] != 0) continue;
      const Tables::ItemKey& item = t_.item_keys[entry_keys_[slots[i]]];
      report(ErrorCode::kOrphan, key, cat("an item is stored at ", shape_text(t_.dims(item.offset)),
                                          ", where no chunk begins"));
    }
    out_.index.add(std::move(tensor));
  }

  // The position in `slots` of the item whose offset is the chunk's.
  std::optional<std::size_t> slot_of(const Dims& offset, std::size_t chunk, std::span<std::uint32_t> slots,
                                     std::vector<std::uint32_t>& sorted) {
    const auto key_at = [&](std::size_t i) -> const Tables::ItemKey& { return t_.item_keys[entry_keys_[slots[i]]]; };
    // Writers store items in the order of the chunks, or nearly so.
    if (chunk < slots.size() && key_at(chunk).has_offset && t_.same(key_at(chunk).offset, offset)) return chunk;
    const auto less = [&](std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    };
    if (sorted.empty()) {
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (key_at(i).has_offset) sorted.push_back(static_cast<std::uint32_t>(i));
      }
      std::sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) {
        return less(t_.dims(key_at(a).offset), t_.dims(key_at(b).offset));
      });
    }
    const auto wanted = t_.dims(offset);
    const auto found = std::lower_bound(sorted.begin(), sorted.end(), wanted, [&](std::uint32_t a, const auto& w) {
      return less(t_.dims(key_at(a).offset), w);
    });
    if (found == sorted.end() || !t_.same(key_at(*found).offset, offset)) return std::nullopt;
    return *found;
  }

  Tables& t_;
  std::string name_;
  Metadata out_;
  std::unordered_map<std::string, KeyPath> paths_;
  std::unordered_map<ErrorCode, std::size_t> counts_;
  std::vector<std::uint64_t> begin_;         // of each key's slots
  std::vector<std::uint32_t> entry_keys_;    // by slot
  std::vector<std::uint32_t> entry_items_;   // by slot
  std::vector<std::uint32_t> order_;
};

}  // namespace

Metadata read_metadata(const ByteSource& source, const std::string& name,
                       const std::set<std::string>& allowed_globals) {
  MetadataHost host(allowed_globals, source.size());
  read_pickle(source, host);
  return Assembler(host.tables(), name).run();
}

void merge_metadata(Metadata& whole, Metadata part) {
  const auto file_offset = static_cast<std::uint32_t>(whole.index.files.size());
  const auto transform_offset = static_cast<std::uint32_t>(whole.index.transforms.size());
  const auto moved = [&](Location location) {
    location.file += file_offset;
    if (location.transform != 0) location.transform += transform_offset;
    return location;
  };
  whole.index.files.insert(whole.index.files.end(), part.index.files.begin(), part.index.files.end());
  whole.index.transforms.insert(whole.index.transforms.end(), part.index.transforms.begin(),
                                part.index.transforms.end());
  whole.findings.insert(whole.findings.end(), part.findings.begin(), part.findings.end());
  whole.nested = whole.nested && part.nested;
  if (!whole.version) whole.version = part.version;

  std::unordered_map<std::string, std::size_t> tensors;
  for (std::size_t i = 0; i < whole.index.tensors.size(); ++i) tensors.emplace(whole.index.tensors[i].key, i);
  std::set<std::string> values;
  for (const ValueEntry& value : whole.index.values) values.insert(value.key);
  const auto check_kind = [](const std::string& key, bool other_kind) {
    if (other_kind) throw Error(ErrorCode::kMetaType, quote(key) + ": a tensor to one rank, a value to another");
  };
  for (const Index::EntryRef& ref : part.index.order) {
    if (!ref.is_tensor) {
      ValueEntry value = part.index.values[ref.position];
      check_kind(value.key, tensors.contains(value.key));
      value.location = moved(value.location);
      if (!values.contains(value.key)) whole.index.add(std::move(value));
      continue;
    }
    TensorEntry& tensor = part.index.tensors[ref.position];
    check_kind(tensor.key, values.contains(tensor.key));
    const auto found = tensors.find(tensor.key);
    TensorEntry fresh = tensor;
    if (found == tensors.end()) fresh.chunks = ChunkList(tensor.shape.size());
    TensorEntry& into = found == tensors.end() ? fresh : whole.index.tensors[found->second];
    if (into.dtype != tensor.dtype) {
      throw Error(ErrorCode::kDtype, cat(quote(tensor.key), ": one rank has ", torch_name(into.dtype), ", another ",
                                         torch_name(tensor.dtype)));
    }
    if (into.shape != tensor.shape) {
      throw Error(ErrorCode::kShape, cat(quote(tensor.key), ": one rank has shape ", shape_text(into.shape),
                                         ", another ", shape_text(tensor.shape)));
    }
    std::set<std::vector<std::int64_t>> present;
    for (std::size_t c = 0; c < into.chunks.size(); ++c) {
      const auto offset = into.chunks.box(c).offset;
      present.emplace(offset.begin(), offset.end());
    }
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const BoxView box = tensor.chunks.box(c);
      if (!present.emplace(box.offset.begin(), box.offset.end()).second) continue;
      into.chunks.add(box.offset, box.size, moved(tensor.chunks.location(c)));
    }
    if (found == tensors.end()) whole.index.add(std::move(fresh));
  }
}

}  // namespace fsdp::formats::dcp
