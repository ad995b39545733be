// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/units/written_parameters.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include <ATen/Functions.h>

#include "formats/bytes/base/crc32.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/units/gather_rows.h"

namespace fsdp::internal {
namespace {

// Returns a 0-dimensional int64 tensor on the device: a checksum that depends on every element and
// its place.
at::Tensor sum_of(const at::Tensor& whole) {
  const at::Tensor real = whole.is_complex() ? at::view_as_real(whole) : whole;
  const auto dtype = real.element_size() == 8   ? c10::kLong
                     : real.element_size() == 4 ? c10::kInt
                     : real.element_size() == 2 ? c10::kShort
                                                : c10::kChar;
  const at::Tensor bits = real.contiguous().view({-1}).view(dtype).to(c10::kLong);
  const at::Tensor weights = at::arange(1, 2 * bits.numel(), 2, bits.options());
  return bits.mul_(weights).sum();
}

at::Tensor written_in_trailer(const Unit& unit) {
  const auto offset = unit.local.numel() - kTrailerBytes + std::int64_t{offsetof(Trailer, written)};
  return unit.local.narrow(0, offset, sizeof(Trailer::written)).view(c10::kLong);
}

void note_written(const Parameter& parameter, const at::Tensor& whole) {
  Unit& unit = *parameter.unit;
  unit.last_written = &parameter;
  if (parameter.layout.world_size == 1) return;
  // For offloaded shards the host would have to wait for the values.
  if (unit.local.device() != whole.device()) return;
  if (!unit.local.is_cpu()) {
    written_in_trailer(unit).mul_(31).add_(sum_of(whole)).add_(parameter.offset);
    return;
  }
  Trailer& trailer = trailer_of(unit);
  const at::Tensor dense = whole.contiguous();
  const auto sum = [&](const void* bytes, std::size_t count) {
    trailer.written = formats::crc32(static_cast<std::uint32_t>(trailer.written),
                                     {static_cast<const std::byte*>(bytes), count});
  };
  sum(&parameter.offset, sizeof(parameter.offset));
  sum(dense.const_data_ptr(), dense.nbytes());
}

// Zeroes the elements of the shard that `rows` changed.  Throws if one of them is not zero in
// `rows`.
void take_zeros(at::Tensor& shard, const at::Tensor& rows, const Parameter& parameter,
                const std::string& writer) {
  const at::Tensor before = shard.to(rows.options());
  const at::Tensor changed =
      rows.ne(before).logical_and_(rows.isnan().logical_and_(before.isnan()).logical_not_());
  FSDP_CHECK(!changed.logical_and(rows.ne(0)).any().item<bool>(), "'", writer,
             "' writes values other than zero to parameter '", parameter.name(),
             "' inside forward, where mixed precision makes it ", c10::toString(rows.scalar_type()),
             ": they would round its shard of ", c10::toString(shard.scalar_type()),
             "; leave its module in full precision with module_classes_to_ignore, or write "
             "parameters between steps, inside summon_full_params()");
  shard.masked_fill_(changed.to(shard.device()), 0);
}

}  // namespace

void take_written(Parameter& parameter, const at::Tensor& whole, const std::string& writer) {
  const OwnWork own;
  const at::Tensor rows = rows_of(whole, parameter.layout, parameter.unit->sharding->rank());
  at::Tensor shard = parameter.shard.detach();
  // Without sharding and without a cast, the parameter lies in the shard.
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

void take_replacement(Parameter& parameter) {
  const OwnWork own;
  const at::Tensor whole = parameter.full.detach();
  parameter.full.set_data(parameter.home);
  if (parameter.unit->state == UnitState::kUnsharded) parameter.home.copy_(whole);
  take_written(parameter, whole, "set_data");
  parameter.replaced_at = parameter.unit->version();
}

void forget_written(Unit& unit) noexcept {
  if (std::exchange(unit.last_written, nullptr) == nullptr || !unit.local.defined()) return;
  if (unit.local.is_cpu()) {
    trailer_of(unit).written = 0;
    return;
  }
  const OwnWork own;
  written_in_trailer(unit).zero_();
}

}  // namespace fsdp::internal
