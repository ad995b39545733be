// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt seal, how verify treats seals, and the records and lists beside them.
#include <sys/stat.h>

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/sha256.h"
#include "formats/bytes/outputs/file_link.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const char* const kFolder = "2.15.0/fsdp2/ckpt";

class SealTest : public CliTest {
 protected:
  std::string done(const std::vector<std::string>& args) const {
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    return result.out;
  }
  // Runs a command whose answer is no.
  std::string no(const std::vector<std::string>& args) const {
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 1) << result.out << result.err;
    return result.out;
  }
  std::string refused(const std::vector<std::string>& args) const {
    const CliResult result = run_cli(args);
    EXPECT_EQ(result.status, 2) << result.out << result.err;
    return result.err;
  }
  // Changes one byte, in place.
  void flip(const std::string& file, std::size_t at) const {
    std::string bytes = file_bytes(path(file));
    bytes.at(at) = static_cast<char>(bytes[at] ^ 1);
    write_file(path(file), bytes);
  }
};

TEST_F(SealTest, a_folder_is_sealed_once_and_matches) {
  const std::string c = copy_of(kFolder, "c");
  EXPECT_THAT(done({"verify", c}), HasSubstr("no seal: structure and checksums only"));
  EXPECT_THAT(done({"seal", c}), HasSubstr("c: sealed, 3 files, 431.3 KiB"));
  EXPECT_THAT(done({"verify", c}), HasSubstr("sound, matches its seal, 150 items in 2 files"));
  EXPECT_THAT(done({"verify", c, "--fast"}), HasSubstr("sizes and small files match its seal"));
  EXPECT_THAT(done({"verify", c, "-k", "step"}), HasSubstr("sizes and small files match its seal"));
  EXPECT_THAT(done({"verify", c + "/.metadata"}), HasSubstr("matches its seal"));
  EXPECT_THAT(refused({"seal", c}), AllOf(HasSubstr("error[EXISTS]"), HasSubstr("--force")));
  const std::string seal = file_bytes(c + "/fsdp_seal.json");
  EXPECT_THAT(done({"seal", c, "--force"}), HasSubstr("sealed, 3 files"));
  EXPECT_EQ(file_bytes(c + "/fsdp_seal.json"), seal);
}

TEST_F(SealTest, a_dry_run_writes_nothing) {
  const std::string c = copy_of(kFolder, "c");
  EXPECT_THAT(done({"seal", c, "--dry-run"}), HasSubstr("c: would be sealed, 3 files, 431.3 KiB"));
  EXPECT_FALSE(std::filesystem::exists(c + "/fsdp_seal.json"));
}

TEST_F(SealTest, a_damaged_checkpoint_is_not_sealed) {
  const std::string c = copy_of(kFolder, "c");
  flip("c/__1_0.distcp", 27000);
  EXPECT_THAT(no({"seal", c}), AllOf(HasSubstr("damage[ZIP_CRC]"), HasSubstr("not sealed")));
  EXPECT_FALSE(std::filesystem::exists(c + "/fsdp_seal.json"));
  EXPECT_THAT(refused({"seal", c, "-k", "**"}), HasSubstr("--keys"));
  EXPECT_THAT(refused({"seal", path("none")}), HasSubstr("NOT_FOUND"));
}

// verify reads it, too.
TEST_F(SealTest, a_folder_with_a_damaged_checkpoint_inside_is_not_sealed) {
  const std::string c = copy_of(kFolder, "c");
  copy_of(kFolder, "c/inner");
  write_file(path("c/inner.pt"), "neither a checkpoint nor empty");
  EXPECT_THAT(done({"seal", c, "--dry-run"}), HasSubstr("would be sealed"));
  std::filesystem::remove(path("c/inner/__1_0.distcp"));
  EXPECT_THAT(no({"seal", c}), AllOf(HasSubstr("damage[SHARD_MISSING]: inner/__1_0.distcp"),
                                     HasSubstr("damaged, not sealed")));
  EXPECT_FALSE(std::filesystem::exists(c + "/fsdp_seal.json"));
}

TEST_F(SealTest, every_file_is_held_against_the_seal) {
  const std::string c = copy_of(kFolder, "c");
  done({"seal", c});
  write_file(c + "/notes.txt", "x");
  EXPECT_THAT(no({"verify", c}), HasSubstr("damage[SEAL_EXTRA]: notes.txt: is not in the seal"));
  std::filesystem::remove(c + "/notes.txt");
  // The number of the save: the only difference between .metadata of two saves of one layout.
  const std::string metadata = file_bytes(c + "/.metadata");
  flip("c/.metadata", metadata.find("fc9afd27"));
  for (const char* how : {"--strict", "--fast"}) {
    EXPECT_THAT(no({"verify", c, how}),
                HasSubstr("damage[SEAL_MISMATCH]: .metadata: CRC-32 of the file sealed 6d385a58"));
  }
  std::filesystem::remove(c + "/fsdp_seal.json");
  done({"verify", c});
}

