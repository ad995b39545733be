// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/comm/flight_record.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/torch.h>

#include "libfsdp/internal/comm/backend_registry.h"
#include "libfsdp/internal/comm/group_internals.h"
#include "libfsdp/process_group.h"
#include "tests/support/temp_dir.h"

namespace fsdp {
using namespace internal;
namespace {

std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(FlightRecord, the_rank_is_appended_to_the_prefix) {
  EXPECT_EQ(flight_record_file("/tmp/nccl_trace_", 12), "/tmp/nccl_trace_12");
}

TEST(FlightRecord, is_written_once) {
  const test::TempDir folder;
  int count = 0;
  FlightRecord record(folder / "r0", [&] { return "call " + std::to_string(++count); });
  EXPECT_FALSE(std::filesystem::exists(record.file()));
  record.write();
  record.write();
  record.write("something later");
  EXPECT_EQ(content_of(record.file()), "call 1");
  EXPECT_EQ(count, 1);
}

TEST(FlightRecord, bytes_of_the_backends_own_dump_are_kept_as_they_are) {
  const test::TempDir folder;
  FlightRecord record(folder / "r0", [] { return "not asked for"; });
  const std::string bytes("\x80\x02\0}q.", 6);
  record.write(bytes);
  EXPECT_EQ(content_of(record.file()), bytes);
}

TEST(FlightRecord, a_failure_to_write_is_a_warning) {
  const test::TempDir folder;
  FlightRecord nowhere(folder / "no/such/folder", [] { return "x"; });
  nowhere.write();
  FlightRecord broken(folder / "r0",
                      []() -> std::string { throw std::runtime_error("no recorder"); });
  broken.write();
  EXPECT_FALSE(std::filesystem::exists(folder / "r0"));
}

// Runs two ranks of a group whose backend keeps a record; rank 1 fails if `fails`.
void run_two(const std::string& prefix, bool fails) {
  BackendKind kind = backend_kind("gloo");
  kind.flight_record = [] { return "the last collectives"; };
  register_backend("recorded", std::move(kind));
  ProcessGroupOptions options;
  options.backend = "recorded";
  options.world_size = 2;
  options.store = c10::make_intrusive<c10d::HashStore>();
  options.flight_record_prefix = prefix;
  std::vector<std::jthread> ranks;
  for (const int rank : {0, 1}) {
    options.rank = rank;
    ranks.emplace_back([options, rank, fails] {
      const auto group = init_process_group(options);
      if (fails && rank == 1) monitor_of(*group).failed("a batch could not be read");
      if (fails && rank == 0) monitor_of(*group).lost();
    });
  }
}

TEST(FlightRecord, every_rank_of_a_failed_group_writes_its_own) {
  const test::TempDir folder;
  run_two(folder / "trace_", /*fails=*/true);
  EXPECT_EQ(content_of(folder / "trace_0"), "the last collectives");
  EXPECT_EQ(content_of(folder / "trace_1"), "the last collectives");
}

TEST(FlightRecord, a_group_that_ends_well_writes_none) {
  const test::TempDir folder;
  run_two(folder / "trace_", /*fails=*/false);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace fsdp
