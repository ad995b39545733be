// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/devices.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/rendezvous.h"
#include "libfsdp/process_group.h"
#include "libfsdp/reduce.h"
#include "tests/libfsdp/error_of.h"
#include "tests/support/spawn_ranks.h"
#include "tests/support/test_device.h"

namespace fsdp {
using namespace internal;
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const c10::Device kFirst(c10::kCUDA, 0);
const c10::Device kSecond(c10::kCUDA, 1);

DeviceChoice cuda(int local_rank, int visible, std::optional<int> given = std::nullopt) {
  return {c10::DeviceType::CUDA, given, visible, local_rank};
}

TEST(Devices, a_rank_takes_the_device_of_its_local_rank) {
  EXPECT_EQ(device_of_rank(cuda(0, 8)), kFirst);
  EXPECT_EQ(device_of_rank(cuda(1, 8)), kSecond);
  EXPECT_EQ(device_of_rank(cuda(7, 8)), c10::Device(c10::kCUDA, 7));
}

TEST(Devices, a_device_that_is_the_only_visible_one_is_taken_by_every_local_rank) {
  // Slurm's --gpus-per-task=1 shows each task one device, whatever its place on the node.
  for (const int local_rank : {0, 3, 7}) EXPECT_EQ(device_of_rank(cuda(local_rank, 1)), kFirst);
}

TEST(Devices, a_given_device_counts_before_the_local_rank) {
  EXPECT_EQ(device_of_rank(cuda(3, 4, 1)), kSecond);
  EXPECT_EQ(device_of_rank(cuda(5, 2, 0)), kFirst);
  EXPECT_EQ(error_of([] { device_of_rank(cuda(0, 2, 2)); }),
            "device_id is cuda:2, but this process sees 2 cuda devices, counted from 0");
  EXPECT_THAT(error_of([] { device_of_rank(cuda(0, 1, 1)); }), StartsWith("device_id is cuda:1"));
}

TEST(Devices, too_few_devices_name_the_rank_and_the_remedies) {
  EXPECT_EQ(
      error_of([] { device_of_rank(cuda(4, 4)); }),
      "expected a cuda device for each rank of the node, but local rank 4 sees 4: start fewer "
      "ranks on a node, show each rank a device of its own, or set "
      "ProcessGroupOptions::device_id or local_rank");
  EXPECT_THAT(error_of([] { device_of_rank(cuda(0, 0)); }),
              StartsWith("expected a cuda device for this rank, but this process sees none; check "
                         "that the program links fsdp::cuda, the driver and CUDA_VISIBLE_DEVICES"));
}

TEST(Devices, the_cpu_has_no_index) {
  EXPECT_EQ(device_of_rank({}), c10::Device(c10::kCPU));
  DeviceChoice choice;
  choice.local_rank = 9;
  EXPECT_EQ(device_of_rank(choice), c10::Device(c10::kCPU));
  EXPECT_GE(visible_devices(c10::DeviceType::CPU), 1);
  EXPECT_EQ(visible_devices(c10::DeviceType::XPU), 0);
}

TEST(Devices, each_type_has_the_backend_that_moves_its_tensors) {
  EXPECT_EQ(default_backend(c10::DeviceType::CPU), "gloo");
  EXPECT_EQ(default_backend(c10::DeviceType::CUDA), "nccl");
  EXPECT_THAT(error_of([] { default_backend(c10::DeviceType::Meta); }),
              HasSubstr("but got meta, for which no backend is known"));
  EXPECT_THAT(error_of([] { default_backend(c10::DeviceType::XPU); }),
              StartsWith("expected one of the devices cpu, cuda"));
}

TEST(Devices, only_other_devices_copy_from_pinned_memory) {
  EXPECT_FALSE(copies_from_pinned_memory(c10::kCPU));
  EXPECT_FALSE(copies_from_pinned_memory(c10::kMeta));
  EXPECT_TRUE(copies_from_pinned_memory(kSecond));
  EXPECT_TRUE(is_host(c10::Device(c10::kCPU)));
  EXPECT_FALSE(is_host(kFirst));
}

TEST(Devices, a_module_computes_on_the_device_of_its_group) {
  EXPECT_EQ(device_to_compute_on(std::nullopt, kSecond), kSecond);
  EXPECT_EQ(device_to_compute_on(kSecond, kSecond), kSecond);
  EXPECT_EQ(device_to_compute_on(c10::Device(c10::kCUDA), kSecond), kSecond);
  // A group of Gloo moves tensors of any device.
  EXPECT_EQ(device_to_compute_on(kSecond, c10::kCPU), kSecond);
  EXPECT_EQ(device_to_compute_on(std::nullopt, c10::kCPU), std::nullopt);
}

TEST(Devices, a_module_on_another_device_than_its_group_is_refused) {
  EXPECT_EQ(error_of([] { device_to_compute_on(kFirst, kSecond); }),
            "FsdpOptions::device_id is cuda:0, but the process group of this rank uses cuda:1: "
            "leave device_id out, or give the same device to ProcessGroupOptions::device_id");
  EXPECT_THAT(error_of([] { device_to_compute_on(c10::Device(c10::kCPU), kSecond); }),
              StartsWith("FsdpOptions::device_id is cpu, but"));
}

TEST(Devices, ranks_without_a_launcher_are_counted_host_by_host) {
  // Two nodes with two ranks each, dealt out in turn, and a container with a network of its own.
  std::vector<Newcomer> all(5);
  for (const int rank : {0, 1, 2, 3, 4}) {
    auto& who = all[static_cast<std::size_t>(rank)];
    who.rank = rank;
    who.host = rank % 2 == 0 ? "a" : "b";
    who.network = who.host + (rank == 4 ? "/2" : "/1");
  }
  EXPECT_EQ(local_rank_of(all, 0), 0);
  EXPECT_EQ(local_rank_of(all, 1), 0);
  EXPECT_EQ(local_rank_of(all, 2), 1);
  EXPECT_EQ(local_rank_of(all, 3), 1);
  EXPECT_EQ(local_rank_of(all, 4), 0);
}

TEST(Devices, groups_know_the_device_of_this_rank) {
  test::spawn_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    // Threads of one process: the local rank is counted.
    TORCH_CHECK(group->local_rank() == group->rank());
    TORCH_CHECK(group->device() == test::device_of_rank(group->rank()));
    TORCH_CHECK(collective_device(*group) == group->device());
    const std::vector<int> all{0, 1, 2};
    TORCH_CHECK(group->subgroup(all)->device() == group->device());
  });
}

