// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/store/store.h"

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

// Schemes are never removed, so pointers to them stay valid.
struct Schemes {
  std::mutex mutex;
  std::vector<std::unique_ptr<Scheme>> all;

  Scheme* of(std::string_view url) {
    const std::lock_guard lock(mutex);
    for (const auto& scheme : all) {
      if (url.starts_with(scheme->prefix)) return scheme.get();
    }
    return nullptr;
  }
};

Schemes& schemes() {
  static Schemes known;
  return known;
}

}  // namespace

Store* store_of(std::string_view url) {
  if (url.find("://") == std::string_view::npos) return nullptr;
  Scheme* const scheme = schemes().of(url);
  if (scheme == nullptr) return nullptr;
  std::call_once(scheme->once, [&] { scheme->store = scheme->make(); });
  return scheme->store.get();
}

void register_store(std::string scheme, std::unique_ptr<Store> (*make)()) {
  auto added = std::make_unique<Scheme>();
  added->prefix = std::move(scheme);
  added->make = make;
  const std::lock_guard lock(schemes().mutex);
  schemes().all.push_back(std::move(added));
}

}  // namespace fsdp::formats
