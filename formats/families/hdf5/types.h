// SPDX-License-Identifier: Apache-2.0
// Element types: the mapping between HDF5 types and dtypes.
#pragma once

#include <optional>
#include <string>

#include "formats/bytes/base/dtype.h"
#include "formats/families/hdf5/description.h"
#include "formats/families/hdf5/library.h"

namespace fsdp::formats::hdf5 {

// The type in the file, and the `dtype` attribute if that type alone is ambiguous.
struct FileType {
  Handle type;
  std::optional<std::string> attribute;
};
// Returns the type that h5py uses: IEEE floats, integers, the enum (FALSE, TRUE) of bool, the
// compound (r, i) of complex numbers.  For dtypes that h5py lacks: unsigned integers of the same
// width.
FileType file_type(DType dtype);

// Returns the dtype of an HDF5 type; nothing if no dtype matches.
std::optional<DType> dtype_of(hid_t type);

// Returns the words for a type in messages: "a big-endian float", "a compound", ...
std::string type_words(hid_t type);

// Returns the type of text as h5py writes it: UTF-8 of any length.
Handle text_type();

// Attributes of HDF5 objects that are plain: numbers, bools, text, and lists of them.

// Returns the attribute `name` without its path, which the caller sets.  Returns nothing if the
// attribute is not plain; `why` then says what it is: " of 2 dimensions".
// Throws: kH5Open, kH5ReaderFailed.
std::optional<Attribute> plain_attribute(hid_t object, const std::string& name, std::string& why);

}  // namespace fsdp::formats::hdf5
