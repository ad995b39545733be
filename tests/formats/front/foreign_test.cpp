// SPDX-License-Identifier: Apache-2.0
// Folders by Orbax itself (tests/data/make_orbax.py), and variants of them.
#include "formats/front/foreign.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "formats/front/open.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOrbax = "o.PyTreeCheckpointer().restore(os.path.abspath(sys.argv[1]";

void expect_named(const fs::path& path, std::string_view kind) {
  for (const std::string_view fragment : {kind, std::string_view("OUT.safetensors")}) {
    test::expect_error(ErrorCode::kUnsupported, fragment, [&] { open_checkpoint(path); });
  }
}

class Foreign : public testing::Test {
 protected:
  fs::path copied(const std::string& name) {
    fs::copy(test::data_path("producers/" + name), dir_.path() / name, fs::copy_options::recursive);
    return dir_.path() / name;
  }
  test::TempDir dir_;
};

TEST_F(Foreign, orbax_is_named_with_its_tree_and_a_command) {
  const fs::path ocdbt = test::data_path("producers/orbax_ocdbt");
  expect_named(ocdbt,
               "is an Orbax checkpoint of JAX (zarr3) of 3 arrays by its _METADATA: "
               "params.dense.bias [4], params.dense.kernel [3,4], step [], and no");
  expect_named(ocdbt, kOrbax);
  // Beside OCDBT, zarr describes each array.
  expect_named(test::data_path("producers/orbax_zarr"),
               "of JAX (zarr) of 3 arrays by its _METADATA: params.dense.bias bfloat16 [4], "
               "params.dense.kernel <f4 [3,4], step <i4 [], and no");
}

TEST_F(Foreign, a_step_names_its_tree) {
  fs::create_directory(dir_.path() / "3");
  fs::rename(copied("orbax_ocdbt"), dir_.path() / "3" / "default");
  test::write_file(dir_.path() / "3" / "_CHECKPOINT_METADATA", "{}");
  expect_named(dir_.path() / "3",
               "is a step of Orbax's checkpoints of JAX, with a tree in 'default'");
}

TEST_F(Foreign, arrays_of_zarr_and_databases_are_named) {
  expect_named(test::data_path("producers/orbax_zarr/step"), "is a zarr folder");
  expect_named(test::data_path("producers/orbax_zarr/step"), "z = zarr.open(sys.argv[1]");
  expect_named(test::data_path("producers/orbax_ocdbt/ocdbt.process_0"), "is an OCDBT database");
}

TEST_F(Foreign, a_tree_that_cannot_be_read_is_not_counted) {
  const fs::path folder = copied("orbax_ocdbt");
  for (const std::string text : {"", "{", "[]", "{\"tree_metadata\": 7}"}) {
    test::write_file(folder / "_METADATA", text);
    expect_named(folder, "is an Orbax checkpoint of JAX, and no C++ library reads it");
  }
}

TEST_F(Foreign, of_many_arrays_the_first_are_listed) {
  const fs::path folder = copied("orbax_zarr");
  std::string tree;
  for (int i = 0; i < 30; ++i) {
    const std::string name = std::to_string(i);
    tree += (i == 0 ? "" : ",") + ("\"" + name) + R"(": {"key_metadata": [{"key": "w"}, {"key": )" +
            name + R"(}], "value_metadata": {"write_shape": [2]}})";
  }
  test::write_file(folder / "_METADATA", "{\"tree_metadata\": {" + tree + "}}");
  expect_named(folder, "of 30 arrays by its _METADATA: w.0 [2], w.1 [2], ");
  expect_named(folder, "w.19 [2] and 10 more, and no C++ library reads it");
  fs::create_directory(folder / "w.0");
  test::write_file(folder / "w.0" / "zarr.json", R"({"data_type": "float16"})");
  expect_named(folder, "_METADATA: w.0 float16 [2], w.1 [2], ");
}

TEST_F(Foreign, files_of_these_names_alone_are_not_such_a_folder) {
  test::write_file(dir_.path() / "_METADATA", "{}");
  test::expect_error(ErrorCode::kUnknownFormat, "is not a checkpoint",
                     [&] { open_checkpoint(dir_.path()); });
}

}  // namespace
}  // namespace fsdp::formats
