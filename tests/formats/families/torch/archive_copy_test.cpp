// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <gtest/gtest.h>

#include "formats/bytes/outputs/stored.h"
#include "formats/bytes/upload/part_upload.h"
#include "formats/bytes/upload/sender_pool.h"
#include "formats/bytes/upload/spool.h"
#include "formats/families/torch/writer.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "tests/support/golden.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

class ArchiveCopyTest : public testing::Test {
 protected:
  static FileDescriptor opened(const std::filesystem::path& path) {
    FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT, 0600));
    EXPECT_GE(fd.get(), 0);
    return fd;
  }
  TorchSaveWriter writer() const {
    return {*source_, with_own_tensors(*source_, with_values(*source_, content_of(*source_)))};
  }

  test::TempDir folder_;
  std::unique_ptr<Checkpoint> source_ =
      open_checkpoint(test::data_path("golden/2.15.0/fsdp2/ckpt"));
};

TEST_F(ArchiveCopyTest, an_archive_on_its_way_to_a_store_has_the_same_bytes_and_no_gaps) {
  for (const std::uint64_t base : {0U, 77U}) {
    OutputFile local(opened(folder_ / "local"), "local");
    TorchSaveWriter first = writer();
    local.reserve(base + first.file_bytes());
    first.write(local, {}, base);
    local.finish(false);

    test::SimSettings settings;
    settings.root = folder_.path();
    settings.part_bytes = 512;
    test::SimStore& store = test::sim_store(settings);
    Spool spool;
    SenderPool senders;
    const auto path = spool.add("output");
    const auto upload = std::make_shared<PartUpload>(store, "sim://sent", path, senders);
    StoredOutputFile sent(opened(path), "sent", upload, false);
    TorchSaveWriter second = writer();
    const std::uint64_t bytes = base + second.file_bytes();
    sent.reserve(bytes);
    CopyOptions options;
    options.threads = 3;
    second.write(sent, options, base);
    senders.wait();
    // Nobody has written what is in front of the archive.
    EXPECT_EQ(store.count(test::SimRequest::kPart), (bytes - 1) / 512 + (base == 0 ? 1 : 0));
    sent.finish(false);
    senders.wait();
    upload->complete(true);
    EXPECT_EQ(test::read_file(folder_ / "sent"), test::read_file(folder_ / "local"));
    std::filesystem::remove(folder_ / "sent");
    std::filesystem::remove(folder_ / "local");
  }
}

}  // namespace
}  // namespace fsdp::formats
