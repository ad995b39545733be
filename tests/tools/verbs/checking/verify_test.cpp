// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/containers/zip/reader.h"
#include "tests/tools/run_cli.h"
#include "tests/tools/tiny_model.h"

namespace fsdp::cli {
namespace {

using testing::HasSubstr;

TEST_F(CliTest, verify_of_a_sound_checkpoint_says_what_was_compared) {
  const CliResult result = run_cli({"verify", golden_path("2.15.0/fsdp2/ckpt")});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("sound, 150 items in 2 files"));
  EXPECT_THAT(result.out, HasSubstr("checked against CRC-32"));
}

TEST_F(CliTest, verify_says_where_there_is_nothing_to_compare_with) {
  const std::string path = golden_path("2.11.0/nocrc_pt/full.pt");
  const CliResult plain = run_cli({"verify", path});
  EXPECT_EQ(plain.status, 0);
  EXPECT_THAT(plain.out, HasSubstr("carry no checksum: structure only"));
  const CliResult required = run_cli({"verify", path, "--require-checksums"});
  EXPECT_EQ(required.status, 1);
  EXPECT_THAT(required.out, HasSubstr("damage[UNCHECKED]"));
}

TEST_F(CliTest, verify_json_names_file_key_and_bytes) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
  std::string bytes = file_bytes(source + "/__0_0.distcp");
  // The floats 0 to 5: the bytes of 3.0f occur only once in the file.
  const std::size_t at = bytes.find(std::string("\0\0\x40\x40", 4));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] = 1;
  write_file(source + "/__0_0.distcp", bytes);
  const CliResult result = run_cli({"verify", source, "--json"});
  EXPECT_EQ(result.status, 1);
  const formats::Json json = formats::parse_json(result.out);
  EXPECT_EQ(*json.find("schema")->as_string(), "fsdp-ckpt/verify/1");
  EXPECT_FALSE(*json.find("sound")->as_bool());
  ASSERT_EQ(json.find("findings")->as_array()->size(), 1U);
  const formats::Json& finding = json.find("findings")->as_array()->at(0);
  EXPECT_EQ(*finding.find("code")->as_string(), "ZIP_CRC");
  EXPECT_EQ(*finding.find("file")->as_string(), "__0_0.distcp");
  EXPECT_EQ(*finding.find("key")->as_string(), "w");
  EXPECT_LE(*finding.find("begin")->as_int(), static_cast<std::int64_t>(at));
  EXPECT_EQ(*finding.find("end")->as_int() - *finding.find("begin")->as_int(), 24);
  // The metadata does not mention it.
  EXPECT_EQ(run_cli({"verify", source, "--fast"}).status, 0);
}

TEST_F(CliTest, verify_compares_quantized_weights_with_their_configuration) {
  const std::string model = path("model");
  const std::string made = path("made");
  ASSERT_EQ(run_cli({"export", golden_path("2.15.0/fsdp2/ckpt"), model}).status, 0);
  write_file(model + "/config.json", R"({"model_type": "own"})");
  ASSERT_EQ(run_cli({"export", model, made, "--quantize", "fp8-channel"}).status, 0);
  const CliResult sound = run_cli({"verify", made});
  EXPECT_EQ(sound.status, 0);
  EXPECT_THAT(sound.out, HasSubstr("weights of fp8, a scale for each row, compressed-tensors"));
  const formats::Json json = formats::parse_json(run_cli({"verify", made, "--json"}).out);
  EXPECT_TRUE(*json.find("quantization")->find("values")->as_bool());
  const formats::Json fast = formats::parse_json(run_cli({"verify", made, "--fast", "--json"}).out);
  EXPECT_FALSE(*fast.find("quantization")->find("values")->as_bool());

  std::string config = file_bytes(made + "/config.json");
  const std::size_t at = config.find("\"channel\"");
  ASSERT_NE(at, std::string::npos);
  write_file(made + "/config.json", config.replace(at, 9, "\"tensor\""));
  const CliResult other = run_cli({"verify", made});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.out, HasSubstr("damage[QUANT_TENSORS]: model.safetensors: "));
  EXPECT_THAT(other.out, HasSubstr("fp8, a scale for the tensor: scales float32 ["));
  EXPECT_THAT(other.out, HasSubstr("; fsdp-ckpt inspect PATH -k '"));
  EXPECT_EQ(run_cli({"verify", made, "--fast"}).status, 1);

  // A configuration that cannot be read is said, with why nothing was compared.
  write_file(made + "/config.json", "{");
  const CliResult damaged = run_cli({"verify", made, "--json"});
  EXPECT_EQ(damaged.status, 1);
  const formats::Json about = formats::parse_json(damaged.out);
  EXPECT_TRUE(about.find("quantization")->find("method")->is_null());
  EXPECT_THAT(*about.find("quantization")->find("left")->as_string(), HasSubstr("config.json"));
}

