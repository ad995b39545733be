// SPDX-License-Identifier: Apache-2.0
#include "formats/files/atomic_directory.h"

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

#include "formats/base/error.h"
#include "formats/base/interrupt.h"
#include "formats/base/text.h"
#include "formats/files/joined_output.h"
#include "formats/files/new_folders.h"
#include "formats/files/output_commit.h"
#include "formats/files/output_place.h"

namespace fsdp::formats {
namespace {

constexpr std::uint64_t kCopyBytes = 4U << 20U;

// Says of a name whether replacing the folder may remove that file.
using Replaced = std::function<bool(std::string_view)>;

// Returns whether the member is a regular file that may go, or a folder of nothing but such files.
bool replaceable(int folder, const std::string& name, const std::string& shown,
                 const Replaced& replaced, bool nested) {
  struct stat info {};
  if (::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return true;
    throw_errno(cat(shown, ": ", quote(name)));
  }
  if (!S_ISDIR(info.st_mode)) return S_ISREG(info.st_mode) && replaced(name);
  if (nested) return false;
  const FileDescriptor inner = open_folder_in(folder, name, shown);
  const std::vector<std::string> names = names_in(inner.get(), shown);
  return !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& n) {
    return replaceable(inner.get(), n, shown, replaced, true);
  });
}

