// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/upload/stored_output.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/store/store.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/sim_store.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;
using test::SimRequest;
using testing::ElementsAre;
using testing::HasSubstr;
using Files = std::map<std::string, std::string>;

const char* const kUrl = "sim://bucket/run/step-4";

class StoredOutputTest : public testing::Test {
 protected:
  StoredOutputTest() {
    settings_.root = folder_.path();
    settings_.part_bytes = 16;
    store_ = &test::sim_store(settings_);
  }

  StoredOutputOptions folder(bool replace = false) const {
    return {true, replace, [](std::string_view name) { return !name.ends_with(".txt"); },
            [](std::string_view name) { return name == "seal"; }};
  }
  void fail_at(std::function<bool(SimRequest, const std::string&)> where,
               ErrorCode code = ErrorCode::kNetwork) {
    settings_.fault = [where = std::move(where), code](SimRequest request, const std::string& url) {
      return where(request, url) ? std::optional(code) : std::nullopt;
    };
    store_->set(settings_);
  }
  void put(const std::string& name, const std::string& content) const {
    const fs::path path = folder_.path() / name;
    fs::create_directories(path.parent_path());
    test::write_file(path, content);
  }
  Files files() const {
    Files found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      if (!entry.is_regular_file()) continue;
      found[entry.path().lexically_relative(folder_.path())] =
          test::to_text(test::read_file(entry.path()));
    }
    return found;
  }
  // Of a file that other threads may be removing; empty if there is none.
  std::string content_of(const std::string& name) const {
    std::ifstream in(folder_.path() / "bucket/run/step-4" / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void add(StoredOutput& output, const std::string& name, const std::string& content) {
    const StoredOutput::Added added = output.add(name);
    if (name.find("distcp") != name.npos) added.upload->begin(content.size());
    test::write_file(added.spool, content);
    added.upload->wrote(0, content.size(), true);
    added.upload->finish(content.size());
  }
  // A folder as a checkpoint has it, its members in an order that no reader may see.
  static void add_checkpoint(StoredOutput& output, const std::string& mark) {
    add(output, "seal", "seal " + mark);
    add(output, ".metadata", "metadata " + mark);
    add(output, "__0_0.distcp", "data of rank zero " + mark);
    add(output, "__1_0.distcp", "data of rank one " + mark);
    add(output, "config.json", "config " + mark);
  }
  static Files checkpoint(const std::string& mark) {
    return {{"bucket/run/step-4/seal", "seal " + mark},
            {"bucket/run/step-4/.metadata", "metadata " + mark},
            {"bucket/run/step-4/__0_0.distcp", "data of rank zero " + mark},
            {"bucket/run/step-4/__1_0.distcp", "data of rank one " + mark},
            {"bucket/run/step-4/config.json", "config " + mark}};
  }

  test::TempDir folder_;
  test::SimSettings settings_;
  test::SimStore* store_ = nullptr;
};

TEST_F(StoredOutputTest, a_file_appears_by_commit_alone) {
  StoredOutput output(*store_, "sim://bucket/a.pt", {});
  add(output, "", "content");
  output.await_sent();
  EXPECT_EQ(files(), Files{});
  output.commit();
  EXPECT_EQ(files(), (Files{{"bucket/a.pt", "content"}}));
}

TEST_F(StoredOutputTest, what_exists_is_refused_before_a_byte_is_sent) {
  put("bucket/a.pt", "old");
  put("bucket/folder/x", "old");
  test::expect_error(ErrorCode::kExists, "sim://bucket/a.pt: exists",
                     [&] { StoredOutput output(*store_, "sim://bucket/a.pt", {}); });
  test::expect_error(ErrorCode::kNotRegular, "is a folder, expected a file",
                     [&] { StoredOutput output(*store_, "sim://bucket/folder", {}); });
  test::expect_error(ErrorCode::kExists, "sim://bucket/folder: exists",
                     [&] { StoredOutput output(*store_, "sim://bucket/folder/", folder()); });
  test::expect_error(ErrorCode::kNotRegular, "is a file, expected a folder",
                     [&] { StoredOutput output(*store_, "sim://bucket/a.pt", folder()); });
  test::expect_error(ErrorCode::kUsage, "does not name a file",
                     [&] { StoredOutput output(*store_, "sim://bucket/folder/", {}); });
  test::expect_error(ErrorCode::kUsage, "does not name a file",
                     [&] { StoredOutput output(*store_, "sim://bucket", {}); });
  settings_.lists = false;
  store_->set(settings_);
  test::expect_error(ErrorCode::kUnsupported, "cannot list the destination",
                     [&] { StoredOutput output(*store_, "sim://bucket/new", folder()); });
  EXPECT_EQ(store_->count(SimRequest::kUpload) + store_->count(SimRequest::kPut), 0U);
}

TEST_F(StoredOutputTest, a_folder_appears_with_the_files_that_lead_to_data_last) {
  std::vector<std::string> seen;
  fail_at([&](SimRequest request, const std::string& url) {
    if (request == SimRequest::kComplete || request == SimRequest::kPut) seen.push_back(url);
    return false;
  });
  StoredOutput output(*store_, kUrl, folder());
  add_checkpoint(output, "new");
  output.await_sent();
  EXPECT_EQ(files(), Files{});
  output.commit();
  EXPECT_EQ(files(), checkpoint("new"));
  ASSERT_EQ(seen.size(), 5U);
  EXPECT_THAT(seen[3], HasSubstr(".metadata"));
  EXPECT_THAT(seen[4], HasSubstr("seal"));
}

TEST_F(StoredOutputTest, a_failure_anywhere_leaves_nothing) {
  // Counts the requests of a run without a failure.
  store_->take_requests();
  {
    StoredOutput output(*store_, kUrl, folder());
    add_checkpoint(output, "new");
    output.commit();
  }
  const std::size_t requests = store_->take_requests().size();
  fs::remove_all(folder_.path() / "bucket");
  std::size_t failed = 0;
  for (std::size_t at = 0; at < requests; ++at) {
    std::atomic<std::size_t> number{0};
    fail_at([&](SimRequest request, const std::string&) {
      return request != SimRequest::kRemove && number++ == at;
    });
    try {
      StoredOutput output(*store_, kUrl, folder());
      add_checkpoint(output, "new");
      output.commit();
    } catch (const Error& error) {
      ++failed;
      EXPECT_EQ(error.code(), ErrorCode::kNetwork) << error.what();
    }
    EXPECT_EQ(files(), Files{}) << at;
  }
  EXPECT_EQ(failed, requests);
}

TEST_F(StoredOutputTest, a_signal_between_two_files_takes_back_those_that_are_visible) {
  fail_at([](SimRequest request, const std::string& url) {
    if (request == SimRequest::kComplete && url.ends_with("__1_0.distcp")) interrupt_signal = 15;
    return false;
  });
  {
    StoredOutput output(*store_, kUrl, folder());
    add_checkpoint(output, "new");
    test::expect_error(ErrorCode::kInterrupted, "interrupted", [&] { output.commit(); });
  }
  interrupt_signal = 0;
  EXPECT_EQ(files(), Files{});
}

// Who writes must not be told that it was stopped while the file is on its way into its place.
TEST_F(StoredOutputTest, a_signal_while_the_file_appears_does_not_leave_it_behind_an_error) {
  fail_at([](SimRequest request, const std::string&) {
    if (request != SimRequest::kComplete && request != SimRequest::kPut) return false;
    interrupt_signal = 15;
    // Longer than anybody waits between two looks for a signal.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return false;
  });
  for (const bool in_parts : {false, true}) {
    const std::string url = in_parts ? "sim://bucket/a.distcp" : "sim://bucket/a.pt";
    StoredOutput output(*store_, url, {});
    const StoredOutput::Added added = output.add("");
    if (in_parts) added.upload->begin(7);
    test::write_file(added.spool, "content");
    added.upload->wrote(0, 7, true);
    added.upload->finish(7);
    EXPECT_NO_THROW(output.commit()) << url;
    interrupt_signal = 0;
  }
  EXPECT_EQ(files(), (Files{{"bucket/a.pt", "content"}, {"bucket/a.distcp", "content"}}));
}

TEST_F(StoredOutputTest, a_file_that_appears_meanwhile_stays_and_the_rest_goes) {
  for (const char* name : {"__0_0.distcp", ".metadata", "config.json"}) {
    const std::string theirs = cat("bucket/run/step-4/", name);
    fail_at([&](SimRequest request, const std::string& url) {
      const bool last = request == SimRequest::kComplete || request == SimRequest::kPut;
      if (last && url.ends_with(name) && !fs::exists(folder_.path() / theirs))
        put(theirs, "theirs");
      return false;
    });
    {
      StoredOutput output(*store_, kUrl, folder());
      add_checkpoint(output, "new");
      test::expect_error(ErrorCode::kExists, "appeared while it was being written",
                         [&] { output.commit(); });
    }
    EXPECT_EQ(files(), (Files{{theirs, "theirs"}})) << name;
    fs::remove_all(folder_.path() / "bucket");
  }
}

TEST_F(StoredOutputTest, a_folder_is_replaced_without_old_metadata_beside_new_data) {
  for (const auto& [name, content] : checkpoint("old")) put(name, content);
  put("bucket/run/step-4/__2_0.distcp", "stale");
  put("bucket/run/step-4/optimizer/x.pt", "stale");
  StoredOutput output(*store_, kUrl, folder(true));
  add_checkpoint(output, "new");
  fail_at([&](SimRequest request, const std::string&) {
    const std::string metadata = content_of(".metadata");
    const bool leads = !metadata.empty();
    const bool old = metadata == "metadata old";
    const bool old_data =
        content_of("__0_0.distcp").ends_with("old") && content_of("__1_0.distcp").ends_with("old");
    EXPECT_FALSE(request == SimRequest::kComplete && leads);
    EXPECT_TRUE(!leads || old == old_data);
    return false;
  });
  output.commit();
  EXPECT_EQ(files(), checkpoint("new"));
}

void add_numbered(const std::function<void(const std::string&, const std::string&)>& add) {
  add(".metadata", "leads to 1");
  add("__0_1.distcp", "data of rank zero new");
}

TEST_F(StoredOutputTest, with_other_names_of_data_the_old_one_is_whole_until_the_new_one_is) {
  const Files old = {{"bucket/run/step-4/.metadata", "leads to 0"},
                     {"bucket/run/step-4/__0_0.distcp", "data of rank zero old"}};
  const Files expected = {{"bucket/run/step-4/.metadata", "leads to 1"},
                          {"bucket/run/step-4/__0_1.distcp", "data of rank zero new"}};
  for (const auto& [name, content] : old) put(name, content);
  fail_at([&](SimRequest, const std::string&) {
    const std::string metadata = content_of(".metadata");
    EXPECT_THAT(metadata, HasSubstr("leads to"));
    EXPECT_NE(content_of(cat("__0_", metadata.back(), ".distcp")), "");
    return false;
  });
  {
    StoredOutput output(*store_, kUrl, folder(true));
    add_numbered([&](const auto& name, const auto& content) { add(output, name, content); });
    output.commit();
  }
  EXPECT_EQ(files(), expected);
  fs::remove_all(folder_.path() / "bucket");
  for (const auto& [name, content] : old) put(name, content);
  for (const SimRequest when : {SimRequest::kUpload, SimRequest::kPart, SimRequest::kComplete,
                                SimRequest::kPut, SimRequest::kList}) {
    fail_at([&](SimRequest request, const std::string&) { return request == when; });
    const auto replace = [&] {
      StoredOutput output(*store_, kUrl, folder(true));
      add_numbered([&](const auto& name, const auto& content) { add(output, name, content); });
      output.commit();
    };
    test::expect_error(ErrorCode::kNetwork, "told to fail", replace);
    EXPECT_EQ(files(), old);
  }
}

// Data files get other names than the old ones have, as the writers of folders see to.
class ReplacedOutputTest : public StoredOutputTest {
 protected:
  const std::string folder_name_ = "bucket/run/step-4/";
  const Files old_ = {{folder_name_ + ".metadata", "leads to 0"},
                      {folder_name_ + "__0_0.distcp", "old"},
                      {folder_name_ + "__1_0.distcp", "old"},
                      {folder_name_ + "seal", "of the old"}};
  const Files new_ = {{folder_name_ + ".metadata", "leads to 1"},
                      {folder_name_ + "__0_1.distcp", "new"},
                      {folder_name_ + "seal", "of the new"}};

  // The files of both, those of `second` in place of those of `first`.
  static Files both(Files first, const Files& second) {
    for (const auto& [name, content] : second) first[name] = content;
    return first;
  }
  static Files without(Files all, const std::string& name) {
    all.erase("bucket/run/step-4/" + name);
    return all;
  }
  // The words of the error that ends it.
  std::string replaced() {
    fs::remove_all(folder_.path() / "bucket");
    for (const auto& [name, content] : old_) put(name, content);
    try {
      StoredOutput output(*store_, kUrl, folder(true));
      add(output, "seal", "of the new");
      add(output, ".metadata", "leads to 1");
      add(output, "__0_1.distcp", "new");
      output.commit();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNetwork) << error.what();
      return error.what();
    }
    return "";
  }
};

