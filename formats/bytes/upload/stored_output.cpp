// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/stored_output.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/base/threads.h"

namespace fsdp::formats {
namespace {

// How long running requests may take when everything is taken back: after a signal, and otherwise.
constexpr std::chrono::seconds kEndTime{5};
constexpr std::chrono::seconds kLongestEndTime{600};
constexpr std::chrono::milliseconds kEndPoll{10};

// Returns whether the name is like "a" or "a/b/c".
bool is_member_path(std::string_view name) {
  int folders = 0;
  for (std::size_t slash = 0; (slash = name.find('/')) != name.npos;
       name.remove_prefix(slash + 1)) {
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || ++folders > kMaxInnerFolders) return false;
  }
  return !name.empty() && name != "." && name != ".." && name.find('\0') == name.npos;
}

std::string without_slashes(std::string url) {
  while (url.ends_with('/') && !url.ends_with("://")) url.pop_back();
  return url;
}

}  // namespace

StoredOutput::StoredOutput(Store& store, const std::string& url, StoredOutputOptions options)
    : store_(store),
      url_(options.folder ? without_slashes(url) : url),
      options_(std::move(options)),
      shown_(escape(url_)) {
  if (options_.folder) {
    check_folder();
  } else {
    check_file();
  }
  note_unfinished(*this);
}

StoredOutput::~StoredOutput() {
  {
    const std::lock_guard lock(ending_);
    take_back();
  }
  forget_unfinished(*this);
}

// See Note [abandoning outputs]: the writing thread may be taking back already.
void StoredOutput::abandon() noexcept {
  std::unique_lock lock(ending_, std::try_to_lock);
  for (std::chrono::milliseconds waited{0}; !lock.owns_lock() && waited < kEndTime;
       waited += kEndPoll) {
    std::this_thread::sleep_for(kEndPoll);
    (void)lock.try_lock();
  }
  if (lock.owns_lock()) take_back();
}

// Requires: ending_ is held.
void StoredOutput::take_back() noexcept {
  if (std::exchange(ended_, true)) return;
  // Without a signal, requests end by themselves within the store's patience.
  const bool idle = senders_.stop(interrupted() ? kEndTime : kLongestEndTime);
  if (committed_) return;
  try {
    appearance_.take_back(store_, [this](const std::string& name) { return url_of(name); });
    std::vector<std::shared_ptr<PartUpload>> sent;
    if (idle) {
      const std::lock_guard lock(members_mutex_);
      for (const Member& member : members_) sent.push_back(member.upload);
    }
    run_each(sent.size(), SenderPool::kThreads, [&](std::size_t i) { sent[i]->take_back(); });
  } catch (const std::exception&) {
    // What is left does not look like a checkpoint.
  }
  spool_.remove();
}

void StoredOutput::check_file() const {
  const std::size_t place = url_.find("://");
  const std::string_view path = std::string_view(url_).substr(place == url_.npos ? 0 : place + 3);
  if (path.find('/') == path.npos || path.ends_with('/'))
    throw Error(ErrorCode::kUsage, shown_ + ": does not name a file");
  if (store_.find(url_)) {
    if (options_.replace) return;
    throw Error(ErrorCode::kExists, shown_ + ": exists", {Remedy::kReplace});
  }
  const auto members = store_.list(url_);
  if (members && !members->empty())
    throw Error(ErrorCode::kNotRegular, shown_ + ": is a folder, expected a file");
}

// Returns the names of the existing files.
// Throws: kExists if they must stay; kNotRegular if there is a file.
StoredOutput::Names StoredOutput::check_folder() const {
  Names names = members_of(url_, "", false);
  if (!names.empty() && !options_.replace)
    throw Error(ErrorCode::kExists, shown_ + ": exists", {Remedy::kReplace});
  // The root of a store is not a file.
  if (names.empty() && url_.find('/', url_.find("://") + 3) != url_.npos && store_.find(url_))
    throw Error(ErrorCode::kNotRegular, shown_ + ": is a file, expected a folder");
  return names;
}

StoredOutput::Names StoredOutput::members_of(const std::string& folder, const std::string& prefix,
                                             bool nested) const {
  const auto in_the_way = [&](const std::string& name) {
    return Error(ErrorCode::kExists, shown_, ": holds ", quote(prefix + name),
                 ", which is not a file of a checkpoint; remove it or choose another "
                 "destination");
  };
  const auto entries = store_.list(folder);
  if (!entries) {
    throw Error(ErrorCode::kUnsupported,
                shown_ + ": the store cannot list the destination, so nothing is written");
  }
  Names names;
  for (const StoredEntry& entry : *entries) {
    if (entry.file) {
      if (options_.replace && !options_.replaced(entry.name)) throw in_the_way(entry.name);
      names.push_back(prefix + entry.name);
      continue;
    }
    if (nested && options_.replace) throw in_the_way(entry.name);
    const Names inner = nested ? Names{entry.name}
                               : members_of(cat(folder, "/", entry.name), entry.name + "/", true);
    names.insert(names.end(), inner.begin(), inner.end());
  }
  return names;
}

std::string StoredOutput::url_of(const std::string& name) const {
  return name.empty() ? url_ : cat(url_, "/", name);
}

