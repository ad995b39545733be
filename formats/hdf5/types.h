// SPDX-License-Identifier: Apache-2.0
// Element types: which HDF5 type holds which dtype.
#pragma once

#include <optional>
#include <string>

#include "formats/base/dtype.h"
#include "formats/hdf5/library.h"

namespace fsdp::formats::hdf5 {

// The type in the file, and the `dtype` attribute where that type alone does not say which it is.
struct FileType {
  Handle type;
  std::optional<std::string> attribute;
};
// As h5py has it where it has it: IEEE floats, integers, the enum (FALSE, TRUE) of bool, the
// compound (r, i) of complex numbers; unsigned integers of the same width for the rest.
FileType file_type(DType dtype);

// The dtype that an HDF5 type is; nothing where it is none that tensors have.
std::optional<DType> dtype_of(hid_t type);

// "a big-endian float", "a compound", ...: for messages.
std::string type_words(hid_t type);

// Text as h5py writes it: UTF-8 of any length.
Handle text_type();

}  // namespace fsdp::formats::hdf5
