// SPDX-License-Identifier: Apache-2.0
// Checkpoints of trainers, as their own packages wrote them: golden/frameworks.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/families/checks/content_check.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/content/value_compare.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

fs::path golden(const std::string& name) {
  return test::data_path("golden/frameworks/" + name + "/ckpt");
}

// A copy, to take files away from or to damage.
class Copy {
 public:
  explicit Copy(const std::string& name) : path_(dir_.path() / "ckpt") {
    fs::copy(golden(name), path_, fs::copy_options::recursive);
  }
  fs::path path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  test::TempDir dir_;
  fs::path path_;
};

const TensorEntry* tensor(const Checkpoint& checkpoint, const std::string& key) {
  for (const TensorEntry& entry : checkpoint.index().tensors) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}
std::vector<std::string> boxes(const Checkpoint& checkpoint, const std::string& key) {
  std::vector<std::string> out;
  const TensorEntry* entry = tensor(checkpoint, key);
  if (entry == nullptr) return {"no tensor " + key};
  for (std::size_t c = 0; c < entry->chunks.size(); ++c)
    out.push_back(box_text(entry->chunks.box(c)));
  return out;
}
std::set<std::string> codes(const Findings& findings) {
  std::set<std::string> out;
  for (const Finding& finding : findings) out.insert(std::string(code_name(finding.code)));
  return out;
}
std::vector<std::string> top_keys(const Checkpoint& checkpoint) {
  std::vector<std::string> out;
  const Value content = content_of(checkpoint);
  for (const auto& [key, value] : content.entries()) out.push_back(*key.as_string());
  return out;
}
VerifyOptions fast() {
  VerifyOptions options;
  options.fast = true;
  return options;
}
std::string text_of(const Findings& findings) {
  std::string out;
  for (const Finding& finding : findings) out += finding_text(finding) + "\n";
  return out;
}

TEST(Frameworks, deepspeed_is_opened_by_its_root_or_its_tag) {
  for (const char* below : {"", "global_step2"}) {
    const auto checkpoint = open_checkpoint(golden("deepspeed_zero2_w2") / below);
    EXPECT_EQ(checkpoint->description().format, "deepspeed");
    EXPECT_EQ(checkpoint->description().layout, "zero-2");
    EXPECT_EQ(checkpoint->description().version, "0.19.8");
    EXPECT_EQ(checkpoint->description().ranks, 2);
    EXPECT_THAT(checkpoint->verify({}).findings, testing::IsEmpty());
    check_before_copy(*checkpoint, content_of(*checkpoint), {});
    EXPECT_THAT(top_keys(*checkpoint), Contains("optimizer"));
  }
}

TEST(Frameworks, deepspeed_partitions_are_boxes_of_the_parameters) {
  const auto two = open_checkpoint(golden("deepspeed_zero2_w2"));
  // The boundary of the two ranks lies inside this tensor: part of a row, whole rows, the rest.
  std::size_t cut = 0;
  for (const TensorEntry& entry : two->index().tensors) cut += entry.chunks.size() > 1 ? 1 : 0;
  EXPECT_GT(cut, 0U);
  EXPECT_EQ(tensor(*two, "model.out.weight")->dtype, DType::kFloat32);
  EXPECT_EQ(tensor(*two, "model.blocks.0.up.weight")->dtype, DType::kBFloat16);   // frozen
  EXPECT_EQ(boxes(*two, "model.again.weight"), boxes(*two, "model.out.weight"));  // tied
  const auto three = open_checkpoint(golden("deepspeed_zero3_w3"));
  EXPECT_EQ(three->description().layout, "zero-3");
  // 7 elements on 3 ranks.
  EXPECT_THAT(boxes(*three, "model.inp.bias"), ElementsAre("[0:3]", "[3:6]", "[6:7]"));
  EXPECT_THAT(boxes(*three, "optimizer.state.inp.bias.exp_avg"),
              ElementsAre("[0:3]", "[3:6]", "[6:7]"));
}

