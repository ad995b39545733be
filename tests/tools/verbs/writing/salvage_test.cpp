// SPDX-License-Identifier: Apache-2.0
// Reports and refusals; tests/interop/check_salvage.py compares what is written with PyTorch.
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/support/dcp_folder.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using formats::Json;
using testing::HasSubstr;

constexpr const char* kFolder = "2.15.0/fsdp2/ckpt";

class SalvageTest : public CliTest {
 protected:
  static std::int64_t number(const Json& report, const char* member) {
    return *report.find(member)->as_int();
  }
  static void flip(const std::string& file, std::size_t at) {
    std::string bytes = file_bytes(file);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    write_file(file, bytes);
  }
};

TEST_F(SalvageTest, a_lost_file_leaves_rows_and_the_rest_comes_from_another) {
  const std::string folder = copy_of(kFolder, "folder");
  std::filesystem::remove(folder + "/__1_0.distcp");
  const CliResult part = run_cli({"salvage", folder, path("part")});
  EXPECT_EQ(part.status, 1) << part.err;
  EXPECT_THAT(part.out, HasSubstr("app.model.emb.weight: rows 19:38 of [38, 26] lost: "
                                  "__1_0.distcp is missing"));
  EXPECT_EQ(run_cli({"verify", path("part")}).status, 0);
  const CliResult whole =
      run_cli({"salvage", folder, path("whole"), "--from", golden_path(kFolder), "--json"});
  EXPECT_EQ(whole.status, 0) << whole.err;
  const Json report = formats::parse_json(whole.out);
  EXPECT_EQ(number(report, "taken"), number(report, "partly") + number(report, "lost"));
  EXPECT_EQ(run_cli({"diff", path("whole"), golden_path(kFolder)}).status, 0);
  const Json beside = formats::parse_json(file_bytes(path("whole.salvage.json")));
  EXPECT_EQ(to_text(*beside.find("keys")), to_text(*report.find("keys")));
}

