// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/atomic_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/joined.h"
#include "formats/bytes/outputs/local_output.h"
#include "formats/bytes/outputs/stored.h"
#include "formats/bytes/upload/stored_output.h"

namespace fsdp::formats {
namespace {

// Returns whether replacing the folder may remove the file of that name.
using Replaced = std::function<bool(std::string_view)>;

// Returns whether the member is a regular file that may go, or a folder of nothing but such
// members. `levels`: of folders in which it lies, the outermost not counted.
bool replaceable(int folder, const std::string& name, const std::string& shown,
                 const Replaced& replaced, int levels) {
  struct stat info {};
  if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return true;
    throw_errno(cat(shown, ": ", quote(name)));
  }
  if (!S_ISDIR(info.st_mode)) return S_ISREG(info.st_mode) && replaced(name);
  if (levels == kMaxInnerFolders) return false;
  const FileDescriptor inner = open_folder_in(folder, name, shown);
  const std::vector<std::string> names = names_in(inner.get(), shown);
  return !names.empty() && std::ranges::all_of(names, [&](const std::string& n) {
    return replaceable(inner.get(), n, shown, replaced, levels + 1);
  });
}

// Throws kExists naming a member that does not belong to a checkpoint and that replacing the folder
// would lose.
void check_replaceable(int folder, const std::string& shown, const Replaced& replaced) {
  for (const std::string& name : names_in(folder, shown)) {
    if (replaceable(folder, name, shown, replaced, 0)) continue;
    throw Error(
        ErrorCode::kExists,
        cat(shown, ": holds ", quote(name),
            ", which is not a file of a checkpoint; remove it or choose another destination"));
  }
}

FileDescriptor open_destination_folder(const OutputPlace& place) {
  FileDescriptor fd(::openat(place.parent(), place.name().c_str(),
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) throw_errno(place.shown());
  return fd;
}

Error cannot_exchange(const OutputPlace& place) {
  return Error(
      ErrorCode::kUnsupported,
      place.shown() +
          ": this file system cannot exchange two names at once, so the old folder would be gone "
          "before the new one is there; remove it first or choose another destination");
}

class LocalAtomicFolder : public SharedFolder, private LocalOutput {
 public:
  LocalAtomicFolder(const std::filesystem::path& destination, const OutputOptions& options)
      : LocalOutput(destination, options, OutputKind::kFolder) {
    const Standing standing = check_destination();
    claim();
    remove_unkept("", temporary_.get());
    options_.journal->begin(place_, temporary_.get());
    if (standing == Standing::kFolder) try_exchange();
    if (options_.team->alone()) return;
    options_.team->exchange("the output was made", invitation());
    options_.team->exchange("the output was found");
    options_.journal->meet(place_);
  }

  OutputFile& add_file(const std::string& name) override {
    const Member at = member(name);
    FileDescriptor fd =
        is_kept(name) ? open_for_output(at.folder, at.name, O_RDWR | O_CREAT | O_NOFOLLOW, 0666)
                      : create_for_output(at.folder, at.name, at.shown);
    if (fd.get() < 0) throw_errno(at.shown);
    files_.push_back(
        std::make_unique<OutputFile>(std::move(fd), at.shown, options_.sync, options_.seal));
    files_.back()->set_member(name);
    return *files_.back();
  }

  Sharing link_file(const std::string& name, const File& source, SharingOptions options,
                    std::optional<std::uint32_t> crc) override {
    const Member at = member(name);
    options.sync = options_.sync;
    std::uint32_t copied_crc = 0;
    if (options_.seal && !crc) options.copied_crc = &copied_crc;
    const Sharing sharing = share_file(source, at.folder, at.name, at.shown, options);
    if (options_.seal) {
      if (!crc) crc = sharing == Sharing::kCopy ? copied_crc : crc_of(source);
      sealed_.push_back({name, source.size(), *crc});
    }
    return sharing;
  }

  void add_sealed(SealedFile file) override { sealed_.push_back(std::move(file)); }

  // See Note [joining a folder].
  std::string invitation() override {
    if (!invitation_.empty()) return invitation_;
    std::random_device random;
    const std::string name = cat("invitation-", hex32(random()), hex32(random()));
    if (open_for_output(temporary_.get(), name, O_WRONLY | O_CREAT | O_EXCL, 0600).get() < 0)
      throw_errno(cat(place_.shown(), "/", name));
    return invitation_ = name;
  }

  void commit() override {
    finish_files();
    await_files(*options_.team);
    put_in_place();
    await_commit(*options_.team);
  }

 private:
  enum class Standing { kNothing, kEmptyFolder, kFolder };
  // The place of a member.
  struct Member {
    int folder;
    std::string name;   // in `folder`
    std::string shown;  // for messages
  };
  // Throws if the file or folder at the destination must stay.
  Standing check_destination() const {
    const auto info = place_.existing();
    if (!info) return Standing::kNothing;
    if (S_ISLNK(info->st_mode)) {
      throw Error(ErrorCode::kNotRegular,
                  place_.shown() + ": is a symbolic link; name the folder it leads to");
    }
    if (!S_ISDIR(info->st_mode))
      throw Error(ErrorCode::kNotRegular, place_.shown() + ": is not a folder");
    if (!options_.replace) throw already_exists();
    const FileDescriptor old = open_destination_folder(place_);
    check_replaceable(old.get(), place_.shown(), options_.replaced);
    return names_in(old.get(), place_.shown()).empty() ? Standing::kEmptyFolder : Standing::kFolder;
  }

  // Throws kUnsupported if two names cannot be exchanged.  Tries it on files, which the next run
  // can remove if this one is killed here.
  void try_exchange() const {
    const auto fail = [&] { throw_errno(place_.shown() + ": trying to exchange two names"); };
    const int folder = temporary_.get();
    constexpr const char* kTried[] = {"exchange-1", "exchange-2"};
    for (const char* name : kTried) {
      if (open_for_output(folder, name, O_WRONLY | O_CREAT | O_EXCL, 0600).get() < 0) fail();
    }
    if (::renameat2(folder, kTried[0], folder, kTried[1], RENAME_EXCHANGE) != 0) {
      if (flag_unsupported()) throw cannot_exchange(place_);
      fail();
    }
    for (const char* name : kTried) {
      if (::unlinkat(folder, name, 0) != 0) fail();
    }
  }

  Member member(const std::string& name) {
    const std::size_t slash = name.rfind('/');
    Member found{temporary_.get(), name.substr(slash + 1),  // npos + 1 is 0
                 cat(place_.shown(), "/", escape(name))};
    const auto refuse = [&] {
      throw Error(ErrorCode::kPath, place_.shown(), ": ", quote(name),
                  " is not the name of a file in a folder");
    };
    if (!is_plain_name(found.name)) refuse();
    if (slash == std::string::npos) return found;
    int levels = 0;
    for (std::size_t begin = 0; begin <= slash;) {
      const std::size_t end = name.find('/', begin);
      const std::string inner = name.substr(begin, end - begin);
      if (!is_plain_name(inner) || ++levels > kMaxInnerFolders) refuse();
      FileDescriptor& fd = folders_[name.substr(0, end)];
      if (fd.get() < 0) {
        // A folder that an earlier run made holds a kept file, or it would have been removed.
        if (::mkdirat(found.folder, inner.c_str(), 0777) != 0 &&
            (errno != EEXIST || !options_.journal->records())) {
          throw_errno(found.shown);
        }
        fd = open_folder_in(found.folder, inner, place_.shown());
      }
      found.folder = fd.get();
      begin = end + 1;
    }
    return found;
  }

  // Returns whether the file holds bytes of an earlier run, to be written further, and was not
  // added yet.
  bool is_kept(const std::string& name) const {
    return options_.journal->kept_files().contains(name) &&
           std::ranges::none_of(files_, [&](const auto& file) { return file->member() == name; });
  }

  // Removes what an earlier run left in the folder, except files with bytes to keep.
  void remove_unkept(const std::string& above, int in) const {
    for (const std::string& name : names_in(in, place_.shown())) {
      if (options_.journal->kept_files().contains(above + name)) continue;
      if (::unlinkat(in, name.c_str(), 0) == 0) continue;
      if (errno != EISDIR || std::ranges::count(above, '/') == kMaxInnerFolders)
        throw_errno(cat(place_.shown(), ": ", quote(name)));
      remove_unkept(above + name + "/", open_folder_in(in, name, place_.shown()).get());
      // Left if a file in it is kept.
      if (::unlinkat(in, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOTEMPTY && errno != EEXIST)
        throw_errno(cat(place_.shown(), ": ", quote(name)));
    }
  }

  // Takes the invitation back and finishes the files.
  void finish_files() {
    if (!invitation_.empty() && ::unlinkat(temporary_.get(), invitation_.c_str(), 0) != 0)
      throw_errno(cat(place_.shown(), "/", invitation_));
    refuse_strangers();
    for (const auto& file : files_) file->finish(options_.sync);
  }

  // Throws kMismatch unless all kept files are files of this output: a modified journal may name
  // others.
  void refuse_strangers() const {
    std::set<std::string> strangers = options_.journal->kept_files();
    for (const auto& file : files_) strangers.erase(file->member());
    if (strangers.empty()) return;
    throw Error(ErrorCode::kMismatch,
                cat(place_.shown(), ": ", quote(*strangers.begin(), 200),
                    " was kept from an earlier run, but is not a file of this output"),
                {Remedy::kStartAnew});
  }

  // Requires: all files were finished.
  void write_seal() {
    for (const auto& file : files_) sealed_.push_back({file->member(), file->bytes(), file->crc()});
    const std::string text = seal_text(sealed_);
    const Member at = member(std::string(kSealName));
    FileDescriptor fd = open_for_output(at.folder, at.name, O_RDWR | O_CREAT | O_EXCL, 0666);
    if (fd.get() < 0) throw_errno(at.shown);
    OutputFile seal(std::move(fd), at.shown, options_.sync);
    seal.write_at(0, std::as_bytes(std::span(text)));
    seal.finish(options_.sync);
  }

  void put_in_place() {
    look();
    if (options_.seal) write_seal();
    if (options_.sync) {
      const std::string what = place_.shown() + ": fsync";
      for (const auto& [name, folder] : folders_) sync_folder(folder.get(), what);
      sync_folder(temporary_.get(), what);
      new_folders_.sync();
    }
    std::unique_lock committing(commit_mutex());  // See Note [abandoning outputs].
    while (!rename_to_free_name()) {
      if (!options_.replace) throw appeared();
      // Nothing: the previous folder disappeared meanwhile.
      if (check_destination() == Standing::kNothing) continue;
      return replace_destination(committing);
    }
    note_placed(committing);
  }

  // Puts the new folder in the old one's place and removes the old one.  The old one is locked
  // first, because from the exchange on it bears the temporary's name.
  // See Note [claiming a temporary name].
  void replace_destination(std::unique_lock<std::mutex>& committing) {
    const FileDescriptor old = open_destination_folder(place_);
    if (try_lock(old.get(), place_.shown()) == Locked::kBusy)
      throw Error(ErrorCode::kBusy, place_.shown() + ": is locked by another process");
    check_replaceable(old.get(), place_.shown(), options_.replaced);
    const auto exchange = [&] {
      return ::renameat2(place_.parent(), place_.temporary().c_str(), place_.parent(),
                         place_.name().c_str(), RENAME_EXCHANGE) == 0;
    };
    if (!exchange()) {
      if (!flag_unsupported())
        throw_errno(place_.shown() + ": exchanging the finished output with the old one");
      // Plain rename can replace an empty folder only, which needs no exchange.
      if (::renameat(place_.parent(), place_.temporary().c_str(), place_.parent(),
                     place_.name().c_str()) != 0) {
        throw cannot_exchange(place_);
      }
      return note_placed(committing);
    }
    try {
      // Files put into the old folder between the check and the exchange would be lost.
      if (!place_.stands_for(place_.temporary(), old.get())) throw appeared();
      check_replaceable(old.get(), place_.shown(), options_.replaced);
    } catch (...) {
      if (!exchange()) {  // both folders stay, the new one in place
        committed_ = true;
        note_committed();
      }
      throw;
    }
    const auto left = [&](ErrorCode code, std::string_view why) {
      return Error(code, why, "; the new folder is in place, and the old one remains as ",
                   place_.shown_temporary());
    };
    const auto no_memory = [&] {
      return left(ErrorCode::kOutOfMemory, place_.shown() + ": out of memory");
    };
    try {
      note_placed(committing);
    } catch (const Error& e) {
      throw Error(e.code(), e.what(), "; the old folder is now ", place_.shown_temporary());
    } catch (const std::bad_alloc&) {
      throw no_memory();
    }
    try {
      remove_files_in(old.get(), place_.shown());
      if (place_.unlink_temporary() != 0) throw_errno(place_.shown());
    } catch (const Error& e) {
      throw left(e.code(), e.what());
    } catch (const std::bad_alloc&) {
      throw no_memory();
    }
  }

  std::map<std::string, FileDescriptor> folders_;  // inside the temporary
  std::vector<std::unique_ptr<OutputFile>> files_;
  std::vector<SealedFile> sealed_;  // further files that the seal lists
  // The name of an empty file in the folder; empty: no process was invited.
  std::string invitation_;
};

// The folder for a member of a team that is not the leader.
class JoinedAtomicFolder : public AtomicFolder {
 public:
  JoinedAtomicFolder(const std::filesystem::path& destination, const OutputOptions& options)
      : team_(*options.team),
        folder_(std::make_shared<const JoinedFolder>(
            destination, team_.exchange("the output was made").front())),
        sync_(options.sync) {
    team_.exchange("the output was found");
    options.journal->meet(OutputPlace(destination, OutputKind::kFolder));
  }
  OutputFile& add_file(const std::string& name) override {
    files_.push_back(
        std::make_unique<JoinedFile>([from = folder_, name] { return from->open_file(name); },
                                     cat(folder_->shown(), "/", escape(name)), sync_));
    files_.back()->set_member(name);
    return *files_.back();
  }
  Sharing link_file(const std::string&, const File&, SharingOptions,
                    std::optional<std::uint32_t>) override {
    throw Error(ErrorCode::kUnsupported,
                folder_->shown() + ": only one process can share files with another folder");
  }
  void commit() override {
    for (const auto& file : files_) file->finish(sync_);
    await_files(team_);
    await_commit(team_);
  }

 private:
  Team& team_;
  std::shared_ptr<const JoinedFolder> folder_;
  const bool sync_;
  std::vector<std::unique_ptr<OutputFile>> files_;
};

}  // namespace

std::unique_ptr<AtomicFolder> new_folder(const std::filesystem::path& destination,
                                         const OutputOptions& options) {
  if (is_url(destination.native())) return new_stored_folder(destination, options);
  if (!options.team->leads()) return std::make_unique<JoinedAtomicFolder>(destination, options);
  return std::make_unique<LocalAtomicFolder>(destination, options);
}

std::unique_ptr<SharedFolder> new_shared_folder(const std::filesystem::path& destination,
                                                const OutputOptions& options) {
  if (is_url(destination.native())) {
    throw Error(ErrorCode::kUnsupported,
                escape(destination.native()) + ": several processes can share only a local output");
  }
  return std::make_unique<LocalAtomicFolder>(destination, options);
}

}  // namespace fsdp::formats