TEST_F(SealTest, a_broken_seal_is_damage_and_no_seal_at_all_where_one_is_wanted) {
  const std::string c = copy_of(kFolder, "c");
  EXPECT_THAT(no({"verify", c, "--require-seal"}), HasSubstr("damage[UNSEALED]"));
  done({"seal", c});
  done({"verify", c, "--require-seal"});
  flip("c/fsdp_seal.json", 40);
  EXPECT_THAT(no({"verify", c}),
              HasSubstr("damage[SEAL]: fsdp_seal.json: the seal cannot be relied on"));
  const formats::Json json = formats::parse_json(no({"verify", c, "--json"}));
  EXPECT_EQ(*json.find("seal")->find("state")->as_string(), "unreadable");
  write_file(c + "/fsdp_seal.json", "{\"fsdp_seal\":2,\"files\":[\n");
  EXPECT_THAT(no({"verify", c}), HasSubstr("is of version 2"));
  std::filesystem::remove(c + "/fsdp_seal.json");
  std::filesystem::create_symlink("nowhere", c + "/fsdp_seal.json");
  EXPECT_THAT(no({"verify", c}), HasSubstr("damage[SEAL]"));
}

TEST_F(SealTest, what_cannot_be_opened_is_held_against_its_seal_too) {
  const std::string c = copy_of(kFolder, "c");
  done({"seal", c});
  flip("c/.metadata", 0);
  EXPECT_THAT(no({"verify", c}), AllOf(HasSubstr("damage[PROTO]"), HasSubstr("SEAL_MISMATCH")));
}

TEST_F(SealTest, files_have_theirs_beside_them) {
  done(
      {"consolidate", golden_path(kFolder), path("full.safetensors"), "-k", "**.weight", "--seal"});
  const std::string full = path("full.safetensors");
  EXPECT_THAT(done({"verify", full, "--require-checksums"}),
              AllOf(HasSubstr("matches its seal"), HasSubstr("no checksum of their own")));
  flip("full.safetensors", file_bytes(full).size() - 1);
  EXPECT_THAT(no({"verify", full}), HasSubstr("damage[SEAL_MISMATCH]: full.safetensors"));
  // A new file without a seal removes the old file's seal.
  done({"consolidate", golden_path(kFolder), full, "-k", "**.weight", "--force"});
  EXPECT_THAT(done({"verify", full}), HasSubstr("no seal"));
  done({"seal", full});
  std::filesystem::rename(full, path("other.safetensors"));
  std::filesystem::rename(full + ".fsdp_seal.json", path("other.safetensors.fsdp_seal.json"));
  EXPECT_THAT(done({"verify", path("other.safetensors")}), HasSubstr("matches its seal"));
}

TEST_F(SealTest, a_part_of_a_sealed_folder_is_held_against_its_seal) {
  done({"consolidate", golden_path(kFolder), path("hf"), "-k", "**.weight", "--to", "safetensors",
        "--max-shard-size", "20KB", "--seal"});
  const std::string one = path("hf/model-00001-of-00004.safetensors");
  EXPECT_THAT(done({"verify", one}), HasSubstr("matches its seal"));
  const std::size_t end = file_bytes(one).size();
  flip("hf/model-00001-of-00004.safetensors", end - 1);
  EXPECT_THAT(no({"verify", one}), HasSubstr("SEAL_MISMATCH"));
  EXPECT_THAT(done({"verify", path("hf/model-00002-of-00004.safetensors")}),
              HasSubstr("matches its seal"));

  done({"convert", golden_path(kFolder), path("acc"), "--to", "accelerate", "--drop-values",
        "--seal"});
  EXPECT_THAT(done({"verify", path("acc")}), HasSubstr("matches its seal"));
  EXPECT_THAT(done({"verify", path("acc/pytorch_model_fsdp_0")}), HasSubstr("matches its seal"));
  flip("acc/pytorch_model_fsdp_0/.metadata", 0);
  EXPECT_THAT(no({"verify", path("acc/pytorch_model_fsdp_0")}), HasSubstr("SEAL_MISMATCH"));
  EXPECT_THAT(done({"verify", path("acc/optimizer_0")}), HasSubstr("matches its seal"));
  EXPECT_THAT(no({"verify", path("acc")}),
              HasSubstr("damage[SEAL_MISMATCH]: pytorch_model_fsdp_0/.metadata"));
}