// Throws kExists naming a member that does not belong to a checkpoint and that replacing the folder
// would lose.
void check_replaceable(int folder, const std::string& shown, const Replaced& replaced) {
  for (const std::string& name : names_in(folder, shown)) {
    if (replaceable(folder, name, shown, replaced, false)) continue;
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

}  // namespace

struct AtomicDirectory::Impl : Unfinished {
  enum class Standing { kNothing, kEmptyFolder, kFolder };

  Impl(const std::filesystem::path& destination, const OutputOptions& chosen)
      : options(chosen),
        new_folders(chosen.make_folders ? NewFolders(destination) : NewFolders()),
        place(destination, OutputKind::kFolder) {
    note_unfinished(*this);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() override {
    forget_unfinished(*this);
    files.clear();
    abandon();
  }
  void abandon() noexcept override {
    if (committed) return;
    if (folder.get() >= 0 && place.stands_for(place.temporary(), folder.get())) {
      if (options.resumption && options.resumption->keeps()) return new_folders.keep();
      if (options.resumption) options.resumption->end();
      try {
        remove_files_in(folder.get(), place.shown());
        ::unlinkat(place.parent(), place.temporary().c_str(), AT_REMOVEDIR);
      } catch (const std::exception&) {
        // The leftover stays for the next run.
      }
    }
    new_folders.remove();
  }

  // Throws if the file or folder at the destination must stay.
  Standing check_destination() const {
    const auto info = place.existing();
    if (!info) return Standing::kNothing;
    if (S_ISLNK(info->st_mode)) {
      throw Error(ErrorCode::kNotRegular,
                  place.shown() + ": is a symbolic link; name the folder it leads to");
    }
    if (!S_ISDIR(info->st_mode))
      throw Error(ErrorCode::kNotRegular, place.shown() + ": is not a folder");
    if (!options.replace) throw already_exists(place);
    const FileDescriptor old = open_destination_folder(place);
    check_replaceable(old.get(), place.shown(), options.replaced);
    return names_in(old.get(), place.shown()).empty() ? Standing::kEmptyFolder : Standing::kFolder;
  }

  // Throws kUnsupported if two names cannot be exchanged.  Tries it on files, which the next run
  // can remove if this one is killed here.
  void try_exchange() const {
    const auto fail = [&] { throw_errno(place.shown() + ": trying to exchange two names"); };
    constexpr const char* kNames[] = {"exchange-1", "exchange-2"};
    for (const char* name : kNames) {
      if (open_for_output(folder.get(), name, O_WRONLY | O_CREAT | O_EXCL, 0600).get() < 0) fail();
    }
    if (::renameat2(folder.get(), kNames[0], folder.get(), kNames[1], RENAME_EXCHANGE) != 0) {
      if (flag_unsupported()) throw cannot_exchange(place);
      fail();
    }
    for (const char* name : kNames) {
      if (::unlinkat(folder.get(), name, 0) != 0) fail();
    }
  }

  // `committing`: holds commit_mutex.
  void replace_destination(std::unique_lock<std::mutex>& committing);

  // The place of a member of that name.
  struct Member {
    int folder;
    std::string name;   // in `folder`
    std::string shown;  // for messages
  };
  Member member(const std::string& name);

  // Returns whether that file of an earlier run is to be written further, and was not added yet.
  bool is_kept(const std::string& name) const {
    return options.resumption && options.resumption->kept_files().contains(name) &&
           std::none_of(files.begin(), files.end(), [&](const Added& a) { return a.name == name; });
  }
  // Removes what an earlier run left in the folder, except files that have something to keep.
  void remove_unkept(const std::string& above, int in) const;

  // Takes the invitation back and finishes the files.
  void finish_files() {
    if (!invitation.empty() && ::unlinkat(folder.get(), invitation.c_str(), 0) != 0)
      throw_errno(cat(place.shown(), "/", invitation));
    if (options.resumption) refuse_strangers(options.resumption->kept_files());
    for (const auto& added : files) added.file->finish(options.sync);
  }
  // Throws kMismatch unless this output has all these files: a journal that was changed may keep
  // one that is none of it.
  void refuse_strangers(const std::set<std::string>& kept) const {
    std::set<std::string> strangers = kept;
    for (const auto& added : files) strangers.erase(added.name);
    if (strangers.empty()) return;
    throw Error(ErrorCode::kMismatch,
                cat(place.shown(), ": ", quote(*strangers.begin(), 200),
                    " was kept of an earlier run, and is no file of this output"),
                {Remedy::kStartAnew});
  }

  // Requires: all files were finished.
  void write_seal();

  // The new folder is in place.
  void end(std::unique_lock<std::mutex>& committing) {
    committed = true;
    new_folders.keep();
    note_committed();
    committing.unlock();
    folder.reset();  // and its lock, which would keep others from replacing it
    if (options.sync) sync_parent_after_rename(place);
    if (options.resumption) options.resumption->end();
  }

  const OutputOptions options;
  NewFolders new_folders;  // above it
  const OutputPlace place;
  FileDescriptor folder;                          // the temporary, locked
  std::map<std::string, FileDescriptor> folders;  // inside it
  struct Added {
    std::string name;  // relative to the folder
    std::unique_ptr<OutputFile> file;
  };
  std::vector<Added> files;
  std::vector<SealedFile> sealed;  // further files that the seal lists
  std::string invitation;  // the name of an empty file in the folder; empty: no process was invited
  bool committed = false;
};

// The folder as a member of a team has it that does not lead.
struct AtomicDirectory::Joined {
  OutputFile& add_file(const std::string& name) {
    files.push_back(
        std::make_unique<OutputFile>([from = folder, name] { return from->open_file(name); },
                                     cat(folder->shown(), "/", escape(name)), sync));
    files.back()->set_member(name);
    return *files.back();
  }

  std::shared_ptr<const JoinedFolder> folder;
  bool sync;
  std::vector<std::unique_ptr<OutputFile>> files;
};

// The folder in a store.
struct AtomicDirectory::Stored {
  OutputFile& add_file(const std::string& name) {
    files.push_back({name, add_file_in_store(*output, name, options.seal)});
    return *files.back().file;
  }
  // A store shares nothing: the bytes are sent.
  void copy(const std::string& name, const File& source, const SharingOptions& sharing);
  void commit();

  const OutputOptions options;
  std::unique_ptr<StoredOutput> output;
  std::vector<Impl::Added> files;
};

void AtomicDirectory::Stored::copy(const std::string& name, const File& source,
                                   const SharingOptions& sharing) {
  OutputFile& file = add_file(name);
  file.reserve(source.size());
  std::vector<std::byte> block(std::min<std::uint64_t>(source.size(), kCopyBytes));
  for (std::uint64_t at = 0; at < source.size();) {
    throw_if_interrupted();
    const auto part = std::span(block).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), source.size() - at)));
    source.read_at(at, part);
    file.write_at(at, part);
    at += part.size();
    if (sharing.on_copied) sharing.on_copied(part.size());
  }
  file.finish(false);
}

void AtomicDirectory::Stored::commit() {
  for (const auto& added : files) added.file->finish(false);
  output->await_sent();
  look_before_commit(output->spooled(), output->shown(), options);
  if (options.seal) {
    std::vector<SealedFile> sealed;
    for (const auto& added : files)
      sealed.push_back({added.name, added.file->bytes(), added.file->crc()});
    const std::string text = seal_text(std::move(sealed));
    OutputFile& seal = add_file(std::string(kSealName));
    seal.write_at(0, std::as_bytes(std::span(text)));
    seal.finish(false);
  }
  output->commit();
}

