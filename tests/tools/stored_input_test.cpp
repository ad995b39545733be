// SPDX-License-Identifier: Apache-2.0
// Every verb that reads, with a checkpoint in a store: the answer and the bytes are those that it
// gives for the same checkpoint on this machine.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/front/open.h"
#include "tests/support/sim_store.h"
#include "tests/support/thread_team.h"
#include "tests/tools/run_cli.h"
#include "tools/base/agreement.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using test::sim_store;
using test::SimRequest;
using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using Words = std::vector<std::string>;

constexpr const char* kUrl = "sim://data";

// Checkpoints of every kind among the fixtures, relative to tests/data.
std::vector<std::string> checkpoints() {
  std::vector<std::string> found;
  const fs::path golden = test::data_path("golden");
  for (const auto& version : fs::directory_iterator(golden)) {
    if (!version.is_directory()) continue;
    for (const auto& folder : fs::directory_iterator(version)) {
      for (const char* name : {"ckpt", "full.pt", "full.safetensors", "full.h5"}) {
        const fs::path path = folder.path() / name;
        if (fs::exists(path)) found.push_back("golden/" + path.lexically_relative(golden).native());
      }
      if (version.path().filename() == "frameworks" && !fs::exists(folder.path() / "ckpt"))
        found.push_back("golden/frameworks/" + folder.path().filename().native());
    }
  }
  for (const auto& file : fs::directory_iterator(test::data_path("hdf5")))
    if (file.is_regular_file()) found.push_back("hdf5/" + file.path().filename().native());
  std::sort(found.begin(), found.end());
  return found;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// Without what differs from run to run.
std::string steady(const std::string& text) {
  return std::regex_replace(text, std::regex("\"seconds\": [-+.e0-9]+"), "\"seconds\": 0");
}

std::map<std::string, std::string> files_at(const fs::path& path) {
  std::map<std::string, std::string> found;
  if (fs::is_regular_file(path)) found[""] = file_bytes(path);
  if (!fs::is_directory(path)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file())
      found[entry.path().lexically_relative(path).native()] = file_bytes(entry.path());
  }
  return found;
}

