// SPDX-License-Identifier: Apache-2.0
// Checkpoints of libraries beside PyTorch (tests/data/make_producers.py): unknown content in them
// is not damage, and every other key can be used.
#include <array>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "tests/support/golden.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string producer(const std::string& name) {
  return test::data_path("producers/" + name).native();
}

std::string verdict(const std::string& path) {
  return *formats::parse_json(run_cli({"verify", path, "--json"}).out).find("verdict")->as_string();
}

// Returns the value that the checkpoint in OUT holds under a key, as JSON text.
std::string text_of(const std::string& path, const std::string& key) {
  return run_cli({"extract", path, key}).out;
}

class Producers : public CliTest {
 protected:
  // Consolidates; the output is read again and equals its source.
  CliResult consolidated(const std::string& source, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"consolidate", source, path("full.pt"), "--force"};
    words.insert(words.end(), more.begin(), more.end());
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(run_cli({"verify", path("full.pt")}).status, 0);
    words = {"diff", source, path("full.pt")};
    words.insert(words.end(), more.begin(), more.end());
    const CliResult same = run_cli(words);
    EXPECT_EQ(same.status, 0) << same.out << same.err;
    return result;
  }
};

TEST_F(Producers, hydra_and_lightning_with_an_omegaconf_dictconfig) {
  const std::string source = producer("omegaconf/hydra.ckpt");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out,
              AllOf(StartsWith("unknown[CYCLE]: hydra.ckpt: 'hyper_parameters': contains itself "
                               "(omegaconf.dictconfig.DictConfig)"),
                    HasSubstr("unknown to this tool in part, 1 finding; otherwise sound")));
  EXPECT_EQ(verdict(source), "unknown");
  EXPECT_EQ(run_cli({"verify", source, "--strict"}).status, 1);
  // Every other key can be used.
  EXPECT_THAT(run_cli({"inspect", source}).out,
              AllOf(HasSubstr("state_dict"), HasSubstr("state_dict.layer"),
                    HasSubstr("global_step"), HasSubstr("omegaconf.dictconfig.DictConfig")));
  EXPECT_EQ(run_cli({"stats", source}).status, 0);
  const CliResult full = consolidated(source);
  EXPECT_THAT(full.out, HasSubstr("(OmegaConf 2.1 to 2.4): torch.load(weights_only=True) asks"));
  // The copy holds itself in the same way.
  EXPECT_EQ(verdict(path("full.pt")), "unknown");
  const CliResult without =
      consolidated(source, {"--exclude", "hyper_parameters", "--exclude", "hparams_type"});
  EXPECT_THAT(without.out, Not(HasSubstr("weights_only")));
  EXPECT_EQ(verdict(path("full.pt")), "sound");
  EXPECT_EQ(run_cli({"convert", source, path("full.h5")}).status, 0);
  EXPECT_EQ(run_cli({"diff", source, path("full.h5")}).status, 0);
  EXPECT_EQ(run_cli({"convert", source, path("full.safetensors"), "--drop-values"}).status, 0);
}

TEST_F(Producers, an_omegaconf_dictconfig_in_a_folder) {
  const std::string source = producer("omegaconf/folder");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out,
              StartsWith("unknown[CYCLE]: __0_0.distcp: 'cfg.layers': contains itself"));
  consolidated(source);
  const CliResult two = run_cli({"reshard", source, path("two"), "--world-size", "2"});
  EXPECT_EQ(two.status, 0);
  EXPECT_THAT(two.out, HasSubstr("(OmegaConf 2.1 to 2.4): torch.load(weights_only=True) asks"));
  EXPECT_EQ(run_cli({"diff", source, path("two")}).status, 0);
  EXPECT_EQ(run_cli({"rename", source, path("renamed"), "--rename", "model=net"}).status, 0);
  EXPECT_EQ(verdict(path("renamed")), "unknown");
}

TEST_F(Producers, names_of_protocol_2_ellipsis_and_chain_maps_are_plain_data) {
  const std::string source = producer("python_objects.pt");
  EXPECT_EQ(verdict(source), "sound") << run_cli({"verify", source}).out;
  consolidated(source);
}

TEST_F(Producers, jagged_nested_tensors_are_kept) {
  const std::string source = producer("jagged.pt");
  EXPECT_EQ(verdict(source), "sound") << run_cli({"verify", source}).out;
  EXPECT_THAT(run_cli({"inspect", source}).out, HasSubstr("nested tensor"));
  consolidated(source);
}