StoredOutput::Added StoredOutput::add(const std::string& name) {
  const std::string url = url_of(name);
  if (options_.folder && !is_member_path(name)) {
    throw Error(ErrorCode::kPath, shown_, ": ", quote(name),
                " is not the name of a file in a folder");
  }
  const std::lock_guard lock(members_mutex_);
  if (!names_.insert(name).second)
    throw Error(ErrorCode::kExists, escape(url) + ": is written twice");
  const std::filesystem::path spool = spool_.add(name.empty() ? kRoot : cat(kRoot, "/", name));
  const auto upload = std::make_shared<PartUpload>(store_, url, spool, senders_);
  members_.push_back({name, upload});
  return {spool, escape(url), upload};
}

void StoredOutput::commit() {
  senders_.wait();
  if (options_.folder) return commit_folder();
  const std::lock_guard lock(commit_mutex());  // See Note [abandoning outputs].
  throw_if_interrupted();
  // Done by this thread: a thread that waits for another one would leave at a signal, while the
  // file is on its way.
  show(members_.front());
  committed_ = true;
  note_committed();
}

void StoredOutput::commit_folder() {
  const Names old = check_folder();
  const std::set<std::string> before(old.begin(), old.end());
  std::map<Role, std::vector<const Member*>> members;
  for (const Member& member : members_)
    members[role_of(member.name, options_.seals)].push_back(&member);
  const auto& data = members[Role::kData];
  // Otherwise the old leaders would lead to new data.
  const bool leaders_first = std::ranges::any_of(
      data, [&](const Member* member) { return before.contains(member->name); });
  const auto goes_first = [&](Role role) {
    return role == Role::kSeal || (role == Role::kLeader && leaders_first);
  };
  const auto old_of = [&](Role role) {
    Names names;
    std::ranges::copy_if(old, std::back_inserter(names), [&](const std::string& name) {
      return role_of(name, options_.seals) == role;
    });
    return names;
  };
  for (const auto& [role, of_role] : members) {
    for (const Member* member : of_role)
      appearance_.add(member->name, role, !goes_first(role) && before.contains(member->name));
  }
  std::optional<Error> failure;
  std::string old_one;  // state of the old checkpoint
  try {
    if (const Names seals = old_of(Role::kSeal); !seals.empty()) {
      old_one = "; the old checkpoint may have lost its seal";
      remove_all(seals);
      old_one = "; the old checkpoint has lost its seal";
    }
    if (leaders_first) {
      old_one = "; the old checkpoint is no longer complete";
      remove_all(old_of(Role::kLeader));
    }
    complete(data);
    complete(members[Role::kCompanion]);
    const std::lock_guard lock(commit_mutex());  // See Note [abandoning outputs].
    // One by one, in the order in which they were added.
    for (const Role role : {Role::kLeader, Role::kSeal}) {
      for (const Member* member : members[role]) complete({member});
    }
    committed_ = true;
    note_committed();
  } catch (const Error& error) {
    failure = ended_in(error, old_one);
    if (!committed_) throw *failure;
  }
  Names stale;
  std::ranges::copy_if(old, std::back_inserter(stale),
                       [&](const std::string& name) { return !names_.contains(name); });
  std::optional<Error> why;
  const Names left = remove_each(
      store_, stale, [this](const std::string& name) { return url_of(name); }, why);
  if (left.empty() && !failure) return;
  if (left.empty()) throw *failure;
  const Error& first = failure ? *failure : *why;
  throw first.saying(cat(first.what(), failure ? "" : cat("; the new ", shown_, " is in place"),
                         "; files of the old one are yet to be removed: ", quoted_names(left)));
}

// Takes back what may be taken back; returns the error with what exists now.
Error StoredOutput::ended_in(const Error& error, const std::string& old_one) {
  {
    const std::lock_guard lock(ending_);
    take_back();
  }
  const Names left = appearance_.names();
  if (appearance_.leads()) {
    committed_ = true;
    note_committed();
    return error.saying(cat(error.what(), "; the new ", shown_, " is in place, without its seal"));
  }
  std::string words = error.what() + old_one;
  if (appearance_.may_lead()) {
    return UncertainError(
        cat(words, "; whether the new ", shown_,
            " is in place is not known, and these files of it may be: ", quoted_names(left)));
  }
  if (!left.empty()) words += cat("; files of the new one may be left: ", quoted_names(left));
  return error.saying(words);
}

void StoredOutput::show(const Member& member) const {
  try {
    member.upload->complete(!options_.replace);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kExists) throw;
    throw Error(ErrorCode::kExists,
                escape(member.upload->url()) + ": appeared while it was being written",
                {Remedy::kReplace});
  }
}

// Makes the members visible; returns when all of them are.
void StoredOutput::complete(const std::vector<const Member*>& members) {
  for (const Member* member : members) {
    senders_.submit([this, member] {
      appearance_.set(member->name, Appearance::State::kAsked);
      try {
        show(*member);
      } catch (const UncertainError&) {
        throw;
      } catch (const Error&) {
        appearance_.set(member->name, Appearance::State::kHidden);
        throw;
      }
      appearance_.set(member->name, Appearance::State::kVisible);
    });
  }
  senders_.wait();
}

void StoredOutput::remove_all(const Names& names) {
  for (const std::string& name : names)
    senders_.submit([this, name] { store_.remove(url_of(name)); });
  senders_.wait();
}

void StoredOutput::put_beside(std::string_view ending, std::string_view text) {
  store_.put(url_ + std::string(ending), std::as_bytes(std::span(text)), false);
}

void StoredOutput::remove_beside(std::string_view ending) {
  const std::string url = url_ + std::string(ending);
  try {
    store_.remove(url);
  } catch (const Error& error) {
    // A user who may write but not remove needs no removal if there is no such file.
    if (error.code() != ErrorCode::kAccess || store_.find(url)) throw;
  }
}

}  // namespace fsdp::formats