TEST(Frameworks, a_deepspeed_rank_that_is_missing_is_named_and_its_part_is_a_hole) {
  for (const char* name : {"deepspeed_zero2_w2", "deepspeed_zero3_w3"}) {
    const Copy copy(name);
    fs::remove(copy / "global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt");
    const auto checkpoint = open_checkpoint(copy.path());
    const auto report = checkpoint->verify(fast());
    EXPECT_THAT(codes(report.findings), Contains("HOLE"));
    EXPECT_THAT(text_of(report.findings), HasSubstr("missing *_optim_states.pt: rank 1"));
    test::expect_error(ErrorCode::kShardMissing, "rank 1",
                       [&] { check_before_copy(*checkpoint, content_of(*checkpoint), {}); });
  }
}

TEST(Frameworks, a_deepspeed_folder_that_is_not_whole_says_what_is_missing) {
  Copy copy("deepspeed_zero2_w2");
  for (const int rank : {0, 1}) {
    fs::remove(copy / ("global_step2/bf16_zero_pp_rank_" + std::to_string(rank) +
                       "_mp_rank_00_optim_states.pt"));
  }
  test::expect_error(ErrorCode::kShardMissing, "has no *_optim_states.pt",
                     [&] { open_checkpoint(copy.path()); });
  const Copy other("deepspeed_zero2_w2");
  fs::remove(other / "global_step2/mp_rank_00_model_states.pt");
  test::expect_error(ErrorCode::kShardMissing, "has no *_model_states.pt",
                     [&] { open_checkpoint(other.path()); });
  const Copy parallel("deepspeed_zero2_w2");
  fs::copy_file(parallel / "global_step2/mp_rank_00_model_states.pt",
                parallel / "global_step2/mp_rank_01_model_states.pt");
  test::expect_error(ErrorCode::kUnsupported, "tensor parallel rank 1",
                     [&] { open_checkpoint(parallel.path()); });
}

TEST(Frameworks, latest_leads_nowhere_else) {
  for (const std::string tag : {"../ckpt/global_step2", "..", "", "nothing", "/"}) {
    const Copy copy("deepspeed_zero2_w2");
    std::ofstream(copy / "latest") << tag;
    test::expect_error(ErrorCode::kUnknownFormat, "global_step2",
                       [&] { open_checkpoint(copy.path()); });
  }
}

TEST(Frameworks, files_of_two_saves_are_not_mixed) {
  const Copy copy("deepspeed_zero2_w2");
  const std::string name = "global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  fs::copy_file(golden("deepspeed_zero3_w3") / name, copy / name,
                fs::copy_options::overwrite_existing);
  test::expect_error(ErrorCode::kMetaType, "the files are from two saves",
                     [&] { open_checkpoint(copy.path()); });
}

// A universal checkpoint has the content of the ZeRO checkpoint that it was made from.
TEST(Frameworks, a_universal_checkpoint_has_the_index_of_the_partitions) {
  const std::pair<const char*, const char*> pairs[] = {
      {"deepspeed_universal2_w2", "deepspeed_zero2_w2"},
      {"deepspeed_universal3_w3", "deepspeed_zero3_w3"}};
  for (const auto& [universal, zero] : pairs) {
    const auto made = open_checkpoint(golden(universal));
    const auto from = open_checkpoint(golden(zero));
    EXPECT_EQ(made->description().layout, "universal");
    EXPECT_EQ(made->description().version, "0.19.8");
    EXPECT_EQ(made->description().ranks, from->description().ranks);
    EXPECT_THAT(made->verify({}).findings, testing::IsEmpty());
    check_before_copy(*made, content_of(*made), {});
    ASSERT_EQ(made->index().tensors.size(), from->index().tensors.size());
    for (const TensorEntry& want : from->index().tensors) {
      const TensorEntry* found = tensor(*made, want.key);
      ASSERT_NE(found, nullptr) << want.key;
      EXPECT_EQ(found->shape, want.shape) << want.key;
      EXPECT_EQ(found->dtype, want.dtype) << want.key;
    }
    ASSERT_EQ(made->index().values.size(), from->index().values.size());
    for (const ValueEntry& want : from->index().values)
      EXPECT_TRUE(compare_values(made->value(want), from->value(want)).same) << want.key;
  }
}

