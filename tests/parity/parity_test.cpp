// SPDX-License-Identifier: Apache-2.0
// Compares training with libfsdp to the same training with PyTorch's FSDP1: every case of cases.py.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libfsdp/options.h"
#include "tests/parity/compare.h"
#include "tests/parity/reference.h"
#include "tests/parity/training.h"
#include "tests/support/spawn_ranks.h"

namespace fsdp::test {
namespace {

// A file of reference.py.
struct Group {
  std::string name;  // "<model>_w<ranks>", and "_<level>" unless it is the processor's own
  std::string model;
  int world;
};

// The data that every case of a group is compared with, read once.
struct Material {
  Reference reference;
  Tensors inputs;
};

const Material& material(const Group& group) {
  static std::map<std::string, std::unique_ptr<Material>> known;
  auto& found = known[group.name];
  if (!found) {
    found = std::make_unique<Material>(
        Material{read_reference(FSDP_TEST_PARITY, group.name, group.world),
                 read_inputs(FSDP_TEST_PARITY, group.model)});
  }
  return *found;
}

struct Wanted {
  Group group;
  std::string name;
};

void PrintTo(const Wanted& wanted, std::ostream* out) {
  *out << wanted.group.name << ", " << wanted.name;
}

std::string test_name(const ::testing::TestParamInfo<Wanted>& info) {
  return info.param.group.name + "__" + info.param.name;
}

void expect_agreement(const ParityCase& parity_case, const Floor& floor,
                      const std::vector<Training>& ours, const std::vector<Training>& theirs) {
  const Tolerance tolerance = tolerance_of(parity_case, floor);
  ASSERT_EQ(ours.size(), theirs.size());
  Difference worst;
  for (std::size_t rank = 0; rank < theirs.size(); ++rank) {
    const Difference found = difference(parity_case, ours[rank], theirs[rank]);
    EXPECT_LE(found.first, tolerance.first) << "first loss of rank " << rank;
    EXPECT_LE(found.losses, tolerance.losses) << "losses of rank " << rank;
    EXPECT_LE(found.norms, tolerance.norms) << "norms of rank " << rank;
    EXPECT_LE(found.weights, tolerance.weights) << found.worst << " of rank " << rank;
    worst.losses = std::max(worst.losses, found.losses);
    worst.norms = std::max(worst.norms, found.norms);
    worst.weights = std::max(worst.weights, found.weights);
  }
  std::printf("  losses %.1e, norms %.1e, weights %.1e\n", worst.losses, worst.norms,
              worst.weights);
  if (!parity_case.mixed.empty()) {
    std::printf("  PyTorch beside itself: losses %.1e, norms %.1e, weights %.1e\n", floor.losses,
                floor.norms, floor.weights);
  }
}

std::vector<Training> train_ranks(const ParityCase& parity_case, const ParityInputs& inputs,
                                  int world) {
  std::vector<Training> trainings(static_cast<std::size_t>(world));
  const auto train = [&](const std::shared_ptr<ProcessGroup>& group) {
    at::set_num_threads(1);
    trainings[static_cast<std::size_t>(group->rank())] = train_sharded(parity_case, inputs, group);
  };
  spawn_ranks(world, train, std::chrono::seconds(120));
  return trainings;
}

class Parity : public ::testing::TestWithParam<Wanted> {
 protected:
  // Both sides must compute with the same kernels.
  void SetUp() override {
    ASSERT_TRUE(material_.reference.level.is_here())
        << "the reference was computed with other kernels: set the `environment` of "
        << wanted_.group.name << ".json, and no other of its variables";
  }
  void expect_near(const std::vector<Training>& ours, const std::vector<Training>& theirs) {
    expect_agreement(case_, floor_, ours, theirs);
  }
  std::vector<Training> train() { return train_ranks(case_, inputs_, wanted_.group.world); }

