// SPDX-License-Identifier: Apache-2.0
#include "formats/store/store.h"

#include <mutex>
#include <utility>

namespace fsdp::formats {
namespace {

struct Scheme {
  std::string prefix;
  std::unique_ptr<Store> (*make)() = nullptr;
  std::once_flag once;
  std::unique_ptr<Store> store;
};

std::vector<std::unique_ptr<Scheme>>& schemes() {
  static std::vector<std::unique_ptr<Scheme>> all;
  return all;
}

}  // namespace

Store* store_of(std::string_view url) {
  for (const auto& scheme : schemes()) {
    if (!url.starts_with(scheme->prefix)) continue;
    std::call_once(scheme->once, [&] { scheme->store = scheme->make(); });
    return scheme->store.get();
  }
  return nullptr;
}

void register_store(std::string scheme, std::unique_ptr<Store> (*make)()) {
  auto added = std::make_unique<Scheme>();
  added->prefix = std::move(scheme);
  added->make = make;
  schemes().push_back(std::move(added));
}

}  // namespace fsdp::formats
