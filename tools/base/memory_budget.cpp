// SPDX-License-Identifier: Apache-2.0
#include "tools/base/memory_budget.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::PlaceKind;

// Memory for the smallest file: the program's own tables, and a block for each thread.
constexpr std::uint64_t kLeastBytes = 24U << 20U;
// A key of a state dict takes some 15 bytes of a pickle and some 300 here.
constexpr std::uint64_t kBytesPerByte = 24;
constexpr std::uint64_t kDefaultBytes = 256U << 20U;
// A `.metadata` of two million chunks, 324 MB, takes 400 MB, and somewhat more if it is written
// again.
constexpr std::uint64_t kBytesPerMetadataByte = 4;
constexpr std::uint64_t kFreeExpanded = 128U << 20U;
constexpr std::uint64_t kExpansion = 64;
// Each reading of a pickle scans it twice; pickles are a third of the smallest items, and few verbs
// read them more than twice.
constexpr std::uint64_t kFreePickle = 8U << 20U;
constexpr std::uint64_t kPickleBytesPerByte = 24;

// Folders of trainers nest three deep; deeper ones belong to others.
constexpr int kMaxDepth = 4;
constexpr std::size_t kMaxFiles = 200'000;

bool is_metadata(const fs::path& name) {
  return name == ".metadata" || name == "metadata.pkl" || name.extension() == ".json" ||
         name.extension() == ".metadata";
}

// An error counts as "no": opening the checkpoint meets the same error and reports it.
// `itself`: of a link, not of its target.
bool is_kind(const fs::path& path, PlaceKind kind, bool itself = false) {
  try {
    return (itself ? formats::kind_of_place_itself(path) : formats::kind_of_place(path)) == kind;
  } catch (const Error&) {
    return false;
  }
}

void add_file(const fs::path& path, InputSize& size) {
  const auto bytes = formats::bytes_at(path);
  if (!bytes) return;
  size.bytes += *bytes;
  if (is_metadata(path.filename())) size.metadata_bytes += *bytes;
}

// `files`: the number counted so far.  Does not use recursive_directory_iterator, which ends the
// process if memory runs out while it advances.
void add_folder(const fs::path& path, InputSize& size, std::size_t& files, int depth = 0) {
  std::vector<std::string> names;
  try {
    names = formats::folder_at(path)->list();
  } catch (const Error&) {
    return;  // opening the checkpoint meets the same error and reports it
  }
  // In a store each folder costs a request, and folders inside a DCP folder do not belong to it.
  const bool flat =
      formats::in_store(path) && std::find(names.begin(), names.end(), ".metadata") != names.end();
  const int most_depth = flat ? 0 : kMaxDepth;
  for (const std::string& name : names) {
    if (files >= kMaxFiles) return;
    const fs::path inner = path / name;
    if (is_kind(inner, PlaceKind::kFile)) {
      ++files;
      add_file(inner, size);
    } else if (depth < most_depth && is_kind(inner, PlaceKind::kFolder, true)) {
      add_folder(inner, size, files, depth + 1);
    }
  }
}

}  // namespace

InputSize size_of(const std::vector<std::string>& paths) {
  InputSize size;
  const std::set<std::string> distinct(paths.begin(), paths.end());
  for (const fs::path path : distinct) {
    std::size_t files = 0;
    if (is_kind(path, PlaceKind::kFolder)) {
      add_folder(path, size, files);
    } else if (is_kind(path, PlaceKind::kFile)) {
      // Such a file represents its folder.
      const bool part = is_metadata(path.filename()) || path.extension() == ".distcp";
      if (part) {
        add_folder(formats::folder_of_place(path), size, files);
      } else {
        add_file(path, size);
      }
    }
  }
  return size;
}

formats::Budget budget_for(const InputSize& input, std::optional<std::uint64_t> max_memory) {
  const auto in_proportion = [&](std::uint64_t factor, std::uint64_t free) {
    return std::min(input.bytes, (UINT64_MAX - free) / factor) * factor + free;
  };
  formats::Budget budget{0, in_proportion(kExpansion, kFreeExpanded),
                         in_proportion(kPickleBytesPerByte, kFreePickle)};
  if (max_memory) {
    budget.memory_bytes = *max_memory;
    return budget;
  }
  const std::uint64_t most =
      std::max(kDefaultBytes, std::min(input.metadata_bytes, UINT64_MAX / kBytesPerMetadataByte) *
                                  kBytesPerMetadataByte);
  budget.memory_bytes = std::min(in_proportion(kBytesPerByte, kLeastBytes), most);
  return budget;
}

std::string budget_words(const InputSize& input, const formats::Budget& budget,
                         std::optional<std::uint64_t> max_memory) {
  const std::string most = formats::human_bytes(budget.memory_bytes);
  if (max_memory) return most + "; --max-memory SIZE allows more";
  return formats::cat(most, ", the limit for ", formats::human_bytes(input.bytes),
                      " of files; --max-memory SIZE allows more");
}

}  // namespace fsdp::cli
