// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/writer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/containers/pickle/key_index.h"
#include "formats/containers/pickle/literals.h"
#include "formats/containers/pickle/node.h"
#include "formats/containers/pickle/opcodes.h"
#include "formats/containers/pickle/parts.h"
#include "formats/containers/pickle/text.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kBatch = 1000;  // items of one APPENDS or SETITEMS, as in Python's pickler
constexpr char kProtocol = 2;

// Finds nodes that a value refers to more than once, and numbers them in the order of writing.
// Nodes are shared by identity; equal strings, and equal names of globals, are shared even across
// nodes.  Storages are not: torch.save writes each reference to one in full.
//
// Lifetime: `root` outlives it and does not change.
class PickleSharing {
 public:
  explicit PickleSharing(const Value& root) {
    std::vector<const Value*> pending = {&root};
    const auto add = [&pending](const Value& value) {
      if (ValueAccess::node(value) != nullptr) pending.push_back(&value);
    };
    while (!pending.empty()) {
      const Value& value = *pending.back();
      pending.pop_back();
      if (!note(value)) continue;
      for_each_part(value, add);
    }
  }

  // Returns the slot of a value written before; nothing if it was not, or is referred to only once.
  std::optional<std::uint32_t> slot(const Value& value) {
    const Slot* const found = find(value);
    if (found == nullptr || *found >= kUnwritten) return std::nullopt;
    return *found;
  }

  // Gives the value that has just been written the next slot; nothing if no other reference
  // follows.
  std::optional<std::uint32_t> take_slot(const Value& value) {
    Slot* const found = find(value);
    if (found == nullptr || *found != kUnwritten) return std::nullopt;
    *found = next_slot_++;
    return *found;
  }

  // Returns the slot of the value with this number (cycle_number); nothing if it was not written.
  std::optional<std::uint32_t> slot_of_cycle(std::uint32_t number) const {
    const auto found = cycles_.find(number);
    if (found == cycles_.end() || *found->second >= kUnwritten) return std::nullopt;
    return *found->second;
  }

 private:
  // kUnseen, kOnce, kUnwritten (seen again, not written yet), or the slot.
  using Slot = std::uint32_t;
  static constexpr Slot kUnseen = UINT32_MAX;
  static constexpr Slot kOnce = UINT32_MAX - 1;
  static constexpr Slot kUnwritten = UINT32_MAX - 2;
  using Name = std::pair<std::string_view, std::string_view>;  // module, name
  struct TextHash {
    std::size_t operator()(std::string_view text) const noexcept { return KeyIndex::hash(text); }
    std::size_t operator()(const Name& name) const noexcept {
      return KeyIndex::hash(name.first) * 31 + KeyIndex::hash(name.second);
    }
  };

  // Counts one more reference; returns false if the value's members have been counted before.
  bool note(const Value& value) {
    Slot* const slot = find(value);
    if (slot == nullptr) return true;
    const bool is_new = *slot == kUnseen;
    const std::uint32_t number = cycle_number(value);
    // A member refers back to this value.
    if (number != 0) cycles_.emplace(number, slot);
    *slot = is_new && number == 0 ? kOnce : kUnwritten;
    return is_new;
  }

  // Returns the slot of a string or global, by content.
  Slot& text_slot(const Value& value) {
    if (const std::string* const text = value.as_string())
      return strings_.try_emplace(*text, kUnseen).first->second;
    const GlobalName& name = *value.as_global();
    return names_.try_emplace(Name(protocol_2_module(name.module), name.name), kUnseen)
        .first->second;
  }

  // Returns nullptr if nothing else refers to the value.
  Slot* find(const Value& value) {
    const ValueNode* const node = ValueAccess::node(value);
    if (node == nullptr || value.kind() == ValueKind::kStorage) return nullptr;
    const bool is_alone = node->references == 1 && cycle_number(value) == 0;
    if (value.kind() != ValueKind::kString && value.kind() != ValueKind::kGlobal)
      return is_alone ? nullptr : &nodes_.try_emplace(node, kUnseen).first->second;
    if (is_alone) return &text_slot(value);
    Slot*& slot = text_nodes_.try_emplace(node, nullptr).first->second;
    if (slot == nullptr) slot = &text_slot(value);
    return slot;
  }

