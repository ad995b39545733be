// SPDX-License-Identifier: Apache-2.0
#include "tools/agreement.h"

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <span>

#include "formats/base/sha256.h"
#include "formats/base/text.h"
#include "tools/build_info.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::Packed;

// Bytes that are hashed at once.
constexpr std::size_t kDigestBytes = 1U << 20U;

// Hashes numbers and texts.
class Digest {
 public:
  void number(std::uint64_t value) {
    packed_.number(value);
    if (++fields_ * sizeof value >= kDigestBytes) flush();
  }
  void text(std::string_view value) {
    packed_.text(value);
    fields_ += 1 + value.size() / sizeof(std::uint64_t);
    if (fields_ * sizeof(std::uint64_t) >= kDigestBytes) flush();
  }
  std::string finish() {
    flush();
    return sha_.finish();
  }

 private:
  void flush() {
    const std::string bytes = packed_.take();
    sha_.add(std::as_bytes(std::span(bytes)));
    packed_ = {};
    fields_ = 0;
  }

  formats::Sha256 sha_;
  Packed packed_;
  std::size_t fields_ = 0;
};

// The file of that name of the checkpoint at `path`, which is a folder, or a file beside it, or the
// file itself.
std::optional<struct stat> find_file(const fs::path& path, const std::string& name) {
  for (const fs::path& place : {path / name, path.parent_path() / name, path}) {
    struct stat info {};
    if (::stat(place.c_str(), &info) == 0 && S_ISREG(info.st_mode)) return info;
  }
  return std::nullopt;
}

void add_location(Digest& digest, const formats::Location& location) {
  digest.number(location.file);
  digest.number(location.offset);
  digest.number(location.length);
}

void add_files(Digest& digest, const std::string& path, const formats::Index& index) {
  for (const formats::FileEntry& file : index.files) {
    digest.text(file.name);
    digest.number(file.bytes.value_or(UINT64_MAX));
    const auto info = find_file(path, file.name);
    digest.number(info ? static_cast<std::uint64_t>(info->st_size) : UINT64_MAX);
    digest.number(info ? static_cast<std::uint64_t>(info->st_mtim.tv_sec) : 0);
    digest.number(info ? static_cast<std::uint64_t>(info->st_mtim.tv_nsec) : 0);
  }
}

void add_entries(Digest& digest, const formats::Index& index) {
  for (const formats::TensorEntry& tensor : index.tensors) {
    digest.text(tensor.key);
    digest.number(static_cast<std::uint64_t>(tensor.dtype));
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      const formats::BoxView box = tensor.chunks.box(c);
      for (const std::int64_t number : box.offset)
        digest.number(static_cast<std::uint64_t>(number));
      for (const std::int64_t number : box.size) digest.number(static_cast<std::uint64_t>(number));
      add_location(digest, tensor.chunks.location(c));
    }
  }
  for (const formats::ValueEntry& value : index.values) {
    digest.text(value.key);
    add_location(digest, value.location);
  }
}

}  // namespace

void agree_on_start(formats::Team& team, const std::vector<std::string>& args) {
  team.agree("version", version_text(), "runs another version or build of fsdp-ckpt");
  Packed packed;
  for (const std::string& arg : args) packed.text(arg);
  team.agree("arguments", packed.take(), "has other arguments");
}

void agree_on_source(formats::Team* team, const std::string& path,
                     const formats::Checkpoint& checkpoint) {
  if (team == nullptr) return;
  Digest digest;
  add_files(digest, path, checkpoint.index());
  add_entries(digest, checkpoint.index());
  team->agree("source", digest.finish(),
              formats::cat("sees another checkpoint at ", formats::escape(path)));
}

}  // namespace fsdp::cli
