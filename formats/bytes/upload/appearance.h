// SPDX-License-Identifier: Apache-2.0
// Tracks which files of an output are visible in the store, and takes them back.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// The order in which the files of a folder become visible.
enum class Role { kData, kCompanion, kLeader, kSeal };
// Returns the role of a file.  `seals`: tells whether a file of that name is a seal; may be null.
Role role_of(std::string_view name, const std::function<bool(std::string_view)>& seals);

// Returns the URL of a member of the output.
using UrlOf = std::function<std::string(const std::string& name)>;

// Returns the quoted names of at most twenty files, then the number of the others.
std::string quoted_names(const std::vector<std::string>& names);

// Removes files in parallel; a failure does not stop the others.  Returns the names of those that
// may still exist, sorted, and in `why` the first failure.
std::vector<std::string> remove_each(Store& store, const std::vector<std::string>& names,
                                     const UrlOf& url_of, std::optional<Error>& why);

// Note [taking back]
// A leader, a file that leads to data (.metadata), must never exist without its data.  So seals are
// removed first, then the leaders, one by one, and data only when the leaders are certainly gone.
// If a leader replaced an old file, or may exist, all the rest stays too.
//
// Thread-safe.
class Appearance {
 public:
  enum class State {
    kAsked,    // the store was asked to show it; the result is unknown
    kVisible,  // it exists
    kHidden,   // it does not exist, or an old one does
  };
  // Adds a file that is not visible yet.  `replaces`: an old one of that name is visible.
  void add(const std::string& name, Role role, bool replaces);
  void set(const std::string& name, State state);

  // leads: returns whether there are leaders, and all are visible.  may_lead: whether a leader may
  // be visible.
  bool leads() const;
  bool may_lead() const;
  // Takes back what may be taken back; see Note [taking back].
  void take_back(Store& store, const UrlOf& url_of);
  // Returns the files that exist, or may exist.
  std::vector<std::string> names() const;

 private:
  struct File {
    Role role;
    bool replaces;
    State state;
  };
  std::vector<std::string> removable(Role role) const;
  bool remove(Store& store, const std::vector<std::string>& names, const UrlOf& url_of);

  mutable std::mutex mutex_;
  std::map<std::string, File> files_;
};

}  // namespace fsdp::formats
