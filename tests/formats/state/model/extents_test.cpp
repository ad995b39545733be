// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/extents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/journal/run_journal.h"
#include "formats/bytes/outputs/atomic_folder.h"
#include "tests/support/temp_dir.h"

namespace fsdp::formats {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class Extents : public testing::Test {
 protected:
  Extents() : file_(FileDescriptor(), "out") { file_.set_member("member"); }

  // A float32 piece after those that were added before.
  void add(std::int64_t numel) {
    TargetPiece& piece = pieces_.emplace_back();
    piece.dtype = DType::kFloat32;
    piece.box = whole_box(std::vector<std::int64_t>{numel});
    piece.file = &file_;
    piece.offset = end_;
    end_ += static_cast<std::uint64_t>(numel) * 4;
  }

  // Text for comparisons: "piece:first+count".
  static std::vector<std::string> texts(std::span<const PieceRange> ranges) {
    std::vector<std::string> all;
    for (const PieceRange& part : ranges) {
      all.push_back(std::to_string(part.piece) + ":" + std::to_string(part.range.first) + "+" +
                    std::to_string(part.range.count));
    }
    return all;
  }
  static std::vector<std::string> texts(const std::optional<Extent>& extent) {
    if (!extent) return {"none"};
    std::vector<PieceRange> ranges;
    for (std::size_t i = 0; i < extent->parts.size(); ++i) {
      if (extent->parts[i].count != 0)
        ranges.push_back({extent->first_piece + i, extent->parts[i]});
    }
    return texts(ranges);
  }

  // What a journal returns after it was left with these entries, of runs of (offset, bytes).
  using Runs = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  KeptWork kept(const std::vector<Runs>& entries, const std::string& member = "member") {
    const auto identity = std::make_shared<PlanIdentity>();
    OutputOptions options;
    const auto run = [&](bool writes) {
      const auto journal = std::make_shared<RunJournal>(identity, RunJournal::Options{true, 1});
      options.journal = journal;
      const auto output = new_folder(dir_ / std::to_string(outputs_), options);
      if (!writes) return kept_work(pieces_, journal->found());
      OutputFile& file = output->add_file(member);
      for (const Runs& runs : entries) {
        JournalEntry entry;
        entry.reads = text_of({});
        entry.unchecked_bytes = 5;
        for (const auto& [offset, bytes] : runs) entry.runs.push_back({member, offset, bytes, 1});
        journal->add(std::move(entry), {&file});
      }
      return KeptWork();
    };
    ++outputs_;
    run(true);
    return run(false);
  }
  static std::vector<std::string> texts(const KeptWork& work) {
    std::vector<PieceRange> ranges;
    for (const WrittenRange& range : work.ranges) ranges.push_back({range.piece, range.range});
    return texts(ranges);
  }

  test::TempDir dir_;
  OutputFile file_;
  std::vector<TargetPiece> pieces_;
  std::uint64_t end_ = 0;
  int outputs_ = 0;
};

TEST_F(Extents, entries_are_elements_of_the_pieces_that_they_lie_in) {
  add(10);
  add(0);
  add(20);
  const KeptWork work = kept({{{20, 20}, {40, 8}}, {{60, 4}}});
  EXPECT_THAT(texts(work), ElementsAre("0:5+5", "2:0+2", "2:5+1"));
  EXPECT_EQ(work.bytes, 32U);
  EXPECT_EQ(work.unchecked_bytes, 10U);
  EXPECT_THAT(texts(rest_of(pieces_, work.ranges)), ElementsAre("0:0+5", "2:2+3", "2:6+14"));
}

TEST_F(Extents, an_entry_that_does_not_fit_whole_is_done_again) {
  add(10);
  add(20);
  // Over the border of two pieces, behind the last one, between elements, twice, of another file.
  EXPECT_THAT(texts(kept({{{0, 4}, {36, 8}}})), IsEmpty());
  EXPECT_THAT(texts(kept({{{116, 8}}})), IsEmpty());
  EXPECT_THAT(texts(kept({{{2, 4}}})), IsEmpty());
  EXPECT_THAT(texts(kept({{{4, 3}}})), IsEmpty());
  EXPECT_THAT(texts(kept({{{0, 8}}, {{16, 4}, {4, 8}}})), ElementsAre("0:0+2"));
  EXPECT_THAT(texts(kept({{{0, 8}}}, "other")), IsEmpty());
  EXPECT_THAT(texts(rest_of(pieces_, {})), ElementsAre("0:0+10", "1:0+20"));
}

TEST_F(Extents, are_cut_at_round_places_and_hold_one_part_of_each_piece) {
  constexpr std::int64_t kMiB = 1 << 18;  // elements
  add(3);
  add(3 * kMiB);
  add(5);
  const std::vector<PieceRange> work = {
      {0, {0, 3}}, {1, {0, 2 * kMiB}}, {1, {2 * kMiB + 7, 100}}, {2, {0, 5}}};
  ExtentCutter cutter(pieces_, work);
  EXPECT_THAT(texts(cutter.next(1U << 20U)), ElementsAre("0:0+3", "1:0+262141"));
  EXPECT_THAT(texts(cutter.next(1U << 20U)), ElementsAre("1:262141+262144"));
  EXPECT_THAT(texts(cutter.next(1U << 20U)), ElementsAre("1:524285+3"));
  EXPECT_THAT(texts(cutter.next(1U << 20U)), ElementsAre("1:524295+100", "2:0+5"));
  EXPECT_THAT(texts(cutter.next(1U << 20U)), ElementsAre("none"));
}

TEST_F(Extents, go_on_where_little_room_is_left) {
  add(10);
  const std::vector<PieceRange> work = rest_of(pieces_, {});
  ExtentCutter cutter(pieces_, work);
  EXPECT_THAT(texts(cutter.next(9)), ElementsAre("0:0+2"));
  EXPECT_THAT(texts(cutter.next(1)), ElementsAre("0:2+1"));
  EXPECT_THAT(texts(cutter.next(UINT64_MAX)), ElementsAre("0:3+7"));
}

}  // namespace
}  // namespace fsdp::formats
