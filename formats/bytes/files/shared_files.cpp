// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/shared_files.h"

#include <charconv>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checked_list.h"
#include "formats/bytes/files/file_times.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kSharedTag = "fsdp_shared";
// Returns sixteen hexadecimal digits, so that a record has the same length on every machine.
std::string number_text(std::uint64_t number) {
  return hex32(static_cast<std::uint32_t>(number >> 32U)) +
         hex32(static_cast<std::uint32_t>(number));
}

std::uint64_t number_member(const Json& line, std::string_view name) {
  const std::string& text = text_member(line, name);
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (text == number_text(number)) return number;
  throw Error(ErrorCode::kSeal, quote(name), " is ", quote(text),
              ", expected sixteen lower-case hexadecimal digits");
}

}  // namespace

SharedFile shared_file(std::string name, const File& file) {
  const FileTimes times = times_of(file);
  return {std::move(name), times.bytes, times.inode, times.modified_ns, times.born_ns.value_or(0)};
}

std::string shared_text(const std::vector<SharedFile>& files) {
  CheckedListWriter writer(kSharedTag);
  for (const SharedFile& file : files) {
    writer.add({{"name", file.name},
                {"bytes", file.bytes},
                {"inode", number_text(file.inode)},
                {"modified_ns", number_text(static_cast<std::uint64_t>(file.modified_ns))},
                {"born_ns", number_text(static_cast<std::uint64_t>(file.born_ns))}});
  }
  return writer.finish();
}

std::vector<SharedFile> read_shared(const File& file) {
  std::vector<SharedFile> files;
  read_checked_list(kSharedTag, file, [&](const Json& line) {
    require_members(line, {"name", "bytes", "inode", "modified_ns", "born_ns"});
    files.push_back({name_member(line), count_member(line, "bytes"), number_member(line, "inode"),
                     static_cast<std::int64_t>(number_member(line, "modified_ns")),
                     static_cast<std::int64_t>(number_member(line, "born_ns"))});
  });
  return files;
}

bool is_still_shared(const SharedFile& then, const SharedFile& now) {
  return then.inode == now.inode && then.born_ns == now.born_ns;
}

}  // namespace fsdp::formats