TEST_F(SalvageTest, neither_the_source_nor_an_output_is_overwritten) {
  const std::string folder = copy_of(kFolder, "folder");
  EXPECT_THAT(run_cli({"salvage", folder, folder, "--force"}).err, HasSubstr("SAME_PATH"));
  EXPECT_THAT(run_cli({"salvage", folder, path("o"), "--from", path("o")}).err,
              HasSubstr("SAME_PATH"));
  ASSERT_EQ(run_cli({"salvage", folder, path("o")}).status, 0);
  EXPECT_THAT(run_cli({"salvage", folder, path("o")}).err, HasSubstr("error[EXISTS]"));
  std::filesystem::remove_all(path("o"));
  EXPECT_THAT(run_cli({"salvage", folder, path("o")}).err, HasSubstr("o.salvage.json"));
  EXPECT_FALSE(std::filesystem::exists(path("o")));
  EXPECT_EQ(run_cli({"salvage", folder, path("o"), "--force", "--dry-run"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

TEST_F(SalvageTest, a_cut_safetensors_file_keeps_what_lies_before_the_cut) {
  ASSERT_EQ(
      run_cli({"consolidate", golden_path(kFolder), path("m.safetensors"), "-k", "app.model.**"})
          .status,
      0);
  const std::string bytes = file_bytes(path("m.safetensors"));
  write_file(path("cut.safetensors"), bytes.substr(0, bytes.size() - 10));
  const CliResult cut =
      run_cli({"salvage", path("cut.safetensors"), path("o.safetensors"), "--json"});
  EXPECT_EQ(cut.status, 1) << cut.err;
  const Json report = formats::parse_json(cut.out);
  EXPECT_EQ(number(report, "lost"), 1);
  EXPECT_EQ(number(report, "whole"), 0);
  EXPECT_GT(number(report, "unchecked"), 10);
  EXPECT_EQ(run_cli({"verify", path("o.safetensors")}).status, 0);
}

TEST_F(SalvageTest, a_seal_is_a_checksum_and_tells_another_file) {
  const std::string folder = copy_of(kFolder, "folder");
  const std::string other = copy_of(kFolder, "other");
  ASSERT_EQ(run_cli({"seal", folder}).status, 0);
  ASSERT_EQ(run_cli({"salvage", folder, path("o")}).status, 0);
  flip(folder + "/.metadata", 400);
  EXPECT_THAT(run_cli({"salvage", folder, path("p")}).out, HasSubstr("metadata: those of"));
}

TEST_F(SalvageTest, what_does_not_fit_is_named) {
  std::filesystem::create_directory(path("run"));
  const std::string folder = copy_of(kFolder, "run/folder");
  const std::string other = copy_of("2.11.0/minimal/ckpt", "run/minimal");
  std::filesystem::remove(folder + "/.metadata");
  const CliResult refused = run_cli({"salvage", folder, path("o")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[NO_METADATA]"));
  EXPECT_THAT(refused.err, HasSubstr("minimal/.metadata does not fit: "));
  EXPECT_FALSE(std::filesystem::exists(path("o")));
}

constexpr const char* kPerRank = "frameworks/accelerate_fsdp1_sharded_per_rank_w2/ckpt";

TEST_F(SalvageTest, a_trainers_file_that_cannot_be_opened_is_named_and_the_others_are_taken) {
  const std::string folder = copy_of(kPerRank, "folder");
  std::filesystem::resize_file(folder + "/optimizer_0_rank1.bin", 2000);
  const CliResult text = run_cli({"salvage", folder, path("o.pt")});
  EXPECT_EQ(text.status, 1) << text.err;
  EXPECT_THAT(text.out, HasSubstr("not read: optimizer_0_rank1.bin: "));
  EXPECT_THAT(text.out, HasSubstr("fsdp-ckpt salvage " + folder + "/optimizer_0_rank1.bin OUT"));
  const CliResult result = run_cli({"salvage", folder, path("p.pt"), "--json"});
  const Json report = formats::parse_json(result.out);
  EXPECT_EQ(report.find("unread")->as_array()->size(), 1U);
  EXPECT_GT(number(report, "whole"), 30);
  EXPECT_GT(number(report, "partly"), 10);
  EXPECT_EQ(run_cli({"diff", path("p.pt"), golden_path(kPerRank), "-k", "model.**"}).status, 0);
  // With another step everything is there again.
  const CliResult whole =
      run_cli({"salvage", folder, path("q.pt"), "--from", golden_path(kPerRank)});
  EXPECT_EQ(whole.status, 0) << whole.out << whole.err;
  EXPECT_EQ(run_cli({"diff", path("q.pt"), golden_path(kPerRank)}).status, 0);
}

TEST_F(SalvageTest, a_part_of_a_folder_that_cannot_be_opened_is_not_passed_over) {
  ASSERT_EQ(run_cli({"convert", golden_path("frameworks/accelerate_fsdp2_full_w2/ckpt"),
                     path("folder"), "--to", "accelerate", "-w", "2"})
                .status,
            0);
  ASSERT_EQ(run_cli({"salvage", path("folder"), path("all.pt")}).status, 0);
  std::filesystem::remove(path("folder/optimizer_0/.metadata"));
  const CliResult part = run_cli({"salvage", path("folder"), path("o.pt")});
  EXPECT_EQ(part.status, 1) << part.out;
  EXPECT_THAT(part.out, HasSubstr("not read: optimizer_0: "));
  EXPECT_THAT(part.out, HasSubstr("nothing tells which keys they held"));
}

TEST_F(SalvageTest, a_replica_stands_for_a_damaged_copy) {
  const std::string folder = copy_of("frameworks/per_rank_tp_w4/ckpt", "folder");
  const std::string was = golden_path("frameworks/per_rank_tp_w4/ckpt");
  flip(folder + "/checkpoint_0.pt", 16768);  // model.blocks.0.norm.weight, which rank 1 has, too
  const CliResult text = run_cli({"salvage", folder, path("o.pt")});
  EXPECT_EQ(text.status, 0) << text.out << text.err;
  EXPECT_THAT(text.out, HasSubstr("taken from the files of other ranks: 1 key\n"
                                  "  model.blocks.0.norm.weight: checkpoint_0.pt: "));
  EXPECT_EQ(run_cli({"diff", path("o.pt"), was}).status, 0);
  flip(folder + "/checkpoint_1.pt", 16768);
  EXPECT_EQ(run_cli({"salvage", folder, path("p.pt")}).status, 1);
}

TEST_F(SalvageTest, partitions_keep_their_places_if_the_first_rank_is_lost) {
  const std::string name = "frameworks/deepspeed_zero2_w2/ckpt";
  const std::string folder = copy_of(name, "folder");
  std::filesystem::remove(folder + "/global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
  const CliResult part = run_cli({"salvage", folder, path("o.pt"), "--json"});
  EXPECT_EQ(part.status, 1) << part.err;
  const CliResult same = run_cli({"diff", path("o.pt"), golden_path(name), "--json"});
  const Json report = formats::parse_json(same.out);
  for (const Json& difference : *report.find("differences")->as_array())
    EXPECT_EQ(*difference.find("what")->as_string(), "only_b") << to_text(difference);
}

TEST_F(SalvageTest, names_that_a_lost_file_ties_are_not_believed_without_it) {
  const std::string folder = copy_of("frameworks/deepspeed_universal2_w2/ckpt", "folder");
  ASSERT_EQ(run_cli({"salvage", folder, path("all.pt")}).status, 0);
  std::filesystem::remove(folder + "/mp_rank_00_model_states.pt");
  const CliResult refused = run_cli({"salvage", folder, path("o.pt")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("nothing is whole, has no *_model_states.pt"));
  EXPECT_THAT(refused.err, HasSubstr("--from OTHER"));
}

// Two saves in one folder: the files of ranks 0 and 2 count 20 steps, that of rank 1 counts 10, and
// that of rank 3 none; it was written with those of 20.
class MixtureTest : public SalvageTest {
 protected:
  MixtureTest() {
    for (const int rank : {0, 1, 2, 3}) {
      const std::string file = "__" + std::to_string(rank) + "_0.distcp";
      const std::string name = std::string(1, static_cast<char>('a' + rank));
      folder_.metadata.tensors.push_back({"model." + name, {4}, {folder_.chunk({0}, {4}, file)}});
      if (rank == 3) continue;
      test::TorchZip zip;
      zip.root = test::integer(rank == 1 ? 10 : 20);
      folder_.metadata.values.push_back(
          {"optim.state." + name + ".step", folder_.append(zip.bytes(), file)});
    }
    folder_.write();
    const auto now = std::filesystem::file_time_type::clock::now();
    for (const auto& [file, bytes] : folder_.files) {
      std::filesystem::last_write_time(
          folder_.folder / file, now - std::chrono::seconds(file == "__1_0.distcp" ? 600 : 0));
    }
  }

  // Returns the keys that are written with these options.
  std::set<std::string> taken(const std::string& out, const std::vector<std::string>& options) {
    std::vector<std::string> args = {"salvage", folder_.folder.path(), path(out), "--json"};
    args.insert(args.end(), options.begin(), options.end());
    const Json report = formats::parse_json(run_cli(args).out);
    std::set<std::string> keys;
    for (const Json& key : *report.find("keys")->as_array()) {
      if (key.find("origin")->as_string() != nullptr) keys.insert(*key.find("key")->as_string());
    }
    return keys;
  }

  test::DcpFolder folder_;
};

TEST_F(MixtureTest, is_refused_and_taken_apart_by_steps_and_times) {
  const CliResult refused = run_cli({"salvage", folder_.folder.path(), path("o.pt")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("__1_0.distcp count step 10; __0_0.distcp and 1 more count step 20; "
                        "--step N takes those that count step N"));
  EXPECT_FALSE(std::filesystem::exists(path("o.pt")));
  EXPECT_THAT(taken("p.pt", {"--step", "20"}),
              testing::ElementsAre("model.a", "model.c", "model.d", "optim.state.a.step",
                                   "optim.state.c.step"));
  EXPECT_THAT(taken("q.pt", {"--step", "10"}),
              testing::ElementsAre("model.b", "optim.state.b.step"));
  EXPECT_THAT(run_cli({"salvage", folder_.folder.path(), path("r.pt"), "--step", "30"}).err,
              HasSubstr("no file counts step 30; they count 10, 20"));
}

TEST_F(MixtureTest, a_file_without_counts_that_was_written_at_another_time_is_left_out) {
  std::filesystem::last_write_time(
      folder_.folder / "__3_0.distcp",
      std::filesystem::file_time_type::clock::now() - std::chrono::seconds(300));
  EXPECT_THAT(taken("p.pt", {"--step", "20"}), testing::Not(testing::Contains("model.d")));
}

TEST_F(SalvageTest, values_with_the_same_bytes_in_a_folder_are_both_lost) {
  test::DcpFolder made;
  made.add_value("epoch", test::integer(3));
  made.add_value("steps", test::integer(5));
  made.add_value("whole", test::integer(7));
  made.metadata.values[1].item = made.metadata.values[0].item;
  made.write();
  const CliResult part = run_cli({"salvage", made.folder.path(), path("o.pt")});
  EXPECT_EQ(part.status, 1) << part.err;
  for (const std::string key : {"epoch", "steps"}) {
    EXPECT_THAT(part.out, HasSubstr(key + ": __0_0.distcp: 'steps': the item shares bytes with "
                                          "that of 'epoch', which ends at byte 622"));
  }
}

TEST_F(SalvageTest, an_interrupted_save_is_read_by_the_metadata_that_were_about_to_be_renamed) {
  const std::string folder = copy_of(kFolder, "folder");
  std::filesystem::rename(folder + "/.metadata", folder + "/.metadata.tmp");
  const CliResult found = run_cli({"salvage", folder, path("o")});
  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("folder/.metadata.tmp fit every item"));
  EXPECT_EQ(run_cli({"diff", path("o"), golden_path(kFolder)}).status, 0);
  // A data file that was not yet written to its end does not fit them.
  std::filesystem::resize_file(folder + "/__1_0.distcp", 100000);
  const CliResult refused = run_cli({"salvage", folder, path("p")});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("__1_0.distcp has 100000 bytes, its items would end at byte"));
}

TEST_F(SalvageTest, what_verify_cannot_know_of_a_siblings_metadata_is_said) {
  const std::string folder = copy_of(kFolder, "folder");
  const std::string sibling = copy_of(kFolder, "sibling");
  std::filesystem::copy_file(sibling + "/.metadata", folder + "/.metadata",
                             std::filesystem::copy_options::overwrite_existing);
  const char* const unknown = "structure and checksums only, not whether all files are of one save";
  EXPECT_THAT(run_cli({"verify", folder}).out, HasSubstr(unknown));
  EXPECT_THAT(run_cli({"verify", golden_path("2.11.0/minimal/ckpt")}).out, HasSubstr(unknown));
  ASSERT_EQ(run_cli({"seal", folder}).status, 0);
  EXPECT_THAT(run_cli({"verify", folder}).out, testing::Not(HasSubstr(unknown)));
}

}  // namespace
}  // namespace fsdp::cli
