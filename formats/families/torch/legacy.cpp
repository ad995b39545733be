// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/checked_math.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/torch/stream.h"

namespace fsdp::formats {
namespace {

constexpr std::int64_t kProtocolVersion = 1001;
// The pickles: magic number, protocol version, system info, object, storage keys.
constexpr int kPickles = 5;

}  // namespace

TorchFile read_torch_legacy(const ByteSource& source, std::uint64_t archive) {
  TorchFile file;
  file.legacy = true;
  TorchPickleHost host(archive, true);
  std::uint64_t at = 0;
  const auto next = [&](std::string_view what) {
    return in_context(what, [&] { return read_pickle_prefix(source, at, host); });
  };
  next("magic number");
  const auto version = next("protocol version").as_int();
  if (version != kProtocolVersion) {
    throw Error(ErrorCode::kUnsupported,
                cat("protocol version is ", version.value_or(-1), ", expected ", kProtocolVersion));
  }
  const Value info = next("system info");
  const Value* little = info.find("little_endian");
  if (little != nullptr && !little->as_bool().value_or(true)) {
    throw Error(
        ErrorCode::kUnsupported,
        "written on a big-endian machine by a version that does not record the order of bytes");
  }
  file.root = next("object");
  const Value keys = next("storage keys");
  if (keys.kind() != ValueKind::kList) throw Error(ErrorCode::kType, "storage keys are not a list");
  file.storages = host.storages();
  file.unknown_globals = unknown_globals_in(source, 0, kPickles);
  file.cyclic = host.cyclic();
  std::unordered_map<std::string_view, const StorageRef*> by_key;
  for (const StorageRef& storage : file.storages) by_key.emplace(storage.key, &storage);
  for (const Value& key : keys.items()) {
    const std::string* name = key.as_string();
    const auto found = name == nullptr ? by_key.end() : by_key.find(*name);
    if (found == by_key.end()) {
      throw Error(ErrorCode::kStorage,
                  cat("storage ", name == nullptr ? "without a name" : quote(*name),
                      " is listed, but nothing refers to it"));
    }
    const StorageRef& storage = *found->second;
    const auto count = load_u64(read_bytes(source, at, 8), 0);
    if (count != storage.numel) {
      throw Error(ErrorCode::kRecordSize, cat("storage ", quote(*name), " at byte ", at, " has ",
                                              count, " elements, expected ", storage.numel));
    }
    at += 8;
    const std::uint64_t bytes =
        checked_mul(storage.numel, item_bytes(storage.dtype), "storage size");
    if (bytes > source.size() - at) {
      throw Error(ErrorCode::kTruncated,
                  cat("storage ", quote(*name), " needs ", bytes, " bytes at byte ", at,
                      ", but only ", source.size() - at, " remain"));
    }
    if (!file.records.emplace(*name, StorageRecord{at, bytes, bytes, std::nullopt, false}).second) {
      throw Error(ErrorCode::kStorage, cat("storage ", quote(*name), " is listed twice"));
    }
    at += bytes;
  }
  for (const StorageRef& storage : file.storages) {
    if (!file.records.contains(storage.key)) {
      throw Error(ErrorCode::kRecordMissing, cat("storage ", quote(storage.key), " is missing"));
    }
  }
  if (at != source.size()) {
    throw Error(ErrorCode::kTrailing,
                cat(source.size() - at, " bytes follow the last storage at byte ", at));
  }
  return file;
}

}  // namespace fsdp::formats
