// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/hidden_files.h"

#include <atomic>
#include <utility>

namespace fsdp::formats {
namespace {

std::atomic<const std::set<std::filesystem::path>*> hidden = nullptr;

}  // namespace

HiddenFiles::HiddenFiles(std::set<std::filesystem::path> paths) : paths_(std::move(paths)) {
  hidden = &paths_;
}

HiddenFiles::~HiddenFiles() {
  hidden = nullptr;
}

bool is_hidden(const std::filesystem::path& path) {
  const std::set<std::filesystem::path>* const paths = hidden;
  return paths != nullptr && paths->contains(path);
}

}  // namespace fsdp::formats