TEST_F(ReplacedOutputTest, old_files_that_stay_are_named) {
  EXPECT_EQ(replaced(), "");
  EXPECT_EQ(files(), new_);
  fail_at([](SimRequest request, const std::string& url) {
    return request == SimRequest::kRemove && url.ends_with("__0_0.distcp");
  });
  EXPECT_THAT(replaced(), testing::EndsWith("told to fail; the new sim://bucket/run/step-4 is in "
                                            "place; files of the old one are yet to be removed: "
                                            "'__0_0.distcp'"));
  EXPECT_EQ(files(), both(new_, {{folder_name_ + "__0_0.distcp", "old"}}));
}

TEST_F(ReplacedOutputTest, data_stays_where_nobody_knows_whether_it_is_led_to) {
  for (const bool appears : {false, true}) {
    fail_at([&](SimRequest request, const std::string& url) {
      if (request != SimRequest::kPut || !url.ends_with(".metadata")) return false;
      if (appears) put(folder_name_ + ".metadata", "leads to 1");
      throw UncertainError(url + ": lost");
    });
    EXPECT_EQ(replaced(),
              "sim://bucket/run/step-4/.metadata: lost; the old checkpoint has lost its "
              "seal; whether the new sim://bucket/run/step-4 is in place is not known, and these "
              "files of it may be: '.metadata', '__0_1.distcp'");
    EXPECT_EQ(files(), without(appears ? both(old_, new_) : both(new_, old_), "seal"));
  }
}

