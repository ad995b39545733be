// SPDX-License-Identifier: Apache-2.0
// Real checkpoints with one bit flipped, one file cut or one file missing: verify reports it for
// every bit and byte.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/front/open.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// A file whose bytes are changed one at a time.
class Victim {
 public:
  explicit Victim(const fs::path& path) : path_(path), bytes_(test::read_file(path)) {}
  std::size_t size() const { return bytes_.size(); }

  void flip(std::size_t at, unsigned bit) {
    bytes_[at] ^= static_cast<std::byte>(1U << bit);
    write(bytes_.size());
  }
  void cut(std::size_t length) const { write(length); }
  void restore() const { write(bytes_.size()); }

 private:
  void write(std::size_t length) const {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
    ASSERT_EQ(::write(fd, bytes_.data(), length), static_cast<ssize_t>(length));
    ::close(fd);
  }

  fs::path path_;
  std::vector<std::byte> bytes_;
};

struct Outcome {
  std::optional<Error> error;  // of opening
  Findings damage;
  Findings warnings;
  std::unique_ptr<StoredCheckpoint> checkpoint;

  bool reported() const { return error.has_value() || !damage.empty(); }
  bool names(const std::string& key) const {
    return std::any_of(damage.begin(), damage.end(),
                       [&](const Finding& f) { return f.key == key; });
  }
};

// Any other exception ends the test.
Outcome look_at(const fs::path& path, bool fast = false) {
  Outcome outcome;
  try {
    outcome.checkpoint = open_checkpoint(path);
  } catch (const Error& error) {
    outcome.error = error;
    return outcome;
  }
  VerifyOptions options;
  options.fast = fast;
  for (Finding& finding : outcome.checkpoint->verify(options).findings) {
    const bool damage = finding.severity <= Finding::Severity::kUnsafe;
    (damage ? outcome.damage : outcome.warnings).push_back(std::move(finding));
  }
  return outcome;
}

// Every item of the folder: its bytes and its key.
struct Extent {
  std::string file;
  std::uint64_t begin, end;
  std::string key;
};

std::vector<Extent> extents_of(const Index& index) {
  std::vector<Extent> all;
  const auto add = [&](const std::string& key, const Location& location) {
    all.push_back(
        {index.files[location.file].name, location.offset, location.offset + location.length, key});
  };
  for (const TensorEntry& tensor : index.tensors) {
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
      add(tensor.key, tensor.chunks.location(c));
  }
  for (const ValueEntry& value : index.values) add(value.key, value.location);
  return all;
}

// Uses memory if possible, because a hundred thousand files are written.
class Damage : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (fs::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
  }
  void copy(const char* golden) {
    fs::copy(test::data_path(golden), folder_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    extents_ = extents_of(open_checkpoint(folder_.path())->index());
    ASSERT_FALSE(extents_.empty());
  }
  // Returns the keys of the items that a byte belongs to.
  std::vector<std::string> keys_at(const std::string& file, std::uint64_t at) const {
    std::vector<std::string> keys;
    for (const Extent& extent : extents_) {
      if (extent.file == file && extent.begin <= at && at < extent.end) keys.push_back(extent.key);
    }
    return keys;
  }
  void flip_and_expect(Victim& victim, const std::string& file, std::size_t at, unsigned bit) {
    victim.flip(at, bit);
    const Outcome outcome = look_at(folder_.path());
    victim.flip(at, bit);
    ASSERT_TRUE(outcome.reported())
        << file << ": bit " << bit << " of byte " << at << " goes unnoticed";
    for (const std::string& key : keys_at(file, at)) {
      ASSERT_TRUE(outcome.names(key)) << file << ": byte " << at << " belongs to " << key;
    }
  }

  test::TempDir folder_;
  std::vector<Extent> extents_;
};

TEST_F(Damage, every_flipped_bit_of_a_data_file_is_found_and_its_key_named) {
  copy("golden/2.11.0/minimal/ckpt");
  Victim victim(folder_ / "__0_0.distcp");
  for (std::size_t at = 0; at < victim.size(); ++at) {
    ASSERT_EQ(keys_at("__0_0.distcp", at).size(), 1U);
    for (unsigned bit = 0; bit < 8; ++bit)
      ASSERT_NO_FATAL_FAILURE(flip_and_expect(victim, "__0_0.distcp", at, bit));
  }
}

