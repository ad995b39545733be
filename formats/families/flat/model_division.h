// SPDX-License-Identifier: Apache-2.0
// Divides the flat parameters of a model into the parameters of a list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/families/flat/flat_parameters.h"
#include "formats/families/flat/parameter_list.h"

namespace fsdp::formats::flat {

// A parameter of the list, and its elements.
struct DividedParameter {
  const ListedParameter* listed = nullptr;  // Lifetime: that of the list
  std::size_t flat = 0;
  std::int64_t begin = 0;  // in the flat parameter
  std::int64_t numel = 0;
  bool tied = false;  // shares the elements of an earlier one
};

struct ModelDivision {
  std::vector<DividedParameter> parameters;  // in the order of the list
  std::vector<char> divided;  // of each flat parameter: 0 if the list names none in it
  // Flat parameters whose padding holds other elements than FSDP writes, though views tell that it
  // is padding.
  std::vector<std::size_t> odd_padding;
};

// Returns whether elements [begin, end) of a flat parameter hold the padding that FSDP writes
// there; true for elements in the files of ranks that are missing.  `at_end`: of the flat
// parameter.
using HoldsPadding =
    std::function<bool(const FlatParameter& flat, const FlatRange& range, bool at_end)>;

// Divides the flat parameters in which parameters of the list lie.  Sizes must fit; if several
// divisions do, the padding decides; nothing else does.  Views that files have of a parameter must
// be of its elements.
// Throws: kKey for names that the model lacks, and for those of files that the list lacks; kShape
// if sizes do not fit; kMismatch if padding or views contradict the list; kRekeyAmbiguous if
// several divisions fit, or if the order of the list is not that of the model.
ModelDivision divide(const FlatModel& model, const ParameterList& list,
                     const HoldsPadding& holds_padding);

}  // namespace fsdp::formats::flat