  std::unordered_map<std::string_view, Slot, TextHash> strings_;
  std::unordered_map<Name, Slot, TextHash> names_;
  std::unordered_map<const void*, Slot> nodes_;  // other kinds, with more than one reference
  std::unordered_map<std::uint32_t, const Slot*> cycles_;  // by number, in nodes_
  // The slots of such nodes in strings_ and names_, so that their text is hashed only once.
  std::unordered_map<const void*, Slot*> text_nodes_;
  std::uint32_t next_slot_ = 0;
};

class PickleWriter {
 public:
  PickleWriter(const Value& root, const PickleWriterOptions& options)
      : options_(options), sharing_(root) {}

  std::string run(const Value& root) {
    op(PickleOp::kProto);
    byte(kProtocol);
    later(root);
    while (!tasks_.empty()) {
      const Task task = tasks_.back();
      tasks_.pop_back();
      run(task);
    }
    op(PickleOp::kStop);
    return std::move(out_);
  }

 private:
  // A part still to be written.  Tasks are a stack: the last one is next.
  enum class TaskKind : std::uint8_t { kValue, kOpcode, kPut, kItems, kEntries, kContent };
  struct Task {
    TaskKind kind;
    PickleOp op = PickleOp::kStop;  // kOpcode
    std::size_t count = 0;          // kItems, kEntries
    const void* subject = nullptr;  // a Value, or the first of `count` Values or Entries
  };

  void later(const Value& value) {
    tasks_.push_back({.kind = TaskKind::kValue, .subject = &value});
  }
  void later(PickleOp op) { tasks_.push_back({.kind = TaskKind::kOpcode, .op = op}); }
  void put_later(const Value& value) {
    tasks_.push_back({.kind = TaskKind::kPut, .subject = &value});
  }
  void items_later(std::span<const Value> items) {
    if (items.empty()) return;
    tasks_.push_back({.kind = TaskKind::kItems, .count = items.size(), .subject = items.data()});
  }
  void entries_later(std::span<const Value::Entry> entries) {
    if (entries.empty()) return;
    tasks_.push_back(
        {.kind = TaskKind::kEntries, .count = entries.size(), .subject = entries.data()});
  }

  void run(const Task& task) {
    switch (task.kind) {
      case TaskKind::kValue:
        return value(*static_cast<const Value*>(task.subject));
      case TaskKind::kOpcode:
        return op(task.op);
      case TaskKind::kPut:
        return put(*static_cast<const Value*>(task.subject));
      case TaskKind::kItems:
        return items({static_cast<const Value*>(task.subject), task.count});
      case TaskKind::kEntries:
        return entries({static_cast<const Value::Entry*>(task.subject), task.count});
      case TaskKind::kContent:
        return object_content(*static_cast<const Value*>(task.subject));
    }
  }

  void value(const Value& value) {
    if (fetch(value)) return;
    switch (value.kind()) {
      case ValueKind::kNone:
        return op(PickleOp::kNone);
      case ValueKind::kBool:
        return op(*value.as_bool() ? PickleOp::kNewTrue : PickleOp::kNewFalse);
      case ValueKind::kInt:
        return integer(*value.as_int());
      case ValueKind::kFloat:
        op(PickleOp::kBinFloat);
        return little_endian(__builtin_bswap64(std::bit_cast<std::uint64_t>(*value.as_float())), 8);
      case ValueKind::kOpaque:
        if (const auto number = back_reference(value)) return fetch_cycle(*number);
        throw Error(ErrorCode::kType, "an internal record of the reader cannot be pickled");
      case ValueKind::kString:
        text(*value.as_string());
        return put(value);
      case ValueKind::kBytes:
        bytes(*value.as_bytes());
        return put(value);
      case ValueKind::kByteArray:
        name("__builtin__", "bytearray");
        bytes(*value.as_bytes());
        op(PickleOp::kTuple1);
        op(PickleOp::kReduce);
        return put(value);
      case ValueKind::kBigInt:
        long1(*value.as_bytes());
        return put(value);
      case ValueKind::kList:
        op(PickleOp::kEmptyList);
        put(value);
        return items_later(value.items());
      case ValueKind::kTuple:
        return tuple(value);
      case ValueKind::kDict:
        op(PickleOp::kEmptyDict);
        put(value);
        return entries_later(value.entries());
      case ValueKind::kSet:
      case ValueKind::kFrozenSet:
        name("__builtin__", value.kind() == ValueKind::kSet ? "set" : "frozenset");
        op(PickleOp::kEmptyList);
        put_later(value);
        later(PickleOp::kReduce);
        later(PickleOp::kTuple1);
        return items_later(value.items());
      case ValueKind::kGlobal:
        dotted_name(*value.as_global());
        return put(value);
      case ValueKind::kObject:
        return object(value);
      case ValueKind::kStorage:
        return storage(*value.as_storage());
    }
  }