TEST(Frameworks, latest_universal_is_followed_where_there_is_no_latest) {
  const test::TempDir dir;
  fs::copy(golden("deepspeed_universal2_w2"), dir.path() / "step_2", fs::copy_options::recursive);
  std::ofstream(dir.path() / "latest_universal") << "step_2";
  EXPECT_EQ(open_checkpoint(dir.path())->description().layout, "universal");
  fs::copy(golden("deepspeed_zero2_w2"), dir.path(), fs::copy_options::recursive);
  EXPECT_EQ(open_checkpoint(dir.path())->description().layout, "zero-2");
  // A folder of that name is not a tag file.
  const test::TempDir other;
  fs::create_directories(other.path() / "latest");
  test::expect_error(ErrorCode::kUnknownFormat, "is not a checkpoint",
                     [&] { open_checkpoint(other.path()); });
}

// Each state of each parameter has a file: a missing one must be reported.
TEST(Frameworks, a_universal_state_that_is_missing_is_a_finding_and_a_hole) {
  for (const char* state : {"fp32", "exp_avg", "exp_avg_sq", "step"}) {
    const Copy copy("deepspeed_universal2_w2");
    const std::string file = std::string("zero/inp.bias/") + state + ".pt";
    fs::remove(copy / file);
    const auto checkpoint = open_checkpoint(copy.path());
    EXPECT_THAT(text_of(checkpoint->verify(fast()).findings), HasSubstr(file)) << state;
    test::expect_error(ErrorCode::kShardMissing, file,
                       [&] { check_before_copy(*checkpoint, content_of(*checkpoint), {}); });
  }
  const Copy copy("deepspeed_universal2_w2");
  fs::remove_all(copy / "zero/inp.bias");
  const auto checkpoint = open_checkpoint(copy.path());
  test::expect_error(ErrorCode::kShardMissing, "zero/inp.bias/fp32.pt",
                     [&] { check_before_copy(*checkpoint, content_of(*checkpoint), {}); });
}

TEST(Frameworks, what_lies_in_a_universal_folder_is_read_or_named) {
  const Copy copy("deepspeed_universal2_w2");
  for (const char* name : {"zero/notes.dat", "zero/inp.bias/exp_avg.bak", "more.pt"})
    std::ofstream(copy / name) << "x";
  fs::copy_file(copy / "mp_rank_00_model_states.pt", copy / "mp_rank_01_model_states.pt");
  const auto checkpoint = open_checkpoint(copy.path());
  for (const char* name :
       {"zero/notes.dat", "zero/inp.bias/exp_avg.bak", "more.pt", "mp_rank_01_model_states.pt"})
    EXPECT_THAT(text_of(checkpoint->findings()), HasSubstr(name));
}

TEST(Frameworks, a_universal_state_of_another_shape_or_of_no_tensor_is_a_finding) {
  const std::string wrong = "zero/inp.bias/fp32.pt";
  for (const char* other : {"zero/inp.weight/fp32.pt", "zero/optimizer_state.pt"}) {
    const Copy copy("deepspeed_universal2_w2");
    fs::copy_file(copy / other, copy / wrong, fs::copy_options::overwrite_existing);
    const auto checkpoint = open_checkpoint(copy.path());
    EXPECT_THAT(text_of(checkpoint->verify(fast()).findings), HasSubstr(wrong)) << other;
    EXPECT_THROW(check_before_copy(*checkpoint, content_of(*checkpoint), {}), Error) << other;
  }
}

