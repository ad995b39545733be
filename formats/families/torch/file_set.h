// SPDX-License-Identifier: Apache-2.0
// Several torch.save files read as one checkpoint: the parts of a tensor may lie in different
// files.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/families/torch/stream.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/checkpoint/file_pool.h"
#include "formats/state/model/box.h"

namespace fsdp::formats {

// The base class of readers of such checkpoints: they add files, examine them, and place the
// tensors.
class TorchFileSet : public StoredCheckpoint {
 public:
  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override;
  bool expect_chunk(const TensorEntry& tensor, std::size_t chunk, ElementRange part) const override;
  Value value(const ValueEntry& value) const override { return values_.at(value.key); }
  ChunkData storage(const StorageRef& storage) const override;
  VerifyReport verify(const VerifyOptions& options) const override;
  void check_unchanged() const override { pool_.check_unchanged(); }

 protected:
  // A region of a tensor, and the dense tensor of a file that holds it.
  struct Part {
    Box box;
    std::uint32_t file = 0;
    TensorValue view;    // of box's size; its storage is `storage`
    StorageRef storage;  // of that file
  };

  explicit TorchFileSet(std::shared_ptr<const Folder> folder)
      : folder_(std::move(folder)), pool_(*folder_) {}

  // Hint: add_file follows for these files.  Fetches their ends, many at once, because each takes a
  // while on a slow disk and in a store.
  void expect_files(std::span<const std::string> names) const;
  // Reads a file of the folder; its storages get the file's number plus 1 as archive.
  // Throws: what opening and read_torch_file throw, beginning with the path.
  std::uint32_t add_file(const std::string& name, std::optional<std::int64_t> rank);
  const TorchFile& torch(std::uint32_t file) const { return torch_[file]; }
  // Frees `torch(file).root` once it is no longer needed.
  void drop_object(std::uint32_t file) { torch_[file].root = {}; }
  // Returns the path of a file, escaped, for messages.
  std::string path_of(std::uint32_t file) const;
  const Folder& folder() const { return *folder_; }

  // Makes a part.  `view` is the result of dense_tensor for a value of `file`.
  static Part part_of(Box box, std::uint32_t file, const TensorValue& view);
  // Adds the elements from `begin` to `end` of a flattened tensor of `shape`.  They lie in `view`
  // from its element `from` on.  Requires: view has one dimension and holds them.
  static void add_flat_parts(std::vector<Part>& parts, std::span<const std::int64_t> shape,
                             std::int64_t begin, std::int64_t end, std::uint32_t file,
                             const TensorValue& view, std::int64_t from);

  // Adds a tensor.  Throws: kKey if there is an entry with that key.
  void add_tensor(KeyPath path, DType dtype, std::vector<std::int64_t> shape,
                  std::vector<Part> parts);
  // Compares two parts of the same box: by the checksums of their storages where these hold nothing
  // else, otherwise by their bytes.  Throws: what reading throws.
  bool are_equal(const Part& a, const Part& b) const;
  // Returns the elements of a part, dense and row-major.  Requires: they are few.
  std::vector<std::byte> elements_of(const Part& part) const;
  void add_value(KeyPath path, Value value, std::uint32_t file);

 private:
  std::string fresh_key(const KeyPath& path) const;
  ChunkData data_of(const Part& part) const;
  StreamPlace place(std::uint32_t file) const;

  std::shared_ptr<const Folder> folder_;
  mutable FilePool pool_;
  mutable Spill spill_;
  std::vector<TorchFile> torch_;
  std::unordered_map<std::string, std::vector<Part>> parts_;  // by key, in the order of the chunks
  std::unordered_map<std::string, Value> values_;
};

}  // namespace fsdp::formats