// A safetensors file of `count` tensors of `numel` zeros.
std::string many_tensors(int count, std::size_t numel) {
  std::string header = "{";
  for (int i = 0; i < count; ++i) {
    const std::size_t begin = static_cast<std::size_t>(i) * numel * 4;
    header += (i == 0 ? "" : ",") + ("\"layers." + std::to_string(i)) +
              R"(.weight":{"dtype":"F32","shape":[)" + std::to_string(numel) +
              R"(],"data_offsets":[)" + std::to_string(begin) + "," +
              std::to_string(begin + numel * 4) + "]}";
  }
  header += "}";
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(static_cast<std::size_t>(count) * numel * 4, '\0');
}

class StoredInputsTest : public CliTest {
 protected:
  StoredInputsTest() {
    settings_.root = folder();
    fs::create_directory_symlink(FSDP_TEST_DATA, folder() / "data");
    store_ = &sim_store(settings_);
  }

  static std::string local(const std::string& name) { return test::data_path(name).native(); }
  static std::string stored(const std::string& name) { return std::string(kUrl) + "/" + name; }

  // Runs the words with every input ("@name") here and in the store, and compares.  "{}" is OUT.
  void compare(const Words& words, const std::string& out = {}) {
    std::string line;
    Words here;
    Words there;
    const fs::path a = folder() / "here";
    const fs::path b = folder() / "there";
    fs::create_directory(a);
    fs::create_directory(b);
    for (const std::string& word : words) {
      line += word + " ";
      const bool input = word.starts_with('@');
      here.push_back(input ? local(word.substr(1)) : replace_all(word, "{}", (a / out).native()));
      there.push_back(input ? stored(word.substr(1)) : replace_all(word, "{}", (b / out).native()));
    }
    SCOPED_TRACE(line);
    const CliResult expected = run_cli(here);
    const CliResult result = run_cli(there);
    const auto as_local = [&](const std::string& text) {
      return steady(replace_all(replace_all(text, kUrl, FSDP_TEST_DATA), b.native(), a.native()));
    };
    EXPECT_EQ(result.status, expected.status) << result.err;
    EXPECT_EQ(as_local(result.out), steady(expected.out));
    EXPECT_EQ(as_local(result.err), steady(expected.err));
    if (!out.empty()) {
      EXPECT_EQ(files_at(b / out), files_at(a / out));
    }
    fs::remove_all(a);
    fs::remove_all(b);
  }

  test::SimSettings settings_;
  test::SimStore* store_;
};

TEST_F(StoredInputsTest, answers_are_those_of_a_local_checkpoint) {
  const std::vector<std::string> all = checkpoints();
  ASSERT_GT(all.size(), 70U);
  for (const std::string& name : all) {
    const std::string at = "@" + name;
    compare({"inspect", at, "--json"});
    compare({"inspect", at, "--globals"});
    compare({"verify", at});
    compare({"stats", at, "--json"});
    compare({"diff", at, "@golden/2.11.0/minimal/ckpt", "--json"});
    compare({"extract", at, "*", "--json"});
    compare({"convert", at, "{}"}, "full.pt");
  }
}

TEST_F(StoredInputsTest, outputs_are_those_of_a_local_checkpoint) {
  const std::string fsdp2 = "@golden/2.15.0/fsdp2/ckpt";
  compare({"consolidate", fsdp2, "{}"}, "full.safetensors");
  compare({"consolidate", fsdp2, "{}"}, "full.h5");
  compare({"convert", fsdp2, "{}", "--to", "torch-checkpointing"}, "folder");
  compare({"shard", "@golden/2.11.0/zip_pt/full.pt", "{}", "-w", "3"}, "folder");
  compare({"reshard", "@golden/2.11.0/shards/ckpt", "{}", "-w", "3"}, "folder");
  compare({"rename", fsdp2, "{}", "--rename", "blocks=layers", "--copy"}, "folder");
  compare({"rekey", fsdp2, "{}", "--key-by", "id", "--copy"}, "folder");
  compare({"set", fsdp2, "{}", "step=4", "--copy"}, "folder");
  compare({"groups", fsdp2, "{}", "--split", "**.bias", "weight_decay=0", "--copy"}, "folder");
  compare({"resize-vocab", fsdp2, "{}", "--size", "40", "--table", "app.model.emb.*"}, "large.pt");
  compare({"average", fsdp2, fsdp2, "{}", "--optimizer"}, "mean.pt");
  compare({"merge-lora", fsdp2, "@adapters/blocks", "{}"}, "merged.pt");
  compare({"export", fsdp2, "{}"}, "folder");
  compare({"import", "@golden/2.11.0/hf_plain/ckpt", "{}", "--map", "none", "-w", "2"}, "folder");
}

// Data that the source would share are copied.
TEST_F(StoredInputsTest, nothing_is_shared_with_a_store) {
  const CliResult result = run_cli(
      {"rename", stored("golden/2.15.0/fsdp2/ckpt"), path("renamed"), "--rename", "blocks=layers"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("from a store: data files are copied, none is shared"));
  EXPECT_EQ(run_cli({"verify", path("renamed")}).status, 0);
}

TEST_F(StoredInputsTest, the_newest_checkpoint_of_a_run_is_found) {
  fs::create_directories(folder() / "run");
  for (const char* name : {"step-1", "step-2"})
    copy_of("2.15.0/fsdp2/ckpt", std::string("run/") + name);
  fs::remove(folder() / "run/step-2/.metadata");
  const CliResult result = run_cli({"latest", "sim://run"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "sim://run/step-1\n");
  EXPECT_THAT(result.err, HasSubstr("passed over: sim://run/step-2: has no .metadata"));
  EXPECT_EQ(run_cli({"latest", "sim://run/"}).out, "sim://run/step-1\n");
}

TEST_F(StoredInputsTest, seals_are_compared) {
  fs::create_directories(folder() / "run");
  copy_of("2.15.0/fsdp2/ckpt", "run/step-1");
  ASSERT_EQ(run_cli({"seal", path("run/step-1")}).status, 0);
  EXPECT_THAT(run_cli({"verify", "sim://run/step-1"}).out, HasSubstr("matches its seal"));
  write_file(folder() / "run/step-1/more", "x");
  const CliResult result = run_cli({"verify", "sim://run/step-1"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.out, HasSubstr("SEAL_EXTRA"));
}

TEST_F(StoredInputsTest, inspect_takes_three_requests) {
  fs::create_directories(folder() / "run");
  write_file(folder() / "run/many.safetensors", many_tensors(400, 25'000));
  ASSERT_EQ(run_cli({"convert", path("run/many.safetensors"), path("run/many.pt")}).status, 0);
  for (const std::string& url :
       {stored("golden/2.15.0/fsdp2/ckpt"), stored("golden/2.11.0/zip_pt/full.pt"),
        std::string("sim://run/many.safetensors"), std::string("sim://run/many.pt")}) {
    store_->take_requests();
    const CliResult result = run_cli({"inspect", url});
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_LE(store_->take_requests().size(), 3U) << url;
  }
}

// What inspect leaves unread is compared before data are used.
TEST_F(StoredInputsTest, local_headers_are_compared_before_data_are_used) {
  fs::create_directories(folder() / "run");
  write_file(folder() / "run/many.safetensors", many_tensors(40, 25'000));
  ASSERT_EQ(run_cli({"convert", path("run/many.safetensors"), path("run/many.pt")}).status, 0);
  std::string bytes = file_bytes(folder() / "run/many.pt");
  const std::size_t header = bytes.find("PK\3\4", bytes.size() / 2);
  ASSERT_NE(header, std::string::npos);
  bytes[header + 6] ^= 1;  // a flag
  write_file(folder() / "run/many.pt", bytes);
  EXPECT_EQ(run_cli({"inspect", "sim://run/many.pt"}).status, 0);
  for (Words words :
       {Words{"verify", "@"}, Words{"verify", "@", "--fast"}, Words{"stats", "@"},
        Words{"extract", "@", "layers.3.weight"}, Words{"convert", "@", path("out.pt")}}) {
    words[1] = path("run/many.pt");
    const CliResult expected = run_cli(words);
    words[1] = "sim://run/many.pt";
    const CliResult result = run_cli(words);
    EXPECT_NE(expected.status, 0) << words[0];
    EXPECT_EQ(result.status, expected.status) << words[0];
    EXPECT_EQ(replace_all(result.out, "sim://run/many.pt", path("run/many.pt")), expected.out);
    EXPECT_EQ(replace_all(result.err, "sim://run/many.pt", path("run/many.pt")), expected.err);
  }
}

// Whatever is damaged: every third byte of headers, descriptors, pickle and directory, fewer of
// data.
TEST_F(StoredInputsTest, damaged_archives_are_told_as_here) {
  fs::create_directories(folder() / "run");
  write_file(folder() / "run/four.safetensors", many_tensors(4, 60));
  ASSERT_EQ(run_cli({"convert", path("run/four.safetensors"), path("run/four.pt")}).status, 0);
  const std::string sound = file_bytes(folder() / "run/four.pt");
  const std::size_t directory = sound.find("PK\1\2");
  ASSERT_NE(directory, std::string::npos);
  std::size_t wrong = 0;
  for (std::size_t at = 0; at < sound.size(); at += 3) {
    // Data are zeros, and one of them is as good as all.
    if (sound[at] == 0 && at % 7 != 0) continue;
    std::string bytes = sound;
    bytes[at] ^= static_cast<char>(1U << (at % 8));
    write_file(folder() / "run/four.pt", bytes);
    const CliResult expected = run_cli({"verify", path("run/four.pt")});
    const CliResult result = run_cli({"verify", "sim://run/four.pt"});
    ASSERT_EQ(result.status, expected.status) << at;
    const auto told = [&](const std::string& text) {
      return replace_all(text, "sim://run/four.pt", path("run/four.pt"));
    };
    wrong += expected.status == 0 ? 0 : 1;
    // Of a store the directory is used, for the pickle, before it is compared with the headers.
    if (at >= directory) continue;
    ASSERT_EQ(told(result.out), expected.out) << at;
    ASSERT_EQ(told(result.err), expected.err) << at;
  }
  EXPECT_GT(wrong, 300U);
}

// Headers come with the data that follow them.
TEST_F(StoredInputsTest, verify_takes_no_requests_for_headers) {
  fs::create_directories(folder() / "run");
  write_file(folder() / "run/many.safetensors", many_tensors(40, 250'000));
  ASSERT_EQ(run_cli({"convert", path("run/many.safetensors"), path("run/many.pt")}).status, 0);
  fs::create_directories(folder() / "run/parts");
  fs::copy_file(folder() / "run/many.pt", folder() / "run/parts/pytorch_model-00001-of-00001.bin");
  std::string index = R"({"metadata":{"total_size":40000000},"weight_map":{)";
  for (int i = 0; i < 40; ++i) {
    index += (i == 0 ? "\"layers." : ",\"layers.") + std::to_string(i) +
             R"(.weight":"pytorch_model-00001-of-00001.bin")";
  }
  write_file(folder() / "run/parts/pytorch_model.bin.index.json", index + "}}");
  for (const std::string& url :
       {std::string("sim://run/many.pt"), std::string("sim://run/parts")}) {
    store_->take_requests();
    const CliResult result = run_cli({"verify", url});
    EXPECT_EQ(result.status, 0) << result.err << result.out;
    // 40 MB, of which most requests take 1 MiB; one for each tensor's header were 40 more.
    EXPECT_LE(store_->count(SimRequest::kRead), 50U) << url;
  }
  // Without the data they are requested together.
  settings_.latency = std::chrono::milliseconds(20);
  store_->set(settings_);
  store_->take_requests();
  EXPECT_EQ(run_cli({"verify", "--fast", "sim://run/many.pt"}).status, 0);
  EXPECT_GE(store_->most_at_once(), 8U);
}

// No header is answered before 16 were asked for.
TEST_F(StoredInputsTest, headers_of_many_files_are_requested_together) {
  fs::create_directories(folder() / "many");
  for (int i = 0; i < 30; ++i) {
    const std::string header =
        "{\"t" + std::to_string(i) + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    write_file(folder() / ("many/" + std::to_string(i) + ".safetensors"), bytes + header + "1234");
  }
  struct Meeting {
    std::mutex mutex;
    std::condition_variable came;
    int count = 0;
  };
  settings_.fault = [meeting = std::make_shared<Meeting>()](SimRequest request,
                                                            const std::string&) {
    if (request != SimRequest::kRead) return std::optional<ErrorCode>();
    std::unique_lock lock(meeting->mutex);
    ++meeting->count;
    meeting->came.notify_all();
    meeting->came.wait_for(lock, std::chrono::seconds(20), [&] { return meeting->count >= 16; });
    return std::optional<ErrorCode>();
  };
  store_->set(settings_);
  store_->take_requests();
  const CliResult result = run_cli({"inspect", "sim://many"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("30 tensors"));
  EXPECT_GE(store_->most_at_once(), 16U);
  EXPECT_LE(store_->take_requests().size(), 32U);
}

// The headers that are looked at first, and then the data: few requests for many small items.
TEST_F(StoredInputsTest, many_items_take_few_requests) {
  const std::string fsdp2 = stored("golden/2.15.0/fsdp2/ckpt");  // 80 tensors in 4 files
  store_->take_requests();
  EXPECT_EQ(run_cli({"verify", fsdp2}).status, 0);
  EXPECT_LE(store_->take_requests().size(), 8U);
  EXPECT_EQ(run_cli({"consolidate", fsdp2, path("full.pt")}).status, 0);
  EXPECT_LE(store_->take_requests().size(), 12U);
}

// A server without listings: what names the files is found by its own name.
TEST_F(StoredInputsTest, a_store_that_cannot_list) {
  settings_.lists = false;
  store_->set(settings_);
  compare({"verify", "@golden/2.15.0/fsdp2/ckpt/.metadata"});
  for (const char* name : {"golden/2.15.0/fsdp2/ckpt", "golden/2.11.0/zip_pt/full.pt"}) {
    const CliResult result = run_cli({"stats", stored(name), "--json"});
    EXPECT_EQ(result.status, 0) << result.err;
  }
  const CliResult run = run_cli({"latest", stored("golden/2.15.0")});
  EXPECT_EQ(run.status, 2);
  EXPECT_THAT(run.err, HasSubstr("error[NOT_FOUND]: sim://data/golden/2.15.0: no such file; the "
                                 "server cannot list folders"));
}

TEST_F(StoredInputsTest, errors_of_a_store_are_errors) {
  for (const ErrorCode code : {ErrorCode::kAccess, ErrorCode::kNetwork}) {
    for (const SimRequest failing :
         {SimRequest::kList, SimRequest::kFind, SimRequest::kRead, SimRequest::kFetch}) {
      std::size_t failed = 0;
      settings_.fault = [&](SimRequest request, const std::string&) {
        if (request != failing) return std::optional<ErrorCode>();
        ++failed;
        return std::optional(code);
      };
      store_->set(settings_);
      for (const char* name : {"golden/2.15.0/fsdp2/ckpt", "golden/2.11.0/zip_pt/full.pt"}) {
        failed = 0;
        const CliResult result = run_cli({"verify", stored(name)});
        if (failed == 0) continue;
        EXPECT_EQ(result.status, 2) << result.out;
        EXPECT_THAT(result.err, HasSubstr(code == ErrorCode::kAccess ? "ACCESS" : "NETWORK"));
      }
    }
  }
}

TEST_F(StoredInputsTest, a_file_that_is_replaced_meanwhile_is_noticed) {
  fs::create_directories(folder() / "run");
  copy_of("2.15.0/fsdp2/ckpt", "run/step-1");
  bool replaced = false;
  settings_.fault = [&](SimRequest, const std::string& url) {
    if (url.ends_with("__0_0.distcp") && !replaced) {
      replaced = true;
      const fs::path file = folder() / "run/step-1/__0_0.distcp";
      write_file(folder() / "other", file_bytes(file));
      fs::rename(folder() / "other", file);
    }
    return std::optional<ErrorCode>();
  };
  store_->set(settings_);
  const CliResult result = run_cli({"consolidate", "sim://run/step-1", path("full.pt")});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("error[CHANGED]: sim://run/step-1/__0_0.distcp"));
  EXPECT_FALSE(fs::exists(path("full.pt")));
}

// Versions are what tells files of a store apart, and without them sizes and times.
TEST_F(StoredInputsTest, ranks_compare_what_they_see_in_a_store) {
  fs::create_directories(folder() / "run");
  copy_of("2.15.0/fsdp2/ckpt", "run/one");
  copy_of("2.15.0/fsdp2/ckpt", "run/other");
  fs::create_directory_symlink(folder() / "run/one", folder() / "run/link");
  const auto compared = [](const std::string& other) {
    return test::run_team(2, [&](formats::Team& team) {
      const std::string path = team.leads() ? "sim://run/one" : "sim://run/" + other;
      CommonOptions common;
      common.team = &team;
      agree_on_source(common, path, *formats::open_checkpoint(path, {{}, &team}));
    });
  };
  EXPECT_THAT(compared("link"), Each(""));
  EXPECT_THAT(compared("other"), Each(AllOf(StartsWith("rank 1 sees another checkpoint at sim://"),
                                            EndsWith(" than rank 0"))));
  settings_.versions = settings_.times = false;
  store_->set(settings_);
  EXPECT_THAT(compared("other"), Each(""));
}

}  // namespace
}  // namespace fsdp::cli
