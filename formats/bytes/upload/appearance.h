// SPDX-License-Identifier: Apache-2.0
// Which files of an output are visible in the store, and the way back.
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
// `seals`: says whether a file of that name is a seal; may be null.
Role role_of(std::string_view name, const std::function<bool(std::string_view)>& seals);

// The URL of a member of the output.
using UrlOf = std::function<std::string(const std::string& name)>;

// The names, quoted, of at most twenty files; then how many more there are.
std::string quoted_names(const std::vector<std::string>& names);

// Removes files at once, each whatever becomes of the others.  Returns the names of those that may
// still be there, in order, and in `why` the first failure.
std::vector<std::string> remove_each(Store& store, const std::vector<std::string>& names,
                                     const UrlOf& url_of, std::optional<Error>& why);

// Note [taking back]
// A file that leads to data (.metadata) must never be there without its data.  So seals go first,
// then those files, one by one, and data only when these are gone for sure.  If one of them
// replaced an old file, or nobody knows whether it is there, all the rest stays too.
//
// Thread-safe.
class Appearance {
 public:
  enum class State {
    kAsked,    // the store was asked to show it: nobody knows
    kVisible,  // it is there
    kHidden,   // it is not there, or an old one is
  };
  // A file that is not visible yet.  `replaces`: an old one of that name is.
  void add(const std::string& name, Role role, bool replaces);
  void set(const std::string& name, State state);

  // Whether there are files that lead to data, and all of them are visible; whether one of them may
  // be.
  bool leads() const;
  bool may_lead() const;
  // Takes back what may be; see Note [taking back].
  void take_back(Store& store, const UrlOf& url_of);
  // The files that are there, or may be.
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
