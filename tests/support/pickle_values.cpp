// SPDX-License-Identifier: Apache-2.0
#include "tests/support/pickle_values.h"

#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/containers/pickle/text.h"

namespace fsdp::test {
namespace {

using formats::ObjectData;
using formats::Value;
using formats::ValueKind;

std::string_view python_2_module(std::string_view module) {
  if (module == "builtins") return "__builtin__";
  if (module == "copyreg") return "copy_reg";
  return module;
}

bool is_builtin(const Value& value, std::string_view name) {
  const auto* const global = value.as_global();
  return global != nullptr && python_2_module(global->module) == "__builtin__" &&
         global->name == name;
}

// Returns the bytes of `text` in Latin-1, nullopt if it has other characters.
std::optional<std::string> latin_1(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      bytes.push_back(text[i]);
    } else if (byte == 0xC2 || byte == 0xC3) {
      const auto next = static_cast<unsigned char>(text[++i]);
      bytes.push_back(static_cast<char>((byte & 3U) << 6U | (next & 0x3FU)));
    } else {
      return std::nullopt;
    }
  }
  return bytes;
}

class Comparison {
 public:
  std::string run(const Value& a, const Value& b) {
    compare(a, b, {"value"});
    return difference_;
  }

 private:
  // One step from the root to the compared value.
  struct Step {
    std::string_view name;
    std::size_t number = 0;
  };

  void report(std::string_view what) {
    if (!difference_.empty()) return;
    for (const Step& step : path_) {
      difference_ += formats::cat(difference_.empty() ? "" : ".", step.name, step.number);
    }
    difference_ += formats::cat(": ", what);
  }

  void compare(const Value& a, const Value& b, Step step) {
    if (!difference_.empty()) return;
    path_.push_back(step);
    compare(a, b);
    path_.pop_back();
  }

  void compare(const Value& a, const Value& b) {
    if (a.kind() != b.kind()) {
      return report(formats::cat(kind_name(a.kind()), " and ", kind_name(b.kind())));
    }
    switch (a.kind()) {
      case ValueKind::kNone:
        return;
      case ValueKind::kBool:
        return scalar(a.as_bool() == b.as_bool());
      case ValueKind::kInt:
        return scalar(a.as_int() == b.as_int());
      case ValueKind::kFloat:
        return scalar(std::bit_cast<std::uint64_t>(*a.as_float()) ==
                      std::bit_cast<std::uint64_t>(*b.as_float()));
      case ValueKind::kOpaque:
        if (const auto number = back_reference(a); number && back_reference(b)) {
          return scalar(cycle_numbers_.emplace(*number, *back_reference(b)).first->second ==
                        *back_reference(b));
        }
        return scalar(a.opaque_tag() == b.opaque_tag() && a.opaque_payload() == b.opaque_payload());
      case ValueKind::kString:
        return scalar(*a.as_string() == *b.as_string());
      case ValueKind::kGlobal:
        return scalar(python_2_module(a.as_global()->module) ==
                          python_2_module(b.as_global()->module) &&
                      a.as_global()->name == b.as_global()->name);
      case ValueKind::kStorage:
        return scalar(a.as_storage()->key == b.as_storage()->key &&
                      a.as_storage()->dtype == b.as_storage()->dtype &&
                      a.as_storage()->untyped == b.as_storage()->untyped &&
                      a.as_storage()->numel == b.as_storage()->numel);
      default:
        break;
    }
    if (a.identity() == nullptr || b.identity() == nullptr) {  // the empty tuple
      return scalar(a.identity() == b.identity());
    }
    const auto [left, is_new_left] = partners_.try_emplace(a.identity(), b.identity());
    const auto [right, is_new_right] = origins_.try_emplace(b.identity(), a.identity());
    if (left->second != b.identity() || right->second != a.identity()) {
      return report("shared in one of them only");
    }
    if (!is_new_left && !is_new_right) return;
    content(a, b);
  }

  void content(const Value& a, const Value& b) {
    if (a.as_bytes() != nullptr) return scalar(*a.as_bytes() == *b.as_bytes());
    if (a.kind() == ValueKind::kDict) return entries(a.entries(), b.entries());
    if (a.kind() != ValueKind::kObject) return items(a.items(), b.items());
    const ObjectData& x = *a.as_object();
    const ObjectData& y = *b.as_object();
    compare(x.callable, y.callable, {"callable"});
    compare(x.args, y.args, {"args"});
    scalar(x.by_new == y.by_new);
    scalar(x.built == y.built);
    compare(x.state, y.state, {"state"});
    items(x.list_items, y.list_items);
    entries(x.dict_items, y.dict_items);
  }