TEST_F(ReplacedOutputTest, without_its_seal_it_is_in_place) {
  fail_at([](SimRequest request, const std::string& url) {
    return request == SimRequest::kPut && url.ends_with("seal");
  });
  EXPECT_THAT(replaced(), testing::EndsWith("told to fail; the new sim://bucket/run/step-4 is in "
                                            "place, without its seal"));
  EXPECT_EQ(files(), without(new_, "seal"));
  fail_at([](SimRequest request, const std::string& url) {
    return (request == SimRequest::kPut && url.ends_with("seal")) ||
           (request == SimRequest::kRemove && url.ends_with("__1_0.distcp"));
  });
  EXPECT_THAT(replaced(), testing::EndsWith(", without its seal; files of the old one are yet to "
                                            "be removed: '__1_0.distcp'"));
}

TEST_F(ReplacedOutputTest, new_files_that_stay_beside_the_old_one_are_named) {
  // Nobody knows of the data file; or its removal fails.
  for (const bool unknown : {true, false}) {
    fail_at([&](SimRequest request, const std::string& url) {
      if (unknown && request == SimRequest::kComplete) throw UncertainError(url + ": lost");
      return (request == SimRequest::kPut && url.ends_with(".metadata")) ||
             (request == SimRequest::kRemove && url.ends_with(".distcp"));
    });
    EXPECT_THAT(replaced(), testing::EndsWith("; the old checkpoint has lost its seal; "
                                              "files of the new one may be left: '__0_1.distcp'"));
    Files expected = without(old_, "seal");
    if (!unknown) expected[folder_name_ + "__0_1.distcp"] = "new";
    EXPECT_EQ(files(), expected);
  }
  fail_at([](SimRequest request, const std::string&) { return request == SimRequest::kRemove; });
  EXPECT_THAT(replaced(), testing::EndsWith("the old checkpoint may have lost its seal"));
  EXPECT_EQ(files(), old_);
}