  const Wanted& wanted_ = GetParam();
  const Material& material_ = material(wanted_.group);
  const ParityInputs inputs_{wanted_.group.model, material_.reference.steps, material_.inputs};
  const Floor& floor_ = material_.reference.floors.at(wanted_.name);
  const std::vector<Training>& theirs_ = material_.reference.trainings.at(wanted_.name);
  ParityCase case_ = material_.reference.cases.at(wanted_.name);
};

class Control : public Parity {};
class Bucketed : public Parity {};
class Variant : public Parity {
 protected:
  void expect_agreement_with_pytorch() { expect_near(train(), theirs_); }
};

// The two languages' models, data, optimizers and loops are the same, without libfsdp.
TEST_P(Control, modules_that_are_not_sharded_agree_with_pytorch) {
  expect_near(train_plain(case_, inputs_, wanted_.group.world), theirs_);
}

TEST_P(Parity, agrees_with_pytorch) {
  const auto ours = train();
  expect_near(ours, theirs_);
  if (case_.peer == "ddp") return;
  for (const Training& training : ours) {
    EXPECT_THAT(training.units, ::testing::UnorderedElementsAreArray(theirs_.front().units));
  }
}

TEST_P(Bucketed, agrees_with_pytorch_where_units_share_collectives) {
  case_.bucket_bytes = FsdpOptions().bucket_bytes;
  expect_near(train(), theirs_);
}

// FSDP1 itself would continue with the weights from before the step, so compare with the control.
TEST_P(Variant, a_forward_between_backward_and_step_leaves_nothing_stale) {
  case_.evaluate_early = true;
  expect_near(train(), train_plain(case_, inputs_, wanted_.group.world));
}

// FSDP1 refuses this on the CPU.
TEST_P(Variant, ranks_take_the_first_ones_state) {
  case_.sync_module_states = true;
  expect_agreement_with_pytorch();
}

// FSDP1 cannot do this without a GPU.
TEST_P(Variant, offloading_changes_no_number) {
  case_.offload = true;
  expect_agreement_with_pytorch();
}

// FSDP1 does not average such copies.
TEST_P(Variant, copies_of_one_rank_each_are_averaged) {
  case_.shard = 1;
  for (const char* strategy : {"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"}) {
    case_.strategy = strategy;
    expect_agreement_with_pytorch();
  }
}

TEST_P(Variant, a_module_without_memory_is_given_it_sharded) {
  case_.meta = true;
  expect_agreement_with_pytorch();
}

TEST_P(Variant, a_hook_reduces_gradients) {
  case_.comm_hook = true;
  for (const char* strategy : {"FULL_SHARD", "NO_SHARD"}) {
    case_.strategy = strategy;
    expect_agreement_with_pytorch();
  }
}

TEST_P(Variant, hybrid_strategies_split_by_node) {
  case_.strategy = "HYBRID_SHARD";
  for (int size = 1; size <= wanted_.group.world; ++size) {
    if (wanted_.group.world % size != 0) continue;
    case_.node_size = size;
    expect_agreement_with_pytorch();
  }
}

class Ignored : public Parity {};

TEST_P(Ignored, parameters_are_ignored_like_their_modules) {
  case_.ignore_parameters = true;
  expect_near(train(), theirs_);
}

// Returns every reference that fits the environment, or the one named by FSDP_TEST_PARITY_GROUP.
std::vector<Group> groups() {
  static const std::regex kName("([a-z0-9]+)_w([0-9]+)(_[a-z0-9]+)?\\.json");
  const char* only = std::getenv("FSDP_TEST_PARITY_GROUP");
  std::vector<Group> found;
  for (const auto& entry : std::filesystem::directory_iterator(FSDP_TEST_PARITY)) {
    const std::string file = entry.path().filename().string();
    std::smatch match;
    if (!std::regex_match(file, match, kName)) continue;
    Group group{entry.path().stem(), match[1].str(), std::stoi(match[2].str())};
    if (only == nullptr ? read_level(FSDP_TEST_PARITY, group.name).is_here() : group.name == only) {
      found.push_back(std::move(group));
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Group& a, const Group& b) { return a.name < b.name; });
  return found;
}

std::vector<Wanted> cases_where(
    const std::function<bool(const Wanted&, const ParityCase&)>& chosen) {
  std::vector<Wanted> found;
  for (const Group& group : groups()) {
    for (const auto& [name, parity_case] : material(group).reference.cases) {
      Wanted wanted{group, name};
      if (chosen(wanted, parity_case)) found.push_back(std::move(wanted));
    }
  }
  return found;
}

bool is_for_parity(const Wanted& /*wanted*/, const ParityCase& /*parity_case*/) {
  return true;
}

bool shards_everywhere(const ParityCase& parity_case) {
  return parity_case.strategy == "FULL_SHARD" || parity_case.strategy == "SHARD_GRAD_OP";
}

// Returns whether an unsharded module can have the result.  It cannot for unused parameters: FSDP1
// gives them a gradient of zero if their unit has another, and Adam then lets them decay.
bool is_for_control(const Wanted& wanted, const ParityCase& parity_case) {
  return shards_everywhere(parity_case) && parity_case.mixed.empty() && parity_case.divide == 0 &&
         !has_own_loop(wanted.group.model) && parity_case.backward_prefetch == "PRE" &&
         !parity_case.forward_prefetch &&
         (wanted.group.model != "unused" || parity_case.optimizer == "sgd");
}

bool has_buckets(const Wanted& wanted, const ParityCase& parity_case) {
  return wanted.group.world <= 3 &&
         (parity_case.strategy == "FULL_SHARD" || parity_case.strategy == "HYBRID_SHARD") &&
         parity_case.backward_prefetch == "PRE" && !parity_case.forward_prefetch;
}

// Unlike Adam, SGD depends on the scale of gradients.
bool is_plain_step(const Wanted& /*wanted*/, const ParityCase& parity_case) {
  return shards_everywhere(parity_case) && parity_case.mixed.empty() &&
         parity_case.optimizer == "sgd" && parity_case.clip == 0 && parity_case.divide == 0;
}

bool ignores(const Wanted& /*wanted*/, const ParityCase& parity_case) {
  return !parity_case.ignored.empty();
}

INSTANTIATE_TEST_SUITE_P(PyTorch, Control, ::testing::ValuesIn(cases_where(is_for_control)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(PyTorch, Parity, ::testing::ValuesIn(cases_where(is_for_parity)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(PyTorch, Bucketed, ::testing::ValuesIn(cases_where(has_buckets)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(PyTorch, Variant, ::testing::ValuesIn(cases_where(is_plain_step)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(PyTorch, Ignored, ::testing::ValuesIn(cases_where(ignores)), test_name);
// Only some models have such cases, and some worlds.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Control);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Bucketed);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Variant);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Ignored);

}  // namespace
}  // namespace fsdp::test
