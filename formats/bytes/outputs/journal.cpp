// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/journal.h"

namespace fsdp::formats {

const std::set<std::string>& Journal::kept_files() const {
  static const std::set<std::string> none;
  return none;
}

const std::vector<JournalEntry>& Journal::found() const {
  static const std::vector<JournalEntry> none;
  return none;
}

const std::shared_ptr<Journal>& no_journal() {
  static const auto journal = std::make_shared<Journal>();
  return journal;
}

}  // namespace fsdp::formats
