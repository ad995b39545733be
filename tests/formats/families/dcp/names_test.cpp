// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/names.h"

#include <gtest/gtest.h>

namespace fsdp::formats::dcp {
namespace {

TEST(DcpNames, of_data_files_tell_the_rank) {
  EXPECT_EQ(rank_of_data_file("__0_0.distcp"), 0);
  EXPECT_EQ(rank_of_data_file("__12_3.distcp"), 12);
  for (const char* name :
       {"", "__", "_0_0.distcp", "__0.distcp", "__0_.distcp", "___0.distcp", "__0_0.distcp.tmp",
        "__-1_0.distcp", "__0_-1.distcp", "__-0_0.distcp", "__+1_0.distcp", "__ 1_0.distcp",
        "__0_0.DISTCP", "__99999999999999999999_0.distcp", "a/__0_0.distcp"}) {
    EXPECT_EQ(rank_of_data_file(name), std::nullopt) << name;
  }
}

TEST(DcpNames, of_local_metadata_tell_the_rank) {
  EXPECT_EQ(rank_of_local_metadata("__0.metadata"), 0);
  EXPECT_EQ(rank_of_local_metadata("__31.metadata"), 31);
  for (const char* name : {"", ".metadata", "__.metadata", "__0.metadata.tmp", "__0_0.metadata",
                           "__-1.metadata", "0.metadata"}) {
    EXPECT_EQ(rank_of_local_metadata(name), std::nullopt) << name;
  }
}

TEST(DcpNames, are_made_as_they_are_read) {
  EXPECT_EQ(data_file_name(12, 3), "__12_3.distcp");
  EXPECT_EQ(rank_of_data_file(data_file_name(7, 1)), 7);
}

}  // namespace
}  // namespace fsdp::formats::dcp
