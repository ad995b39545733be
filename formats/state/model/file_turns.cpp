// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/file_turns.h"

#include <cstdint>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

namespace fsdp::formats {

std::vector<std::size_t> in_turns(std::span<const TargetPiece> pieces, std::size_t files_at_once) {
  std::vector<std::size_t> order(pieces.size());
  if (files_at_once == 1) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
  }
  std::unordered_map<const OutputFile*, std::size_t> numbers;
  std::vector<std::vector<std::size_t>> files;  // the pieces of each
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto [file, added] = numbers.emplace(pieces[i].file, files.size());
    if (added) files.emplace_back();
    files[file->second].push_back(i);
  }
  order.clear();
  // The bytes that each begun file has reached, and the file.  A new file begins at the bytes that
  // the last chosen file had reached.
  std::set<std::pair<std::uint64_t, std::size_t>> advancing;
  std::vector<std::size_t> next(files.size(), 0);
  std::size_t begun = 0;
  std::uint64_t reached = 0;
  while (order.size() < pieces.size()) {
    while (begun < files.size() && advancing.size() < files_at_once)
      advancing.emplace(reached, begun++);
    const auto [bytes, file] = *advancing.begin();
    advancing.erase(advancing.begin());
    const std::size_t piece = files[file][next[file]++];
    order.push_back(piece);
    reached = bytes;
    if (next[file] == files[file].size()) continue;
    const std::uint64_t own =
        volume(pieces[piece].box.view()) * item_bytes(pieces[piece].written_dtype());
    advancing.emplace(bytes + own, file);
  }
  return order;
}

}  // namespace fsdp::formats
