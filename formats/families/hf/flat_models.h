// SPDX-License-Identifier: Apache-2.0
// Finds models that lie beside each other in one flat state dict, as a network and the average of
// its weights do: "net.conv.weight" and "net_ema.conv.weight".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats::hf {

// `tensors`: a mapping of names to tensors.
// Returns the fronts of names ("net", "net_ema") that are followed by the same names with the same
// shapes, if one of the fronts looks like a copy: it is another front with a word appended, or
// contains a word such as ema, teacher or target.  Returns nothing if there are no two such fronts.
std::vector<std::string> flat_models(const Value& tensors);

// Returns whether a key of a model says that it holds averages of weights: one of its words is ema,
// swa, shadow, average or averaged.
bool is_average(std::string_view place);

// Returns the tensors whose names begin with `front` and a dot, under the rest of their names.
Value tensors_below(const Value& tensors, const std::string& front);

}  // namespace fsdp::formats::hf