TEST_F(CliTest, verify_compares_what_ranks_of_fairscale_count) {
  const std::string source = copy_of("frameworks/fairscale_trainer_w3/ckpt", "c");
  EXPECT_THAT(run_cli({"verify", source}).out, testing::Not(HasSubstr("MISMATCH")));
  const std::string shard = source + "/checkpoint_last-shard1.pt";
  const CliResult set = run_cli({"set", shard, path("later.pt"), "**.state.0.step=99"});
  ASSERT_EQ(set.status, 0) << set.err;
  std::filesystem::rename(path("later.pt"), shard);
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out + result.err, HasSubstr("warning[MISMATCH]: checkpoint_last-shard1.pt"));
  EXPECT_THAT(
      result.out + result.err,
      HasSubstr(
          "differs from the number in checkpoint_last-shard0.pt: the files are from two saves"));
}

TEST_F(CliTest, verify_of_an_interrupted_save_says_so) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
  std::filesystem::rename(source + "/.metadata", source + "/.metadata.tmp");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("damage[NO_METADATA]"));
  EXPECT_THAT(result.out, HasSubstr("interrupted"));
  EXPECT_EQ(run_cli({"inspect", source}).status, 2);
}

TEST_F(CliTest, verify_warns_of_leftovers_and_fails_on_them_when_strict) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
  write_file(source + "/__9_0.distcp", "left over");
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.out, HasSubstr("warning[EXTRA_FILE]: __9_0.distcp"));
  EXPECT_EQ(run_cli({"verify", source, "--strict"}).status, 1);
  EXPECT_THAT(run_cli({"verify", source, "-q"}).out, "");
}

TEST_F(CliTest, verify_could_not_look_at_what_is_not_there) {
  EXPECT_EQ(run_cli({"verify", path("none")}).status, 2);
  write_file(path("text"), "hello");
  EXPECT_EQ(run_cli({"verify", path("text")}).status, 2);
}

TEST_F(CliTest, verify_checks_the_bytes_of_an_item_of_another_shape_than_expected_too) {
  const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
  const std::string data = source + "/__0_0.distcp";
  const formats::Json json =
      formats::parse_json(run_cli({"inspect", source, "--json", "--values", "never"}).out);
  const formats::Json& chunk =
      json.find("tensors")->as_array()->at(0).find("chunks")->as_array()->at(0);
  const auto begin = static_cast<std::uint64_t>(*chunk.find("begin")->as_int());
  const auto length = static_cast<std::uint64_t>(*chunk.find("length")->as_int());
  std::string bytes = file_bytes(data);
  const std::string item = bytes.substr(begin, length);
  const formats::MemorySource archive(std::as_bytes(std::span(item)));
  const formats::ZipReader zip(archive);
  for (const auto& entry : zip.entries()) {
    if (entry.name.ends_with("data/0")) bytes[begin + entry.data_offset] ^= 1;
  }
  write_file(data, bytes);
  EXPECT_EQ(run_cli({"verify", source}).status, 1);

  // Shortens the metadata's only chunk of shape [2, 3] to one row.
  std::string metadata = file_bytes(source + "/.metadata");
  metadata[447] = 1;
  write_file(source + "/.metadata", metadata);
  const std::string out = run_cli({"verify", source}).out;
  EXPECT_THAT(out, HasSubstr("damage[SHAPE]: __0_0.distcp: 'w'"));
  EXPECT_THAT(out, HasSubstr("damage[ZIP_CRC]: __0_0.distcp: 'w'"));
}

