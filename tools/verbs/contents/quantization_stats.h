// SPDX-License-Identifier: Apache-2.0
// stats --quantization: what quantized weights lost, or would lose.
#pragma once

#include <string>

#include "tools/base/common.h"
#include "tools/base/option_set.h"
#include "tools/verbs/contents/figures_page.h"
#include "tools/verbs/models/quantized_result.h"

namespace fsdp::cli {

struct QuantizationStats {
  bool asked = false;
  std::string original;  // the model before; empty: PATH itself, which is quantized to compare
  QuantizationOptions quantization;
};

// Declares --quantization, --original, --quantize and what belongs to it.
void declare_quantization_stats(OptionSet& options, QuantizationStats& stats);

// Compares weights of a quantized folder with those of `original`, or those of a model with what a
// scheme would make of them, and prints the figures of each.  Writes no checkpoint.
// Returns 0.  Throws: kUsage for words that make no sense together; kNotFound if no weight could be
// compared; what opening and reading throw.
int print_quantization(const QuantizationStats& stats, const CommonOptions& common,
                       const Streams& streams, FiguresOutput& output);

}  // namespace fsdp::cli
