// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/outputs/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/outputs/joined.h"
#include "formats/bytes/outputs/local_output.h"
#include "formats/bytes/outputs/stored.h"

namespace fsdp::formats {
namespace {

class LocalAtomicFile : public AtomicFile, private LocalOutput {
 public:
  LocalAtomicFile(const std::filesystem::path& path, const OutputOptions& options)
      : LocalOutput(path, options, OutputKind::kFile), destination_(path) {
    check_destination();
    check_seal_name();
    claim();
    options_.journal->begin(place_, temporary_.get());
    FileDescriptor fd(::fcntl(temporary_.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    if (fd.get() < 0) throw_errno(place_.shown());
    file_ =
        std::make_unique<OutputFile>(std::move(fd), place_.shown(), options_.sync, options_.seal);
    invite_to_file(*options_.team, temporary_, place_.shown());
    options_.journal->meet(place_);
  }
  OutputFile& file() override { return *file_; }

  void commit() override {
    // A checksum that the parts do not give is read from the file, so the whole file must be there.
    if (options_.seal) await_files(*options_.team);
    file_->finish(options_.sync);
    if (!options_.seal) await_files(*options_.team);
    put_in_place();
    if (options_.seal) write_seal();
    await_commit(*options_.team);
  }

 private:
  void put_in_place() {
    look();
    if (!options_.replace && place_.existing()) throw appeared();
    check_destination();
    remove_old_seal();
    if (options_.sync) new_folders_.sync();
    std::unique_lock committing(commit_mutex());  // See Note [abandoning outputs].
    if (options_.replace) {
      if (::renameat(place_.parent(), place_.temporary().c_str(), place_.parent(),
                     place_.name().c_str()) != 0) {
        throw_errno(place_.shown() + ": renaming the finished output");
      }
    } else if (!rename_to_free_name()) {
      throw appeared();
    }
    note_placed(committing);
  }

  // The seal is an output of its own.
  void write_seal() const {
    try {
      const std::string text = seal_text({{place_.name(), file_->bytes(), file_->crc()}});
      const auto seal = new_file(destination_.native() + sidecar_name(""),
                                 {.replace = true, .sync = options_.sync});
      seal->file().write_at(0, std::as_bytes(std::span(text)));
      seal->commit();
    } catch (const Error& e) {
      throw without_seal(e.code(), e.what(), place_.shown());
    } catch (const std::bad_alloc&) {
      throw without_seal(ErrorCode::kOutOfMemory, place_.shown() + ": out of memory",
                         place_.shown());
    }
  }

  void check_destination() const {
    const auto info = place_.existing();
    if (!info) return;
    const auto refuse = [&](std::string_view why) {
      return Error(ErrorCode::kNotRegular, place_.shown(), ": is ", why);
    };
    if (S_ISDIR(info->st_mode)) throw refuse("a folder, expected a file");
    if (S_ISLNK(info->st_mode)) throw refuse("a symbolic link; name the file it leads to");
    if (!S_ISREG(info->st_mode)) throw refuse("not a regular file and cannot be replaced by one");
    if (!options_.replace) throw already_exists();
  }

  // The names of the seal and of its temporary have to fit as well: check now, not at the end.
  void check_seal_name() const {
    const std::size_t bytes = OutputPlace::temporary_of(sidecar_name(place_.name())).size();
    if (!options_.seal || bytes <= NAME_MAX) return;
    throw Error(ErrorCode::kUsage, place_.shown(),
                ": the name is too long for a seal beside it; its temporary "
                "would have ",
                bytes, " bytes, at most ", NAME_MAX);
  }

  void remove_old_seal() const {
    const std::string name = sidecar_name(place_.name());
    if (::unlinkat(place_.parent(), name.c_str(), 0) != 0) {
      if (errno == ENOENT || errno == ENAMETOOLONG) return;
      throw_errno(cat(place_.shown(), ": removing the old file's seal, ", quote(name)));
    }
    // Otherwise a power cut could bring the old seal back beside the new file.
    if (options_.sync) place_.sync_parent();
  }

  const std::filesystem::path destination_;
  std::unique_ptr<OutputFile> file_;
};

// The file for a member of a team that is not the leader.
class JoinedAtomicFile : public AtomicFile {
 public:
  JoinedAtomicFile(const std::filesystem::path& destination, const OutputOptions& options)
      : team_(*options.team),
        sync_(options.sync),
        file_(join_file(team_, destination, options.sync)) {
    options.journal->meet(OutputPlace(destination, OutputKind::kFile));
  }
  OutputFile& file() override { return *file_; }
  void commit() override {
    file_->finish(sync_);
    await_files(team_);
    await_commit(team_);
  }

 private:
  Team& team_;
  const bool sync_;
  std::unique_ptr<OutputFile> file_;
};

}  // namespace

std::unique_ptr<AtomicFile> new_file(const std::filesystem::path& destination,
                                     const OutputOptions& options) {
  if (is_url(destination.native())) return new_stored_file(destination, options);
  if (!options.team->leads()) return std::make_unique<JoinedAtomicFile>(destination, options);
  return std::make_unique<LocalAtomicFile>(destination, options);
}

}  // namespace fsdp::formats
