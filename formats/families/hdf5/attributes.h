// SPDX-License-Identifier: Apache-2.0
// Attributes of HDF5 objects that are plain: numbers, bools, text, and lists of them.
#pragma once

#include <optional>
#include <string>

#include "formats/families/hdf5/description.h"
#include "formats/families/hdf5/library.h"

namespace fsdp::formats::hdf5 {

// Returns the attribute `name` without its path, which the caller sets.  Returns nothing if the
// attribute is not plain; `why` then says what it is: " of 2 dimensions".
// Throws: kH5Open, kH5ReaderFailed.
std::optional<Attribute> plain_attribute(hid_t object, const std::string& name, std::string& why);

}  // namespace fsdp::formats::hdf5