TEST(Frameworks, accelerate_joins_model_and_optimizer) {
  const auto full = open_checkpoint(golden("accelerate_fsdp2_full_w2"));
  EXPECT_EQ(full->description().format, "accelerate");
  EXPECT_EQ(full->description().layout, "full");
  EXPECT_THAT(top_keys(*full), ElementsAre("model", "optimizer", "scheduler"));
  const auto ranks = open_checkpoint(golden("accelerate_fsdp1_sharded_per_rank_w2"));
  EXPECT_EQ(ranks->description().layout, "per-rank");
  EXPECT_THAT(boxes(*ranks, "model.inp.weight"), ElementsAre("[0:4, 0:6]", "[4:7, 0:6]"));
  EXPECT_THAT(boxes(*ranks, "optimizer.state.inp.weight.exp_avg"),
              ElementsAre("[0:4, 0:6]", "[4:7, 0:6]"));
  for (const auto* checkpoint : {&full, &ranks}) {
    EXPECT_THAT((*checkpoint)->verify({}).findings, testing::IsEmpty());
    check_before_copy(**checkpoint, content_of(**checkpoint), {});
  }
}

TEST(Frameworks, what_accelerate_saves_beside_them_is_named) {
  const Copy copy("accelerate_fsdp2_full_w2");
  std::ofstream(copy / "random_states_0.pkl") << "rng";
  fs::copy_file(copy / "scheduler.bin", copy / "scaler.pt");
  // An object of a class that only the trainer knows.
  fs::copy_file(golden("trainer_bin") / "training_args.bin", copy / "sampler.bin");
  const auto full = open_checkpoint(copy.path());
  EXPECT_THAT(top_keys(*full), ElementsAre("model", "optimizer", "scaler", "scheduler"));
  EXPECT_THAT(codes(full->verify({}).findings), ElementsAre("EXTRA_FILE"));
  EXPECT_THAT(text_of(full->findings()), HasSubstr("random_states_0.pkl, sampler.bin"));
}

TEST(Frameworks, archives_of_joined_parts_are_kept_apart) {
  // The values of both files hold storages; each is found again through the whole.
  const auto full = open_checkpoint(golden("accelerate_fsdp2_full_w2"));
  const auto model = open_checkpoint(golden("accelerate_fsdp2_full_w2") / "pytorch_model_fsdp.bin");
  const auto optimizer = open_checkpoint(golden("accelerate_fsdp2_full_w2") / "optimizer.bin");
  const auto same = [](const ChunkData& a, const ChunkData& b) {
    return a.file == b.file && a.storage_offset == b.storage_offset && a.first == b.first;
  };
  for (const TensorEntry& entry : full->index().tensors) {
    const bool of_model = entry.key.starts_with("model.");
    const Checkpoint& part = of_model ? *model : *optimizer;
    const TensorEntry* own = tensor(part, entry.key.substr(of_model ? 6 : 10));
    ASSERT_NE(own, nullptr) << entry.key;
    EXPECT_TRUE(same(full->chunk(entry, 0), part.chunk(*own, 0))) << entry.key;
  }
}

TEST(Frameworks, files_of_each_rank_are_put_together) {
  const auto checkpoint = open_checkpoint(golden("per_rank_tp_w4"));
  EXPECT_EQ(checkpoint->description().format, "per-rank");
  EXPECT_EQ(checkpoint->description().ranks, 4);
  EXPECT_THAT(checkpoint->verify({}).findings, testing::IsEmpty());
  // 12 rows, tensor parallel first, then data parallel: ranks 0 to 3 in this order.
  EXPECT_THAT(boxes(*checkpoint, "model.blocks.0.up.weight"),
              ElementsAre("[0:3, 0:10]", "[6:9, 0:10]", "[3:6, 0:10]", "[9:12, 0:10]"));
}

