// SPDX-License-Identifier: Apache-2.0
// Checkpoints that a real PyTorch wrote: their content matches the truth file, and nothing is wrong
// with them.
#include "formats/front/open.h"

#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "tests/support/expect_error.h"
#include "tests/support/findings.h"
#include "tests/support/golden.h"
#include "tests/support/sha256.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_bytes.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

using test::expect_error;
using testing::HasSubstr;

struct Golden {
  std::string name;  // "2.11.0/minimal"
  fs::path path;     // of the checkpoint
  fs::path truth;    // may be missing
};

std::vector<Golden> golden_cases() {
  std::vector<Golden> cases;
  for (const auto& version : fs::directory_iterator(test::data_path("golden"))) {
    if (!version.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(version)) {
      const std::string name = version.path().filename() / folder.path().filename();
      const bool file = fs::exists(folder.path() / "full.pt");
      cases.push_back({name, folder.path() / (file ? "full.pt" : "ckpt"),
                       folder.path() / (file ? "full_truth.json" : "truth.json")});
    }
  }
  std::sort(cases.begin(), cases.end(),
            [](const Golden& a, const Golden& b) { return a.name < b.name; });
  return cases;
}

Json read_truth(const fs::path& path) {
  return parse_json(test::to_text(test::read_file(path)));
}

std::set<std::string> allowed_by(const Json& truth) {
  std::set<std::string> allowed;
  if (const Json* names = truth.find("allow")) {
    for (const Json& name : *names->as_array()) allowed.insert(*name.as_string());
  }
  return allowed;
}

std::string path_text(const KeyPath& path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const auto* name = std::get_if<std::string>(&path[i]);
    out += (i == 0 ? "" : "/") +
           (name != nullptr ? *name : std::to_string(std::get<std::int64_t>(path[i])));
  }
  return out;
}

std::string json_shape(const Json& shape) {
  std::vector<std::int64_t> sizes;
  for (const Json& size : *shape.as_array()) sizes.push_back(*size.as_int());
  return shape_text(sizes);
}

bool is_tensor(const Json& leaf) {
  const Json* dtype = leaf.find("dtype");
  return dtype != nullptr && dtype->as_string()->starts_with("torch.");
}

// Returns "7", "None", "True" if the value is so simple that there is one way to write it.
std::optional<std::string> simple_text(const Value& value) {
  if (value.is_none()) return "None";
  if (value.as_bool()) return *value.as_bool() ? "True" : "False";
  if (value.as_int()) return std::to_string(*value.as_int());
  return std::nullopt;
}

std::string escape_newlines(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? "\\n" : std::string(1, c);
  return out;
}

// Compares the index with each path, and records values that hold more than one leaf of the truth.
class Comparison {
 public:
  Comparison(const Checkpoint& checkpoint, const Json& truth) : checkpoint_(checkpoint) {
    for (const TensorEntry& tensor : checkpoint.index().tensors)
      tensors_[path_text(tensor.path)] = &tensor;
    for (const ValueEntry& value : checkpoint.index().values)
      values_[path_text(value.path)] = &value;
    for (const auto& [path, leaf] : *truth.find("items")->as_object()) {
      SCOPED_TRACE(path);
      compare(path, leaf);
    }
    for (const auto& [path, tensor] : tensors_)
      EXPECT_TRUE(used_.contains(path)) << path << " is not a tensor of the truth";
    for (const auto& [path, value] : values_)
      EXPECT_TRUE(used_.contains(path)) << path << " is not a value of the truth";
  }
  std::size_t hashed() const { return hashed_; }

