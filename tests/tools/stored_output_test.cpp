// SPDX-License-Identifier: Apache-2.0
// Every verb that writes, with OUT in a store: the bytes are those that it writes to a local path.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/interrupt.h"
#include "tests/support/sim_store.h"
#include "tests/tools/run_cli.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using test::SimRequest;
using testing::HasSubstr;
using testing::Not;
using Files = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

// A command line, in which {} stands for OUT, and the name of OUT.
struct Case {
  Words words;
  std::string out;
};

// Inputs that are made first.
void make_inputs(const std::string& folder) {
  const std::string fsdp2 = golden_path("2.15.0/fsdp2/ckpt");
  const Words commands[] = {
      {"merge-lora", fsdp2, test::data_path("adapters/blocks").native(), folder + "/tuned.pt"},
      {"export", fsdp2, folder + "/exported"}};
  for (const Words& words : commands) {
    const CliResult result = run_cli(words);
    ASSERT_EQ(result.status, 0) << result.err;
  }
  write_file(folder + "/r.toml", "[rename]\n\"{rest:**}\" = \"x.{rest}\"\n");
  fs::create_directory(folder + "/published");
  write_file(folder + "/published/config.json", R"({"model_type": "own", "dtype": "float32"})");
  write_file(folder + "/published/tokenizer.json", "{}");
}

std::vector<Case> cases(const std::string& inputs) {
  const std::string fsdp2 = golden_path("2.15.0/fsdp2/ckpt");
  const std::string shards = golden_path("2.11.0/shards/ckpt");
  const std::string full = golden_path("2.11.0/zip_pt/full.pt");
  return {
      {{"consolidate", fsdp2, "{}"}, "full.pt"},
      {{"consolidate", fsdp2, "{}", "--drop-values"}, "full.safetensors"},
      {{"consolidate", fsdp2, "{}", "--drop-values", "--max-shard-size", "2K"}, "folder"},
      {{"consolidate", fsdp2, "{}"}, "full.h5"},
      {{"convert", fsdp2, "{}", "--to", "lightning-ckpt"}, "last.ckpt"},
      {{"convert", full, "{}", "--to", "dcp"}, "folder"},
      {{"convert", fsdp2, "{}", "--to", "accelerate", "--drop-values"}, "folder"},
      {{"convert", fsdp2, "{}", "--to", "lightning"}, "folder"},
      {{"convert", fsdp2, "{}", "--to", "torch-checkpointing"}, "folder"},
      {{"convert", fsdp2, "{}", "--dtype", "bf16"}, "half.pt"},
      {{"shard", full, "{}", "-w", "3"}, "folder"},
      {{"reshard", fsdp2, "{}", "-w", "3"}, "folder"},
      {{"reshard", shards, "{}", "-w", "1"}, "folder"},
      {{"rename", fsdp2, "{}", "--rename", "blocks=layers", "--copy"}, "folder"},
      {{"rename", full, "{}", "--rename", "tied=knot"}, "renamed.pt"},
      {{"rekey", fsdp2, "{}", "--key-by", "id", "--copy"}, "folder"},
      {{"groups", fsdp2, "{}", "--split", "**.bias", "weight_decay=0", "--copy"}, "folder"},
      {{"set", fsdp2, "{}", "step=4", "--copy"}, "folder"},
      {{"set", fsdp2, "{}", "--drop", "app.optim.**", "--take-from", inputs + "/tuned.pt", "--take",
        "app.model.head.*", "--replace", "--copy"},
       "folder"},
      {{"resize-vocab", fsdp2, "{}", "--size", "40", "--table", "app.model.emb.*"}, "larger.pt"},
      {{"map", inputs + "/r.toml", fsdp2, "{}"}, "mapped.pt"},
      {{"export", fsdp2, "{}", "--config", inputs + "/published"}, "folder"},
      {{"export", fsdp2, "{}", "--max-shard-size", "20KB"}, "folder"},
      {{"import", inputs + "/exported", "{}", "--map", "none", "--under", "model", "-w", "2"},
       "folder"},
      {{"average", fsdp2, fsdp2, "{}", "--optimizer"}, "mean.pt"},
      {{"merge-lora", fsdp2, test::data_path("adapters/blocks").native(), "{}"}, "merged.pt"},
      {{"extract-lora", fsdp2, inputs + "/tuned.pt", "{}", "--rank", "2"}, "folder"},
  };
}

