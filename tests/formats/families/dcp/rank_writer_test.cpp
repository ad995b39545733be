// SPDX-License-Identifier: Apache-2.0
// Folders of which each rank holds a part. tests/libfsdp/checkpoint/check_copies.py checks that
// PyTorch loads them.
#include "formats/families/dcp/rank_writer.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/outputs/atomic_folder.h"
#include "formats/families/dcp/names.h"
#include "formats/front/open.h"
#include "formats/state/model/shard_spec.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_bytes.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

struct Cut {
  std::vector<std::int64_t> shape;
  std::size_t row_dims = 1;
  std::vector<dcp::TensorBlock> blocks = {};
};

std::size_t numel_of(const Cut& cut) {
  return volume({cut.shape, cut.shape});
}

// Returns bytes that tell where they belong.
std::string content_of(const Cut& cut, std::size_t tensor) {
  std::string bytes(numel_of(cut), '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(31 * tensor + 7 * i + i / 251);
  return bytes;
}

std::string part_of(const Cut& cut, std::size_t tensor, std::int64_t rank, std::int64_t ranks) {
  const std::string whole = content_of(cut, tensor);
  if (whole.empty() || cut.shape.empty()) return whole;
  const std::int64_t all = count_rows(cut.shape, cut.row_dims);
  const RowCut rows = cut_rows(all, ranks);
  const std::size_t row = whole.size() / static_cast<std::size_t>(all);
  return whole.substr(static_cast<std::size_t>(rows.begin(rank)) * row,
                      static_cast<std::size_t>(rows.count(rank)) * row);
}

class DcpParts : public testing::Test {
 protected:
  using Bytes = std::function<std::string(std::size_t tensor, std::int64_t rank)>;

  // Every rank lays out the folder and writes its file.
  void write(const std::vector<Cut>& cuts, std::int64_t ranks, const Bytes& bytes) {
    std::vector<std::int64_t> writers(static_cast<std::size_t>(ranks));
    std::iota(writers.rbegin(), writers.rend(), 0);  // part p is the last but p's
    std::vector<dcp::PartTensor> tensors;
    std::vector<Value::Entry> entries;
    for (const Cut& cut : cuts) {
      dcp::PartTensor tensor;
      tensor.dtype = DType::kUInt8;
      tensor.shape = cut.shape;
      tensor.row_dims = cut.row_dims;
      tensor.blocks = cut.blocks;
      tensor.writers = std::make_shared<const std::vector<std::int64_t>>(writers);
      entries.emplace_back(Value::string(key(entries.size())),
                           dcp::part_reference(entries.size(), tensor));
      tensors.push_back(std::move(tensor));
    }
    const Value content = Value::dict(std::move(entries));
    const auto folder = new_folder(path(), OutputOptions{.replace = true, .sync = false});
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const dcp::RankPlan layout(content, tensors, ranks, rank == 0);
      OutputFile& file = folder->add_file(dcp::data_file_name(rank, 0));
      std::string held;
      dcp::write_rank_file(
          file, layout, rank,
          [&](std::size_t number) {
            held = bytes(number, ranks - 1 - rank);
            return std::as_bytes(std::span(held));
          },
          CacheUse::kAlways);
      file.finish(false);
      if (rank == 0)
        dcp::write_metadata_file(folder->add_file(std::string(dcp::kMetadataName)), layout);
    }
    folder->commit();
  }

  static std::string key(std::size_t tensor) { return "t" + std::to_string(tensor); }
  fs::path path() const { return dir_ / "out"; }

  test::TempDir dir_;
};

// Any tensor cut in any way over any number of ranks gives a sound folder with every byte in place,
// and no more chunks than needed.
TEST_F(DcpParts, every_way_of_cutting_is_whole_again) {
  std::mt19937 random(3);
  const auto below = [&](unsigned end) { return static_cast<std::int64_t>(random() % end); };
  for (int i = 0; i < 120; ++i) {
    std::vector<Cut> cuts;
    for (int t = 0; t < 6; ++t) {
      Cut cut;
      cut.shape.resize(static_cast<std::size_t>(below(5)));
      for (auto& size : cut.shape) size = below(24) == 0 ? 0 : 1 + below(7);
      cut.row_dims =
          cut.shape.empty()
              ? 0
              : 1 + static_cast<std::size_t>(below(static_cast<unsigned>(cut.shape.size())));
      cuts.push_back(std::move(cut));
    }
    const std::int64_t ranks = 1 + i % 9;
    SCOPED_TRACE(std::to_string(i) + " on " + std::to_string(ranks));
    write(cuts, ranks, [&](std::size_t tensor, std::int64_t part) {
      return part_of(cuts[tensor], tensor, part, ranks);
    });
    const auto found = open_checkpoint(path());
    EXPECT_TRUE(found->verify(VerifyOptions{}).findings.empty());
    ASSERT_EQ(found->index().tensors.size(), cuts.size());
    for (const TensorEntry& tensor : found->index().tensors) {
      const auto number = static_cast<std::size_t>(std::stoull(tensor.key.substr(1)));
      const Cut& cut = cuts[number];
      EXPECT_EQ(tensor.shape, cut.shape);
      EXPECT_EQ(test::to_text(test::tensor_bytes(*found, tensor)), content_of(cut, number))
          << tensor.key << ' ' << testing::PrintToString(cut.shape) << " by " << cut.row_dims;
      const std::size_t per_part = cut.row_dims > 1 ? 2 * cut.row_dims - 1 : 1;
      EXPECT_LE(tensor.chunks.size(), static_cast<std::size_t>(ranks) * per_part);
    }
  }
}

