// SPDX-License-Identifier: Apache-2.0
// The common part of verbs that read tensors and write no checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/tensor_reader.h"
#include "tools/base/common.h"
#include "tools/base/progress.h"

namespace fsdp::cli {

// Opens the checkpoint, narrows it to the keys for which `keep` returns true, and refuses damage
// that its metadata show: holes, overlaps, missing or short files.  `look` receives the index
// before it is narrowed.
// Throws: the first damage found; kLimitRatio for tensors that expand beyond what the files
// justify.
std::unique_ptr<formats::Checkpoint> open_to_read(
    const std::string& path, const CommonOptions& common,
    const std::function<bool(const std::string& key)>& keep,
    const std::function<void(const formats::Index& whole)>& look = {});

// Returns the options for visiting tensors within --threads and --max-memory.  Lifetime: that of
// `progress`.
formats::VisitOptions visit_options(const CommonOptions& common, Progress& progress);

// Calls `read`.  If `read` meets a tensor of an unsupported kind (kUnsupported), the error says how
// to go on without it.
void read_or_say_exclude(const std::function<void()>& read);

// Returns the bytes of the tensors of an index, each dense.
std::uint64_t tensor_bytes(const formats::Index& index);

// Returns the positions of the tensors of an index in natural order of their keys.
std::vector<std::size_t> natural_order(const formats::Index& index);

// Returns "1 tensor", "1,234 tensors".
std::string counted(std::uint64_t count, const std::string& noun);

// Returns a number for users, with at most `digits` significant digits.
std::string short_number(double number, int digits = 6);

// Returns the key of an index that is nearest to `key`; empty if none is near.
std::string nearest_key(const formats::Index& index, const std::string& key);

}  // namespace fsdp::cli