TEST_F(Producers, programs_are_named) {
  struct Program {
    const char* name;
    const char* what;
  };
  constexpr std::array kPrograms = {
      Program{"exported.pt2", "this is a torch.export archive (.pt2)"},
      Program{"scripted.pt", "this is a TorchScript archive"},
  };
  for (const auto& [name, what] : kPrograms) {
    SCOPED_TRACE(name);
    const CliResult result = run_cli({"verify", producer(name)});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(result.out, AllOf(StartsWith("unknown[UNSUPPORTED]"), HasSubstr(what),
                                  HasSubstr("checked against CRC-32")));
    EXPECT_EQ(verdict(producer(name)), "unknown");
    const CliResult other = run_cli({"inspect", producer(name)});
    EXPECT_EQ(other.status, 2);
    EXPECT_THAT(other.err, AllOf(HasSubstr("error[UNSUPPORTED]"), HasSubstr(what)));
    // Its bytes are checked all the same.
    std::string bytes = file_bytes(producer(name));
    bytes[bytes.find("torch")] ^= 1;
    write_file(path("flipped"), bytes);
    const CliResult flipped = run_cli({"verify", path("flipped")});
    EXPECT_EQ(flipped.status, 1) << flipped.out;
    EXPECT_THAT(flipped.out, HasSubstr("damage[ZIP_"));
  }
}

TEST_F(Producers, torchao_states_are_read_as_pytorch_reads_them) {
  struct Folder {
    const char* name;
    const char* cls;
  };
  constexpr std::array kFolders = {
      Folder{"adamw8bit", "torchao.optim.subclass_8bit.OptimState8bit"},
      Folder{"adamw4bit", "torchao.optim.subclass_4bit.OptimState4bit"},
      Folder{"adamwfp8", "torchao.optim.subclass_fp8.OptimStateFp8"},
  };
  for (const auto& [name, cls] : kFolders) {
    SCOPED_TRACE(name);
    const std::string source = producer(std::string("torchao/") + name);
    EXPECT_EQ(verdict(source), "sound");
    const std::string said =
        std::string("dequantized, as PyTorch reads them from a folder: 2 tensors of ") + cls;
    EXPECT_THAT(consolidated(source).out, HasSubstr(said));
    for (const char* out : {"full.safetensors", "full.h5"}) {
      const CliResult result = run_cli({"convert", source, path(out), "--drop-values", "--force"});
      EXPECT_EQ(result.status, 0) << result.err;
      EXPECT_THAT(result.out, HasSubstr(said));
      EXPECT_EQ(run_cli({"diff", path("full.pt"), path(out), "-k", "**.exp_avg*"}).status, 0);
    }
    const CliResult two = run_cli({"reshard", source, path("two"), "--world-size", "2", "--force"});
    EXPECT_EQ(two.status, 0) << two.err;
    EXPECT_THAT(two.out, HasSubstr(said));
    EXPECT_EQ(run_cli({"diff", source, path("two")}).status, 0);
    EXPECT_THAT(run_cli({"consolidate", source, path("again.pt"), "--force", "--json"}).out,
                HasSubstr(std::string("\"dequantized\": {\n  \"") + cls + "\": 2"));
    EXPECT_EQ(run_cli({"stats", source}).status, 0);
    // Flips a bit of the data that the elements are made of.
    std::filesystem::remove_all(path("flipped"));
    std::filesystem::copy(source, path("flipped"));
    std::string bytes = file_bytes(path("flipped/__0_0.distcp"));
    bytes[bytes.find("subclass") + 2000] ^= 1;
    write_file(path("flipped/__0_0.distcp"), bytes);
    EXPECT_THAT(run_cli({"verify", path("flipped")}).out, HasSubstr("damage[ZIP_CRC]"));
    const CliResult refused = run_cli({"consolidate", path("flipped"), path("none.pt")});
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("error[ZIP_CRC]"), HasSubstr("CRC-32 stored")));
    EXPECT_THAT(names(), Not(testing::Contains("none.pt")));
  }
}

