// SPDX-License-Identifier: Apache-2.0
// check_copies.py compares successful saves and loads with PyTorch; this file tests failures and
// options.
#include "libfsdp/checkpoint.h"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "formats/bytes/files/seal.h"
#include "formats/bytes/outputs/file_link.h"
#include "tests/libfsdp/error_of.h"
#include "tests/support/dcp_folder.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using test::spawn_ranks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Group = std::shared_ptr<ProcessGroup>;

at::Tensor numbers(std::vector<std::int64_t> shape, double first = 0) {
  std::int64_t numel = 1;
  for (const auto size : shape) numel *= size;
  return (at::arange(numel, at::kDouble) + first).to(at::kFloat).view(shape);
}

// Returns this rank's rows of `whole`.
ShardedTensor rows_of(const at::Tensor& whole, const Group& group) {
  ShardedTensor result;
  result.layout = shard_layout(whole.sizes(), group->size());
  result.part = group->rank();
  const auto first = result.layout.first_row(result.part);
  result.local =
      whole.narrow(0, std::min(first, whole.size(0)), result.layout.rows_of(result.part)).clone();
  return result;
}

StateDict state_of(const Group& group, double first = 0) {
  return {{"weight", rows_of(numbers({5, 3}, first), group)},
          {"norm", numbers({4}, first)},
          {"step", std::int64_t{7}},
          {"names", StateList{"a", "b"}}};
}

// Returns the error that each rank of `ranks` got from `body`; "" if there was none.
std::vector<std::string> errors_of(int ranks, const test::RankBody& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  spawn_ranks(ranks, [&](const Group& group) {
    try {
      body(group);
    } catch (const c10::Error& error) {
      errors[static_cast<std::size_t>(group->rank())] = error.what_without_backtrace();
    }
  });
  return errors;
}

class Checkpoint : public ::testing::Test {
 protected:
  fs::path path(const std::string& name = "step-1") const { return dir_.path() / name; }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      result.push_back(entry.path().filename());
    std::sort(result.begin(), result.end());
    return result;
  }
  void save_at(int ranks, double first = 0, const SaveOptions& options = {}) {
    spawn_ranks(ranks,
                [&](const Group& group) { save(path(), state_of(group, first), group, options); });
  }
  void expect_loads(int ranks, double first) {
    spawn_ranks(ranks, [&](const Group& group) {
      StateDict state = state_of(group, -100);
      state.set("step", StateValue());
      load(path(), state, group);
      EXPECT_TRUE(at::equal(state.at("weight").as_sharded()->local,
                            rows_of(numbers({5, 3}, first), group).local));
      EXPECT_TRUE(at::equal(*state.at("norm").as_tensor(), numbers({4}, first)));
      EXPECT_EQ(*state.at("step").as_int(), 7);
      EXPECT_EQ(*state.at("names").as_list()->at(1).as_string(), "b");
    });
  }

  test::TempDir dir_;
};

TEST_F(Checkpoint, is_loaded_at_any_number_of_ranks) {
  save_at(3);
  for (const int ranks : {1, 2, 4}) expect_loads(ranks, 0);
  EXPECT_THAT(names(), ElementsAre("step-1"));
}

// A planner's own class in `.metadata`: nothing of it is run, but someone has to say that it is
// known.
TEST_F(Checkpoint, names_that_are_not_known_are_accepted_where_they_are_allowed) {
  test::DcpFolder folder;
  folder.metadata.planner_data = test::dict_of(
      {{test::text("v"), test::call(test::global("mine", "Plan"), {test::integer(1)})}});
  folder.write();
  const auto load_v = [&](const LoadOptions& options) {
    return errors_of(2, [&](const Group& group) {
      StateDict state;
      load(folder.folder.path(), state, group, options);
    });
  };
  LoadOptions options;
  options.strict = false;  // for the empty state
  EXPECT_THAT(load_v(options), Each(AllOf(HasSubstr("'mine.Plan'"),
                                          HasSubstr("LoadOptions::allowed_globals accepts it"))));
  options.allowed_globals = {"mine.Plan"};
  EXPECT_THAT(load_v(options), Each(""));
}