// Puts the new folder in the old one's place and removes the old one.  The old one is locked first:
// from the exchange on it bears the temporary's name.  See Note [claiming a temporary name].
void AtomicDirectory::Impl::replace_destination(std::unique_lock<std::mutex>& committing) {
  const FileDescriptor old = open_destination_folder(place);
  if (try_lock(old.get(), place.shown()) == Locked::kBusy) {
    throw Error(ErrorCode::kBusy, place.shown() + ": is locked by another process");
  }
  check_replaceable(old.get(), place.shown(), options.replaced);
  const auto exchange = [&] {
    return ::renameat2(place.parent(), place.temporary().c_str(), place.parent(),
                       place.name().c_str(), RENAME_EXCHANGE) == 0;
  };
  if (!exchange()) {
    if (!flag_unsupported())
      throw_errno(place.shown() + ": exchanging the finished output with the old one");
    // Plain rename can replace an empty folder only, which needs no exchange.
    if (::renameat(place.parent(), place.temporary().c_str(), place.parent(),
                   place.name().c_str()) != 0) {
      throw cannot_exchange(place);
    }
    return end(committing);
  }
  try {
    // Files put into the old folder between the check and the exchange would be lost.
    if (!place.stands_for(place.temporary(), old.get())) throw appeared(place);
    check_replaceable(old.get(), place.shown(), options.replaced);
  } catch (...) {
    if (!exchange()) {  // both folders stay, the new one in place
      committed = true;
      note_committed();
    }
    throw;
  }
  try {
    end(committing);
  } catch (const Error& e) {
    throw Error(e.code(), cat(e.what(), "; the old one is ", place.shown_temporary()));
  }
  const auto left = [&](ErrorCode code, std::string_view why) {
    return Error(code, cat(why, "; the new one is in place, the old one, ", place.shown_temporary(),
                           ", is yet to be removed"));
  };
  try {
    remove_files_in(old.get(), place.shown());
    if (::unlinkat(place.parent(), place.temporary().c_str(), AT_REMOVEDIR) != 0) {
      throw_errno(place.shown());
    }
  } catch (const Error& e) {
    throw left(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    throw left(ErrorCode::kOutOfMemory, place.shown() + ": out of memory");
  }
}

AtomicDirectory::AtomicDirectory(const std::filesystem::path& destination,
                                 const OutputOptions& options)
    : team_(options.team) {
  if (auto stored = output_in_store(destination, options, OutputKind::kFolder)) {
    stored_ = std::make_unique<Stored>(Stored{options, std::move(stored), {}});
    return;
  }
  if (team_ != nullptr && !team_->leads()) {
    joined_ = std::make_unique<Joined>(Joined{join_folder(*team_, destination), options.sync, {}});
    if (options.resumption) options.resumption->meet(OutputPlace(destination, OutputKind::kFolder));
    return;
  }
  impl_ = std::make_unique<Impl>(destination, options);
  const Impl::Standing standing = impl_->check_destination();
  Resumption* const resumption = options.resumption.get();
  impl_->folder = impl_->place.claim([&](int temporary) {
    return resumption != nullptr && resumption->takes(impl_->place, temporary);
  });
  if (resumption != nullptr) {
    impl_->remove_unkept("", impl_->folder.get());
    resumption->begin(impl_->place, impl_->folder.get());
  }
  if (standing == Impl::Standing::kFolder) impl_->try_exchange();
  if (team_ == nullptr) return;
  invite_to_folder(*team_, invitation());
  if (resumption != nullptr) resumption->meet(impl_->place);
}

AtomicDirectory::~AtomicDirectory() = default;

AtomicDirectory::Impl::Member AtomicDirectory::Impl::member(const std::string& name) {
  const std::size_t slash = name.find('/');
  Member found{folder.get(), name, cat(place.shown(), "/", escape(name))};
  if (slash != std::string::npos) found.name = name.substr(slash + 1);
  const std::string inner = slash == std::string::npos ? std::string() : name.substr(0, slash);
  if (!is_plain_name(found.name) || (slash != std::string::npos && !is_plain_name(inner))) {
    throw Error(ErrorCode::kPath,
                cat(place.shown(), ": ", quote(name), " is not the name of a file in a folder"));
  }
  if (slash == std::string::npos) return found;
  FileDescriptor& fd = folders[inner];
  if (fd.get() < 0) {
    // One that an earlier run made holds something, or it would be gone.
    if (::mkdirat(folder.get(), inner.c_str(), 0777) != 0 &&
        (errno != EEXIST || !options.resumption)) {
      throw_errno(found.shown);
    }
    fd = open_folder_in(folder.get(), inner, place.shown());
  }
  found.folder = fd.get();
  return found;
}

void AtomicDirectory::Impl::remove_unkept(const std::string& above, int in) const {
  for (const std::string& name : names_in(in, place.shown())) {
    if (options.resumption->kept_files().contains(above + name)) continue;
    if (::unlinkat(in, name.c_str(), 0) == 0) continue;
    if (errno != EISDIR || !above.empty()) throw_errno(cat(place.shown(), ": ", quote(name)));
    remove_unkept(name + "/", open_folder_in(in, name, place.shown()).get());
    // Left if a file in it is kept.
    if (::unlinkat(in, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOTEMPTY && errno != EEXIST)
      throw_errno(cat(place.shown(), ": ", quote(name)));
  }
}

void AtomicDirectory::Impl::write_seal() {
  for (const Added& added : files) {
    sealed.push_back({added.name, added.file->bytes(), added.file->crc()});
  }
  const std::string text = seal_text(sealed);
  const Member at = member(std::string(kSealName));
  FileDescriptor fd = open_for_output(at.folder, at.name, O_RDWR | O_CREAT | O_EXCL, 0666);
  if (fd.get() < 0) throw_errno(at.shown);
  OutputFile seal(std::move(fd), at.shown, options.sync);
  seal.write_at(0, std::as_bytes(std::span(text)));
  seal.finish(options.sync);
}

OutputFile& AtomicDirectory::add_file(const std::string& name) {
  if (joined_) return joined_->add_file(name);
  if (stored_) return stored_->add_file(name);
  const Impl::Member member = impl_->member(name);
  FileDescriptor fd = open_for_output(member.folder, member.name, O_RDWR | O_CREAT | O_EXCL, 0666);
  if (fd.get() < 0 && errno == EEXIST && impl_->is_kept(name))
    fd = open_for_output(member.folder, member.name, O_RDWR | O_NOFOLLOW, 0);
  if (fd.get() < 0) {
    if (errno == EEXIST) throw Error(ErrorCode::kExists, member.shown + ": is written twice");
    throw_errno(member.shown);
  }
  impl_->files.push_back(
      {name, std::make_unique<OutputFile>(std::move(fd), member.shown, impl_->options.sync,
                                          impl_->options.seal)});
  impl_->files.back().file->set_member(name);
  return *impl_->files.back().file;
}

Sharing AtomicDirectory::link_file(const std::string& name, const File& source,
                                   SharingOptions options, std::optional<std::uint32_t> crc) {
  if (stored_) {
    stored_->copy(name, source, options);
    return Sharing::kCopy;
  }
  const Impl::Member member = impl_->member(name);
  options.sync = impl_->options.sync;
  std::uint32_t copied_crc = 0;
  if (impl_->options.seal && !crc) options.copied_crc = &copied_crc;
  const Sharing sharing = share_file(source, member.folder, member.name, member.shown, options);
  if (impl_->options.seal) {
    if (!crc) crc = sharing == Sharing::kCopy ? copied_crc : crc_of(source);
    impl_->sealed.push_back({name, source.size(), *crc});
  }
  return sharing;
}

void AtomicDirectory::add_sealed(SealedFile file) {
  impl_->sealed.push_back(std::move(file));
}

// See Note [joining a folder].
std::string AtomicDirectory::invitation() {
  if (stored_) {
    throw Error(
        ErrorCode::kUnsupported,
        stored_->output->shown() + ": several processes write together to local paths alone");
  }
  if (!impl_->invitation.empty()) return impl_->invitation;
  std::random_device random;
  const std::string name = cat("invitation-", hex32(random()), hex32(random()));
  if (open_for_output(impl_->folder.get(), name, O_WRONLY | O_CREAT | O_EXCL, 0600).get() < 0) {
    throw_errno(cat(impl_->place.shown(), "/", name));
  }
  return impl_->invitation = name;
}

void AtomicDirectory::commit() {
  if (stored_) return stored_->commit();
  if (joined_) {
    for (const auto& file : joined_->files) file->finish(joined_->sync);
  } else {
    impl_->finish_files();
  }
  if (team_ != nullptr) await_files(*team_);
  if (impl_) place();
  if (team_ != nullptr) await_commit(*team_);
}

void AtomicDirectory::place() {
  const OutputPlace& place = impl_->place;
  look_before_commit(place, impl_->options);
  if (impl_->options.seal) impl_->write_seal();
  const auto sync = [&](const FileDescriptor& folder) {
    if (::fsync(folder.get()) != 0 && errno != EINVAL) throw_errno(place.shown() + ": fsync");
  };
  if (impl_->options.sync) {
    for (const auto& [name, folder] : impl_->folders) sync(folder);
    sync(impl_->folder);
    impl_->new_folders.sync();
  }
  std::unique_lock committing(commit_mutex());  // See Note [abandoning outputs].
  while (!rename_to_free_name(place, OutputKind::kFolder)) {
    if (!impl_->options.replace) throw appeared(place);
    // Nothing: the previous folder disappeared meanwhile.
    if (impl_->check_destination() == Impl::Standing::kNothing) continue;
    impl_->replace_destination(committing);
    return;
  }
  impl_->end(committing);
}

}  // namespace fsdp::formats
