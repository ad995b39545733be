// SPDX-License-Identifier: Apache-2.0
// The data file that a rewritten folder has beside those of its source: items of changed values,
// and copies of items that are needed under several keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/bytes/outputs/file.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

class AddedItems {
 public:
  // `file`: the number of the new file in locations.
  explicit AddedItems(std::uint32_t file) : file_(file) {}

  // Adds a value as a torch.save item.  `key` is for messages.
  // Throws: kUnsupported for tensors inside, the errors of write_pickle.
  Location add(const Value& value, const std::string& key);
  // Adds another copy of an item of the source.
  Location copy(const Location& source);

  bool empty() const { return items_.empty(); }
  std::uint64_t bytes() const { return bytes_; }
  // Throws: the errors of reading and writing.
  void write(const Folder& folder, const Index& source, OutputFile& out) const;

 private:
  struct Item {
    std::uint64_t offset = 0;
    std::string bytes;               // the whole item; if empty:
    std::optional<Location> source;  // the item to copy
  };
  Location place(std::uint64_t bytes);

  std::uint32_t file_;
  std::uint64_t bytes_ = 0;
  std::vector<Item> items_;
};

}  // namespace fsdp::formats
