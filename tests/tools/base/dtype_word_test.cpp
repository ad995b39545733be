// SPDX-License-Identifier: Apache-2.0
#include "tools/base/dtype_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

using formats::DType;
using testing::HasSubstr;

TEST(DtypeWord, short_forms_mean_what_PyTorch_calls_them) {
  EXPECT_EQ(floating_dtype("bf16"), DType::kBFloat16);
  EXPECT_EQ(floating_dtype("fp16"), DType::kFloat16);
  EXPECT_EQ(floating_dtype("fp32"), DType::kFloat32);
  EXPECT_EQ(floating_dtype("fp64"), DType::kFloat64);
  EXPECT_EQ(floating_dtype("bfloat16"), DType::kBFloat16);
  EXPECT_EQ(floating_dtype("float8_e4m3fn"), DType::kFloat8E4M3FN);
}

TEST(DtypeWord, other_words_are_refused_with_those_that_are_known) {
  for (const auto& [word, fragment] : std::vector<std::pair<std::string, std::string>>{
           {"bf17", "unknown dtype 'bf17'; use bfloat16, float16, float32"},
           {"", "unknown dtype ''"},
           {"BF16", "unknown dtype 'BF16'"},
           {"int8", "'int8' is not a floating-point dtype; use bfloat16"}}) {
    try {
      floating_dtype(word);
      FAIL() << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(fragment));
    }
  }
}

TEST_F(CliTest, short_words_for_dtypes_formats_and_ranks) {
  const std::string source = golden_path("2.11.0/minimal/ckpt");
  ASSERT_EQ(run_cli({"consolidate", source, path("a.pt"), "--dtype", "bf16"}).status, 0);
  EXPECT_THAT(run_cli({"inspect", path("a.pt")}).out, HasSubstr("bfloat16"));
  ASSERT_EQ(run_cli({"extract", source, "w", path("w.npy"), "--dtype", "fp16"}).status, 0);
  EXPECT_THAT(file_bytes(path("w.npy")), HasSubstr("'<f2'"));
  for (const char* verb : {"extract", "consolidate"}) {
    std::vector<std::string> args = {verb, source, path("b.pt"), "--dtype", "bf17"};
    if (args[0] == "extract") args.insert(args.begin() + 2, "w");
    const CliResult unknown = run_cli(args);
    EXPECT_EQ(unknown.status, 2);
    EXPECT_THAT(unknown.err, HasSubstr("error[USAGE]: --dtype: unknown dtype 'bf17'"));
  }
  ASSERT_EQ(run_cli({"convert", source, path("c"), "--to", "h5"}).status, 0);
  EXPECT_THAT(run_cli({"inspect", path("c")}).out, HasSubstr("HDF5 file"));
  ASSERT_EQ(run_cli({"reshard", source, path("d"), "-w", "2"}).status, 0);
  EXPECT_THAT(run_cli({"inspect", path("d")}).out, HasSubstr("2 ranks"));
}

}  // namespace
}  // namespace fsdp::cli
