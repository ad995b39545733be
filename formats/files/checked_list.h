// SPDX-License-Identifier: Apache-2.0
// A small text file that lists files: JSON, one object a line, its own CRC-32 at the end.  There is
// one way to write a list, and reading accepts no other: every changed byte is an error.
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

#include "formats/base/json.h"
#include "formats/files/file.h"

namespace fsdp::formats {

// Writes a list from front to back.
class CheckedListWriter {
 public:
  // `tag` names the kind of list and the version of its form: {"<tag>":1, ...
  explicit CheckedListWriter(std::string_view tag);
  // Throws: kName where its "name" is no UTF-8.
  void add(const Json::Object& line);
  // The whole text.
  std::string finish();

 private:
  std::string text_;
  bool empty_ = true;
};

// Reads a list of that kind; `line` is told each object, in order.
// Throws: kSeal: another kind or version, a line that is no object, a wrong checksum, anything
// behind it; kLimitSize; what `line` throws.
void read_checked_list(std::string_view tag, const File& file,
                       const std::function<void(const Json& line)>& line);

// Refuses an object that has other members than `names`, or in another order.  Throws: kSeal.
void require_members(const Json& object, std::initializer_list<std::string_view> names);

// Throws: kSeal, where the member is not what its name says.
const std::string& text_member(const Json& object, std::string_view name);
std::uint64_t count_member(const Json& object, std::string_view name);
// Eight lower-case digits of base 16.
std::uint32_t crc_member(const Json& object, std::string_view name);

// A name relative to the folder of the list, "a" or "a/b", that leads nowhere else.
// Throws: kSeal.
const std::string& name_member(const Json& object);

}  // namespace fsdp::formats