TEST_F(Damage, a_flipped_bit_of_any_shard_is_found_and_its_key_named) {
  copy("golden/2.11.0/shards/ckpt");
  for (const char* file : {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"}) {
    Victim victim(folder_ / file);
    // Every bit would take minutes: one bit of every thirteenth byte.
    for (std::size_t at = 0; at < victim.size(); at += 13) {
      ASSERT_NO_FATAL_FAILURE(flip_and_expect(victim, file, at, at % 8));
    }
  }
}

TEST_F(Damage, every_cut_of_a_data_file_is_found_even_without_reading_data) {
  copy("golden/2.11.0/minimal/ckpt");
  const Victim victim(folder_ / "__0_0.distcp");
  for (std::size_t length = 0; length < victim.size(); ++length) {
    victim.cut(length);
    ASSERT_TRUE(look_at(folder_.path(), true).reported()) << length;
    // One finding for the file, which names the first item that is cut off.
    ASSERT_TRUE(look_at(folder_.path()).names(keys_at("__0_0.distcp", length).at(0))) << length;
  }
  victim.restore();
  EXPECT_FALSE(look_at(folder_.path()).reported());
}

TEST_F(Damage, every_missing_file_is_found_even_without_reading_data) {
  copy("golden/2.11.0/shards/ckpt");
  for (const char* file :
       {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp", ".metadata"}) {
    fs::rename(folder_ / file, folder_ / "away");
    EXPECT_TRUE(look_at(folder_.path(), true).reported()) << file;
    fs::rename(folder_ / "away", folder_ / file);
  }
  EXPECT_FALSE(look_at(folder_.path(), true).reported());
}

// Returns everything in an index except names.
std::string structure_of(const Index& index) {
  std::string text;
  const auto add = [&](std::uint64_t number) { text += std::to_string(number) + " "; };
  const auto add_all = [&](std::span<const std::int64_t> numbers) {
    for (const std::int64_t number : numbers) text += std::to_string(number) + ",";
    text += " ";
  };
  const auto add_location = [&](const Location& location) {
    text += index.files[location.file].name + " ";
    add(location.offset);
    add(location.length);
    for (const std::string& transform : index.transforms[location.transform])
      text += transform + " ";
  };
  for (const Index::EntryRef& ref : index.order) {
    text += "\n";
    if (!ref.is_tensor) {
      add_location(index.values[ref.position].location);
      continue;
    }
    const TensorEntry& tensor = index.tensors[ref.position];
    text += std::string(torch_name(tensor.dtype)) + " ";
    add_all(tensor.shape);
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      add_all(tensor.chunks.box(c).offset);
      add_all(tensor.chunks.box(c).size);
      add_location(tensor.chunks.location(c));
    }
  }
  return text;
}

TEST_F(Damage, every_flipped_bit_of_the_metadata_is_found_or_changes_names_alone) {
  copy("golden/2.11.0/minimal/ckpt");
  Victim victim(folder_ / ".metadata");
  const std::string sound = structure_of(look_at(folder_.path()).checkpoint->index());
  std::size_t silent = 0;
  for (std::size_t at = 0; at < victim.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      victim.flip(at, bit);
      const Outcome outcome = look_at(folder_.path());
      victim.flip(at, bit);
      if (outcome.reported()) continue;
      ++silent;
      ASSERT_EQ(structure_of(outcome.checkpoint->index()), sound)
          << "bit " << bit << " of byte " << at;
    }
  }
  // Texts that nothing else repeats (keys, paths, time and place of the save) are a small part of
  // the file.
  EXPECT_LT(silent, victim.size() * 8 / 4);
}

TEST_F(Damage, every_cut_of_the_metadata_is_found) {
  copy("golden/2.11.0/minimal/ckpt");
  const Victim victim(folder_ / ".metadata");
  for (std::size_t length = 0; length < victim.size(); ++length) {
    victim.cut(length);
    ASSERT_TRUE(look_at(folder_.path()).error.has_value()) << length;
  }
}

TEST_F(Damage, every_flipped_bit_and_cut_of_a_torch_save_file_is_found) {
  fs::copy(test::data_path("golden/2.11.0/bare_tensor_pt/full.pt"), folder_ / "full.pt");
  Victim victim(folder_ / "full.pt");
  for (std::size_t at = 0; at < victim.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      victim.flip(at, bit);
      ASSERT_TRUE(look_at(folder_ / "full.pt").reported()) << "bit " << bit << " of byte " << at;
      victim.flip(at, bit);
    }
    victim.cut(at);
    ASSERT_TRUE(look_at(folder_ / "full.pt").error.has_value()) << at;
    victim.restore();
  }
  EXPECT_FALSE(look_at(folder_ / "full.pt").reported());
}

TEST_F(Damage, a_file_without_checksums_is_refused_or_read_and_never_more) {
  for (const char* golden : {"golden/2.11.0/legacy_pt/full.pt", "golden/2.11.0/nocrc_pt/full.pt",
                             "golden/2.11.0/hf_plain/ckpt/model-00001-of-00001.safetensors"}) {
    const fs::path path = folder_ / fs::path(golden).filename().string();
    fs::copy(test::data_path(golden), path, fs::copy_options::overwrite_existing);
    Victim victim(path);
    for (std::size_t at = 0; at < victim.size(); ++at) {
      victim.flip(at, at % 8);
      look_at(path);  // any exception but Error ends the test
      victim.flip(at, at % 8);
      victim.cut(at);
      ASSERT_TRUE(look_at(path).error.has_value()) << golden << " cut at " << at;
      victim.restore();
    }
    EXPECT_FALSE(look_at(path).reported()) << golden;
  }
}

}  // namespace
}  // namespace fsdp::formats