TEST(Frameworks, torch_checkpointing_places_what_each_rank_holds) {
  const auto two = open_checkpoint(golden("torch_checkpointing_safetensors_w2"));
  EXPECT_EQ(two->description().format, "torch-checkpointing");
  EXPECT_EQ(two->description().layout, "sharded");
  EXPECT_EQ(two->description().version, "2.0");
  EXPECT_EQ(two->description().ranks, 2);
  EXPECT_THAT(two->verify({}).findings, testing::IsEmpty());
  check_before_copy(*two, content_of(*two), {});
  EXPECT_THAT(boxes(*two, "model.0.weight"), ElementsAre("[0:4, 0:5]", "[4:7, 0:5]"));
  EXPECT_EQ(boxes(*two, "optimizer.state.0.exp_avg"), boxes(*two, "model.0.weight"));
  EXPECT_THAT(boxes(*two, "model.1.running_mean"), ElementsAre("[0:7]"));
  // Several boxes in one tensor of a rank's file, of torch.save and safetensors.
  const auto three = open_checkpoint(golden("torch_checkpointing_boxes_w3"));
  EXPECT_THAT(three->verify({}).findings, testing::IsEmpty());
  EXPECT_THAT(boxes(*three, "table.even"), ElementsAre("[0:1, 0:3]", "[5:6, 0:3]", "[4:5, 0:3]",
                                                       "[1:2, 0:3]", "[3:4, 0:3]", "[2:3, 0:3]"));
  EXPECT_EQ(boxes(*three, "bare.even"), boxes(*three, "table.even"));
}

TEST(Frameworks, torch_checkpointing_names_a_missing_file) {
  const Copy copy("torch_checkpointing_safetensors_w2");
  fs::remove(copy / "weights/1.safetensors");
  const auto checkpoint = open_checkpoint(copy.path());
  EXPECT_THAT(codes(checkpoint->findings()), ElementsAre("SHARD_MISSING"));
  EXPECT_EQ(checkpoint->findings()[0].file, "weights/1.safetensors");
  const auto report = checkpoint->verify({});
  EXPECT_EQ(report.findings.at(1).key, "model.0.bias");
  test::expect_error(ErrorCode::kHole, "chunks cover",
                     [&] { check_before_copy(*checkpoint, content_of(*checkpoint), {}); });
}

TEST(Frameworks, torch_checkpointing_without_metadata_is_known_by_its_tensors) {
  const Copy copy("torch_checkpointing_safetensors_w2");
  fs::remove(copy / "metadata.pkl");
  fs::remove_all(copy / "weights");
  const auto checkpoint = open_checkpoint(copy.path());
  EXPECT_EQ(checkpoint->description().format, "torch-checkpointing");
  EXPECT_EQ(checkpoint->description().layout, "per-rank");
  EXPECT_THAT(boxes(*checkpoint, "optimizer.state.0.exp_avg"),
              ElementsAre("[0:4, 0:5]", "[4:7, 0:5]"));
}

TEST(Frameworks, one_ranks_file_shows_its_part) {
  const auto one = open_checkpoint(golden("per_rank_tp_w4") / "checkpoint_1.pt");
  EXPECT_EQ(one->description().layout, "one-rank");
  EXPECT_EQ(one->index().files.at(0).rank, 1);
  EXPECT_THAT(boxes(*one, "model.blocks.0.up.weight"), ElementsAre("[6:9, 0:10]"));
  EXPECT_THAT(text_of(one->findings()), HasSubstr("missing files: rank 0, 2, 3"));
  test::expect_error(ErrorCode::kHole, "chunks cover",
                     [&] { check_before_copy(*one, content_of(*one), {}); });
}

TEST(Frameworks, ranks_that_contradict_each_other_are_refused) {
  const Copy copy("per_rank_tp_w4");
  fs::copy_file(golden("accelerate_fsdp1_sharded_per_rank_w2") / "pytorch_model_fsdp_0_rank0.bin",
                copy / "checkpoint_4.pt");
  // It has other keys, so it only adds what no rank has in full.
  const auto mixed = open_checkpoint(copy.path());
  EXPECT_THAT(codes(mixed->verify(fast()).findings), Contains("HOLE"));
}

