// SPDX-License-Identifier: Apache-2.0
// A torch.distributed.checkpoint folder made by a test: items are appended to data files,
// `.metadata` is written last.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "formats/front/open.h"
#include "tests/support/metadata_builder.h"
#include "tests/support/temp_dir.h"
#include "tests/support/torch_zip_builder.h"

namespace fsdp::test {

struct DcpFolder {
  MetadataSpec metadata;
  std::map<std::string, std::string> files;  // content of each data file
  TempDir folder;

  ItemSpec append(const std::string& bytes, const std::string& file = "__0_0.distcp") {
    std::string& content = files[file];
    const ItemSpec item{file,
                        static_cast<std::int64_t>(content.size()),
                        static_cast<std::int64_t>(bytes.size()),
                        {}};
    content += bytes;
    return item;
  }
  // Makes a chunk with a valid item of its own.
  ChunkSpec chunk(const Numbers& offsets, const Numbers& sizes,
                  const std::string& file = "__0_0.distcp") {
    return {offsets, sizes, append(float_tensor(sizes).bytes(), file)};
  }
  void add_value(const std::string& key, const std::string& opcodes) {
    TorchZip zip;
    zip.root = opcodes;
    metadata.values.push_back({key, append(zip.bytes())});
  }

  void write() const {
    for (const auto& [name, content] : files) write_file(folder / name, content);
    write_file(folder / ".metadata", metadata.pickle());
  }
  std::unique_ptr<formats::StoredCheckpoint> open() const {
    write();
    return formats::open_checkpoint(folder.path());
  }
};

}  // namespace fsdp::test