// Returns the part's rows of a block, by walking over all elements of the tensor.
std::string part_of_block(const Cut& cut, std::size_t tensor, std::int64_t part,
                          std::int64_t parts) {
  const dcp::TensorBlock& block = cut.blocks[static_cast<std::size_t>(part / parts)];
  const std::string whole = content_of(cut, tensor);
  std::string inside;
  std::vector<std::int64_t> index(cut.shape.size(), 0);
  for (const char byte : whole) {
    bool in = true;
    for (std::size_t d = 0; d < index.size(); ++d)
      in = in && index[d] >= block.box.offset[d] &&
           index[d] < block.box.offset[d] + block.box.size[d];
    if (in) inside += byte;
    for (std::size_t d = index.size(); d-- > 0;) {
      if (++index[d] < cut.shape[d]) break;
      index[d] = 0;
    }
  }
  if (inside.empty()) return inside;
  const std::int64_t all = count_rows(block.box.size, block.row_dims);
  const RowCut rows = cut_rows(all, parts);
  const std::size_t row = inside.size() / static_cast<std::size_t>(all);
  return inside.substr(static_cast<std::size_t>(rows.begin(part % parts)) * row,
                       static_cast<std::size_t>(rows.count(part % parts)) * row);
}

// So does a tensor that is cut along other dimensions first, as tensor parallelism does it.
TEST_F(DcpParts, blocks_along_any_dimensions_are_whole_again) {
  std::mt19937 random(4);
  const auto below = [&](std::size_t end) { return static_cast<std::int64_t>(random() % end); };
  for (int i = 0; i < 80; ++i) {
    const std::int64_t first = 1 + below(3);
    const std::int64_t second = 1 + below(3);
    const std::int64_t parts = 1 + below(3);
    if (first * second == 1) continue;
    std::vector<Cut> cuts;
    for (std::size_t t = 0; t < 4; ++t) {
      Cut cut;
      cut.shape.resize(1 + static_cast<std::size_t>(below(3)));
      for (auto& size : cut.shape) size = 1 + below(7);
      const auto one = static_cast<std::size_t>(below(cut.shape.size()));
      const auto other = static_cast<std::size_t>(below(cut.shape.size()));
      for (std::int64_t a = 0; a < first; ++a) {
        for (std::int64_t b = 0; b < second; ++b) {
          dcp::TensorBlock block{whole_box(cut.shape),
                                 1 + static_cast<std::size_t>(below(cut.shape.size()))};
          for (const auto& [dim, part, of] :
               {std::tuple(one, a, first), std::tuple(other, b, second)}) {
            const RowCut range = cut_rows(block.box.size[dim], of);
            block.box.offset[dim] += range.begin(part);
            block.box.size[dim] = range.count(part);
          }
          cut.blocks.push_back(std::move(block));
        }
      }
      cuts.push_back(std::move(cut));
    }
    SCOPED_TRACE(i);
    write(cuts, first * second * parts, [&](std::size_t tensor, std::int64_t part) {
      return part_of_block(cuts[tensor], tensor, part, parts);
    });
    const auto found = open_checkpoint(path());
    EXPECT_TRUE(found->verify(VerifyOptions{}).findings.empty());
    for (const TensorEntry& tensor : found->index().tensors) {
      const auto number = static_cast<std::size_t>(std::stoull(tensor.key.substr(1)));
      EXPECT_EQ(tensor.shape, cuts[number].shape);
      EXPECT_EQ(test::to_text(test::tensor_bytes(*found, tensor)), content_of(cuts[number], number))
          << tensor.key;
    }
  }
}

TEST_F(DcpParts, a_part_of_several_boxes_has_to_have_its_size) {
  const std::vector<Cut> cuts = {{{2, 10, 7}, 2}};
  const auto sized = [&](std::size_t size) {
    write(cuts, 3, [&](std::size_t tensor, std::int64_t part) {
      std::string bytes = part_of(cuts[tensor], tensor, part, 3);
      if (part == 1) bytes.resize(size);
      return bytes;
    });
  };
  EXPECT_NO_THROW(sized(49));
  for (const std::size_t size : {0U, 21U, 48U, 50U}) {
    test::expect_error(ErrorCode::kShape,
                       "a tensor of 49 bytes is to be written, but has " + std::to_string(size),
                       [&] { sized(size); });
  }
}

}  // namespace
}  // namespace fsdp::formats