// Those of verbs that have no --seal.
std::vector<Case> unsealed_cases() {
  const std::string shards = golden_path("2.11.0/shards/ckpt");
  return {{{"extract", shards, "*row*", "{}", "--to", "npy"}, "folder"},
          {{"extract", shards, "grid", "{}"}, "grid.npy"},
          {{"extract", shards, "grid", "{}"}, "grid.pt"}};
}

class StoredOutputsTest : public CliTest {
 protected:
  StoredOutputsTest() {
    settings_.root = folder() / "store";
    fs::create_directory(settings_.root);
    settings_.part_bytes = 1000;
    store_ = &test::sim_store(settings_);
    make_inputs(folder());
    cases_ = cases(folder());
    every_case_ = unsealed_cases();
    every_case_.insert(every_case_.end(), cases_.begin(), cases_.end());
  }
  ~StoredOutputsTest() override { formats::interrupt_signal = 0; }

  void fail_at(std::function<bool(SimRequest, const std::string&)> where,
               ErrorCode code = ErrorCode::kNetwork) {
    settings_.fault = [where = std::move(where), code](SimRequest request, const std::string& url) {
      return where(request, url) ? std::optional(code) : std::nullopt;
    };
    store_->set(settings_);
  }

  // Everything at a path, by names relative to its parent.
  static Files files_at(const fs::path& path) {
    Files found;
    if (fs::is_regular_file(path)) found[path.filename()] = file_bytes(path);
    if (!fs::is_directory(path)) return found;
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file())
        found[entry.path().lexically_relative(path.parent_path())] = file_bytes(entry.path());
    }
    return found;
  }
  Files stored() const { return files_at(settings_.root / "bucket"); }

  static Words with(const Case& one, const std::string& out, const Words& more) {
    Words words = one.words;
    std::replace(words.begin(), words.end(), std::string("{}"), out);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::string text_of(const Case& one) {
    std::string text;
    for (const std::string& word : one.words) text += word + " ";
    return text + ": " + one.out;
  }

  test::SimSettings settings_;
  test::SimStore* store_ = nullptr;
  std::vector<Case> cases_;
  std::vector<Case> every_case_;
};

TEST_F(StoredOutputsTest, have_the_bytes_of_a_local_output) {
  for (const Case& one : every_case_) {
    SCOPED_TRACE(text_of(one));
    const std::string local = path("local/" + one.out);
    const CliResult done = run_cli(with(one, local, {"--force"}));
    ASSERT_EQ(done.status, 0) << done.err;
    Files expected;
    for (auto& [name, bytes] : files_at(local)) expected["bucket/" + name] = bytes;
    ASSERT_FALSE(expected.empty());
    const std::pair<std::uint64_t, Words> runs[] = {
        {199, {"--threads", "1"}},
        {1000, {"--threads", "4", "--max-memory", "64M"}},
        {4096, {"--threads", "1"}},
        {1 << 20, {"--threads", "4"}}};
    for (const auto& [part_bytes, more] : runs) {
      settings_.part_bytes = part_bytes;
      store_->set(settings_);
      const CliResult sent = run_cli(with(one, "sim://bucket/" + one.out, more));
      ASSERT_EQ(sent.status, 0) << sent.err;
      // Not EXPECT_EQ, which would print all of them.
      ASSERT_TRUE(stored() == expected) << part_bytes;
      fs::remove_all(settings_.root / "bucket");
    }
    fs::remove_all(folder() / "local");
  }
}

TEST_F(StoredOutputsTest, seals_are_those_of_a_local_output) {
  for (const Case& one : cases_) {
    SCOPED_TRACE(text_of(one));
    const std::string local = path("local/" + one.out);
    ASSERT_EQ(run_cli(with(one, local, {"--seal"})).status, 0);
    const CliResult sent = run_cli(with(one, "sim://bucket/" + one.out, {"--seal"}));
    ASSERT_EQ(sent.status, 0) << sent.err;
    Files expected;
    for (auto& [name, bytes] : files_at(path("local")))
      expected["bucket/" + name.substr(6)] = bytes;
    EXPECT_TRUE(stored() == expected);
    fs::remove_all(settings_.root / "bucket");
    fs::remove_all(folder() / "local");
  }
}