  // Memo.
  bool fetch(const Value& value) {
    const std::optional<std::uint32_t> slot = sharing_.slot(value);
    if (!slot.has_value()) return false;
    numbered(PickleOp::kBinGet, PickleOp::kLongBinGet, *slot);
    return true;
  }
  void fetch_cycle(std::uint32_t number) {
    const std::optional<std::uint32_t> slot = sharing_.slot_of_cycle(number);
    if (!slot) {
      throw Error(
          ErrorCode::kCycle,
          "a part of a container that contains itself cannot be written without the container");
    }
    numbered(PickleOp::kBinGet, PickleOp::kLongBinGet, *slot);
  }
  void put(const Value& value) {
    const std::optional<std::uint32_t> slot = sharing_.take_slot(value);
    if (slot.has_value()) numbered(PickleOp::kBinPut, PickleOp::kLongBinPut, *slot);
  }
  void numbered(PickleOp short_op, PickleOp long_op, std::uint32_t slot) {
    op(slot < 256 ? short_op : long_op);
    little_endian(slot, slot < 256 ? 1 : 4);
  }

  // Values without parts.
  void integer(std::int64_t number) {
    if (number >= 0 && number <= UINT8_MAX) {
      op(PickleOp::kBinInt1);
      return little_endian(static_cast<std::uint64_t>(number), 1);
    }
    if (number >= 0 && number <= UINT16_MAX) {
      op(PickleOp::kBinInt2);
      return little_endian(static_cast<std::uint64_t>(number), 2);
    }
    if (number >= INT32_MIN && number <= INT32_MAX) {
      op(PickleOp::kBinInt);
      return little_endian(static_cast<std::uint64_t>(number), 4);
    }
    long1(encode_long(number));
  }
  void long1(std::string_view twos_complement) {
    if (twos_complement.size() > UINT8_MAX) {
      throw Error(ErrorCode::kIntRange, "an int of ", twos_complement.size(),
                  " bytes: PyTorch reads those up to 255 bytes");
    }
    op(PickleOp::kLong1);
    byte(static_cast<char>(twos_complement.size()));
    out_ += twos_complement;
  }
  void text(std::string_view utf8) {
    if (utf8.size() > UINT32_MAX) {
      throw Error(ErrorCode::kLimitSize, "a str of ", utf8.size(),
                  " bytes does not fit in protocol 2");
    }
    op(PickleOp::kBinUnicode);
    little_endian(utf8.size(), 4);
    out_ += utf8;
  }
  // Protocol 2 has no bytes: they are written as text with the code points 0 to 255.
  void bytes(std::string_view bytes) {
    if (bytes.empty()) {
      name("__builtin__", "bytes");
      op(PickleOp::kEmptyTuple);
      return op(PickleOp::kReduce);
    }
    std::string utf8;
    utf8.reserve(bytes.size() * 3 / 2);
    for (const char c : bytes) {
      const auto code = static_cast<unsigned char>(c);
      if (code < 0x80) {
        utf8.push_back(c);
      } else {
        utf8.push_back(static_cast<char>(0xC0U | (code >> 6U)));
        utf8.push_back(static_cast<char>(0x80U | (code & 0x3FU)));
      }
    }
    name("_codecs", "encode");
    text(utf8);
    text("latin1");
    op(PickleOp::kTuple2);
    op(PickleOp::kReduce);
  }