TEST(Frameworks, a_value_on_one_rank_is_no_mapping_on_another) {
  const Copy copy("torch_checkpointing_safetensors_w2");
  fs::copy_file(copy / "train_1.pt", copy / "step_1.pt", fs::copy_options::overwrite_existing);
  test::expect_error(ErrorCode::kKey, "on another", [&] { open_checkpoint(copy.path()); });
}

// Boxes of 35 elements, 5 in a row, cut into 2 parts of 25 elements in all with their neighbours.
TEST(Frameworks, fairscale_shards_are_parts_of_the_parameters) {
  const auto two = open_checkpoint(golden("fairscale_nested_w2"));
  EXPECT_EQ(two->description().layout, "fairscale");
  EXPECT_EQ(two->description().ranks, 2);
  EXPECT_THAT(two->verify({}).findings, testing::IsEmpty());
  check_before_copy(*two, content_of(*two), {});
  EXPECT_THAT(boxes(*two, "inp.weight"), ElementsAre("[0:5, 0:5]", "[5:7, 0:5]"));
  EXPECT_EQ(boxes(*two, "again.weight"), boxes(*two, "inp.weight"));  // tied
  EXPECT_THAT(boxes(*two, "scale.one"), ElementsAre("[0:1]"));
  EXPECT_EQ(tensor(*two, "seen")->dtype, DType::kInt64);
  // Metadata in separate files.
  const auto three = open_checkpoint(golden("fairscale_unflattened_w3"));
  EXPECT_THAT(boxes(*three, "inp.bias"), ElementsAre("[0:3]", "[3:6]", "[6:7]"));
  EXPECT_THAT(text_of(three->findings()), HasSubstr("again.weight"));
}

TEST(Frameworks, what_of_fairscale_is_each_ranks_own_is_named) {
  const auto checkpoint = open_checkpoint(golden("fairscale_trainer_w3"));
  EXPECT_THAT(top_keys(*checkpoint), ElementsAre("model", "extra_state", "last_optimizer_state"));
  EXPECT_THAT(text_of(checkpoint->findings()), HasSubstr("expert.flat_param_0"));
}

// States are cut where the parameters are.
TEST(Frameworks, fairscale_optimizers_are_joined_by_name) {
  const auto flat = open_checkpoint(golden("fairscale_trainer_w3"));
  for (const char* name : {"inp.weight", "again.bias", "block.down.weight", "scale.one"}) {
    for (const char* state : {".exp_avg", ".exp_avg_sq"}) {
      EXPECT_EQ(boxes(*flat, "last_optimizer_state.state." + std::string(name) + state),
                boxes(*flat, "model." + std::string(name)));
    }
    EXPECT_EQ(tensor(*flat, "last_optimizer_state.state." + std::string(name) + ".step")->shape,
              std::vector<std::int64_t>());
  }
  // Tied weights have one state; buffers none.
  EXPECT_EQ(tensor(*flat, "last_optimizer_state.state.again.weight.exp_avg"), nullptr);
  EXPECT_EQ(tensor(*flat, "last_optimizer_state.state.seen.exp_avg"), nullptr);
  check_before_copy(*flat, content_of(*flat), {});
  const auto each = open_checkpoint(golden("fairscale_parameters_w2"));
  EXPECT_THAT(boxes(*each, "optimizer.state.inp.bias.exp_avg"), ElementsAre("[0:4]", "[4:7]"));
}

TEST(Frameworks, a_fairscale_rank_that_is_missing_is_a_hole) {
  for (const int rank : {0, 1, 2}) {
    const Copy copy("fairscale_trainer_w3");
    fs::remove(copy / ("checkpoint_last-shard" + std::to_string(rank) + ".pt"));
    const auto checkpoint = open_checkpoint(copy.path());
    const Findings found = checkpoint->verify(fast()).findings;
    EXPECT_THAT(codes(found), Contains("HOLE")) << rank;
    // The last rank's part of the small units is only padding.
    EXPECT_THAT(text_of(found), HasSubstr("'last_optimizer_state.state.inp.weight.exp_avg'"))
        << rank;
    EXPECT_THROW(check_before_copy(*checkpoint, content_of(*checkpoint), {}), Error) << rank;
  }
}

