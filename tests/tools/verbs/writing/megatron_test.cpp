// SPDX-License-Identifier: Apache-2.0
// Folders of Megatron-Core (tests/interop/make_megatron.py): torch_dist, fsdp_dtensor, each made of
// the other.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/changes/megatron/form.h"
#include "formats/front/open.h"
#include "tests/support/golden.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string> kHeads = {"--set", "n_heads=4", "--set", "n_kv_heads=2"};

class Megatron : public CliTest {
 protected:
  // A model of two layers, of two ranks of tensor parallelism, by Megatron-Core 0.16.1.
  static std::string gpt() { return test::data_path("producers/megatron_gpt").native(); }
  // The same model by 0.19.2, and what its own load gives.
  static std::string newer_gpt() { return test::data_path("producers/megatron_gpt_0.19").native(); }
  static std::string newer_truth() { return newer_gpt() + ".pt"; }

  CliResult ran(std::vector<std::string> words, const std::vector<std::string>& more = {}) {
    words.insert(words.end(), more.begin(), more.end());
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    return result;
  }
  // Returns what the tool says of a command that it refuses; nothing is left behind.
  std::string refused(std::vector<std::string> words, const std::string& out) {
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 2) << result.out;
    EXPECT_FALSE(std::filesystem::exists(out));
    return result.err;
  }
  // The folder with a tensor under another name.
  std::string renamed(const std::string& from, const std::string& to) {
    ran({"rename", gpt(), path("renamed"), "--rename", from + "=" + to, "--force"});
    return path("renamed");
  }
  std::string copied(const std::string& source = gpt()) {
    const std::string copy = path("copy");
    std::filesystem::remove_all(copy);
    std::filesystem::copy(source, copy);
    return copy;
  }
  // Whether the folder is sound, and has the files of the layout of `like`.
  void expect_like(const std::string& like, const std::string& folder) {
    SCOPED_TRACE(folder);
    EXPECT_EQ(file_bytes(folder + "/metadata.json"), file_bytes(like + "/metadata.json"));
    EXPECT_EQ(std::filesystem::exists(folder + "/common.pt"), like == gpt());
    EXPECT_EQ(run_cli({"verify", folder}).status, 0);
    EXPECT_EQ(formats::open_checkpoint(folder)->description().layout,
              like == gpt() ? "megatron" : "megatron-0.19");
  }
};

TEST_F(Megatron, what_is_not_sharded_is_carried_along) {
  for (const std::string& source : {gpt(), newer_gpt()}) {
    ran({"reshard", source, path("three"), "-w", "3", "--force"});
    ran({"convert", source, path("one"), "--to", "dcp", "--force"});
    ran({"set", source, path("set"), "iteration=9", "--force"});
    ran({"rename", source, path("named"), "--rename", "iteration=step", "--force"});
    for (const std::string name : {"three", "one", "set", "named"}) expect_like(source, path(name));
    ran({"diff", source, path("three")});
    ran({"diff", source, path("one")});
    // An object of a rank stays one item under its key, for which Megatron-Core asks.
    EXPECT_THAT(
        ran({"inspect", path("one"), "--json"}).out,
        AllOf(HasSubstr("\"rng_state/shard_0_2\""), Not(HasSubstr("rng_state/shard_0_2.0"))));
    EXPECT_EQ(ran({"extract", path("set"), "iteration"}).out, "9\n");
    EXPECT_EQ(ran({"extract", path("named"), "step"}).out, "7\n");
    // What changed stands with the others, where Megatron-Core looks for it.
    for (const std::string name : {"set", "named"}) {
      const auto checkpoint = formats::open_checkpoint(path(name));
      for (const formats::ValueEntry& value : checkpoint->index().values)
        EXPECT_EQ(value.member, value.key.find("/shard_") == std::string::npos) << value.key;
    }
    const std::string planned = ran({"reshard", source, path("planned"), "-w", "2", "-n"}).out;
    EXPECT_THAT(planned, HasSubstr("metadata.json"));
    EXPECT_EQ(planned.find("common.pt") != std::string::npos, source == gpt());
  }
}