  // Names.
  void name(std::string_view module, std::string_view name) {
    if (!is_global_name(module) || !is_global_name(name)) {
      throw Error(ErrorCode::kName, "module ", quote(module), " and name ", quote(name),
                  " are not Python names");
    }
    op(PickleOp::kGlobal);
    out_.append(protocol_2_module(module)).append("\n").append(name).append("\n");
  }
  // A name with dots becomes nested getattr calls, because protocol 2 looks up only plain names.
  void dotted_name(const GlobalName& global) {
    const std::string_view path = global.name;
    const auto part_count = std::ranges::count(path, '.');
    for (auto i = part_count; i > 0; --i) name("__builtin__", "getattr");
    std::size_t end = std::min(path.find('.'), path.size());
    name(global.module, path.substr(0, end));
    while (end < path.size()) {
      const std::size_t begin = end + 1;
      end = std::min(path.find('.', begin), path.size());
      text(path.substr(begin, end - begin));
      op(PickleOp::kTuple2);
      op(PickleOp::kReduce);
    }
  }

  // Containers.  The last part is pushed first.
  void tuple(const Value& value) {
    const std::span<const Value> items = value.items();
    if (items.empty()) return op(PickleOp::kEmptyTuple);
    constexpr std::array kShort = {PickleOp::kTuple1, PickleOp::kTuple2, PickleOp::kTuple3};
    put_later(value);
    if (items.size() <= kShort.size()) {
      later(kShort[items.size() - 1]);
    } else {
      op(PickleOp::kMark);
      later(PickleOp::kTuple);
    }
    all_later(items);
  }
  void all_later(std::span<const Value> items) {
    for (std::size_t i = items.size(); i-- > 0;) later(items[i]);
  }
  void items(std::span<const Value> items) {
    const std::span<const Value> batch = items.first(std::min(items.size(), kBatch));
    items_later(items.subspan(batch.size()));
    later(batch.size() == 1 ? PickleOp::kAppend : PickleOp::kAppends);
    if (batch.size() > 1) op(PickleOp::kMark);
    all_later(batch);
  }
  void entries(std::span<const Value::Entry> entries) {
    const std::span<const Value::Entry> batch = entries.first(std::min(entries.size(), kBatch));
    entries_later(entries.subspan(batch.size()));
    later(batch.size() == 1 ? PickleOp::kSetItem : PickleOp::kSetItems);
    if (batch.size() > 1) op(PickleOp::kMark);
    for (std::size_t i = batch.size(); i-- > 0;) {
      later(batch[i].second);
      later(batch[i].first);
    }
  }
  void object(const Value& value) {
    const ObjectData& data = *value.as_object();
    tasks_.push_back({.kind = TaskKind::kContent, .subject = &value});
    put_later(value);
    later(data.by_new ? PickleOp::kNewObj : PickleOp::kReduce);
    later(data.args);
    later(data.callable);
  }
  void object_content(const Value& value) {
    const ObjectData& data = *value.as_object();
    if (data.built) {
      later(PickleOp::kBuild);
      later(data.state);
    }
    entries_later(data.dict_items);
    items_later(data.list_items);
  }
  void storage(const StorageRef& storage) {
    const std::string_view typed = storage_class(storage.dtype);
    if (!storage.untyped && typed.empty()) {
      throw Error(ErrorCode::kDtype, "storage ", quote(storage.key), ": ",
                  torch_name(storage.dtype),
                  " has no storage class of its own; it is saved as an untyped storage");
    }
    if (storage.numel > static_cast<std::uint64_t>(INT64_MAX)) {
      throw Error(ErrorCode::kStorage, "storage ", quote(storage.key),
                  " has more than 2^63 - 1 elements");
    }
    op(PickleOp::kMark);
    text("storage");
    if (storage.untyped) {
      name("torch.storage", "UntypedStorage");
    } else {
      name("torch", typed);
    }
    text(options_.storage_key ? options_.storage_key(storage) : storage.key);
    text("cpu");
    integer(static_cast<std::int64_t>(storage.numel));
    op(PickleOp::kTuple);
    op(PickleOp::kBinPersid);
  }

  // Bytes.
  void op(PickleOp op) { byte(static_cast<char>(op)); }
  void byte(char c) { out_.push_back(c); }
  void little_endian(std::uint64_t number, unsigned count) {
    for (unsigned i = 0; i < count; ++i) byte(static_cast<char>(number >> (8 * i)));
  }

  const PickleWriterOptions& options_;
  PickleSharing sharing_;
  std::vector<Task> tasks_;
  std::string out_;
};

}  // namespace

std::string write_pickle(const Value& value, const PickleWriterOptions& options) {
  return PickleWriter(value, options).run(value);
}

}  // namespace fsdp::formats
