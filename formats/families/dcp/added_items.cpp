// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/added_items.h"

#include <algorithm>
#include <memory>
#include <span>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/torch/writer.h"

namespace fsdp::formats {
namespace {

// Items begin at multiples of this, as do storages inside them.
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kCopyBufferBytes = 4U << 20U;

}  // namespace

Location AddedItems::place(std::uint64_t bytes) {
  Location location;
  location.file = file_;
  location.offset = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  location.length = bytes;
  bytes_ = location.offset + bytes;
  return location;
}

Location AddedItems::add(const Value& value, const std::string& key) {
  TorchSaveLayout layout(value);
  if (!layout.storages().empty()) {
    throw Error(ErrorCode::kUnsupported,
                quote(key, 200) + ": a changed value that holds tensors cannot be written");
  }
  std::string item = layout.encoded();
  const Location location = place(item.size());
  items_.push_back({location.offset, std::move(item), std::nullopt});
  return location;
}

Location AddedItems::copy(const Location& source) {
  Location location = place(source.length);
  location.transform = source.transform;
  items_.push_back({location.offset, {}, source});
  return location;
}

void AddedItems::write(const Folder& folder, const Index& source, OutputFile& out) const {
  std::shared_ptr<const File> file;
  std::optional<std::uint32_t> number;  // of the open file
  for (const Item& item : items_) {
    if (!item.source) {
      out.write_at(item.offset, std::as_bytes(std::span(item.bytes)));
      continue;
    }
    if (number != item.source->file) {
      number = item.source->file;
      file = folder.open_member(source.files[*number].name);
    }
    std::vector<std::byte> buffer(std::min(item.source->length, kCopyBufferBytes));
    read_parts(*file, item.source->offset, item.source->length, buffer,
               [&](std::uint64_t at, std::span<const std::byte> part) {
                 out.write_at(item.offset + at, part);
               });
  }
}

}  // namespace fsdp::formats
