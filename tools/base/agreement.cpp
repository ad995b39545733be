// SPDX-License-Identifier: Apache-2.0
#include "tools/base/agreement.h"

#include <sys/stat.h>

#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "formats/bytes/base/sha256.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/snapshot.h"
#include "tools/base/build_info.h"

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

std::optional<formats::StoredFile> local_file(const char* path) {
  struct stat info {};
  if (::stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return formats::StoredFile{
      static_cast<std::uint64_t>(info.st_size),
      {},
      std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

// Returns the file `name` of the checkpoint at `path`: in that folder, beside that file, or that
// file itself.
std::optional<formats::StoredFile> find_file(const fs::path& path, const std::string& name) {
  for (const fs::path& place : {path / name, formats::folder_of_place(path) / name, path}) {
    if (formats::in_store(path)) {
      if (auto file = formats::find_stored(formats::url_of(place))) return file;
      continue;
    }
    if (auto file = local_file(place.c_str())) return file;
  }
  return std::nullopt;
}

void add_location(Digest& digest, const formats::Location& location) {
  digest.number(location.file);
  digest.number(location.offset);
  digest.number(location.length);
}

std::string state_text(const formats::StoredFile& file) {
  std::string text = formats::cat(file.bytes, " bytes");
  if (!file.version.empty()) text += formats::cat(", version ", file.version);
  if (file.mtime_ns)
    text += formats::cat(", written at ", file.mtime_ns / 1'000'000'000, " s and ",
                         file.mtime_ns % 1'000'000'000, " ns");
  return text;
}

using FileStates = std::vector<std::pair<std::string, std::string>>;

// Returns the name of each file with its size and time.
FileStates file_states(const std::string& path, const formats::Index& index) {
  FileStates states;
  states.reserve(index.files.size());
  for (const formats::FileEntry& file : index.files) {
    const auto info = find_file(path, file.name);
    std::string state = info ? state_text(*info) : "not a file here";
    // Since it was opened, the file may have been replaced.
    const std::uint64_t found = info ? info->bytes : 0;
    if (file.bytes && *file.bytes != found)
      state += formats::cat(", opened with ", *file.bytes, " bytes");
    states.emplace_back(file.name, std::move(state));
  }
  return states;
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

// What one process sees of a checkpoint.
struct Seen {
  FileStates files;
  std::string entries;  // digest of the index entries
};

Seen seen_at(const std::string& path, const formats::Index& index) {
  Digest digest;
  add_entries(digest, index);
  return {file_states(path, index), digest.finish()};
}

void identify(formats::PlanIdentity& identity, const std::string& path, const Seen& seen) {
  for (const auto& [name, state] : seen.files) identity.add(formats::cat(path, ": ", name), state);
  identity.add(path + ": what it holds", seen.entries);
}

}  // namespace

void agree_on_start(formats::Team& team, const std::vector<std::string>& args) {
  team.agree("version", version_text(), "runs another version or build of fsdp-ckpt");
  Packed packed;
  for (const std::string& arg : args) packed.text(arg);
  team.agree("arguments", packed.take(), "has other arguments");
}

void agree_on_source(const CommonOptions& common, const std::string& path,
                     const formats::Checkpoint& checkpoint) {
  if (common.team->alone()) {
    common.identity->add_later([path, &checkpoint](formats::PlanIdentity& identity) {
      identify(identity, path, seen_at(path, checkpoint.index()));
    });
    return;
  }
  const Seen seen = seen_at(path, checkpoint.index());
  common.identity->add_later(
      [path, seen](formats::PlanIdentity& identity) { identify(identity, path, seen); });
  Digest digest;
  for (const auto& [name, state] : seen.files) {
    digest.text(name);
    digest.text(state);
  }
  digest.text(seen.entries);
  common.team->agree("source", digest.finish(),
                     formats::cat("sees another checkpoint at ", formats::escape(path)));
}

void identify_word(formats::PlanIdentity& identity, const std::string& what,
                   const std::string& word) {
  identity.add(what, word);
  if (const auto file = local_file(word.c_str())) identity.add(word, state_text(*file));
}

}  // namespace fsdp::cli