TEST_F(Checkpoint, a_destination_that_is_there_is_replaced_where_that_was_asked_for) {
  save_at(2);
  EXPECT_THAT(errors_of(2, [&](const Group& group) { save(path(), state_of(group, 50), group); }),
              Each(HasSubstr("step-1: exists; SaveOptions::overwrite replaces it")));
  expect_loads(2, 0);
  SaveOptions overwrite;
  overwrite.overwrite = true;
  save_at(3, 50, overwrite);
  expect_loads(2, 50);
  EXPECT_THAT(names(), ElementsAre("step-1"));
}

TEST_F(Checkpoint, a_url_is_not_saved_to) {
  for (const std::string url : {"s3://bucket/step-1", "https://host/step-1"}) {
    EXPECT_THAT(errors_of(2, [&](const Group& group) { save(url, state_of(group), group); }),
                Each(HasSubstr(url + ": cannot save to a URL")));
    EXPECT_THAT(errors_of(2,
                          [&](const Group& group) {
                            save_file(url + ".pt", {{"norm", numbers({4})}}, group);
                          }),
                Each(HasSubstr(url + ".pt: cannot save to a URL")));
  }
}

TEST_F(Checkpoint, is_the_same_through_the_page_cache_and_past_it) {
  const auto content = [&] {
    std::map<std::string, std::string> files;
    for (const auto& file : fs::directory_iterator(path())) {
      std::ifstream in(file.path(), std::ios::binary);
      files[file.path().filename()].assign(std::istreambuf_iterator<char>(in), {});
    }
    return files;
  };
  SaveOptions options;
  options.page_cache = PageCache::kNever;
  save_at(2, 0, options);
  const auto past = content();
  EXPECT_EQ(past.size(), 4);
  options.overwrite = true;
  for (const PageCache use : {PageCache::kAlways, PageCache::kWhileQuick}) {
    options.page_cache = use;
    save_at(2, 0, options);
    EXPECT_TRUE(content() == past);
  }
}

TEST_F(Checkpoint, is_sealed_with_what_every_rank_wrote) {
  for (const PageCache use : {PageCache::kAlways, PageCache::kNever}) {
    SaveOptions options;
    options.overwrite = true;
    options.page_cache = use;
    save_at(3, 0, options);
    const auto sealed = formats::read_seal(*formats::file_at(path() / "fsdp_seal.json"));
    std::vector<std::string> listed;
    for (const auto& file : sealed) {
      listed.push_back(file.name);
      const auto found = formats::file_at(path() / file.name);
      EXPECT_EQ(file.bytes, found->size()) << file.name;
      EXPECT_EQ(file.crc, formats::crc_of(*found)) << file.name;
    }
    EXPECT_THAT(listed, ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp"));
  }
  SaveOptions without;
  without.overwrite = true;
  without.seal = false;
  save_at(3, 0, without);
  EXPECT_FALSE(fs::exists(path() / "fsdp_seal.json"));
}

TEST_F(Checkpoint, ranks_with_different_states_are_told_the_key) {
  const auto errors = errors_of(3, [&](const Group& group) {
    StateDict state = state_of(group);
    if (group->rank() == 1) state.set("norm", numbers({5}));
    save(path(), state, group);
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("rank 1 differs from rank 0"),
                         HasSubstr("''norm': float32[5]' instead of ''norm': float32[4]'"))));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Checkpoint, a_part_that_two_ranks_claim_is_refused) {
  const auto errors = errors_of(2, [&](const Group& group) {
    StateDict state = state_of(group);
    state.at("weight").as_sharded()->part = 0;
    state.at("weight").as_sharded()->local = numbers({3, 3});
    save(path(), state, group);
  });
  EXPECT_THAT(errors, Each(HasSubstr("part 0 of copy 0 is both rank 0's and rank 1's")));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Checkpoint, a_folder_that_not_all_ranks_share_is_refused) {
  const auto errors = errors_of(2, [&](const Group& group) {
    fs::create_directory(path(std::to_string(group->rank())));
    save(path(std::to_string(group->rank())) / "step-1", state_of(group), group);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("failed on rank 1: "),
                                 HasSubstr("is it on a file system that all writers share?"))));
  EXPECT_TRUE(fs::is_empty(path("0")) && fs::is_empty(path("1")));
}