TEST_F(Megatron, the_newest_version_s_folder_holds_what_its_own_load_gives) {
  EXPECT_EQ(run_cli({"verify", newer_gpt(), "--strict"}).status, 0);
  const std::vector<std::string> objects = {"--exclude",         "**/shard_*", "--exclude",
                                            "**_extra_state/**", "--exclude",  "rng_state/**"};
  ran({"diff", newer_gpt(), newer_truth()}, objects);
  ran({"consolidate", newer_gpt(), path("full.pt")});
  ran({"diff", path("full.pt"), newer_truth()}, objects);
  // And what an earlier version saved of the same model.
  ran({"diff", gpt(), newer_gpt()});
  EXPECT_THAT(ran({"inspect", newer_gpt()}).out,
              AllOf(HasSubstr("megatron-0.19"), HasSubstr("iteration"),
                    HasSubstr("checkpoint_version"), Not(HasSubstr("common_state"))));
  EXPECT_THAT(ran({"inspect", newer_gpt(), "--globals"}).out, Not(HasSubstr("error[")));
}

TEST_F(Megatron, a_version_s_layout_is_written_on_demand) {
  const std::string file = "torch_dist: as Megatron-Core up to 0.18 writes it, with common.pt";
  const std::string item = "torch_dist: as Megatron-Core 0.19 writes it";
  for (const std::string& source : {gpt(), newer_gpt()}) {
    for (const std::string version : {"", "-0.16", "-0.17", "-0.18", "-0.19"}) {
      const bool newer = version == "-0.19" || (version.empty() && source == newer_gpt());
      const CliResult result =
          ran({"convert", source, path("out"), "--to", "torch_dist" + version, "--force"});
      EXPECT_THAT(result.out, HasSubstr(newer ? item : file));
      expect_like(newer ? newer_gpt() : gpt(), path("out"));
      ran({"diff", source, path("out")});
    }
  }
  EXPECT_THAT(ran({"convert", gpt(), path("json"), "--to", "torch_dist-0.19", "-n", "--json"}).out,
              HasSubstr("\"layout\": \"megatron-0.19\""));
  // What is not such a folder becomes one of the newest layout.
  ran({"convert", newer_gpt(), path("f"), "--to", "fsdp_dtensor"});
  EXPECT_THAT(ran({"convert", path("f"), path("b"), "--to", "torch_dist"}).out, HasSubstr(item));
  expect_like(newer_gpt(), path("b"));
  EXPECT_THAT(ran({"convert", path("f"), path("o"), "--to", "torch_dist-0.17"}).out,
              HasSubstr(file));
  expect_like(gpt(), path("o"));
  ran({"diff", path("b"), path("o")});
  EXPECT_THAT(run_cli({"convert", gpt(), path("x"), "--to", "torch_dist-0.8"}).err,
              AllOf(HasSubstr("torch_dist-0.8"), HasSubstr("torch_dist-0.19")));
}

TEST_F(Megatron, common_values_that_are_dropped_or_taken_stay_in_one_place) {
  for (const std::string& source : {gpt(), newer_gpt()}) {
    ran({"set", source, path("less"), "--drop", "num_floating_point_operations_so_far", "--force"});
    expect_like(source, path("less"));
    EXPECT_THAT(ran({"inspect", path("less"), "--json"}).out,
                AllOf(Not(HasSubstr("num_floating")), HasSubstr("checkpoint_version")));
    ran({"set", path("less"), path("more"), "--take-from", source, "--take", "num_floating*",
         "--force"});
    expect_like(source, path("more"));
    ran({"diff", source, path("more")});
  }
}

