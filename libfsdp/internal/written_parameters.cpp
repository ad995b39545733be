// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/written_parameters.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/internal/own_work.h"
#include "libfsdp/internal/whole.h"

namespace fsdp {
namespace {

// Of a number and the bytes that follow on it: another one if any bit is another.
std::uint64_t mixed(std::uint64_t state, std::uint64_t word) noexcept {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio
  return (std::rotl(state, 29) ^ word) * kOdd;
}

std::uint64_t mixed(std::uint64_t state, const at::Tensor& whole) {
  const auto* bytes = static_cast<const char*>(whole.const_data_ptr());
  std::size_t left = whole.nbytes();
  for (; left >= sizeof(std::uint64_t); left -= sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof(word));
    state = mixed(state, word);
    bytes += sizeof(word);
  }
  std::uint64_t word = 0;
  if (left != 0) std::memcpy(&word, bytes, left);
  return mixed(state, word);
}

void note_written(const Parameter& parameter, const at::Tensor& whole) {
  Unit& unit = *parameter.unit;
  unit.last_written = &parameter;
  if (parameter.layout.world_size == 1 || !unit.local.is_cpu() || !whole.is_cpu()) return;
  Trailer& trailer = trailer_of(unit);
  trailer.written = mixed(mixed(trailer.written, static_cast<std::uint64_t>(parameter.offset)),
                          whole.contiguous());
}

// Elements that `rows` has changed are zero in it, and become zero in the shard.
void take_zeros(at::Tensor& shard, const at::Tensor& rows, const Parameter& parameter,
                const std::string& writer) {
  const at::Tensor before = shard.to(rows.options());
  const at::Tensor changed =
      rows.ne(before).logical_and_(rows.isnan().logical_and_(before.isnan()).logical_not_());
  TORCH_CHECK(!changed.logical_and(rows.ne(0)).any().item<bool>(), "'", writer,
              "' writes parameter '", parameter.name(), "' inside forward where it is ",
              c10::toString(rows.scalar_type()),
              " by mixed precision, and leaves other values than "
              "zeros, which would round its shard of ",
              c10::toString(shard.scalar_type()),
              ": leave its module in full precision with module_classes_to_ignore, or write "
              "parameters between steps, inside summon_full_params()");
  shard.masked_fill_(changed.to(shard.device()), 0);
}

}  // namespace

void take_written(Parameter& parameter, const at::Tensor& whole, int rank,
                  const std::string& writer) {
  const OwnWork own;
  const at::Tensor rows = rows_of(whole, parameter.layout, rank);
  at::Tensor shard = parameter.shard.detach();
  // Where nothing is sharded or cast the parameter lies in the shard.
  if (rows.numel() != 0 && rows.const_data_ptr() != shard.const_data_ptr()) {
    if (rows.scalar_type() == shard.scalar_type())
      shard.copy_(rows);
    else
      take_zeros(shard, rows, parameter, writer);
  }
  note_written(parameter, whole);
}

bool is_replaced(const Parameter& parameter) noexcept {
  const at::Tensor& full = parameter.full;
  const at::Tensor& home = parameter.home;
  return full.defined() && !still_taken(parameter) && full.has_storage() &&
         full.layout() == at::kStrided && full.sizes() == home.sizes() &&
         full.scalar_type() == home.scalar_type() && full.device() == home.device() &&
         parameter_of(full) == nullptr;
}

void take_replacement(Parameter& parameter, int rank) {
  const OwnWork own;
  const at::Tensor whole = parameter.full.detach();
  parameter.full.set_data(parameter.home);
  if (parameter.unit->state == UnitState::kLive) parameter.home.copy_(whole);
  take_written(parameter, whole, rank, "set_data");
  parameter.replaced_at = parameter.unit->version();
}

void forget_written(Unit& unit) noexcept {
  unit.last_written = nullptr;
  if (unit.local.defined() && unit.local.is_cpu()) trailer_of(unit).written = 0;
}

}  // namespace fsdp
