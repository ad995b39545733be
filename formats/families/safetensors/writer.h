// SPDX-License-Identifier: Apache-2.0
// Lays the tensors of a checkpoint out as one safetensors file, or as several with a Hugging Face
// index.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/content/output.h"

namespace fsdp::formats::safetensors {

inline constexpr const char* kIndexName = "model.safetensors.index.json";

struct WriterOptions {
  // The most bytes of tensors per file; a larger tensor has a file of its own.  Empty: one file for
  // all.
  std::optional<std::uint64_t> max_shard_bytes;
  std::string apart = {};  // a tensor of this name is written even if tied
};

class Writer {
 public:
  struct File {
    std::string name;  // within the output folder; unused for a single file
    std::string header;
    std::vector<TensorRef> tensors;     // in file order, references of the content
    std::vector<std::uint64_t> begins;  // where the bytes of each tensor begin
    std::uint64_t bytes = 0;
  };

  // Plans the files for `content`, the result of content_of, without leaves that are not tensors.
  // Tied tensors are written once; __metadata__ lists the other names with the name that was kept,
  // as safetensors' own save_model does.  Lifetime: the checkpoint outlives the writer.
  // Throws: kUnsupported naming a tensor whose dtype safetensors lacks, kName, kStHeader.
  Writer(const Checkpoint& checkpoint, const Value& content, const WriterOptions& options);

  const std::vector<File>& files() const { return files_; }
  // Returns the text of model.safetensors.index.json; empty for a single file without a size limit.
  const std::string& index() const { return index_; }
  // Returns the names left out, with the name that holds their bytes.
  const std::vector<std::pair<std::string, std::string>>& tied() const { return tied_; }

  // Copies the tensors into `outputs`, in the order of `files`, and writes the headers.
  // Throws: what copy_pieces and OutputFile::write_at throw.
  void write(const std::vector<OutputFile*>& outputs, const CopyOptions& options,
             CopyResult& total) const;
  // Does the same in files of a folder, which have the first of `names`; writes the index if its
  // name follows.
  void write_files(AtomicFolder& folder, std::span<const PlannedFile> names,
                   const CopyOptions& options, CopyResult& total) const;

 private:
  const Checkpoint& checkpoint_;
  std::vector<File> files_;
  std::string index_;
  std::vector<std::pair<std::string, std::string>> tied_;
};

}  // namespace fsdp::formats::safetensors
