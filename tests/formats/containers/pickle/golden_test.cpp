// SPDX-License-Identifier: Apache-2.0
// Streams by Python and PyTorch: all can be read and survive writing, and their damaged forms do
// nothing worse than throw an Error.
#include "tests/support/golden.h"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "formats/containers/pickle/machine.h"
#include "formats/containers/pickle/writer.h"
#include "formats/containers/zip/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/pickle_values.h"

namespace fsdp::formats {
namespace {

// Returns the stream of data.pkl in a file of torch.save, "" if the file predates zip.
std::string data_pickle(const std::filesystem::path& path) {
  const std::vector<std::byte> file = test::read_file(path);
  if (!test::to_text(file).starts_with("PK")) return "";
  const MemorySource source(file);
  const ZipReader zip(source);
  for (const ZipEntry& entry : zip.entries()) {
    if (!entry.name.ends_with("/data.pkl") || entry.deflated) continue;
    return test::to_text(read_bytes(source, entry.data_offset, entry.compressed_bytes));
  }
  return "";
}

// Returns all streams of the golden checkpoints, by path.
const std::map<std::string, std::string>& golden_streams() {
  static const std::map<std::string, std::string> streams = [] {
    std::map<std::string, std::string> found;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(test::data_path("golden"))) {
      const std::filesystem::path& path = entry.path();
      if (path.filename().string().ends_with(".metadata")) {
        found[path.string()] = test::to_text(test::read_file(path));
      } else if (path.extension() == ".pt") {
        std::string stream = data_pickle(path);
        if (!stream.empty()) found[path.string()] = std::move(stream);
      }
    }
    return found;
  }();
  return streams;
}

// Returns a few small ones: of protocol 2 and 4, of both kinds of file.
std::vector<std::string> small_streams() {
  return {
      test::to_text(test::read_data("golden/2.11.0/minimal/ckpt/.metadata")),
      test::to_text(test::read_data("golden/2.11.0/protocol_2/ckpt/.metadata")),
      data_pickle(test::data_path("golden/2.11.0/bare_tensor_pt/full.pt")),
      data_pickle(test::data_path("golden/2.11.0/parameters_pt/full.pt")),
  };
}

TEST(PickleGolden, every_stream_is_read_and_survives_writing) {
  EXPECT_GT(golden_streams().size(), 30U);
  for (const auto& [path, stream] : golden_streams()) {
    SCOPED_TRACE(path);
    const Value value = test::read_folded(stream);
    const std::string written = write_pickle(value);
    const Value again = test::read_folded(written);
    EXPECT_EQ(test::difference(again, value), "");
    EXPECT_EQ(write_pickle(again), written);
  }
}

TEST(PickleGolden, metadata_has_the_fields_that_pytorch_wrote) {
  const Value value = test::read_folded(small_streams()[0]);
  ASSERT_TRUE(is_call_of(value, "torch.distributed.checkpoint.metadata", "Metadata"));
  const ObjectData& metadata = *value.as_object();
  EXPECT_TRUE(metadata.by_new);
  ASSERT_TRUE(metadata.built);
  const Value* const tensors = metadata.state.find("state_dict_metadata");
  ASSERT_NE(tensors, nullptr);
  ASSERT_NE(tensors->find("w"), nullptr);
  EXPECT_TRUE(is_call_of(*tensors->find("w"), "torch.distributed.checkpoint.metadata",
                         "TensorStorageMetadata"));
  const Value* const size = tensors->find("w")->as_object()->state.find("size");
  ASSERT_NE(size, nullptr);
  EXPECT_TRUE(is_call_of(*size, "torch", "Size"));
  const Value* const version = metadata.state.find("version");
  ASSERT_NE(version, nullptr);
  EXPECT_EQ(*version->as_string(), "1.0.0");
}

TEST(PickleGolden, a_stream_cut_anywhere_is_truncated) {
  for (const std::string& stream : small_streams()) {
    ASSERT_FALSE(stream.empty());
    for (std::size_t size = 0; size < stream.size(); ++size) {
      const auto code = size == 0 ? ErrorCode::kEmpty : ErrorCode::kTruncated;
      test::expect_error(code, "",
                         [&] { test::read_folded(std::string_view(stream).substr(0, size)); });
    }
  }
}

// Reads a damaged stream; an accepted one must be a sound value.  Returns whether it was
// refused.
bool is_refused(const std::string& stream) {
  try {
    const Value value = test::read_folded(stream);
    EXPECT_EQ(test::difference(test::read_folded(write_pickle(value)), value), "");
    return false;
  } catch (const Error&) {
    return true;
  }
}

TEST(PickleGolden, a_stream_with_any_bit_flipped_is_read_or_refused) {
  std::size_t refused = 0;
  for (std::string stream : small_streams()) {
    for (char& byte : stream) {
      const char sound = byte;
      for (unsigned bit = 0; bit < 8; ++bit) {
        byte = static_cast<char>(static_cast<unsigned char>(sound) ^ (1U << bit));
        refused += is_refused(stream) ? 1 : 0;
      }
      byte = sound;
    }
  }
  EXPECT_GT(refused, 1000U);
}

TEST(PickleGolden, a_stream_with_any_byte_replaced_is_read_or_refused) {
  std::size_t refused = 0;
  std::string stream = data_pickle(test::data_path("golden/2.11.0/bare_tensor_pt/full.pt"));
  for (char& byte : stream) {
    const char sound = byte;
    for (int value = 0; value < 256; ++value) {
      byte = static_cast<char>(value);
      refused += is_refused(stream) ? 1 : 0;
    }
    byte = sound;
  }
  EXPECT_GT(refused, 1000U);
}

}  // namespace
}  // namespace fsdp::formats
