// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/node_list.h"
#include "libfsdp/process_group.h"

namespace fsdp {
using namespace internal;
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<RankEnvironment> environment_of(const Variables& variables) {
  return rank_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

// "rank/world local/local world at address:port", or the error.
std::string described(const Variables& variables) {
  try {
    const auto found = environment_of(variables);
    if (!found) return "no launcher";
    return found->launcher + " " + std::to_string(found->rank) + "/" +
           std::to_string(found->world_size) + " " + std::to_string(found->local_rank) + "/" +
           std::to_string(found->local_world_size) + " at " + found->master_addr + ":" +
           std::to_string(found->master_port);
  } catch (const c10::Error& error) {
    return message_of(error);
  }
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun{{"RANK", "5"},        {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
// As Debian's mpich 4.0.2 sets them, and Intel MPI's Hydra.
const Variables kHydra{
    {"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}};
const Variables kPals{{"PMI_RANK", "9"},       {"PMI_SIZE", "16"},    {"PMI_LOCAL_RANK", "1"},
                      {"PMI_LOCAL_SIZE", "8"}, {"MASTER_ADDR", "x1"}, {"MASTER_PORT", "55"}};
const Variables kSlurm{{"SLURM_PROCID", "5"},          {"SLURM_NTASKS", "8"},
                       {"SLURM_LOCALID", "1"},         {"SLURM_NODEID", "1"},
                       {"SLURM_NTASKS_PER_NODE", "4"}, {"SLURM_NODELIST", "node[03-04]"},
                       {"MASTER_PORT", "1234"}};

TEST(RankEnvironment, without_a_launcher_there_is_none) {
  EXPECT_EQ(described({}), "no launcher");
  EXPECT_EQ(described({{"RANK", ""}, {"WORLD_SIZE", ""}}), "no launcher");
  // A shell inside of an allocation of Slurm.
  EXPECT_EQ(described({{"SLURM_NTASKS", "4"}, {"SLURM_NODELIST", "a"}}), "no launcher");
}

TEST(RankEnvironment, torchrun_says_everything) {
  EXPECT_EQ(described(kTorchrun), "torchrun 5/8 1/4 at a:29500");
}

TEST(RankEnvironment, every_missing_variable_of_torchrun_is_named) {
  for (const auto& [name, value] : kTorchrun) {
    EXPECT_EQ(described(without(kTorchrun, name)),
              name + " is not set, though other variables of torchrun are; set it");
  }
}

TEST(RankEnvironment, numbers_that_are_none_or_contradict_are_named) {
  const std::vector<std::pair<Variables, std::string>> cases{
      {with(kTorchrun, "RANK", "x"), "RANK: expected a number that is not negative, but got 'x'"},
      {with(kTorchrun, "RANK", "-1"), "RANK: expected a number that is not negative, but got '-1'"},
      {with(kTorchrun, "RANK", "3 "), "RANK: expected a number that is not negative, but got '3 '"},
      {with(kTorchrun, "WORLD_SIZE", "99999999999"),
       "WORLD_SIZE: expected a number that is not negative, but got '99999999999'"},
      {with(kTorchrun, "RANK", "8"), "RANK is 8, but WORLD_SIZE is 8: expected a smaller one"},
      {with(kTorchrun, "WORLD_SIZE", "0"), "WORLD_SIZE: expected at least 1, but got 0"},
      {with(kTorchrun, "LOCAL_RANK", "4"),
       "LOCAL_RANK is 4, but LOCAL_WORLD_SIZE is 4: expected a smaller one"},
      {with(kTorchrun, "LOCAL_WORLD_SIZE", "9"),
       "LOCAL_WORLD_SIZE is 9, but WORLD_SIZE is 8: expected no more ranks on one node than in "
       "all"},
      {with(kTorchrun, "MASTER_PORT", "65536"), "MASTER_PORT: expected a port, but got 65536"},
      {with(kTorchrun, "MASTER_PORT", "0"), "MASTER_PORT: expected a port, but got 0"},
      {with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "4"),
       "OMPI_COMM_WORLD_RANK is 4, but OMPI_COMM_WORLD_SIZE is 4: expected a smaller one"},
      {with(kSlurm, "SLURM_LOCALID", "4"),
       "SLURM_LOCALID is 4, but the number of ranks on this node is 4: expected a smaller one"},
      {with(kSlurm, "SLURM_NODEID", "2"),
       "SLURM_NODEID is 2, but SLURM_NODELIST is 2: expected a smaller one"},
      {with(kSlurm, "SLURM_NODELIST", "node[3-"),
       "SLURM_NODELIST: cannot read 'node[3-' at character 8"}};
  for (const auto& [variables, expected] : cases) EXPECT_EQ(described(variables), expected);
}

TEST(RankEnvironment, open_mpi_on_one_node_talks_over_loopback) {
  const auto found = environment_of(with(kOpenMpi, "PMIX_NAMESPACE", "prterun-host-77@1"));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->launcher, "Open MPI");
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->world_size, 4);
  EXPECT_EQ(found->local_rank, 2);
  EXPECT_EQ(found->local_world_size, 4);
  EXPECT_EQ(found->master_addr, "127.0.0.1");
  EXPECT_GE(found->master_port, 20000);
  EXPECT_LT(found->master_port, 30000);
  const auto other_job = environment_of(with(kOpenMpi, "PMIX_NAMESPACE", "prterun-host-78@1"));
  EXPECT_NE(found->master_port, other_job->master_port);
}

TEST(RankEnvironment, open_mpi_on_several_nodes_needs_an_address) {
  const auto several = with(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "8");
  EXPECT_THAT(described(several), ::testing::StartsWith("MASTER_ADDR is not set, and Open MPI "));
  EXPECT_EQ(described(with(with(several, "MASTER_ADDR", "b"), "MASTER_PORT", "77")),
            "Open MPI 2/8 2/4 at b:77");
}

TEST(RankEnvironment, every_missing_variable_of_open_mpi_is_named) {
  for (const auto& [name, value] : kOpenMpi) {
    EXPECT_EQ(described(without(kOpenMpi, name)),
              name + " is not set, though other variables of Open MPI are; set it");
  }
}

TEST(RankEnvironment, hydra_of_mpich_and_intel_mpi_talks_over_loopback_on_one_node) {
  EXPECT_EQ(described(with(kHydra, "MASTER_PORT", "7")), "Hydra 2/4 2/4 at 127.0.0.1:7");
  const auto intel = with(with(kHydra, "I_MPI_MPIRUN", "mpirun"), "PMI_FD", "6");
  EXPECT_EQ(described(with(intel, "MASTER_PORT", "7")), "Hydra 2/4 2/4 at 127.0.0.1:7");
  EXPECT_GE(environment_of(kHydra)->master_port, 20000);
  EXPECT_LT(environment_of(kHydra)->master_port, 30000);
  EXPECT_NE(environment_of(with(kHydra, "PBS_JOBID", "1"))->master_port,
            environment_of(with(kHydra, "PBS_JOBID", "2"))->master_port);
}

TEST(RankEnvironment, hydra_on_several_nodes_needs_an_address) {
  const auto several = with(kHydra, "PMI_SIZE", "8");
  EXPECT_EQ(described(several),
            "MASTER_ADDR is not set, and Hydra may have started ranks on several nodes: set it and "
            "MASTER_PORT to where rank 0 can be reached (mpiexec -genv MASTER_ADDR ...; 127.0.0.1 "
            "on one node)");
  EXPECT_EQ(described(with(with(several, "MASTER_ADDR", "b"), "MASTER_PORT", "77")),
            "Hydra 2/8 2/4 at b:77");
}

TEST(RankEnvironment, every_missing_or_wrong_variable_of_hydra_is_named) {
  EXPECT_EQ(described(without(kHydra, "PMI_SIZE")),
            "PMI_SIZE is not set, though other variables of Hydra are; set it");
  EXPECT_EQ(described(without(kHydra, "MPI_LOCALNRANKS")),
            "MPI_LOCALNRANKS is not set, though other variables of Hydra are; set it");
  EXPECT_EQ(described(with(kHydra, "PMI_RANK", "4")),
            "PMI_RANK is 4, but PMI_SIZE is 4: expected a smaller one");
  EXPECT_EQ(described(with(kHydra, "MPI_LOCALRANKID", "4")),
            "MPI_LOCALRANKID is 4, but MPI_LOCALNRANKS is 4: expected a smaller one");
  // Other programs set this one, too.
  EXPECT_EQ(described({{"MPI_LOCALRANKID", "1"}}), "no launcher");
}

TEST(RankEnvironment, pals_names_the_places_of_its_ranks) {
  EXPECT_EQ(described(kPals), "PALS 9/16 1/8 at x1:55");
  EXPECT_EQ(described(without(kPals, "PMI_LOCAL_SIZE")),
            "PMI_LOCAL_SIZE is not set, though other variables of PALS are; set it");
}

TEST(RankEnvironment, plain_pmi_leaves_the_places_on_nodes_to_the_group) {
  const Variables plain{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_PORT", "8"}};
  EXPECT_THAT(described(plain), ::testing::StartsWith("MASTER_ADDR is not set, and PMI may "));
  const auto found = environment_of(with(plain, "MASTER_ADDR", "c"));
  EXPECT_EQ(found->launcher, "PMI");
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_FALSE(found->local_known);
  EXPECT_EQ(described({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MASTER_PORT", "8"}}),
            "PMI 0/1 0/1 at 127.0.0.1:8");
  EXPECT_EQ(described(without(plain, "PMI_RANK")),
            "PMI_RANK is not set, though other variables of PMI are; set it");
}

TEST(RankEnvironment, pmix_alone_does_not_say_how_many_ranks_there_are) {
  const Variables pmix{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "job-7"}};
  EXPECT_THAT(described(pmix),
              ::testing::StartsWith("PMIX_RANK is set, but no variable says how many ranks there "
                                    "are"));
  auto slurm = kSlurm;
  slurm.insert(pmix.begin(), pmix.end());
  EXPECT_EQ(environment_of(slurm)->launcher, "Slurm");
  auto open_mpi = kOpenMpi;
  open_mpi.insert(pmix.begin(), pmix.end());
  EXPECT_EQ(environment_of(open_mpi)->launcher, "Open MPI");
}

TEST(RankEnvironment, mpirun_counts_before_the_job_of_slurm_around_it) {
  // Slurm starts one proxy a node, and that the ranks: its own numbers are the proxy's.
  for (const auto& [inner, launcher, rank] :
       {std::tuple{kOpenMpi, "Open MPI", 2}, std::tuple{kHydra, "Hydra", 2},
        std::tuple{kPals, "PALS", 9}}) {
    auto all = with(kSlurm, "SLURM_NTASKS", "2");
    all["SLURM_PROCID"] = "1";
    for (const auto& [name, value] : inner) all[name] = value;
    EXPECT_EQ(environment_of(all)->launcher, launcher);
    EXPECT_EQ(environment_of(all)->rank, rank) << launcher;
  }
  // srun with a plugin of PMI numbers the same ranks twice.
  auto both = with(with(kSlurm, "PMI_RANK", "5"), "PMI_SIZE", "8");
  EXPECT_EQ(described(both), "Slurm 5/8 1/4 at node03:1234");
}

// Returns the variables of both.
Variables joined(Variables one, const Variables& other) {
  one.insert(other.begin(), other.end());
  return one;
}

TEST(RankEnvironment, variables_left_in_the_shell_contradict_the_launcher_that_started_the_ranks) {
  const auto left = with(with(kTorchrun, "RANK", "0"), "WORLD_SIZE", "1");
  const auto alone = with(with(left, "LOCAL_RANK", "0"), "LOCAL_WORLD_SIZE", "1");
  EXPECT_EQ(described(joined(alone, kOpenMpi)),
            "RANK=0 and WORLD_SIZE=1 of torchrun contradict OMPI_COMM_WORLD_RANK=2 and "
            "OMPI_COMM_WORLD_SIZE=4 of Open MPI: unset those of the launcher that did not start "
            "this process");
  EXPECT_THAT(described(joined(alone, kHydra)),
              ::testing::HasSubstr("contradict PMI_RANK=2 and PMI_SIZE=4 of PMI"));
  EXPECT_THAT(described(joined(alone, kSlurm)),
              ::testing::HasSubstr("contradict SLURM_PROCID=5 and SLURM_NTASKS=8 of Slurm"));
  // torchrun in each task of a job, and a shell in a task.
  for (const char* const name : {"TORCHELASTIC_RUN_ID", "SLURM_PTY_PORT"})
    EXPECT_EQ(environment_of(joined(with(alone, name, "1"), kSlurm))->launcher, "torchrun") << name;
  // One agent for each node, which starts eight ranks.
  const auto nested = with(with(kTorchrun, "RANK", "5"), "WORLD_SIZE", "64");
  EXPECT_EQ(environment_of(joined(nested, kSlurm))->launcher, "torchrun");
}

TEST(RankEnvironment, half_of_torchruns_variables_beside_a_launcher_name_both) {
  EXPECT_EQ(described(joined({{"WORLD_SIZE", "8"}}, kSlurm)),
            "WORLD_SIZE is set, but RANK is not, and SLURM_PROCID=5 and SLURM_NTASKS=8 of Slurm "
            "are set, too: unset the former to use Slurm's, or set both");
  EXPECT_THAT(
      described(joined({{"RANK", "1"}}, kOpenMpi)),
      ::testing::StartsWith("RANK is set, but WORLD_SIZE is not, and OMPI_COMM_WORLD_RANK"));
}

TEST(RankEnvironment, open_mpi_and_pmi_have_to_agree) {
  EXPECT_EQ(environment_of(joined(kOpenMpi, kHydra))->launcher, "Open MPI");
  EXPECT_EQ(described(joined(kOpenMpi, with(kHydra, "PMI_SIZE", "8"))),
            "OMPI_COMM_WORLD_RANK=2 and OMPI_COMM_WORLD_SIZE=4 of Open MPI contradict PMI_RANK=2 "
            "and PMI_SIZE=8 of PMI: unset those of the launcher that did not start this process");
}

TEST(RankEnvironment, slurm_meets_at_the_first_node_of_its_list) {
  EXPECT_EQ(described(kSlurm), "Slurm 5/8 1/4 at node03:1234");
  EXPECT_EQ(described(with(kSlurm, "MASTER_ADDR", "c")), "Slurm 5/8 1/4 at c:1234");
}

TEST(RankEnvironment, slurm_on_one_node_talks_over_loopback) {
  const Variables one{{"SLURM_PROCID", "1"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NODELIST", "n7"},
                      {"MASTER_PORT", "9"}};
  EXPECT_EQ(described(one), "Slurm 1/2 1/2 at 127.0.0.1:9");
  const auto first = environment_of(with(without(one, "MASTER_PORT"), "SLURM_JOB_ID", "10"));
  const auto second = environment_of(with(without(one, "MASTER_PORT"), "SLURM_JOB_ID", "11"));
  EXPECT_NE(first->master_port, second->master_port);
}

TEST(RankEnvironment, slurm_may_put_other_numbers_of_ranks_on_each_node) {
  auto uneven = with(with(kSlurm, "SLURM_NODELIST", "a,b,c"), "SLURM_TASKS_PER_NODE", "3(x2),2");
  EXPECT_EQ(described(uneven), "Slurm 5/8 1/3 at a:1234");
  EXPECT_EQ(described(with(uneven, "SLURM_NODEID", "2")), "Slurm 5/8 1/2 at a:1234");
}

TEST(RankEnvironment, a_step_of_slurm_may_run_on_some_of_the_jobs_nodes) {
  auto step = with(with(kSlurm, "SLURM_NODELIST", "a,b,c"), "SLURM_STEP_NODELIST", "b,c");
  EXPECT_EQ(described(with(step, "SLURM_STEP_TASKS_PER_NODE", "5,3")), "Slurm 5/8 1/3 at b:1234");
}

TEST(RankEnvironment, torchrun_counts_before_the_launcher_around_it) {
  Variables all = kSlurm;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(environment_of(all)->launcher, "Open MPI");
  for (const auto& [name, value] : kTorchrun) all[name] = value;
  EXPECT_EQ(environment_of(all)->launcher, "torchrun");
}

TEST(NodeList, is_spelled_out) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases{
      {"a", {"a"}},
      {"a,b-2", {"a", "b-2"}},
      {"node[03-05,9],other", {"node03", "node04", "node05", "node9", "other"}},
      {"n[098-101]", {"n098", "n099", "n100", "n101"}},
      {"r[1-2]n[1-2]", {"r1n1", "r1n2", "r2n1", "r2n2"}},
      {"n[1-2].cluster", {"n1.cluster", "n2.cluster"}}};
  for (const auto& [text, names] : cases) EXPECT_EQ(parse_node_list(text, "LIST"), names) << text;
}

TEST(NodeList, counts_are_spelled_out) {
  EXPECT_EQ(parse_task_counts("4", "COUNTS"), (std::vector<int>{4}));
  EXPECT_EQ(parse_task_counts("4(x3),1,2(x1)", "COUNTS"), (std::vector<int>{4, 4, 4, 1, 2}));
}

TEST(NodeList, what_cannot_be_read_is_refused) {
  for (const auto* text :
       {"", ",", "a,", "a[", "a[]", "a[1", "a[1-", "a[2-1]", "a[x]", "a]", "a[1]]", "a[1,]",
        "a[99999999999]", "a[1-9999999]", "a[0-9999]b[0-9999]"}) {
    EXPECT_THROW(parse_node_list(text, "LIST"), c10::Error) << text;
  }
  for (const auto* text : {"", "4(", "4(x", "4(x2", "4(2)", "x", "4,", "4)", "1(x99999999)"}) {
    EXPECT_THROW(parse_task_counts(text, "COUNTS"), c10::Error) << text;
  }
}

}  // namespace
}  // namespace fsdp
