// SPDX-License-Identifier: Apache-2.0
#include "formats/upload/stored_output.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/base/threads.h"

namespace fsdp::formats {
namespace {

// The time for requests that are under way when everything is taken back.
constexpr std::chrono::seconds kEndTime{5};
constexpr std::chrono::milliseconds kEndPoll{10};

// The order in which files become visible.
enum Rank : int { kCompanion, kData, kLeader, kSeal };

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('/') + 1);  // npos + 1 is 0
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

// "a" or "a/b".
bool is_member_path(std::string_view name) {
  std::size_t parts = 1;
  for (std::size_t slash = 0; (slash = name.find('/')) != name.npos;
       name.remove_prefix(slash + 1)) {
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || ++parts > 2) return false;
  }
  return !name.empty() && name != "." && name != ".." && name.find('\0') == name.npos;
}

std::string without_slashes(std::string url) {
  while (url.ends_with('/') && !url.ends_with("://")) url.pop_back();
  return url;
}

// Calls `body` with each number below `count`, from several threads; what it throws is lost.
void for_each_at_once(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  const auto work = [&](std::size_t) {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (const std::exception&) {
        // The others are still to be done.
      }
    }
  };
  const auto helpers =
      start_helpers(std::min(count, SenderPool::kThreads) - std::min<std::size_t>(count, 1), work);
  work(0);
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

// See Note [abandoning outputs]: the thread that writes may be doing the same.
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
  const bool idle = senders_.stop(kEndTime);
  if (committed_) return;
  try {
    std::vector<const PartUpload*> made;
    std::vector<std::shared_ptr<PartUpload>> sent;
    {
      const std::lock_guard lock(made_mutex_);
      made = made_;
      if (idle) {
        for (const Member& member : members_) sent.push_back(member.upload);
      }
    }
    for_each_at_once(made.size(), [&](std::size_t i) { store_.remove(made[i]->url()); });
    for_each_at_once(sent.size(), [&](std::size_t i) { sent[i]->take_back(); });
  } catch (const std::exception&) {
    // What is left is not seen as a checkpoint.
  }
  spool_.remove();
}

void StoredOutput::check_file() const {
  const std::size_t place = url_.find("://");
  const std::string_view path = std::string_view(url_).substr(place == url_.npos ? 0 : place + 3);
  if (path.find('/') == path.npos || path.ends_with('/'))
    throw Error(ErrorCode::kUsage, shown_ + ": names no file");
  if (store_.find(url_)) {
    if (options_.replace) return;
    throw Error(ErrorCode::kExists, shown_ + ": exists", {Remedy::kReplace});
  }
  const auto members = store_.list(url_);
  if (members && !members->empty())
    throw Error(ErrorCode::kNotRegular, shown_ + ": is a folder, expected a file");
}

// Returns the files that are there.
// Throws: if they must stay.
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
    return Error(ErrorCode::kExists,
                 cat(shown_, ": holds ", quote(prefix + name),
                     ", which is not a file of a checkpoint; remove it or choose another "
                     "destination"));
  };
  const auto entries = store_.list(folder);
  if (!entries) {
    throw Error(ErrorCode::kUnsupported,
                shown_ + ": the store does not say what is there, so nothing is written");
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

int StoredOutput::rank_of(std::string_view name) const {
  name = last_part(name);
  if (options_.seals && options_.seals(name)) return kSeal;
  if (ends_with_any(name, {".metadata", ".index.json"}) || name == "metadata.json" ||
      name == "metadata.pkl") {
    return kLeader;
  }
  if (ends_with_any(name, {".distcp", ".safetensors", ".pt", ".pth", ".bin"})) return kData;
  return kCompanion;
}

std::string StoredOutput::url_of(const std::string& name) const {
  return name.empty() ? url_ : cat(url_, "/", name);
}

StoredOutput::Added StoredOutput::add(const std::string& name) {
  const std::string url = url_of(name);
  if (options_.folder && !is_member_path(name)) {
    throw Error(ErrorCode::kPath,
                cat(shown_, ": ", quote(name), " is not the name of a file in a folder"));
  }
  const std::lock_guard lock(made_mutex_);
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
  complete({&members_.front()}, {});
  committed_ = true;
  note_committed();
}

void StoredOutput::commit_folder() {
  const Names old = check_folder();
  const std::set<std::string> before(old.begin(), old.end());
  std::vector<std::vector<const Member*>> ranks(kSeal + 1);
  for (const Member& member : members_)
    ranks[static_cast<std::size_t>(rank_of(member.name))].push_back(&member);
  const auto& data = ranks[kData];
  // Otherwise what leads to the old data would lead to new ones.
  const bool leaders_first = std::any_of(data.begin(), data.end(), [&](const Member* member) {
    return before.contains(member->name);
  });
  const auto old_of = [&](int rank) {
    Names names;
    std::copy_if(old.begin(), old.end(), std::back_inserter(names),
                 [&](const std::string& name) { return rank_of(name) == rank; });
    return names;
  };
  try {
    remove_all(old_of(kSeal));
    if (leaders_first) remove_all(old_of(kLeader));
    complete(data, before);
    complete(ranks[kCompanion], before);
    const std::lock_guard lock(commit_mutex());  // See Note [abandoning outputs].
    // One after the other, as they were added.
    for (const int rank : {kLeader, kSeal}) {
      for (const Member* member : ranks[static_cast<std::size_t>(rank)]) complete({member}, before);
    }
    committed_ = true;
    note_committed();
  } catch (const Error& error) {
    if (leaders_first)
      throw error.saying(cat(error.what(), "; the checkpoint that was there is no longer whole"));
    if (!old_of(kSeal).empty())
      throw error.saying(cat(error.what(), "; the checkpoint that was there has lost its seal"));
    throw;
  }
  Names stale;
  std::copy_if(old.begin(), old.end(), std::back_inserter(stale),
               [&](const std::string& name) { return !names_.contains(name); });
  try {
    remove_all(stale);
  } catch (const Error& error) {
    throw error.saying(cat(error.what(), "; the new ", shown_,
                           " is in place, files of the old one are yet to be removed"));
  }
}

// `before`: the files that were there.
void StoredOutput::complete(const std::vector<const Member*>& members,
                            const std::set<std::string>& before) {
  for (const Member* member : members) {
    senders_.submit([this, member, made = !before.contains(member->name)] {
      try {
        member->upload->complete(!options_.replace);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kExists) throw;
        throw Error(ErrorCode::kExists,
                    escape(member->upload->url()) + ": appeared while it was being written",
                    {Remedy::kReplace});
      }
      const std::lock_guard lock(made_mutex_);
      if (made && options_.folder) made_.push_back(member->upload.get());
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
  if (store_.find(url)) store_.remove(url);
}

}  // namespace fsdp::formats