// The seal fails, and so does the way back.
TEST_F(StoredOutputTest, data_stays_if_what_leads_to_it_cannot_be_removed) {
  fail_at([](SimRequest request, const std::string& url) {
    return (request == SimRequest::kPut && url.ends_with("seal")) ||
           (request == SimRequest::kRemove && url.ends_with(".metadata"));
  });
  StoredOutput output(*store_, kUrl, folder());
  add_checkpoint(output, "new");
  test::expect_error(ErrorCode::kNetwork,
                     "is in place is not known, and these files of it may be: '.metadata', "
                     "'__0_0.distcp', '__1_0.distcp', 'config.json'",
                     [&] { output.commit(); });
  Files expected = checkpoint("new");
  expected.erase("bucket/run/step-4/seal");
  EXPECT_EQ(files(), expected);
}

TEST_F(StoredOutputTest, a_folder_with_other_files_is_not_replaced) {
  put("bucket/run/step-4/notes.txt", "mine");
  test::expect_error(ErrorCode::kExists, "holds 'notes.txt', which is not a file of a checkpoint",
                     [&] { StoredOutput output(*store_, kUrl, folder(true)); });
  fs::remove_all(folder_.path() / "bucket");
  put("bucket/run/step-4/a/b/x.pt", "deep");
  test::expect_error(ErrorCode::kExists, "holds 'a/b'",
                     [&] { StoredOutput output(*store_, kUrl, folder(true)); });
}

