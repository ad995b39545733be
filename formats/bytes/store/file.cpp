// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/file.h"

#include <algorithm>
#include <atomic>

#include "formats/bytes/base/text.h"
#include "formats/bytes/store/hidden_files.h"

namespace fsdp::formats {
namespace {

// Longest relative path that a checkpoint may name; the kernel's own limit on a path.
constexpr std::size_t kMaxPathBytes = 4096;

// More than any checkpoint has.
constexpr std::size_t kMaxListedFiles = 1'000'000;
constexpr int kMaxFolderDepth = 16;

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

File::File(std::string name) : name_(std::move(name)), number_(next_number()) {}

void File::check_range(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size() || count > size() - offset) {
    throw Error(ErrorCode::kTruncated, name_, ": ", count, " bytes at byte ", offset,
                " are needed, but the file has ", size());
  }
}

Error Folder::refusal(ErrorCode code, const std::string& relative_path,
                      std::string_view why) const {
  return {code, escape(path_.native()), ": path ", quote(relative_path), " ", why};
}

void Folder::check_depth(const std::string& prefix, int depth) const {
  if (depth <= kMaxFolderDepth) return;
  throw Error(ErrorCode::kLimitDepth, escape((path_ / prefix).native()), ": lies more than ",
              kMaxFolderDepth, " folders deep");
}

std::shared_ptr<const File> Folder::open_member_if_present(const std::string& path) const {
  if (path.empty() || path == ".") throw refusal(ErrorCode::kPath, path, "does not name a file");
  if (path.find('\0') != std::string::npos)
    throw refusal(ErrorCode::kPath, path, "contains a NUL byte");
  if (path.size() >= kMaxPathBytes) {
    throw refusal(ErrorCode::kPath, path,
                  cat("is ", path.size(), " bytes long, at most ", kMaxPathBytes - 1));
  }
  return is_hidden(path_ / path) ? nullptr : find(path);
}

std::shared_ptr<const File> Folder::open_member(const std::string& relative_path) const {
  auto file = open_member_if_present(relative_path);
  if (file) return file;
  throw Error(ErrorCode::kShardMissing,
              escape((path_ / relative_path).native()) + ": no such file");
}

std::vector<std::string> Folder::list() const {
  std::vector<std::string> members = names();
  std::erase_if(members, [&](const std::string& name) { return is_hidden(path_ / name); });
  std::ranges::sort(members, [](const auto& a, const auto& b) { return natural_less(a, b); });
  return members;
}

std::vector<std::string> Folder::list_files() const {
  std::vector<std::string> files;
  each_file([&](std::string path) {
    if (is_hidden(path_ / path)) return;
    if (files.size() == kMaxListedFiles) {
      throw Error(ErrorCode::kLimitEntries, escape(path_.native()), ": holds more than ",
                  kMaxListedFiles, " files");
    }
    files.push_back(std::move(path));
  });
  std::ranges::sort(files);
  return files;
}

}  // namespace fsdp::formats