TEST_F(StoredOutputsTest, a_request_that_fails_leaves_nothing) {
  settings_.part_bytes = 2000;
  for (const Case& one : every_case_) {
    SCOPED_TRACE(text_of(one));
    fail_at([](SimRequest, const std::string&) { return false; });
    store_->take_requests();
    const std::string out = "sim://bucket/" + one.out;
    ASSERT_EQ(run_cli(with(one, out, {})).status, 0);
    auto requests = store_->take_requests();
    // Removals do not fail here.
    std::erase_if(requests, [](const auto& asked) { return asked.first == SimRequest::kRemove; });
    fs::remove_all(settings_.root / "bucket");
    // Every request of a short run, and 10 of a long one.
    const std::size_t step = requests.size() / 10 + 1;
    for (std::size_t at = 0; at < requests.size(); at += step) {
      std::atomic<std::size_t> number{0};
      fail_at([&](SimRequest request, const std::string&) {
        return request != SimRequest::kRemove && number++ == at;
      });
      const CliResult failed = run_cli(with(one, out, {}));
      EXPECT_EQ(failed.status, 2) << at << ": " << failed.out;
      EXPECT_THAT(failed.err, HasSubstr("error[NETWORK]: sim://bucket/"));
      EXPECT_TRUE(stored().empty()) << at;
    }
  }
}

TEST_F(StoredOutputsTest, a_signal_at_any_request_leaves_nothing) {
  settings_.part_bytes = 2000;
  for (const Case& one : {cases_[0], cases_[11]}) {
    const std::string out = "sim://bucket/" + one.out;
    for (const SimRequest when : {SimRequest::kUpload, SimRequest::kPart, SimRequest::kComplete}) {
      fail_at([&](SimRequest request, const std::string&) {
        if (request == when) formats::interrupt_signal = 15;
        return false;
      });
      const CliResult stopped = run_cli(with(one, out, {}));
      formats::interrupt_signal = 0;
      // The last request of a single file makes it visible.
      if (stopped.status == 0) {
        EXPECT_EQ(when, SimRequest::kComplete);
        fs::remove_all(settings_.root / "bucket");
        continue;
      }
      EXPECT_THAT(stopped.err, HasSubstr("INTERRUPTED"));
      const Files left = stored();
      EXPECT_TRUE(left.empty()) << static_cast<int>(when) << ": " << left.size() << " left, "
                                << left.begin()->first;
    }
  }
}

TEST_F(StoredOutputsTest, what_exists_is_refused_before_a_byte_is_sent) {
  for (const Case& one : every_case_) {
    SCOPED_TRACE(text_of(one));
    const std::string out = "sim://bucket/" + one.out;
    ASSERT_EQ(run_cli(with(one, out, {})).status, 0);
    const Files before = stored();
    store_->take_requests();
    const CliResult refused = run_cli(with(one, out, {}));
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.err, HasSubstr("error[EXISTS]: " + out + ": exists; --force replaces it"));
    EXPECT_EQ(store_->count(SimRequest::kUpload) + store_->count(SimRequest::kPut), 0U);
    const CliResult replaced = run_cli(with(one, out, {"--force"}));
    EXPECT_EQ(replaced.status, 0) << replaced.err;
    // Data files of DCP get another number each time, the first one after two times.
    if (one.words[0] != "extract") {
      const std::string made = (settings_.root / "bucket" / one.out).native();
      EXPECT_EQ(run_cli({"verify", made, "-q"}).status, 0);
    }
    if (stored() != before) {
      EXPECT_EQ(run_cli(with(one, out, {"--force"})).status, 0);
    }
    EXPECT_TRUE(stored() == before);
    fs::remove_all(settings_.root / "bucket");
  }
}

TEST_F(StoredOutputsTest, a_dry_run_sends_nothing) {
  for (const Case& one : every_case_) {
    SCOPED_TRACE(text_of(one));
    const std::string out = "sim://bucket/" + one.out;
    const CliResult planned = run_cli(with(one, out, {"--dry-run"}));
    EXPECT_EQ(planned.status, 0) << planned.err;
    EXPECT_THAT(planned.out, HasSubstr("would write " + out));
    EXPECT_THAT(planned.out, Not(HasSubstr(" free")));
    EXPECT_EQ(store_->take_requests().size(), 0U);
  }
}

