// SPDX-License-Identifier: Apache-2.0
#include "tools/base/reading.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/front/open.h"
#include "formats/state/model/check.h"
#include "formats/state/model/meant_name.h"
#include "tools/base/agreement.h"
#include "tools/base/memory_budget.h"
#include "tools/base/remedy.h"

namespace fsdp::cli {
namespace {

using formats::cat;

}  // namespace

std::unique_ptr<formats::Checkpoint> open_to_read(
    const std::string& path, const CommonOptions& common,
    const std::function<bool(const std::string& key)>& keep,
    const std::function<void(const formats::Index& whole)>& look) {
  auto checkpoint = formats::open_checkpoint(path, {common.allowed_globals, common.team});
  agree_on_source(common, path, *checkpoint);
  if (look) look(checkpoint->index());
  checkpoint->keep(keep);
  const formats::Index& index = checkpoint->index();
  formats::Findings findings = checkpoint->findings();
  formats::check_extents(index, findings);
  for (const formats::TensorEntry& tensor : index.tensors)
    formats::check_coverage(tensor, findings);
  formats::throw_if_damaged(findings, checkpoint->description().path);
  formats::check_expansion(index, checkpoint->description().path);
  return checkpoint;
}

formats::VisitOptions visit_options(const CommonOptions& common, Progress& progress) {
  formats::VisitOptions options;
  options.threads = common.threads;
  options.max_buffer_bytes = common.max_memory_bytes / kBufferShare;
  options.on_progress = [&progress](std::uint64_t bytes) { progress.update(bytes); };
  options.cancelled = [] { return formats::interrupted(); };
  options.team = common.team;
  return options;
}

void read_or_say_exclude(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    throw Error(error.code(), cat(message_of(error), "; leave it out with --exclude"));
  }
}

std::uint64_t tensor_bytes(const formats::Index& index) {
  std::uint64_t bytes = 0;
  for (const formats::TensorEntry& tensor : index.tensors) bytes += tensor.bytes();
  return bytes;
}

std::vector<std::size_t> natural_order(const formats::Index& index) {
  std::vector<std::size_t> order(index.tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return formats::natural_less(index.tensors[a].key, index.tensors[b].key);
  });
  return order;
}

std::string counted(std::uint64_t count, const std::string& noun) {
  return formats::group_digits(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string short_number(double number, int digits) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::general, digits)
                       .ptr;
  return {buffer.data(), end};
}

std::string nearest_key(const formats::Index& index, const std::string& key) {
  std::vector<std::string> keys;
  for (const formats::TensorEntry& tensor : index.tensors) {
    if (keys.size() == formats::kMostNamesCompared) break;
    keys.push_back(tensor.key);
  }
  for (const formats::ValueEntry& value : index.values) {
    if (keys.size() == formats::kMostNamesCompared) break;
    keys.push_back(value.key);
  }
  return formats::meant_key(key, keys);
}

}  // namespace fsdp::cli