TEST(Devices, values_on_the_host_are_reduced_by_way_of_the_device) {
  test::spawn_ranks(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor sum =
        reduce(torch::full({}, group->rank(), at::kDouble), group, ReduceKind::kSum);
    TORCH_CHECK(sum.is_cpu() && sum.item<double>() == 3);
  });
}

// Returns the options of the only rank of a world.
ProcessGroupOptions alone() {
  ProcessGroupOptions options;
  options.rank = 0;
  options.world_size = 1;
  return options;
}

TEST(Devices, the_type_of_the_device_chooses_the_backend) {
  auto options = alone();
  EXPECT_EQ(init_process_group(options)->backend_name(), "gloo");
  options.device_id = c10::kCPU;
  EXPECT_EQ(init_process_group(options)->backend_name(), "gloo");
  options.device_id = c10::kMeta;
  EXPECT_THAT(error_of([&] { init_process_group(options); }), HasSubstr("but got meta"));
  EXPECT_FALSE(is_backend_available("nccl"));
  EXPECT_TRUE(is_backend_available("gloo"));
  options.device_id = kFirst;
  EXPECT_THAT(error_of([&] { init_process_group(options); }), HasSubstr("link fsdp::cuda"));
  if (!test::on_sim()) return;
  options.device_id = c10::Device(c10::kPrivateUse1, 2);
  const auto group = init_process_group(options);
  EXPECT_EQ(group->backend_name(), "sim");
  EXPECT_EQ(group->device(), test::device_of_rank(2));
  options.local_rank = 3;
  options.device_id = c10::Device(c10::kPrivateUse1);
  EXPECT_EQ(init_process_group(options)->device(), test::device_of_rank(3));
  options.local_rank = 99;
  EXPECT_THAT(error_of([&] { init_process_group(options); }),
              HasSubstr("choosing a device for each rank failed on rank 0: expected a sim device "
                        "for each rank of the node, but local rank 99 sees 8"));
  options.local_rank = 0;
  options.device_id = c10::kCPU;
  options.backend = "sim";
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "backend sim needs a device of type sim, but device_id is cpu: leave one of them out");
}

TEST(Devices, a_local_rank_is_not_negative) {
  auto options = alone();
  options.local_rank = -1;
  EXPECT_EQ(error_of([&] { init_process_group(options); }),
            "expected a local_rank that is not negative, but got -1");
}

}  // namespace
}  // namespace fsdp