TEST_F(StoredOutputsTest, nothing_is_shared_with_the_source) {
  const Words words = {"rename", golden_path("2.15.0/fsdp2/ckpt"), "sim://bucket/folder",
                       "--rename", "blocks=layers"};
  const CliResult sent = run_cli(words);
  EXPECT_EQ(sent.status, 0) << sent.err;
  EXPECT_THAT(sent.out, HasSubstr("to a store: data files are copied, none is shared"));
  EXPECT_THAT(sent.out, Not(HasSubstr("shared with the source")));
  EXPECT_EQ(run_cli({"verify", (settings_.root / "bucket/folder").native()}).status, 0);
}

// Bytes on the disk, of files that may disappear meanwhile.
std::uint64_t space_of(const fs::path& folder) {
  std::uint64_t sum = 0;
  std::error_code gone;
  for (fs::recursive_directory_iterator at(folder, gone), end; !gone && at != end;
       at.increment(gone)) {
    struct stat info {};
    if (::lstat(at->path().c_str(), &info) == 0)
      sum += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return sum;
}

TEST_F(StoredOutputsTest, what_was_sent_takes_no_space) {
  const fs::path spool = folder() / "spool";
  fs::create_directory(spool);
  ASSERT_EQ(run_cli({"resize-vocab", golden_path("2.15.0/fsdp2/ckpt"), path("large.pt"), "--size",
                     "200000", "--table", "app.model.emb.*", "--no-sync"})
                .status,
            0);
  const std::uint64_t bytes = fs::file_size(path("large.pt"));
  ASSERT_GT(bytes, 59U << 20U);
  settings_.part_bytes = 1 << 20;
  std::atomic<std::uint64_t> most{0};
  std::mutex mutex;
  fail_at([&](SimRequest request, const std::string&) {
    if (request != SimRequest::kPart) return false;
    const std::lock_guard lock(mutex);
    most = std::max<std::uint64_t>(most, space_of(spool));
    return false;
  });
  ::setenv("TMPDIR", spool.c_str(), 1);
  const Case large[] = {
      {{"convert", path("large.pt"), "{}"}, "full.pt"},
      {{"convert", path("large.pt"), "{}", "--drop-values"}, "full.safetensors"},
      {{"convert", path("large.pt"), "{}"}, "full.h5"},
      {{"shard", path("large.pt"), "{}", "-w", "4"}, "folder"},
      {{"convert", path("large.pt"), "{}", "--to", "torch-checkpointing", "-w", "2"}, "folder"}};
  for (const Case& one : large) {
    SCOPED_TRACE(text_of(one));
    most = 0;
    const CliResult sent = run_cli(with(one, "sim://bucket/" + one.out, {"--threads", "2"}));
    EXPECT_EQ(sent.status, 0) << sent.err;
    // Parts that are being sent, wait, or have gaps.
    EXPECT_LE(most, 32U << 20U);
    fs::remove_all(settings_.root / "bucket");
  }
  ::unsetenv("TMPDIR");
}

TEST_F(StoredOutputsTest, a_url_of_no_store_is_refused) {
  const CliResult refused =
      run_cli({"consolidate", golden_path("2.15.0/fsdp2/ckpt"), "ftp://host/full.pt"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("error[UNSUPPORTED]: ftp://host/full.pt: is a URL that cannot "
                                     "be written; name a local path"));
}

TEST_F(StoredOutputsTest, there_is_nothing_to_go_on_with) {
  for (const char* format : {"pt", "dcp", "h5"}) {
    const CliResult refused = run_cli({"convert", golden_path("2.11.0/zip_pt/full.pt"),
                                       "sim://bucket/out", "--to", format, "--resume"});
    EXPECT_EQ(refused.status, 2) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("error[UNSUPPORTED]: sim://bucket/out: "));
    EXPECT_EQ(store_->count(SimRequest::kUpload), 0U);
  }
}

TEST_F(StoredOutputsTest, the_folder_of_waiting_bytes_is_gone_afterwards) {
  ::setenv("TMPDIR", folder().c_str(), 1);
  for (const bool fails : {false, true}) {
    fail_at([&](SimRequest request, const std::string&) {
      return fails && request == SimRequest::kComplete;
    });
    const CliResult result =
        run_cli({"consolidate", golden_path("2.15.0/fsdp2/ckpt"), "sim://bucket/full.pt"});
    EXPECT_EQ(result.status, fails ? 2 : 0) << result.err;
    for (const std::string& name : names()) EXPECT_THAT(name, Not(HasSubstr("upload")));
    fs::remove_all(settings_.root / "bucket");
  }
  ::unsetenv("TMPDIR");
}

}  // namespace
}  // namespace fsdp::cli
