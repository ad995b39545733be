// SPDX-License-Identifier: Apache-2.0
// The help of the tool and of its verbs.
#pragma once

#include <cstddef>
#include <string>

namespace CLI {
class App;
}

namespace fsdp::cli {

// The groups of options that help shows, in this order; no other is shown.
inline constexpr const char* kOwnOptions = "Options";
inline constexpr const char* kCommonOptions = "Options of every verb";

// The help of `app`, a verb or the whole tool.  Lines fit into `columns`; 0: they have any length.
std::string help_text(const CLI::App& app, std::size_t columns);

}  // namespace fsdp::cli