TEST_F(Producers, weights_of_torchao_are_kept_whole_in_a_file_of_pytorch) {
  for (const auto& [name, cls] : {std::pair{"int8", "torchao.quantization.Int8Tensor"},
                                  std::pair{"float8", "torchao.quantization.Float8Tensor"}}) {
    SCOPED_TRACE(name);
    const std::string source = producer(std::string("torchao/") + name);
    const CliResult result = run_cli({"verify", source});
    EXPECT_EQ(result.status, 0) << result.out;
    EXPECT_THAT(result.out, AllOf(HasSubstr("unknown[UNSUPPORTED]"), HasSubstr(cls),
                                  HasSubstr("which only its own library can take apart"),
                                  Not(HasSubstr("sharded")), Not(HasSubstr("damage["))));
    EXPECT_EQ(verdict(source), "unknown");
    const CliResult kept = run_cli({"consolidate", source, path("full.pt"), "--force"});
    EXPECT_EQ(kept.status, 0) << kept.err;
    EXPECT_THAT(kept.out, AllOf(HasSubstr(cls), HasSubstr("torch.load(weights_only=True) asks")));
    EXPECT_EQ(verdict(path("full.pt")), "sound");
    EXPECT_THAT(run_cli({"inspect", path("full.pt")}).out, HasSubstr(cls));
    // No other format has a place for an object.
    const std::vector<std::vector<std::string>> others = {
        {"convert", source, path("none.safetensors")},
        {"convert", source, path("none.h5")},
        {"reshard", source, path("none"), "--world-size", "2"}};
    for (const auto& words : others) {
      const CliResult refused = run_cli(words);
      EXPECT_EQ(refused.status, 2);
      EXPECT_THAT(refused.err,
                  AllOf(HasSubstr(cls), HasSubstr("consolidate to a .pt file keeps it"),
                        HasSubstr("leave it out with --exclude")));
    }
    // Verbs that examine elements cannot handle it either.
    for (const auto& words : {std::vector<std::string>{"stats", source},
                              std::vector<std::string>{"diff", source, source}}) {
      const CliResult refused = run_cli(words);
      EXPECT_EQ(refused.status, 2);
      EXPECT_THAT(refused.err,
                  AllOf(HasSubstr(cls), HasSubstr("can take apart; leave it out with --exclude")));
    }
    EXPECT_EQ(run_cli({"stats", source, "--exclude", "model.0.weight"}).status, 0);
    consolidated(source, {"--exclude", "model.0.weight"});
    // Folders under other names share the item as it is.
    EXPECT_EQ(
        run_cli({"rename", source, path("renamed"), "--rename", "model=net", "--force"}).status, 0);
    EXPECT_EQ(verdict(path("renamed")), "unknown");
  }
}

TEST_F(Producers, torchao_states_in_a_file_are_kept) {
  const std::string source = producer("torchao/adamw8bit.pt");
  EXPECT_EQ(run_cli({"verify", source}).status, 0) << run_cli({"verify", source}).out;
  EXPECT_THAT(run_cli({"inspect", source}).out,
              HasSubstr("torchao.optim.subclass_8bit.OptimState8bit"));
  EXPECT_THAT(consolidated(source).out, HasSubstr("(torchao 0.18)"));
  // Every verb that writes them says so.
  const CliResult renamed =
      run_cli({"rename", source, path("renamed.pt"), "--rename", "model=net"});
  EXPECT_THAT(renamed.out, HasSubstr("(torchao 0.18): torch.load(weights_only=True) asks"));
}

TEST_F(Producers, megatron_core_with_plans_common_and_metadata_json) {
  const std::string source = producer("megatron");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 0) << result.out;
  EXPECT_THAT(result.out, AllOf(Not(HasSubstr("[")), HasSubstr("sound, ")));
  EXPECT_THAT(run_cli({"inspect", source}).out,
              AllOf(HasSubstr("torch.distributed.checkpoint, megatron"), HasSubstr("decoder"),
                    HasSubstr("iteration"), HasSubstr("param_groups")));
  EXPECT_EQ(run_cli({"consolidate", source, path("full.pt")}).status, 0);
  EXPECT_EQ(run_cli({"diff", source, path("full.pt"), "-k", "decoder.*"}).status, 0);
  EXPECT_EQ(text_of(path("full.pt"), "decoder.b"), text_of(source, "decoder.b"));
  EXPECT_THAT(run_cli({"inspect", path("full.pt")}).out, HasSubstr("param_groups"));
  // Folders keep what is in common.pt.
  EXPECT_EQ(run_cli({"rename", source, path("renamed"), "--rename", "decoder=model"}).status, 0);
  EXPECT_THAT(names(), testing::Contains("renamed"));
  EXPECT_THAT(run_cli({"inspect", path("renamed")}).out, HasSubstr("iteration"));
}

TEST_F(Producers, a_megatron_folder_without_its_last_file_is_warned_of) {
  const std::string source = path("cut");
  std::filesystem::copy(producer("megatron"), source);
  std::filesystem::remove(source + "/metadata.json");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("warning[NO_METADATA]: metadata.json: is missing"));
  EXPECT_EQ(run_cli({"verify", source, "--strict"}).status, 1);
  write_file(source + "/metadata.json", "{\"sharded_backend\": ");
  EXPECT_THAT(run_cli({"verify", source}).out, HasSubstr("damage[JSON]: metadata.json"));
}

}  // namespace
}  // namespace fsdp::cli