TEST_F(Checkpoint, a_write_that_fails_leaves_the_old_one_and_nothing_else) {
  save_at(2);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  // Rank 1 has the larger part.
  const auto errors = errors_of(2, [&](const Group& group) {
    StateDict state = state_of(group, 50);
    StateDict large{{"large", numbers({2000})}};
    for (auto& entry : large.entries()) state.set(entry.first, entry.second);
    SaveOptions options;
    options.overwrite = true;
    save(path(), state, group, options);
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("failed on rank"), HasSubstr(".distcp"),
                                 HasSubstr("File too large"))));
  expect_loads(2, 0);
  EXPECT_THAT(names(), ElementsAre("step-1"));
}

TEST_F(Checkpoint, every_key_that_does_not_fit_is_named_before_anything_is_written_to) {
  save_at(2);
  const auto errors = errors_of(2, [&](const Group& group) {
    const at::Tensor untouched = at::full({4}, 9.0F);
    StateDict state{{"weight", rows_of(numbers({5, 4}), group)},
                    {"norm", untouched},
                    {"stepp", StateValue()},
                    {"more", numbers({2})}};
    const std::string error = error_of([&] { load(path(), state, group); });
    EXPECT_TRUE(at::equal(untouched, at::full({4}, 9.0F)));
    TORCH_CHECK(false, error);
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("failed on rank 0, rank 1: "),
                         HasSubstr("lacks 2 keys of the state: 'stepp' (nearest: 'step'), 'more'"),
                         HasSubstr("has 2 keys that the state lacks: 'step' (nearest: 'stepp'), "
                                   "'names'"),
                         HasSubstr("'weight': shape [5, 3] in the checkpoint, [5, 4] here"))));
}

TEST_F(Checkpoint, without_strict_what_is_missing_is_reported_and_left_as_it_is) {
  save_at(2);
  spawn_ranks(3, [&](const Group& group) {
    StateDict state{{"norm", at::zeros({4})}, {"more", numbers({2})}};
    LoadOptions options;
    options.strict = false;
    const LoadReport report = load(path(), state, group, options);
    EXPECT_THAT(report.missing, ElementsAre("more"));
    EXPECT_THAT(report.unexpected, ElementsAre("weight", "step", "names"));
    EXPECT_TRUE(at::equal(*state.at("norm").as_tensor(), numbers({4})));
    EXPECT_TRUE(at::equal(*state.at("more").as_tensor(), numbers({2})));
  });
}

TEST_F(Checkpoint, floating_elements_are_converted_unless_that_is_ruled_out) {
  save_at(2);
  const auto state_in = [](at::ScalarType type, const Group& group) {
    StateDict state = state_of(group);
    state.set("weight", rows_of(at::zeros({5, 3}, type), group));
    return state;
  };
  spawn_ranks(2, [&](const Group& group) {
    StateDict state = state_in(at::kBFloat16, group);
    const LoadReport report = load(path(), state, group);
    EXPECT_THAT(report.cast, ElementsAre("weight: float32 -> bfloat16"));
    EXPECT_TRUE(at::equal(state.at("weight").as_sharded()->local,
                          rows_of(numbers({5, 3}).to(at::kBFloat16), group).local));
  });
  EXPECT_THAT(errors_of(2,
                        [&](const Group& group) {
                          StateDict state = state_in(at::kBFloat16, group);
                          LoadOptions options;
                          options.cast = false;
                          load(path(), state, group, options);
                        }),
              Each(HasSubstr("'weight': dtype float32 in the checkpoint, bfloat16 here; "
                             "LoadOptions::cast converts it")));
  EXPECT_THAT(errors_of(2,
                        [&](const Group& group) {
                          StateDict state = state_in(at::kInt, group);
                          load(path(), state, group);
                        }),
              Each(AllOf(HasSubstr("'weight': dtype float32 in the checkpoint, int32 here"),
                         Not(HasSubstr("LoadOptions")))));
}

