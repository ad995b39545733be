// SPDX-License-Identifier: Apache-2.0
// A shared library that is loaded on first use: the tool starts without it, and works without it as
// long as nothing needs it.  Into a static program libraries are linked, and only their functions
// are looked up.
#pragma once

#include <string>

namespace fsdp::formats {

class SharedLibrary {
 public:
  // `file`: its soname ("libcurl.so.4").  `package`: what a person installs to have it.
  // Throws: kUnsupported, naming both.
  SharedLibrary(const std::string& file, const std::string& package);

  // Fills `function` with the function of this name.  Throws: kUnsupported.
  template <typename Function>
  void find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(address(name));
  }

 private:
  void* address(const char* name) const;

  std::string file_;
  void* handle_ = nullptr;  // stays loaded: its threads and handlers may outlive us
};

}  // namespace fsdp::formats