TEST_F(SealTest, every_writer_leaves_one_that_was_planned_to_the_byte) {
  const std::vector<std::vector<std::string>> writers = {
      {"consolidate", "full.pt"},
      {"consolidate", "full.h5"},
      {"consolidate", "split", "--to", "safetensors", "--max-shard-size", "20KB", "-k",
       "**.weight"},
      {"convert", "lightning", "--to", "lightning"},
      {"reshard", "of-3", "--world-size", "3"},
      {"rename", "renamed", "--rename", "app.model=model"},
      {"rename", "renamed-copy", "--rename", "app.model=model", "--copy"},
      {"rekey", "rekeyed", "--key-by", "id"},
  };
  for (const auto& words : writers) {
    SCOPED_TRACE(words[0] + " " + words[1]);
    std::vector<std::string> args = {words[0], golden_path(kFolder), path(words[1])};
    args.insert(args.end(), words.begin() + 2, words.end());
    args.insert(args.end(), {"--seal", "--json"});
    auto dry = args;
    dry.emplace_back("--dry-run");
    const formats::Json planned = formats::parse_json(done(dry));
    const formats::Json written = formats::parse_json(done(args));
    EXPECT_EQ(*planned.find("bytes")->as_int(), *written.find("bytes")->as_int());
    std::int64_t bytes = 0;
    for (const formats::Json& file : *written.find("files")->as_array()) {
      const std::string name = *file.find("name")->as_string();
      const bool folder = std::filesystem::is_directory(path(words[1]));
      const auto size =
          std::filesystem::file_size(folder ? path(words[1] + "/" + name) : path(name));
      EXPECT_EQ(static_cast<std::uint64_t>(*file.find("bytes")->as_int()), size) << name;
      bytes += *file.find("bytes")->as_int();
    }
    EXPECT_EQ(bytes, *written.find("bytes")->as_int());
    EXPECT_THAT(done({"verify", path(words[1])}), HasSubstr("matches its seal"));
    EXPECT_THAT(done({"verify", path(words[1]), "--require-seal", "-q"}), IsEmpty());
  }
}

TEST_F(SealTest, an_edited_folder_has_no_seal_of_the_source_s) {
  const std::string c = copy_of(kFolder, "c");
  done({"seal", c});
  done({"rename", c, path("renamed"), "--rename", "app.model=model"});
  EXPECT_FALSE(std::filesystem::exists(path("renamed/fsdp_seal.json")));
  EXPECT_THAT(done({"verify", path("renamed")}), HasSubstr("no seal"));
  // After a second rename, a record names only the new folder's files.
  done({"rename", path("renamed"), path("again"), "--rename", "model=m", "--copy"});
  EXPECT_FALSE(std::filesystem::exists(path("again/fsdp_shared.json")));
}

TEST_F(SealTest, a_sealed_source_says_what_its_data_ought_to_be) {
  const std::string c = copy_of(kFolder, "c");
  done({"seal", c});
  flip("c/__1_0.distcp", 27000);
  // No data is read: the seal has their earlier checksums.
  done({"rename", c, path("out"), "--rename", "app.model=model", "--seal"});
  EXPECT_THAT(no({"verify", path("out")}), HasSubstr("damage[SEAL_MISMATCH]: __1_0.distcp"));
}

TEST_F(SealTest, data_written_in_the_source_after_it_was_shared_are_damage) {
  if (formats::may_reflink(folder())) GTEST_SKIP() << "this file system may have reflinks";
  const std::string c = copy_of(kFolder, "c");
  done({"rename", c, path("out"), "--rename", "app.model=model"});
  EXPECT_THAT(done({"verify", path("out"), "--strict"}), HasSubstr("sound"));
  // Like a save into the same folder: other data of the same layout, in place.
  const std::filesystem::path shared = c + "/__0_0.distcp";
  const auto before = std::filesystem::last_write_time(shared);
  std::filesystem::last_write_time(shared, before + std::chrono::seconds(1));
  EXPECT_THAT(no({"verify", path("out")}),
              HasSubstr("damage[SHARED_CHANGED]: __0_0.distcp: was changed after it was linked"));
  // A copy of the folder has its own files.
  std::filesystem::copy(path("out"), path("copy"), std::filesystem::copy_options::recursive);
  done({"verify", path("copy")});
  // If every byte matches, times are ignored.
  std::filesystem::last_write_time(shared, before);
  done({"seal", path("out")});
  std::filesystem::last_write_time(shared, before + std::chrono::seconds(1));
  EXPECT_THAT(done({"verify", path("out")}), HasSubstr("matches its seal"));
}