 private:
  void compare(const std::string& path, const Json& leaf) {
    if (const auto tensor = tensors_.find(path); tensor != tensors_.end()) {
      used_.insert(path);
      ASSERT_TRUE(is_tensor(leaf));
      EXPECT_EQ("torch." + std::string(torch_name(tensor->second->dtype)),
                *leaf.find("dtype")->as_string());
      EXPECT_EQ(shape_text(tensor->second->shape), json_shape(*leaf.find("shape")));
      if (leaf.find("qscheme") != nullptr) return;
      EXPECT_EQ(test::sha256(test::tensor_bytes(checkpoint_, *tensor->second)),
                *leaf.find("sha256")->as_string());
      ++hashed_;
      return;
    }
    // A value that is not taken apart stands for everything in it.
    for (std::string above = path;; above.resize(above.rfind('/'))) {
      if (const auto value = values_.find(above); value != values_.end()) {
        used_.insert(above);
        compare_value(*value->second, leaf, above == path);
        return;
      }
      if (above.find('/') == std::string::npos) break;
    }
    // Flattening leaves no trace of an empty mapping.
    EXPECT_NE(leaf.find("empty"), nullptr) << "is missing";
  }

  void compare_value(const ValueEntry& entry, const Json& leaf, bool whole) {
    const Value value = checkpoint_.value(entry);
    const Json* expected = leaf.find("value");
    if (const auto text = simple_text(value); text && whole) {
      ASSERT_NE(expected, nullptr);
      EXPECT_EQ(*text, *expected->as_string());
    } else if (value.as_string() != nullptr && expected != nullptr) {
      EXPECT_THAT(*expected->as_string(), HasSubstr(escape_newlines(*value.as_string())));
    }
  }

  const Checkpoint& checkpoint_;
  std::map<std::string, const TensorEntry*> tensors_;
  std::map<std::string, const ValueEntry*> values_;
  std::set<std::string> used_;
  std::size_t hashed_ = 0;
};

TEST(Open, every_checkpoint_of_pytorch_holds_what_pytorch_says) {
  std::size_t hashed = 0;
  for (const Golden& golden : golden_cases()) {
    SCOPED_TRACE(golden.name);
    if (!fs::exists(golden.truth)) continue;
    const Json truth = read_truth(golden.truth);
    OpenOptions options;
    options.allowed_globals = allowed_by(truth);
    const auto checkpoint = open_checkpoint(golden.path, options);
    hashed += Comparison(*checkpoint, truth).hashed();
  }
  EXPECT_GT(hashed, 500U);
}

// Returns the findings of sound checkpoints with content that no output of the tool has.
const std::vector<std::string>& told_of(const std::string& name) {
  static const std::string parts =
      "warning EXTRA_FILE each rank has its own part, without metadata to join them by; in no "
      "output: ";
  static const std::map<std::string, std::vector<std::string>> told = {
      {"2.11.0/quantized",
       {"unknown UNSUPPORTED __0_0.distcp: 'q': item at byte 0: the tensor is quantized, whose "
        "chunks cannot be joined"}},
      {"frameworks/fairscale_trainer_w3",
       {"warning RANK each rank has its own; only the lowest rank's is read: expert.flat_param_0"}},
      {"frameworks/fairscale_parameters_w2", {parts + "model.again.weight"}},
      {"frameworks/fairscale_unflattened_w3", {parts + "again.weight"}},
  };
  static const std::vector<std::string> nothing;
  const auto found = told.find(name);
  return found == told.end() ? nothing : found->second;
}

TEST(Open, every_checkpoint_of_pytorch_verifies_without_a_word) {
  std::size_t count = 0;
  for (const Golden& golden : golden_cases()) {
    SCOPED_TRACE(golden.name);
    OpenOptions open_options;
    if (fs::exists(golden.truth))
      open_options.allowed_globals = allowed_by(read_truth(golden.truth));
    const auto checkpoint = open_checkpoint(golden.path, open_options);
    VerifyOptions options;
    options.allowed_globals = open_options.allowed_globals;
    const VerifyReport report = checkpoint->verify(options);
    const std::vector<std::string>& told = told_of(golden.name);
    EXPECT_THAT(test::lines(report.findings), testing::UnorderedElementsAreArray(told));
    EXPECT_GT(report.items, 0U);
    EXPECT_GT(report.bytes_checked + report.bytes_unchecked, 0U);
    EXPECT_THAT(test::verified(*checkpoint, true), testing::IsSubsetOf(told));
    ++count;
  }
  EXPECT_GE(count, 47U);
}