TEST(Frameworks, fairscale_shards_of_other_models_are_refused) {
  const Copy copy("fairscale_trainer_w3");
  fs::copy_file(golden("fairscale_nested_w2") / "shard_1.pt", copy / "checkpoint_last-shard1.pt",
                fs::copy_options::overwrite_existing);
  test::expect_error(ErrorCode::kMetaType, "other parameters than another rank",
                     [&] { open_checkpoint(copy.path()); });
  const Copy lost("fairscale_unflattened_w3");
  fs::remove(lost / "meta_rank1.pth");
  test::expect_error(ErrorCode::kShardMissing, "no file of metadata of rank 1",
                     [&] { open_checkpoint(lost.path()); });
}

TEST(Frameworks, the_trainers_files_are_one_checkpoint) {
  for (const char* name : {"trainer_safetensors", "trainer_bin"}) {
    const auto checkpoint = open_checkpoint(golden(name));
    EXPECT_EQ(checkpoint->description().format, "trainer");
    EXPECT_THAT(top_keys(*checkpoint), ElementsAre("model", "optimizer", "rng_state", "scheduler"));
    check_before_copy(*checkpoint, content_of(*checkpoint), {});
    // Numbers of parameters stay numbers, whatever the model's file is.
    const Value content = content_of(*checkpoint);
    const Value* state = content.find("optimizer")->find("state");
    EXPECT_EQ(state->entries()[0].first.as_int(), 0) << name;
    // config.json and training_args.bin beside them hold no state.
    EXPECT_THAT(checkpoint->verify({}).findings, testing::IsEmpty());
  }
}

TEST(Frameworks, a_model_alone_is_no_trainers_folder) {
  const Copy copy("trainer_safetensors");
  for (const char* name : {"optimizer.pt", "scheduler.pt", "rng_state.pth"}) {
    EXPECT_EQ(open_checkpoint(copy.path())->description().format, "trainer") << name;
    fs::remove(copy / name);
  }
  EXPECT_EQ(open_checkpoint(copy.path())->description().format, "safetensors");
}

TEST(Frameworks, what_a_trainer_saves_beside_deepspeeds_folder_is_read_or_named) {
  const Copy copy("deepspeed_zero2_w2");
  for (const char* own : {"zero_to_fp32.py", "zero_to_torch.py"}) std::ofstream(copy / own) << "#";
  EXPECT_THAT(open_checkpoint(copy.path())->findings(), testing::IsEmpty());
  fs::copy_file(golden("trainer_bin") / "scheduler.pt", copy / "scheduler.pt");
  fs::copy_file(golden("trainer_bin") / "rng_state.pth", copy / "rng_state_0.pth");
  // Holds a class that only the trainer knows.
  fs::copy_file(golden("trainer_bin") / "training_args.bin", copy / "sampler.pt");
  const auto checkpoint = open_checkpoint(copy.path());
  EXPECT_EQ(checkpoint->description().layout, "zero-2");
  EXPECT_THAT(top_keys(*checkpoint), testing::IsSupersetOf({"model", "optimizer", "global_steps",
                                                            "rng_state_0", "scheduler"}));
  EXPECT_THAT(text_of(checkpoint->findings()),
              HasSubstr("in no output but one of the same layout (reshard): sampler.pt"));
  check_before_copy(*checkpoint, content_of(*checkpoint), {});
}

