// SPDX-License-Identifier: Apache-2.0
// The defaults of a host that gives names no meaning: inert values.
#include <span>
#include <string>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/containers/pickle/fill.h"
#include "formats/containers/pickle/machine.h"

namespace fsdp::formats {

Value PickleHost::reduce(const Value& callable, Value args) {
  return make_object(callable, std::move(args), false);
}

Value PickleHost::new_object(const Value& cls, Value args) {
  return make_object(cls, std::move(args), true);
}

Value PickleHost::build(Value object, Value state, bool /*shared*/) {
  build_object(object, std::move(state));
  return object;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): overriding hosts take ownership.
Value PickleHost::persistent_id(Value id) {
  const std::span<const Value> items = id.items();
  const std::string* const kind = items.empty() ? nullptr : items[0].as_string();
  throw Error(ErrorCode::kPersid,
              cat("a persistent id", kind == nullptr ? "" : cat(" ", quote(*kind)),
                  " has no meaning here"));
}

}  // namespace fsdp::formats