TEST(Open, tells_formats_apart_by_content) {
  const auto format = [](const char* path) {
    const auto checkpoint = open_checkpoint(test::data_path(path));
    return checkpoint->description().format + " " + checkpoint->description().layout;
  };
  EXPECT_EQ(format("golden/2.11.0/minimal/ckpt"), "dcp generic");
  EXPECT_EQ(format("golden/2.11.0/minimal/ckpt/.metadata"), "dcp generic");
  EXPECT_EQ(format("golden/2.11.0/minimal/ckpt/__0_0.distcp"), "dcp generic");
  EXPECT_EQ(format("golden/2.11.0/rank_local_metadata/ckpt"), "dcp rank-local");
  EXPECT_EQ(format("golden/2.11.0/zip_pt/full.pt"), "torch zip");
  EXPECT_EQ(format("golden/2.11.0/legacy_pt/full.pt"), "torch legacy");
  EXPECT_EQ(format("golden/2.11.0/hf_consolidated/ckpt"), "safetensors hf");
  EXPECT_EQ(format("golden/2.11.0/hf_consolidated/ckpt/model.safetensors.index.json"),
            "safetensors hf");
  EXPECT_EQ(format("golden/2.11.0/hf_consolidated/ckpt/model-00001-of-00001.safetensors"),
            "safetensors file");
  EXPECT_EQ(format("golden/2.11.0/hf_sharded/ckpt"), "safetensors hf-sharded");

  const test::TempDir folder;
  fs::copy(test::data_path("golden/2.11.0/zip_pt/full.pt"), folder / "model.safetensors");
  EXPECT_EQ(open_checkpoint(folder / "model.safetensors")->description().format, "torch");
}

TEST(Open, says_what_a_path_is_not) {
  const test::TempDir folder;
  expect_error(ErrorCode::kNotFound, "no such file or folder",
               [&] { open_checkpoint(folder / "none"); });
  expect_error(ErrorCode::kUnknownFormat, "is not a checkpoint",
               [&] { open_checkpoint(folder.path()); });
  test::write_file(folder / "empty.pt", "");
  expect_error(ErrorCode::kEmpty, "empty.pt: has no bytes",
               [&] { open_checkpoint(folder / "empty.pt"); });
  test::write_file(folder / "notes.txt", "notes");
  expect_error(ErrorCode::kUnknownFormat, "neither a torch.save, safetensors nor HDF5 file",
               [&] { open_checkpoint(folder / "notes.txt"); });
  test::write_file(folder / "bad.safetensors", "notes");
  expect_error(ErrorCode::kStHeader,
               "bad.safetensors: ", [&] { open_checkpoint(folder / "bad.safetensors"); });
  expect_error(ErrorCode::kNotRegular, "is a device", [] { open_checkpoint("/dev/null"); });
}

TEST(Open, names_what_was_meant) {
  const test::TempDir folder;
  fs::copy(test::data_path("golden/2.11.0/minimal/ckpt"), folder / "step-100",
           fs::copy_options::recursive);
  expect_error(ErrorCode::kUnknownFormat,
               "is not a checkpoint; the checkpoint near it: " + (folder / "step-100").string(),
               [&] { open_checkpoint(folder.path()); });
  expect_error(ErrorCode::kNotFound, "did you mean " + (folder / "step-100").string() + "?",
               [&] { open_checkpoint(folder / "step-10"); });
  fs::create_directory(folder / "step-100/logs");
  expect_error(ErrorCode::kUnknownFormat, (folder / "step-100").string(),
               [&] { open_checkpoint(folder / "step-100/logs"); });
}

TEST(Open, an_interrupted_save_is_no_unknown_format) {
  const test::TempDir folder;
  test::write_file(folder / "__0_0.distcp", "PK");
  expect_error(ErrorCode::kNoMetadata, "the save was interrupted",
               [&] { open_checkpoint(folder.path()); });
  expect_error(ErrorCode::kNoMetadata, "the save was interrupted",
               [&] { open_checkpoint(folder / "__0_0.distcp"); });
}

}  // namespace
}  // namespace fsdp::formats