TEST_F(Megatron, to_fsdp_dtensor_and_back) {
  const CliResult there = ran({"convert", gpt(), path("f"), "--to", "fsdp_dtensor", "-w", "2"});
  EXPECT_THAT(there.out, HasSubstr("left out: 10 values of single ranks, layers or parameters"));
  EXPECT_FALSE(std::filesystem::exists(path("f") + "/common.pt"));
  const std::string tree = ran({"inspect", path("f")}).out;
  EXPECT_THAT(tree, AllOf(HasSubstr("fsdp_dtensor"), HasSubstr("weight_w"), HasSubstr("weight_v")));
  ran({"convert", path("f"), path("b"), "--to", "torch_dist", "-w", "3"});
  // Objects of ranks are made anew; every tensor is back.
  const CliResult same = run_cli(
      {"diff", gpt(), path("b"), "--exclude", "**/shard_*", "--exclude", "**_extra_state/**"});
  EXPECT_EQ(same.status, 0) << same.out << same.err;
  EXPECT_EQ(run_cli({"verify", path("b"), "--strict"}).status, 0);
  // The gate is the first half of the rows.
  const std::string rows =
      ran({"extract", gpt(), "decoder.layers.mlp.linear_fc1.weight[0,0:6]"}).out;
  EXPECT_EQ(
      ran({"extract", path("f"), "model.module.decoder.layers.0.mlp.linear_fc1.weight_w"}).out,
      rows);
}

TEST_F(Megatron, maps_take_joined_layers) {
  const CliResult exported = ran({"export", gpt(), path("hf")}, kHeads);
  EXPECT_THAT(exported.out, HasSubstr("map: megatron-llama-hf"));
  EXPECT_THAT(ran({"inspect", path("hf")}).out, HasSubstr("gate_proj"));
  ran({"import", path("hf"), path("start"), "--map", "megatron-llama-hf", "--to", "torch_dist",
       "-w", "2"},
      kHeads);
  const CliResult same = run_cli({"diff", gpt(), path("start"), "-k", "decoder.**.*weight", "-k",
                                  "embedding.**", "-k", "output_layer.**"});
  EXPECT_EQ(same.status, 0) << same.out << same.err;
  EXPECT_THAT(ran({"inspect", path("start")}).out,
              AllOf(HasSubstr("_extra_state/shard_1_2"), HasSubstr("content_metadata"),
                    HasSubstr("checkpoint_version")));
}

TEST_F(Megatron, layers_that_differ_stay_apart) {
  // One layer has a norm more.
  ran({"convert", gpt(), path("f"), "--to", "fsdp_dtensor"});
  ran({"rename", path("f"), path("odd"), "--rename",
       "model.module.output_layer.weight=model.module.decoder.layers.1.extra.weight"});
  ran({"convert", path("odd"), path("d"), "--to", "torch_dist"});
  EXPECT_THAT(ran({"inspect", path("d"), "--json"}).out,
              AllOf(HasSubstr("decoder.layers.1.extra.weight"),
                    HasSubstr("decoder.layers.0.mlp.linear_fc2.weight"),
                    HasSubstr("linear_fc2._extra_state/shard_0_1")));
  EXPECT_THAT(ran({"extract", path("d"), "content_metadata"}).out,
              HasSubstr("non_homogeneous_layers"));
}

TEST_F(Megatron, a_map_may_keep_layers_apart_that_are_alike) {
  write_file(path("rules.toml"), "layers_apart = true\n[rename]\n\"{name:**}\" = \"{name}\"\n");
  const CliResult made =
      ran({"map", path("rules.toml"), gpt(), path("d"), "--to", "torch_dist", "--drop-values"});
  EXPECT_THAT(made.out,
              HasSubstr("torch_dist: each layer by itself, as Megatron-Core reads this model"));
  EXPECT_THAT(ran({"inspect", path("d"), "--json"}).out,
              AllOf(HasSubstr("decoder.layers.1.mlp.linear_fc2.weight"),
                    HasSubstr("decoder.layers.1.mlp.linear_fc2._extra_state/shard_0_1"),
                    Not(HasSubstr("decoder.layers.mlp."))));
  EXPECT_THAT(ran({"extract", path("d"), "content_metadata"}).out,
              HasSubstr("non_homogeneous_layers"));
}

TEST_F(Megatron, optimizers_that_contradict_the_model) {
  const auto said = [&](const std::string& from, const std::string& to) {
    return refused({"convert", renamed(from, to), path("out"), "--to", "fsdp_dtensor"},
                   path("out"));
  };
  EXPECT_THAT(said("output_layer.weight", "optimizer.state.exp_avg.decoder.final_layernorm.weight"),
              AllOf(HasSubstr("error[SHAPE]"), HasSubstr("'exp_avg'"),
                    HasSubstr("has shape [16, 8], expected [8]")));
  EXPECT_THAT(said("output_layer.weight", "optimizer.state.exp_avg.decoder.gone.weight"),
              AllOf(HasSubstr("error[KEY]"), HasSubstr("the model has no such parameter")));
  EXPECT_THAT(said("output_layer.weight",
                   "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.bucket_idx_0.exp_avg"),
              AllOf(HasSubstr("error[KEY]"), HasSubstr("has no float32 copy"),
                    HasSubstr("--exclude '**optimizer.**'")));
}