  void scalar(bool is_equal) {
    if (!is_equal) report("another value");
  }
  void items(std::span<const Value> a, std::span<const Value> b) {
    if (a.size() != b.size()) return report(formats::cat(a.size(), " and ", b.size(), " items"));
    for (std::size_t i = 0; i < a.size() && difference_.empty(); ++i) {
      compare(a[i], b[i], {"item", i});
    }
  }
  void entries(std::span<const Value::Entry> a, std::span<const Value::Entry> b) {
    if (a.size() != b.size()) return report(formats::cat(a.size(), " and ", b.size(), " entries"));
    for (std::size_t i = 0; i < a.size() && difference_.empty(); ++i) {
      compare(a[i].first, b[i].first, {"key", i});
      compare(a[i].second, b[i].second, {"entry", i});
    }
  }

  std::string difference_;
  std::vector<Step> path_;
  std::unordered_map<const void*, const void*> partners_;
  std::unordered_map<const void*, const void*> origins_;
  std::unordered_map<std::uint32_t, std::uint32_t> cycle_numbers_;
};

}  // namespace

std::int32_t FoldingHost::global(std::string_view /*module*/, std::string_view /*name*/) {
  return -1;
}

Value FoldingHost::reduce(const Value& callable, Value args) {
  const std::span<const Value> given = args.items();
  const auto* const name = callable.as_global();
  if (name != nullptr && name->module == "_codecs" && name->name == "encode" && given.size() == 2 &&
      given[0].as_string() != nullptr && given[1].as_string() != nullptr &&
      *given[1].as_string() == "latin1") {
    if (auto bytes = latin_1(*given[0].as_string())) return Value::bytes(std::move(*bytes));
  }
  if (is_builtin(callable, "bytes") && given.empty()) return Value::bytes("");
  if (is_builtin(callable, "bytearray") && given.size() == 1 &&
      given[0].kind() == ValueKind::kBytes) {
    return Value::byte_array(*given[0].as_bytes());
  }
  if (given.size() == 1 && given[0].kind() == ValueKind::kList) {
    std::vector<Value> items(given[0].items().begin(), given[0].items().end());
    if (is_builtin(callable, "set")) return Value::set(std::move(items));
    if (is_builtin(callable, "frozenset")) return Value::frozen_set(std::move(items));
  }
  if (is_builtin(callable, "getattr") && given.size() == 2 && given[0].as_global() != nullptr &&
      given[1].as_string() != nullptr && formats::is_global_name(*given[1].as_string())) {
    return Value::global(given[0].as_global()->module,
                         given[0].as_global()->name + "." + *given[1].as_string());
  }
  return PickleHost::reduce(callable, std::move(args));
}

Value FoldingHost::persistent_id(Value id) {
  const std::span<const Value> parts = id.items();
  const auto is_text = [&](std::size_t i) { return parts[i].as_string() != nullptr; };
  if (parts.size() != 5 || !is_text(0) || *parts[0].as_string() != "storage" ||
      parts[1].as_global() == nullptr || !is_text(2) || !is_text(3) ||
      parts[4].as_int().value_or(-1) < 0) {
    return PickleHost::persistent_id(std::move(id));
  }
  formats::StorageRef storage;
  storage.untyped = parts[1].as_global()->name == "UntypedStorage";
  const auto dtype = formats::dtype_from_storage_class(parts[1].as_global()->name);
  if (!storage.untyped && !dtype.has_value()) return PickleHost::persistent_id(std::move(id));
  storage.dtype = storage.untyped ? formats::DType::kUInt8 : *dtype;
  storage.key = *parts[2].as_string();
  storage.location = *parts[3].as_string();
  storage.numel = static_cast<std::uint64_t>(*parts[4].as_int());
  return Value::storage(std::move(storage));
}

Value read_folded(std::string_view pickle, const formats::PickleLimits& limits) {
  FoldingHost host;
  return read_with(host, pickle, limits);
}

Value read_with(formats::PickleHost& host, std::string_view pickle,
                const formats::PickleLimits& limits) {
  return formats::read_pickle(formats::MemorySource(std::as_bytes(std::span(pickle))), host,
                              limits);
}

std::string difference(const Value& a, const Value& b) {
  return Comparison().run(a, b);
}

}  // namespace fsdp::test