// Not left out with a note like unreadable files of others: consolidate would continue without it.
TEST(Frameworks, a_trainers_file_that_cannot_be_read_is_damage) {
  const std::string scheduler = "scheduler.pt";
  const auto damaged = [&](const Copy& copy, const std::string& name, std::string content) {
    const auto before = test::read_file(copy / name);
    if (content == "cut")
      content = std::string(reinterpret_cast<const char*>(before.data()), before.size() / 2);
    if (content == "link") {
      fs::remove(copy / name);
      fs::create_symlink("nowhere", copy / name);
    } else {
      test::write_file(copy / name, content);
    }
    const auto checkpoint = open_checkpoint(copy.path());
    const Findings& findings = checkpoint->findings();
    ASSERT_FALSE(findings.empty()) << content;
    EXPECT_EQ(findings.back().file, name);
    EXPECT_EQ(findings.back().severity, Finding::Severity::kDamage);
    test::expect_error(findings.back().code, name,
                       [&] { check_before_copy(*checkpoint, content_of(*checkpoint), {}); });
    fs::remove(copy / name);
    test::write_file(copy / name,
                     std::string(reinterpret_cast<const char*>(before.data()), before.size()));
    check_before_copy(*open_checkpoint(copy.path()), content_of(*open_checkpoint(copy.path())), {});
  };
  for (const char* content : {"", "cut", "link", "no archive"}) {
    SCOPED_TRACE(content);
    for (const char* name : {"trainer_safetensors", "trainer_bin"}) {
      damaged(Copy(name), "scheduler.pt", content);
      damaged(Copy(name), "rng_state.pth", content);
    }
    damaged(Copy("accelerate_fsdp2_full_w2"), "scheduler.bin", content);
    const Copy copy("deepspeed_zero2_w2");
    fs::copy_file(golden("trainer_bin") / scheduler, copy / scheduler);
    damaged(copy, scheduler, content);
  }
  // The optimizer is a part like the model: without it there is nothing to open.
  const Copy copy("trainer_safetensors");
  for (const char* other : {"scheduler.pt", "rng_state.pth"}) fs::remove(copy / other);
  test::write_file(copy / "optimizer.pt", std::string(1000, '\0'));
  test::expect_error(ErrorCode::kZipEocd, "optimizer.pt", [&] { open_checkpoint(copy.path()); });
}

// For any damaged byte, opening and verifying report it or continue; nothing else is thrown.
TEST(Frameworks, damaged_files_give_errors_and_nothing_worse) {
  const std::pair<const char*, const char*> cases[] = {
      {"deepspeed_zero2_w2", "global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"},
      {"deepspeed_zero3_w3", "global_step2/zero_pp_rank_0_mp_rank_00_model_states.pt"},
      {"deepspeed_universal2_w2", "zero/inp.weight/fp32.pt"},
      {"deepspeed_universal3_w3", "zero/optimizer_state.pt"},
      {"fairscale_trainer_w3", "checkpoint_last-shard1.pt"},
      {"fairscale_unflattened_w3", "meta_rank0.pth"},
      {"trainer_safetensors", "optimizer.pt"},
      {"per_rank_tp_w4", "checkpoint_2.pt"},
      {"torch_checkpointing_boxes_w3", "metadata.pkl"},
      {"torch_checkpointing_safetensors_w2", "optimizer_1.pt"}};
  for (const auto& [name, file] : cases) {
    const Copy copy(name);
    const auto bytes = test::read_file(copy / file);
    std::size_t refused = 0;
    for (std::size_t at = 0; at < bytes.size(); at += 97) {
      std::fstream out(copy / file, std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(static_cast<std::streamoff>(at));
      out.put(static_cast<char>(~std::to_integer<unsigned>(bytes[at])));
      out.close();
      try {
        const auto checkpoint = open_checkpoint(copy.path());
        const auto report = checkpoint->verify({});
        refused += report.findings.empty() ? 0 : 1;
        content_of(*checkpoint);
      } catch (const Error&) {
        ++refused;
      }
      std::fstream back(copy / file, std::ios::in | std::ios::out | std::ios::binary);
      back.seekp(static_cast<std::streamoff>(at));
      back.put(static_cast<char>(std::to_integer<unsigned>(bytes[at])));
    }
    EXPECT_GT(refused, bytes.size() / 97 / 2) << name;
  }
}

}  // namespace
}  // namespace fsdp::formats
