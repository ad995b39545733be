// SPDX-License-Identifier: Apache-2.0
// A small text file that lists files: JSON, one object per line, its own CRC-32 at the end.  There
// is one way to write a list, and reading accepts no other: every changed byte is an error.
//
//   {"fsdp_seal":1,"files":[
//   {"name":".metadata","bytes":966,"crc32":"0a1b2c3d"},
//   {"name":"__0_0.distcp","bytes":2838,"crc32":"9e8f7a6b"}
//   ],"crc32":"5d6e7f80"}
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "formats/bytes/base/json.h"
#include "formats/bytes/files/file.h"

namespace fsdp::formats {

// Writes a list from front to back.
class CheckedListWriter {
 public:
  // `tag` names the kind of list and the version of its format: {"<tag>":1, ...
  explicit CheckedListWriter(std::string_view tag);
  // Throws: kName if the line's "name" is not UTF-8.
  void add(const Json::Object& line);
  // Returns the whole text.
  std::string finish();

 private:
  std::string text_;
  bool empty_ = true;
};

// Reads a list of that kind; calls `line` with each object, in order.
// Throws: kSeal for another kind or version, a line that is not an object, a wrong checksum, or
// anything after the checksum; kLimitSize; the exceptions of `line`.
void read_checked_list(std::string_view tag, const File& file,
                       const std::function<void(const Json& line)>& line);

// Refuses an object that has other members than `names`, or in another order.
// Throws: kSeal.
void require_members(const Json& object, std::initializer_list<std::string_view> names);

// Return the member.  Throw: kSeal if the member is missing or of another type.
const std::string& text_member(const Json& object, std::string_view name);
std::uint64_t count_member(const Json& object, std::string_view name);
// Returns a member of eight lower-case hexadecimal digits, as a number.
std::uint32_t crc_member(const Json& object, std::string_view name);

// Returns the member "name": relative to the folder of the list, "a" or "a/b", and not leading out
// of it.
// Throws: kSeal.
const std::string& name_member(const Json& object);

}  // namespace fsdp::formats
