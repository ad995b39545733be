// SPDX-License-Identifier: Apache-2.0
#include "formats/base/shared_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <charconv>
#include <utility>

#include "formats/base/checked_list.h"
#include "formats/base/error.h"
#include "formats/base/text.h"

namespace fsdp::formats {
namespace {

constexpr std::string_view kTag = "fsdp_shared";
constexpr std::int64_t kSecond = 1'000'000'000;

std::int64_t nanoseconds(const statx_timestamp& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

// Times and inodes may need all 64 bits: as text.
std::string number_text(std::int64_t number) {
  return std::to_string(number);
}

std::int64_t number_member(const Json& line, std::string_view name) {
  const std::string& text = text_member(line, name);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw Error(ErrorCode::kSeal, cat(quote(name), " is ", quote(text), ", expected a number"));
  return number;
}

}  // namespace

SharedFile shared_file(std::string name, const File& file) {
  struct statx info {};
  if (::statx(file.fd(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &info) != 0)
    throw_errno(file.name());
  SharedFile shared{std::move(name), info.stx_size, info.stx_ino, nanoseconds(info.stx_mtime),
                    std::nullopt};
  if ((info.stx_mask & STATX_BTIME) != 0) shared.born_ns = nanoseconds(info.stx_btime);
  return shared;
}

std::string shared_text(const std::vector<SharedFile>& files) {
  CheckedListWriter writer(kTag);
  for (const SharedFile& file : files) {
    if (!is_utf8(file.name)) {
      throw Error(ErrorCode::kName, cat(quote(file.name),
                                        ": the name is no UTF-8, and a record of "
                                        "shared files cannot hold it"));
    }
    writer.add({{"name", file.name},
                {"bytes", file.bytes},
                {"inode", number_text(static_cast<std::int64_t>(file.inode))},
                {"modified_ns", number_text(file.modified_ns)},
                {"born_ns", file.born_ns ? Json(number_text(*file.born_ns)) : Json()}});
  }
  return writer.finish();
}

std::vector<SharedFile> read_shared(const File& file) {
  std::vector<SharedFile> files;
  read_checked_list(kTag, file, [&](const Json& line) {
    require_members(line, {"name", "bytes", "inode", "modified_ns", "born_ns"});
    SharedFile shared{name_member(line), count_member(line, "bytes"),
                      static_cast<std::uint64_t>(number_member(line, "inode")),
                      number_member(line, "modified_ns"), std::nullopt};
    if (!line.find("born_ns")->is_null()) shared.born_ns = number_member(line, "born_ns");
    files.push_back(std::move(shared));
  });
  return files;
}

bool is_still_shared(const SharedFile& then, const SharedFile& now) {
  return then.inode == now.inode && then.born_ns == now.born_ns;
}

}  // namespace fsdp::formats
