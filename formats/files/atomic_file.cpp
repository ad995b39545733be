// SPDX-License-Identifier: Apache-2.0
#include "formats/files/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <climits>

#include "formats/base/error.h"
#include "formats/base/text.h"
#include "formats/files/joined_output.h"
#include "formats/files/new_folders.h"
#include "formats/files/output_commit.h"
#include "formats/files/output_place.h"
#include "formats/files/seal.h"

namespace fsdp::formats {
namespace {

Error without_seal(ErrorCode code, std::string_view why, const std::string& shown) {
  return {code, cat(why, "; the new ", shown, " is in place, without a seal")};
}

}  // namespace

struct AtomicFile::Impl : Unfinished {
  Impl(const std::filesystem::path& path, const OutputOptions& chosen)
      : destination(path),
        options(chosen),
        folders(chosen.make_folders ? NewFolders(path) : NewFolders()),
        place(path, OutputKind::kFile) {
    note_unfinished(*this);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() override {
    forget_unfinished(*this);
    abandon();
  }
  void abandon() noexcept override {
    if (committed) return;
    if (lock.get() >= 0 && place.stands_for(place.temporary(), lock.get())) {
      if (options.resumption && options.resumption->keeps()) return folders.keep();
      if (options.resumption) options.resumption->end();
      ::unlinkat(place.parent(), place.temporary().c_str(), 0);
    }
    folders.remove();
  }

  void check_destination() const {
    const auto info = place.existing();
    if (!info) return;
    if (S_ISDIR(info->st_mode))
      throw Error(ErrorCode::kNotRegular, place.shown() + ": is a folder, expected a file");
    if (S_ISLNK(info->st_mode)) {
      throw Error(ErrorCode::kNotRegular,
                  place.shown() + ": is a symbolic link; name the file it leads to");
    }
    if (!S_ISREG(info->st_mode)) {
      throw Error(ErrorCode::kNotRegular,
                  place.shown() + ": is not a regular file and cannot be replaced by one");
    }
    if (!options.replace) throw already_exists(place);
  }

  // The names of the seal and of its temporary have to fit as well: check now, not at the end.
  void check_seal_name() const {
    const std::size_t bytes = OutputPlace::temporary_of(sidecar_name(place.name())).size();
    if (!options.seal || bytes <= NAME_MAX) return;
    throw Error(ErrorCode::kUsage, cat(place.shown(),
                                       ": the name is too long for a seal beside it; its temporary "
                                       "would have ",
                                       bytes, " bytes, at most ", NAME_MAX));
  }

  void remove_old_seal() const {
    const std::string name = sidecar_name(place.name());
    if (::unlinkat(place.parent(), name.c_str(), 0) != 0) {
      if (errno == ENOENT || errno == ENAMETOOLONG) return;
      throw_errno(cat(place.shown(), ": removing the seal of the old one, ", quote(name)));
    }
    // Otherwise a power cut could bring it back beside the new file.
    if (options.sync) place.sync_parent();
  }

  const std::filesystem::path destination;
  const OutputOptions options;
  NewFolders folders;
  const OutputPlace place;
  FileDescriptor
      lock;  // shares the lock of the file being written, and keeps it over the file's close
  bool committed = false;
};

struct AtomicFile::Stored {
  const OutputOptions options;
  const std::string name;
  std::unique_ptr<StoredOutput> output;
};

AtomicFile::AtomicFile(const std::filesystem::path& destination, const OutputOptions& options)
    : team_(options.team), sync_(options.sync) {
  if (auto stored = output_in_store(destination, options, OutputKind::kFile)) {
    stored_ = std::make_unique<Stored>(Stored{options, destination.filename(), std::move(stored)});
    file_ = add_file_in_store(*stored_->output, "", options.seal);
    return;
  }
  if (team_ != nullptr && !team_->leads()) {
    file_ = join_file(*team_, destination, options.sync);
    if (options.resumption) options.resumption->meet(OutputPlace(destination, OutputKind::kFile));
    return;
  }
  impl_ = std::make_unique<Impl>(destination, options);
  impl_->check_destination();
  impl_->check_seal_name();
  Resumption* const resumption = options.resumption.get();
  impl_->lock = impl_->place.claim([&](int temporary) {
    return resumption != nullptr && resumption->takes(impl_->place, temporary);
  });
  if (resumption != nullptr) resumption->begin(impl_->place, impl_->lock.get());
  FileDescriptor fd(::fcntl(impl_->lock.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (fd.get() < 0) throw_errno(impl_->place.shown());
  file_ =
      std::make_unique<OutputFile>(std::move(fd), impl_->place.shown(), options.sync, options.seal);
  if (team_ == nullptr) return;
  invite_to_file(*team_, impl_->lock, impl_->place.shown());
  if (resumption != nullptr) resumption->meet(impl_->place);
}

AtomicFile::~AtomicFile() = default;

void AtomicFile::commit() {
  if (stored_) return commit_stored();
  // A sum that is not known from parts is read from the file, so all of it has to be there.
  const bool late = team_ != nullptr && impl_ && impl_->options.seal;
  if (late) await_files(*team_);
  file_->finish(sync_);
  if (team_ != nullptr && !late) await_files(*team_);
  if (impl_) place();
  if (team_ != nullptr) await_commit(*team_);
}

void AtomicFile::commit_stored() {
  StoredOutput& output = *stored_->output;
  file_->finish(false);
  output.await_sent();
  look_before_commit(output.spooled(), output.shown(), stored_->options);
  output.remove_beside(sidecar_name(""));
  output.commit();
  if (!stored_->options.seal) return;
  try {
    output.put_beside(sidecar_name(""), seal_text({{stored_->name, file_->bytes(), file_->crc()}}));
  } catch (const Error& error) {
    throw without_seal(error.code(), error.what(), output.shown());
  }
}

void AtomicFile::place() {
  const OutputPlace& place = impl_->place;
  look_before_commit(place, impl_->options);
  if (!impl_->options.replace && place.existing()) throw appeared(place);
  impl_->check_destination();
  impl_->remove_old_seal();
  if (impl_->options.sync) impl_->folders.sync();
  std::unique_lock lock(commit_mutex());  // See Note [abandoning outputs].
  if (impl_->options.replace) {
    if (::renameat(place.parent(), place.temporary().c_str(), place.parent(),
                   place.name().c_str()) != 0) {
      throw_errno(place.shown() + ": renaming the finished output");
    }
  } else if (!rename_to_free_name(place, OutputKind::kFile)) {
    throw appeared(place);
  }
  impl_->committed = true;
  impl_->folders.keep();
  note_committed();
  lock.unlock();  // The seal is an output of its own.
  if (impl_->options.sync) sync_parent_after_rename(place);
  if (impl_->options.resumption) impl_->options.resumption->end();
  if (impl_->options.seal) write_seal();
}

void AtomicFile::write_seal() const {
  const OutputPlace& place = impl_->place;
  try {
    const std::string text = seal_text({{place.name(), file_->bytes(), file_->crc()}});
    AtomicFile seal(impl_->destination.native() + sidecar_name(""),
                    {.replace = true, .sync = impl_->options.sync});
    seal.file().write_at(0, std::as_bytes(std::span(text)));
    seal.commit();
  } catch (const Error& e) {
    throw without_seal(e.code(), e.what(), place.shown());
  } catch (const std::bad_alloc&) {
    throw without_seal(ErrorCode::kOutOfMemory, place.shown() + ": out of memory", place.shown());
  }
}

}  // namespace fsdp::formats