// Damaged, unsafe, unknown and sound, distinguished in words, JSON and status.
struct VerdictCase {
  const char* name;
  const char* word;     // in the JSON
  const char* line;     // begins the last line, after the path
  const char* finding;  // begins a line; none if it is empty
  int status;
  int strict_status;
};

// Prints only the test's name instead of the bytes of pointers.
void PrintTo(const VerdictCase& verdict, std::ostream* out) {
  *out << verdict.name;
}

class Verdicts : public CliTest, public testing::WithParamInterface<VerdictCase> {
 protected:
  std::string made() const {
    const std::string name = GetParam().name;
    if (name == "unknown") return golden_path("2.11.0/quantized/ckpt");
    const std::string source = copy_of("2.11.0/minimal/ckpt", "c");
    if (name == "warning") write_file(source + "/__9_0.distcp", "left over");
    if (name == "damaged") std::filesystem::remove(source + "/__0_0.distcp");
    if (name == "unsafe") {
      // PROTO 2, GLOBAL os system, a text, TUPLE1, REDUCE, STOP.
      write_file(source + "/.metadata", std::string("\x80\x02") + "cos\nsystem\nX\x02" +
                                            std::string(3, '\0') + "id\x85R.");
    }
    return source;
  }
};

TEST_P(Verdicts, are_told_apart_in_words_json_and_status) {
  const VerdictCase& c = GetParam();
  const std::string source = made();
  const CliResult result = run_cli({"verify", source});
  EXPECT_EQ(result.status, c.status) << result.out;
  EXPECT_THAT(result.out, HasSubstr(source + ": " + c.line));
  EXPECT_THAT(result.out, testing::StartsWith(c.finding));
  const formats::Json json = formats::parse_json(run_cli({"verify", source, "--json"}).out);
  EXPECT_EQ(*json.find("verdict")->as_string(), c.word);
  EXPECT_EQ(*json.find("sound")->as_bool(), c.status == 0);
  EXPECT_EQ(run_cli({"verify", source, "--strict"}).status, c.strict_status);
  // Without notes, the reason for a negative answer is still printed.
  EXPECT_EQ(run_cli({"verify", source, "-q"}).out.empty(), c.status == 0);
  EXPECT_EQ(run_cli({"verify", source, "-q", "--strict"}).out.empty(), c.strict_status == 0);
}

INSTANTIATE_TEST_SUITE_P(
    Verify, Verdicts,
    testing::Values(
        VerdictCase{"sound", "sound", "sound, 2 items in 1 file", "", 0, 0},
        VerdictCase{"warning", "sound", "sound, 2 items", "warning[EXTRA_FILE]: ", 0, 1},
        VerdictCase{"unknown", "unknown", "unknown to this tool in part, ",
                    "unknown[UNSUPPORTED]: ", 0, 1},
        VerdictCase{"unsafe", "unsafe", "unsafe, 1 finding", "unsafe[GLOBAL]: ", 1, 1},
        VerdictCase{"damaged", "damaged", "damaged, 1 finding", "damage[SHARD_MISSING]: ", 1, 1}),
    [](const auto& verdict) { return std::string(verdict.param.name); });

using VerifyConfigTest = CliTest;

TEST_F(VerifyConfigTest, the_model_is_compared_with_a_configuration) {
  const std::string model = path("m.safetensors");
  write_file(path("config.json"), kGpt2Config);
  gpt2().write(model);
  const CliResult sound = run_cli({"verify", model, "--config", folder().native()});
  EXPECT_EQ(sound.status, 0) << sound.err;
  EXPECT_THAT(sound.out, HasSubstr("compared: 16 tensors with those of GPT2LMHeadModel"));
  gpt2("transformer.", 7).write(model);
  EXPECT_EQ(run_cli({"verify", model}).status, 0);
  const CliResult other = run_cli({"verify", model, "--config", folder().native()});
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.out,
              HasSubstr("damage[SHAPE]: 'transformer.wpe.weight' [7, 8], expected [6, 8]"));
  const CliResult json = run_cli({"verify", model, "--config", folder().native(), "--json"});
  EXPECT_EQ(*formats::parse_json(json.out).find("verdict")->as_string(), "damaged");
  EXPECT_TRUE(*formats::parse_json(json.out).find("compared")->as_bool());
}

}  // namespace
}  // namespace fsdp::cli
