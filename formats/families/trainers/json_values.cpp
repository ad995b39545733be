// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/json_values.h"

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/state/checkpoint/file_pool.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats {
namespace {

// Configurations have kilobytes.
constexpr std::uint64_t kMaxBytes = 64U << 20U;

struct ToValue {
  Value operator()(std::nullptr_t) const { return {}; }
  Value operator()(bool value) const { return Value::boolean(value); }
  Value operator()(std::int64_t value) const { return Value::integer(value); }
  Value operator()(std::uint64_t value) const {
    std::string bytes(9, '\0');  // two's complement; the ninth byte is the sign
    for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xFFU);
    return Value::big_int(std::move(bytes));
  }
  Value operator()(double value) const { return Value::floating(value); }
  Value operator()(const std::string& value) const { return Value::string(value); }
  Value operator()(const Json::Array& array) const {
    std::vector<Value> items;
    items.reserve(array.size());
    for (const Json& item : array) items.push_back(std::visit(*this, item.storage()));
    return Value::list(std::move(items));
  }
  Value operator()(const Json::Object& object) const {
    std::vector<Value::Entry> entries;
    entries.reserve(object.size());
    for (const auto& [key, member] : object)
      entries.emplace_back(Value::string(key), std::visit(*this, member.storage()));
    return Value::dict(std::move(entries));
  }
  Value operator()(const Unheld&) const { return {}; }
};

class JsonValues : public Checkpoint {
 public:
  JsonValues(std::shared_ptr<const Folder> folder, const std::string& name)
      : folder_(std::move(folder)), pool_(*folder_) {
    index_.files.push_back({.name = name});
    pool_.examine(index_.files);
    const auto file = pool_.get(0);
    description_ = {file->name(), "json", "values"};
    if (file->size() > kMaxBytes) {
      throw Error(ErrorCode::kLimitSize,
                  cat(file->name(), ": has ", file->size(), " bytes, at most ", kMaxBytes));
    }
    std::string text(static_cast<std::size_t>(file->size()), '\0');
    file->read_at(0, std::as_writable_bytes(std::span(text)));
    try {
      root_ = std::visit(ToValue(), parse_json(text).storage());
    } catch (const Error& error) {
      throw error.in(file->name());
    }
    for (Leaf& leaf : leaves_of(root_)) {
      if (!values_.emplace(leaf.key, leaf.value).second) {
        throw Error(ErrorCode::kKey,
                    cat(file->name(), ": ", quote(leaf.key, 200), ": two entries have this name"));
      }
      index_.add(ValueEntry{std::move(leaf.key), std::move(leaf.path), {0, 0, 0, file->size()}});
    }
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t /*chunk*/) const override {
    throw Error(ErrorCode::kNotFound, quote(tensor.key) + ": JSON files hold no tensors");
  }
  Value value(const ValueEntry& value) const override { return values_.at(value.key); }
  ChunkData storage(const StorageRef& storage) const override {
    throw Error(ErrorCode::kStorage, quote(storage.key) + ": JSON files hold no storages");
  }
  std::optional<Value> tree() const override { return root_; }
  // Opening has read the whole file, and the format has no checksum.
  VerifyReport verify(const VerifyOptions& /*options*/) const override {
    VerifyReport report;
    report.items = 1;
    report.bytes_unchecked = *index_.files[0].bytes;
    return report;
  }
  void check_unchanged() const override { pool_.check_unchanged(); }

 private:
  std::shared_ptr<const Folder> folder_;
  mutable FilePool pool_;
  Value root_;
  std::unordered_map<std::string, Value> values_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_json_values(const std::filesystem::path& folder,
                                             const std::string& name) {
  return std::make_unique<JsonValues>(folder_at(folder), name);
}

}  // namespace fsdp::formats
