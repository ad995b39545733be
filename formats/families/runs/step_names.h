// SPDX-License-Identifier: Apache-2.0
// What the names of a run's folders and files say: steps, series of steps, and parts of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::formats {

// Returns the step in a checkpoint's name: the number behind "step", else behind "iter" or
// "iteration", else behind "batch", "ba", "epoch" or "ep", else the last number of the name without
// its suffix.  "step-400", "epoch=3-step=1200.ckpt", "epoch=3-loss=0.25", "checkpoint_1000".
// Nothing also if the number has more than 64 bits.
std::optional<std::uint64_t> step_of(const std::string& path);

// Returns the same if the name leaves no doubt: one of those words is in it, or no other number.
std::optional<std::uint64_t> certain_step_of(const std::string& path);

// Returns whether the name alone says that it is one of many steps: it has one of those words,
// "checkpoint" or "ckpt" and a number behind it, or is a number.
bool tells_step(std::string_view name);

// Returns whether the last number of a path's name is that of a process: "rank1.pt", "mp_rank_00".
bool tells_rank(std::string_view path);

// Returns the path with "#" for the numbers of its last name that count from step to step: those
// behind the words and behind "=", else the only one.  Two paths are of the same series if that is
// equal: "7B/epoch=#-step=#.ckpt".
std::string series_of(const std::string& path);

// Returns whether the names of a path are those of a part of a step, and of nothing else: "model",
// "optimizer.pt", "train_dataloader.pt", "policy/ema".
bool is_part_name(std::string_view name);

enum class PartRole { kModel, kOptimizer };

// Returns whether the last name of the path has a word that parts of that role have.
bool has_role(std::string_view path, PartRole role);

// Returns the path without the words that are names of parts: "run/model_step100.pt" and
// "run/optim_step100.pt" are then equal.
std::string without_part_names(std::string_view path);

// Returns the name with "#" for each number: "rng_state_#.pth".
std::string without_numbers(std::string_view name);

}  // namespace fsdp::formats