// Returns the byte of the file at which the float `value` lies.
std::streamoff place_of(const fs::path& file, float value) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::string pattern(sizeof value, '\0');
  std::memcpy(pattern.data(), &value, sizeof value);
  return static_cast<std::streamoff>(bytes.find(pattern));
}

TEST_F(Checkpoint, damage_is_found_by_ranks_that_each_read_a_part_of_it) {
  // 12 rows in one record of 2 ranks' files; 4 ranks read 3 rows each.
  spawn_ranks(2, [&](const Group& group) {
    save(path(), {{"weight", rows_of(numbers({12, 50}, 1), group)}}, group);
  });
  const fs::path file = path() / "__1_0.distcp";
  const auto byte = place_of(file, 601 - 20);
  ASSERT_GT(byte, 0);
  std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
  damaged.seekp(byte);
  damaged.put('\x7f');
  damaged.close();
  const auto body = [&](bool verify) {
    return [this, verify](const Group& group) {
      StateDict state{{"weight", rows_of(at::zeros({12, 50}), group)}};
      LoadOptions options;
      options.verify = verify;
      load(path(), state, group, options);
    };
  };
  for (const int ranks : {1, 2, 4, 5}) {
    EXPECT_THAT(
        errors_of(ranks, body(true)),
        Each(AllOf(HasSubstr("__1_0.distcp"), HasSubstr("'weight'"), HasSubstr("CRC-32 stored"))))
        << ranks;
    EXPECT_THAT(errors_of(ranks, body(false)), Each(IsEmpty())) << ranks;
  }
}

TEST_F(Checkpoint, a_folder_that_was_not_finished_is_none) {
  save_at(2);
  fs::remove(path() / ".metadata");
  EXPECT_THAT(errors_of(2,
                        [&](const Group& group) {
                          StateDict state = state_of(group);
                          load(path(), state, group);
                        }),
              Each(AllOf(HasSubstr("failed on rank 0, rank 1: "), HasSubstr(".metadata"))));
}

TEST_F(Checkpoint, tensors_that_no_checkpoint_holds_are_refused_by_key) {
  const auto refused = [&](const at::Tensor& tensor) {
    return errors_of(2, [&](const Group& group) {
      save(path(), {{"model", StateDict{{"w", tensor}}}}, group);
    });
  };
  EXPECT_THAT(refused(at::eye(3).to_sparse()), Each(HasSubstr("'model.w': the tensor is sparse")));
  EXPECT_THAT(refused(at::empty({3}, at::kMeta)), Each(HasSubstr("'model.w': the tensor has no")));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Checkpoint, a_file_holds_whole_tensors_of_rank_0) {
  EXPECT_THAT(errors_of(2,
                        [&](const Group& group) {
                          StateDict state;
                          if (group->rank() == 0) state = state_of(group);
                          save_file(path("a.pt"), state, group);
                        }),
              Each(HasSubstr("'weight': this rank has only a part of the tensor")));
  spawn_ranks(2, [&](const Group& group) {
    StateDict state;
    if (group->rank() == 0) state = {{"norm", numbers({4})}};
    save_file(path("a.pt"), state, group);
    StateDict read{{"norm", at::zeros({4})}};
    load(path("a.pt"), read, group);
    EXPECT_TRUE(at::equal(*read.at("norm").as_tensor(), numbers({4})));
  });
  EXPECT_THAT(names(), ElementsAre("a.pt"));
}

TEST_F(Checkpoint, meta_stands_beside_the_parts) {
  spawn_ranks(2, [&](const Group& group) {
    save_with_meta(path(), {{"model", state_of(group)}}, {{"epoch", std::int64_t{3}}}, group);
  });
  EXPECT_TRUE(fs::exists(path() / "meta.pt"));
  spawn_ranks(1, [&](const Group& group) {
    StateDict state{{"epoch", StateValue()}};
    LoadOptions options;
    options.strict = false;
    load(path() / "meta.pt", state, group, options);
    EXPECT_EQ(*state.at("epoch").as_int(), 3);
  });
}

}  // namespace
}  // namespace fsdp
