// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/base/error.h"
#include "formats/families/hdf5/file.h"

namespace fsdp::formats::hdf5 {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::kUnsupported,
              "this build has no HDF5; configure with -DFSDP_WITH_HDF5=ON");
}

}  // namespace

Description describe(const ByteSource&) {
  refuse();
}

Description read_description(const File&, const ReaderLimits&) {
  refuse();
}

FileImage lay_out(const FilePlan&) {
  refuse();
}

}  // namespace fsdp::formats::hdf5
