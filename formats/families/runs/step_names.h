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
// its suffix.  Examples: "step-400", "epoch=3-step=1200.ckpt", "epoch=3-loss=0.25",
// "checkpoint_1000".  Returns nothing if there is no number, or if the number has more than 64
// bits.
std::optional<std::uint64_t> step_of(const std::string& path);

// Does the same, but returns nothing if none of those words is in the name and several numbers are.
std::optional<std::uint64_t> certain_step_of(const std::string& path);

// Returns whether the name alone says that it is one of many steps: a number follows one of those
// words, "checkpoint" or "ckpt", or the name is a number.
bool tells_step(std::string_view name);

// Returns whether the last number of a path's name is a rank: "rank1.pt", "mp_rank_00".
bool tells_rank(std::string_view path);

// Returns the path with "#" in place of numbers of its last name that change from step to step: the
// numbers behind those words and behind "=", else the only number.  Paths of one series give the
// same text: "7B/epoch=#-step=#.ckpt".
std::string series_of(const std::string& path);

// Returns whether every word of the name names a part of a step: "model", "optimizer.pt",
// "train_dataloader.pt", "policy/ema".
bool is_part_name(std::string_view name);

enum class PartRole { kModel, kOptimizer };

// Returns whether the last name of the path has a word of that role.
bool has_role(std::string_view path, PartRole role);

// Returns the path without the words that name parts and without separators: the results are equal
// for "run/model_step100.pt" and "run/optim_step100.pt".
std::string without_part_names(std::string_view path);

// Returns the name with "#" for each number: "rng_state_#.pth".
std::string without_numbers(std::string_view name);

}  // namespace fsdp::formats
