// SPDX-License-Identifier: Apache-2.0
// A checkpoint about to be written: planned to the byte first, then streamed through the copy
// engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"
#include "formats/bytes/outputs/atomic_file.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "formats/bytes/outputs/options.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/copy.h"

namespace fsdp::formats {

struct PlannedFile {
  std::string name;  // relative to the output folder; the file's own name for a single file
  std::uint64_t bytes = 0;
  bool linked = false;  // shares its bytes on disk with the source
};

// What became of a file of the source, or why the output has a file.
struct FileNote {
  std::string name;  // relative to the folder
  std::string note;  // "is left out: ...", "is new: ..."
  Hint hint = {};
};

// The contents of an output, known before the first byte is written.
struct OutputPlan {
  std::string format;   // "pt", "safetensors", "dcp", "hdf5", ...
  bool folder = false;  // else one file
  std::vector<PlannedFile> files;
  std::uint64_t tensors = 0;
  std::uint64_t values = 0;
  std::uint64_t dropped_values = 0;
  std::uint64_t tensor_bytes = 0;                         // copied from the source
  std::vector<std::pair<std::string, std::string>> tied;  // left out, and the name that was kept
  // Of a folder that is laid out for ranks: the tensors that are cut over them, and the others.
  std::uint64_t cut_tensors = 0;
  std::uint64_t whole_tensors = 0;
  std::vector<std::string> carried;  // of `files`, those that came along from beside the source
  std::vector<FileNote> notes;
  // Bytes of all files except `linked` ones.
  std::uint64_t new_bytes() const;
  std::uint64_t bytes() const;
};

// A planned output.  Nothing is written before `write`, which leaves the whole output or nothing
// new.
class Output : public Interface {
 public:
  const OutputPlan& plan() const { return plan_; }
  // Adds the seal that OutputOptions::seal asks for to the plan.
  void plan_seal();
  // Writes, checks that the source did not change meanwhile, and commits.  `crcs` of the result are
  // only for the output's own use.
  // Throws: the errors of copy_pieces, AtomicFile and AtomicFolder.
  virtual CopyResult write(const CopyOptions& options);
  // Writes the files of a folder, which the caller commits; adds what was copied to `total`.
  virtual void write_files(AtomicFolder& /*folder*/, const CopyOptions& /*options*/,
                           CopyResult& /*total*/) {}

 protected:
  // Lifetime: the source outlives the output.
  Output(const Checkpoint& source, std::filesystem::path destination, OutputOptions options)
      : source_(source), destination_(std::move(destination)), options_(std::move(options)) {}
  // Counts tensors, values and bytes of tensors into the plan.
  void count_leaves(const Value& content);

  const Checkpoint& source_;
  const std::filesystem::path destination_;
  const OutputOptions options_;
  OutputPlan plan_;

 private:
  // Writes the one file, for which space was reserved.  A derived class has this or write_files, as
  // its plan asks for.
  virtual void write_file(OutputFile& /*file*/, const CopyOptions& /*options*/,
                          CopyResult& /*total*/) {}
};

}  // namespace fsdp::formats