TEST_F(StoredOutputTest, a_failed_replacement_says_what_became_of_the_old_one) {
  for (const auto& [name, content] : checkpoint("old")) put(name, content);
  fail_at([](SimRequest request, const std::string&) { return request == SimRequest::kComplete; });
  StoredOutput output(*store_, kUrl, folder(true));
  add_checkpoint(output, "new");
  test::expect_error(ErrorCode::kNetwork, "the old checkpoint is no longer complete",
                     [&] { output.commit(); });
}

TEST_F(StoredOutputTest, names_that_leave_the_folder_and_twins_are_refused) {
  StoredOutput output(*store_, kUrl, folder());
  for (const char* name : {"", ".", "..", "a/..", "../a", "a/b/c/d/e/f/g", "/a", "a/"}) {
    test::expect_error(ErrorCode::kPath, "is not the name of a file in a folder",
                       [&] { output.add(name); });
  }
  add(output, "a/b", "x");
  test::expect_error(ErrorCode::kExists, "is written twice", [&] { output.add("a/b"); });
}

// A request is under way, and the writer waits for it, when another thread ends the process.
TEST_F(StoredOutputTest, who_ends_the_process_takes_back_what_is_visible) {
  std::atomic<bool> stuck{false};
  std::atomic<bool> goes_on{false};
  fail_at([&](SimRequest request, const std::string& url) {
    if (request != SimRequest::kComplete || !url.ends_with("__1_0.distcp")) return false;
    stuck = true;
    while (!goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return true;
  });
  std::jthread ender([&] {
    while (!stuck || !fs::exists(folder_.path() / "bucket/run/step-4/__0_0.distcp"))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::jthread answer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      goes_on = true;
    });
    abandon_outputs();
    EXPECT_EQ(files(), Files{});
    commit_mutex().unlock();  // The process goes on in this test alone.
  });
  StoredOutput output(*store_, kUrl, folder());
  add_checkpoint(output, "new");
  EXPECT_THROW(output.commit(), Error);
  ender.join();
}

TEST_F(StoredOutputTest, a_file_beside_it_is_put_and_removed) {
  put("bucket/a.pt.seal", "old");
  StoredOutput output(*store_, "sim://bucket/a.pt", {});
  add(output, "", "content");
  output.remove_beside(".seal");
  EXPECT_EQ(files(), Files{});
  // Who may not remove anything has nothing to do if there is none.
  fail_at([](SimRequest request, const std::string&) { return request == SimRequest::kRemove; },
          ErrorCode::kAccess);
  output.remove_beside(".seal");
  output.commit();
  output.put_beside(".seal", "new");
  EXPECT_EQ(files(), (Files{{"bucket/a.pt", "content"}, {"bucket/a.pt.seal", "new"}}));
  test::expect_error(ErrorCode::kAccess, "told to fail", [&] { output.remove_beside(".seal"); });
}

}  // namespace
}  // namespace fsdp::formats