TEST_F(Megatron, parts_that_are_missing) {
  ran({"convert", gpt(), path("f"), "--to", "fsdp_dtensor"});
  const std::string fc1 = "model.module.decoder.layers.0.mlp.linear_fc1.weight_";
  for (const std::string half : {"w", "v"}) {
    EXPECT_THAT(
        refused({"convert", path("f"), path("out"), "--to", "torch_dist", "--exclude", fc1 + half},
                path("out")),
        AllOf(HasSubstr("error[KEY]"), HasSubstr("its other half, is missing")));
  }
  const auto expert = [&](const std::string& number) {
    ran({"rename", path("f"), path("e"), "--force", "--rename",
         "model.module.output_layer.weight=model.module.decoder.layers.0.mlp.experts.linear_fc2."
         "weight" +
             number});
    return std::vector<std::string>{"convert", path("e"), path("out"), "--to", "torch_dist"};
  };
  EXPECT_THAT(refused(expert("1"), path("out")),
              AllOf(HasSubstr("error[KEY]"), HasSubstr("number 0 is missing, the next is 1")));
  ran(expert("0"));
}

TEST_F(Megatron, two_common_states_are_damage) {
  const std::string source = copied(newer_gpt());
  std::filesystem::copy(gpt() + "/common.pt", source + "/common.pt");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("damage[EXTRA_FILE]: common.pt: lies beside the item"));
  for (const std::string verb : {"convert", "rename"}) {
    const std::vector<std::string> more =
        verb == "convert" ? std::vector<std::string>{"--to", "dcp"}
                          : std::vector<std::string>{"--rename", "output_layer=head"};
    std::vector<std::string> words = {verb, source, path("out")};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_THAT(refused(words, path("out")), HasSubstr("error[EXTRA_FILE]"));
  }
}

TEST_F(Megatron, a_folder_without_common_is_damaged) {
  const std::string source = copied();
  std::filesystem::remove(source + "/common.pt");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("damage[SHARD_MISSING]: common.pt: is missing"));
  EXPECT_THAT(refused({"convert", source, path("out"), "--to", "dcp"}, path("out")),
              AllOf(HasSubstr("error[SHARD_MISSING]"), HasSubstr("common.pt")));
  // Others call files metadata.json, too.
  write_file(source + "/metadata.json", "{\"name\": \"run 7\"}");
  EXPECT_EQ(run_cli({"verify", source, "--strict"}).status, 0);
}

TEST_F(Megatron, folders_of_nemo) {
  std::filesystem::create_directories(path("nemo") + "/context");
  write_file(path("nemo") + "/context/model.yaml", "_target_: nemo\n");
  std::filesystem::copy(gpt(), path("nemo") + "/weights");
  ran({"verify", path("nemo")});
  EXPECT_THAT(ran({"inspect", path("nemo")}).out, HasSubstr("weights: sharded checkpoint"));
  ran({"diff", path("nemo"), gpt()});
  // Without the context, it is a folder like any other.
  std::filesystem::remove_all(path("nemo") + "/context");
  EXPECT_THAT(run_cli({"convert", path("nemo"), path("o.pt")}).err,
              HasSubstr("the checkpoint near it: "));
}

TEST_F(Megatron, forms_follow_layouts) {
  using formats::megatron::Form;
  using formats::megatron::form_of;
  EXPECT_EQ(form_of(formats::open_checkpoint(gpt())->description()), Form::kTorchDist);
  EXPECT_EQ(form_of(formats::open_checkpoint(newer_gpt())->description()), Form::kTorchDist);
  EXPECT_EQ(form_of(formats::open_checkpoint(golden_path("2.11.0/minimal/ckpt"))->description()),
            Form::kStateDict);
}

}  // namespace
}  // namespace fsdp::cli