TEST_F(SealTest, a_record_of_shared_files_that_cannot_be_read_is_damage) {
  const std::string c = copy_of(kFolder, "c");
  write_file(c + "/fsdp_shared.json", "{}");
  EXPECT_THAT(no({"verify", c}), HasSubstr("damage[SEAL]: fsdp_shared.json: the record of shared"));
}

// In the format of Megatron-Core, with json.dump(indent=2).
std::string integrity(const std::string& folder, const std::vector<std::string>& names) {
  std::string text = "{\n  \"algorithm\": \"sha256\",\n  \"files\": {\n";
  for (const std::string& name : names) {
    formats::Sha256 sha;
    sha.add(test::read_file(folder + "/" + name));
    text += "    \"" + name + "\": \"" + sha.finish() + "\"";
    text += name == names.back() ? "\n" : ",\n";
  }
  return text + "  }\n}";
}

TEST_F(SealTest, a_producer_s_list_of_sha256_is_compared) {
  EXPECT_EQ(formats::Sha256().finish(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  for (const char* name : {"integrity.json", "_integrity_manifest.json"}) {
    const std::string c = copy_of(kFolder, "c");
    const std::string list = integrity(c, {".metadata", "__0_0.distcp", "__1_0.distcp"});
    write_file(c + "/" + name, list);
    write_file(c + "/later.txt", "not listed");
    EXPECT_THAT(done({"verify", c, "--require-seal"}), HasSubstr(std::string("matches ") + name));
    done({"verify", c, "--fast"});
    const std::string metadata = file_bytes(c + "/.metadata");
    flip("c/.metadata", metadata.find("fc9afd27"));
    EXPECT_THAT(no({"verify", c}), HasSubstr("damage[SEAL_MISMATCH]: .metadata: SHA-256 listed"));
    EXPECT_THAT(no({"seal", c}), HasSubstr("not sealed"));
    write_file(c + "/.metadata", metadata);
    done({"seal", c});
    EXPECT_THAT(done({"verify", c}), HasSubstr(std::string("matches its seal and ") + name));
    std::filesystem::remove(c + "/fsdp_seal.json");
    const struct {
      std::string text;
      const char* message;
    } kBroken[] = {
        {"", "cannot be relied on"},
        {"[]", "expected an object"},
        {"{}", "has no object 'files'"},
        {"{\"algorithm\":\"md5\",\"files\":{}}", "has the algorithm '\"md5\"'"},
        {"{\"granularity\":\"tensor\",\"files\":{}}", "granularity"},
        {"{\"version\":2,\"files\":{}}", "has the version 2"},
        {"{\"files\":{\"a\":\"b\"}}", "'a' has no SHA-256"},
        {"{\"files\":{\"a\":1}}", "'a' has no SHA-256"},
    };
    for (const auto& broken : kBroken) {
      write_file(c + "/" + name, broken.text);
      EXPECT_THAT(no({"verify", c}), AllOf(HasSubstr("damage[SEAL]"), HasSubstr(broken.message)));
    }
    const std::string escaping = "{\"files\":{\"../x\":\"" + std::string(64, '0') + "\"}}";
    write_file(path("x"), "outside");
    write_file(c + "/" + name, escaping);
    EXPECT_THAT(no({"verify", c}), HasSubstr("damage[PATH_ESCAPE]"));
    write_file(c + "/" + name, list);
    std::filesystem::remove(c + "/__1_0.distcp");
    EXPECT_THAT(no({"verify", c, "--fast"}), HasSubstr("damage[SEAL_MISSING]: __1_0.distcp"));
    std::filesystem::remove_all(c);
  }
}

TEST_F(SealTest, json_says_what_was_sealed) {
  const std::string c = copy_of("2.11.0/minimal/ckpt", "c");
  const formats::Json json = formats::parse_json(done({"seal", c, "--json"}));
  EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/seal/1");
  EXPECT_TRUE(*json.find("sealed")->as_bool());
  EXPECT_EQ(json.find("files")->as_array()->size(), 2U);
  EXPECT_EQ(*json.find("output")->as_string(), c + "/fsdp_seal.json");
  const formats::Json verified = formats::parse_json(done({"verify", c, "--json"}));
  EXPECT_EQ(*verified.find("seal")->find("state")->as_string(), "matches");
  EXPECT_TRUE(verified.find("integrity")->is_null());
}

}  // namespace
}  // namespace fsdp::cli
