// SPDX-License-Identifier: Apache-2.0
// A folder or file that another process is about to put into place (AtomicFolder, AtomicFile),
// joined in order to write a part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "formats/bytes/base/team.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/outputs/file.h"

namespace fsdp::formats {

// A file that the leader of a team makes: `reserve` and `write_at` do nothing here, because the
// leader does the same; `open` is called before the first byte is put.
class JoinedFile : public OutputFile {
 public:
  JoinedFile(std::function<FileDescriptor()> open, std::string name, bool synced)
      : OutputFile(FileDescriptor(), std::move(name), synced), open_(std::move(open)) {}
  void reserve(std::uint64_t) override {}
  void write_at(std::uint64_t, std::span<const std::byte>, std::optional<std::uint32_t>) override {}

 private:
  int descriptor() override;

  std::function<FileDescriptor()> open_;
};

// Note [joining a folder]
// The temporary name of a destination is the same for every writer, so a late process could find
// the folder of a later job there; inode numbers do not help, because they are reused.  So the
// folder's owner puts an empty file with a random name into it, tells the others the name, and
// removes the file when it commits: a folder that holds the file is the right one.  The others hold
// the folder open from then on, and make files in the open folder, whatever its name is by then.
class JoinedFolder {
 public:
  // `invitation` is the result of SharedFolder::invitation; `destination` is the same folder as
  // there, by this process's own path to it.
  // Throws: kNotFound if there is no such folder, or it is another one; like AtomicFolder for
  // the destination.
  JoinedFolder(const std::filesystem::path& destination, const std::string& invitation);

  // Adds a new file of that plain name, which the caller finishes.  `synced`, `summed`: see
  // OutputFile.
  // Throws: kPath, kExists, kIo, kNoSpace.
  std::unique_ptr<OutputFile> add_file(const std::string& name, bool synced,
                                       bool summed = false) const;
  // Opens a file of that name, "b" or "a/b", that the folder's owner added, for writing.
  // Throws: kNotFound, kIo.
  FileDescriptor open_file(const std::string& name) const;
  // The folder's path for messages.
  const std::string& shown() const { return shown_; }

 private:
  FileDescriptor folder_;
  std::string shown_;
};

// Note [writing together]
// In a team (team.h) the leader makes, reserves and locks the temporary, writes what the formats
// write by OutputFile::write_at, and renames.  The others open the files that the leader made, put
// their shares of the tensors into them (copy_pieces) and fsync them before the leader looks at the
// output.  The functions below are only for AtomicFile and AtomicFolder.

// Lets the others open the file `fd`, the temporary of an output, and returns when they have.  The
// file has the same bytes before and after.
// Throws: kIo, kNoSpace; what Team::exchange throws.
void invite_to_file(Team& team, const FileDescriptor& fd, const std::string& shown);
// Opens that file by this process's own path to the destination.
// Throws: kNotFound if there is none, or another one; kIo; what Team::exchange throws.
std::unique_ptr<OutputFile> join_file(Team& team, const std::filesystem::path& destination,
                                      bool synced);

// Returns when all members have finished their files.
void await_files(Team& team);
// Returns when the leader has put the output into place.
void await_commit(Team& team);

}  // namespace fsdp::formats
