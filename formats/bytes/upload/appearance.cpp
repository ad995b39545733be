// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/appearance.h"

#include <algorithm>
#include <initializer_list>
#include <new>

#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"
#include "formats/bytes/upload/sender_pool.h"

namespace fsdp::formats {
namespace {

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings,
                             [&](std::string_view ending) { return name.ends_with(ending); });
}

}  // namespace

Role role_of(std::string_view name, const std::function<bool(std::string_view)>& seals) {
  name = name.substr(name.rfind('/') + 1);  // npos + 1 is 0
  if (seals && seals(name)) return Role::kSeal;
  if (ends_with_any(name, {".metadata", ".index.json"}) || name == "metadata.json" ||
      name == "metadata.pkl") {
    return Role::kLeader;
  }
  if (ends_with_any(name, {".distcp", ".safetensors", ".pt", ".pth", ".bin"})) return Role::kData;
  return Role::kCompanion;
}

std::string quoted_names(const std::vector<std::string>& names) {
  SomeNames quoted(20);
  for (const std::string& name : names) quoted.add(quote(name));
  return quoted.text();
}

std::vector<std::string> remove_each(Store& store, const std::vector<std::string>& names,
                                     const UrlOf& url_of, std::optional<Error>& why) {
  std::mutex mutex;
  std::vector<std::string> left;
  // Records a failure; the other files are still removed.
  const auto note = [&](const std::string& name, const Error& error) {
    const std::lock_guard lock(mutex);
    if (!why) why = error;
    left.push_back(name);
  };
  run_each(names.size(), SenderPool::kThreads, [&](std::size_t i) {
    try {
      store.remove(url_of(names[i]));
    } catch (const Error& error) {
      note(names[i], error);
    } catch (const std::bad_alloc&) {
      note(names[i], {ErrorCode::kOutOfMemory, "out of memory"});
    }
  });
  std::ranges::sort(left);
  return left;
}

void Appearance::add(const std::string& name, Role role, bool replaces) {
  const std::lock_guard lock(mutex_);
  files_[name] = {role, replaces, State::kHidden};
}

void Appearance::set(const std::string& name, State state) {
  const std::lock_guard lock(mutex_);
  const auto at = files_.find(name);
  if (at != files_.end()) at->second.state = state;
}

bool Appearance::leads() const {
  const std::lock_guard lock(mutex_);
  std::size_t leaders = 0;
  for (const auto& [name, file] : files_) {
    if (file.role != Role::kLeader) continue;
    if (file.state != State::kVisible) return false;
    ++leaders;
  }
  return leaders != 0;
}

bool Appearance::may_lead() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(files_, [](const auto& entry) {
    return entry.second.role == Role::kLeader && entry.second.state != State::kHidden;
  });
}

std::vector<std::string> Appearance::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [name, file] : files_) {
    if (file.state != State::kHidden) found.push_back(name);
  }
  return found;
}

// Returns the visible files of a role that replaced no old ones.
std::vector<std::string> Appearance::removable(Role role) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [name, file] : files_) {
    if (file.role == role && !file.replaces && file.state == State::kVisible) found.push_back(name);
  }
  return found;
}

// Removes the files; returns whether all of them are gone.
bool Appearance::remove(Store& store, const std::vector<std::string>& names, const UrlOf& url_of) {
  std::optional<Error> why;
  const std::vector<std::string> left = remove_each(store, names, url_of, why);
  const std::lock_guard lock(mutex_);
  for (const std::string& name : names) {
    const bool gone = !std::ranges::binary_search(left, name);
    files_.at(name).state = gone ? State::kHidden : State::kAsked;
  }
  return left.empty();
}

void Appearance::take_back(Store& store, const UrlOf& url_of) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, file] : files_) {
      if (file.role != Role::kLeader || file.state == State::kHidden) continue;
      if (file.replaces || file.state == State::kAsked) return;
    }
  }
  remove(store, removable(Role::kSeal), url_of);
  for (const std::string& leader : removable(Role::kLeader)) {
    if (!remove(store, {leader}, url_of)) return;
  }
  std::vector<std::string> rest = removable(Role::kData);
  const std::vector<std::string> companions = removable(Role::kCompanion);
  rest.insert(rest.end(), companions.begin(), companions.end());
  remove(store, rest, url_of);
}

}  // namespace fsdp::formats
