// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/hidden_files.h"

#include <utility>

namespace fsdp::formats {
namespace {

thread_local const std::set<std::filesystem::path>* hidden = nullptr;

}  // namespace

HiddenFiles::HiddenFiles(std::set<std::filesystem::path> paths) : paths_(std::move(paths)) {
  hidden = &paths_;
}

HiddenFiles::~HiddenFiles() {
  hidden = nullptr;
}

bool is_hidden(const std::filesystem::path& path) {
  return hidden != nullptr && hidden->contains(path);
}

}  // namespace fsdp::formats
