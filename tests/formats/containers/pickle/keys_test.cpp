// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/pickle/keys.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

// Adds the keys in turn; returns the position of the first rejected one, or the count of all.
std::size_t add_all(const std::vector<Value>& keys) {
  std::unique_ptr<KeyIndex> index;
  const auto key_at = [&keys](std::size_t i) -> const Value& { return keys[i]; };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!add_key(index, i, keys[i], key_at)) return i;
  }
  return keys.size();
}

const double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Keys, keys_are_equal_where_python_finds_them_equal) {
  const std::vector<std::pair<Value, Value>> equal = {
      {Value(), Value()},
      {Value::integer(1), Value::boolean(true)},
      {Value::integer(0), Value::floating(-0.0)},
      {Value::floating(1.0), Value::boolean(true)},
      {Value::floating(2.5), Value::floating(2.5)},
      {Value::floating(INFINITY), Value::floating(INFINITY)},
      {Value::integer(INT64_MIN), Value::floating(-9223372036854775808.0)},
      {Value::string("a"), Value::string("a")},
      {Value::bytes("a"), Value::bytes("a")},
      {Value::big_int("123456789"), Value::big_int("123456789")},
      {Value::global("a", "b"), Value::global("a", "b")},
  };
  for (const auto& [a, b] : equal) {
    EXPECT_TRUE(equal_keys(a, b)) << kind_name(a.kind()) << " and " << kind_name(b.kind());
    EXPECT_EQ(hash_of_key(a), hash_of_key(b)) << kind_name(a.kind());
  }
}

TEST(Keys, keys_differ_where_python_finds_them_different) {
  const std::vector<std::pair<Value, Value>> different = {
      {Value(), Value::integer(0)},
      {Value::integer(1), Value::integer(2)},
      {Value::integer(1), Value::string("1")},
      {Value::integer(1), Value::floating(1.5)},
      {Value::integer(INT64_MAX), Value::floating(9223372036854775808.0)},
      {Value::floating(kNan), Value::floating(kNan)},
      {Value::string("a"), Value::bytes("a")},
      {Value::string("a"), Value::string(std::string("a\0", 2))},
      {Value::global("a", "b"), Value::global("a", "c")},
      {Value::global("a", "b"), Value::global("c", "b")},
      {Value::tuple({Value::integer(1)}), Value::tuple({Value::integer(1)})},  // not looked into
  };
  for (const auto& [a, b] : different) {
    EXPECT_FALSE(equal_keys(a, b)) << kind_name(a.kind()) << " and " << kind_name(b.kind());
  }
}

TEST(Keys, duplicates_are_found_before_and_after_the_index_appears) {
  for (const std::size_t count : {2U, 15U, 16U, 17U, 18U, 100U, 10000U}) {
    std::vector<Value> keys;
    for (std::size_t i = 0; i < count; ++i) {
      switch (i % 4) {
        case 0:
          keys.push_back(Value::string("k" + std::to_string(i)));
          break;
        case 1:
          keys.push_back(Value::integer(static_cast<std::int64_t>(i)));
          break;
        case 2:
          keys.push_back(Value::floating(static_cast<double>(i) + 0.5));
          break;
        default:
          keys.push_back(Value::tuple({Value()}));  // compared with no other
          break;
      }
    }
    EXPECT_EQ(add_all(keys), count);
    for (const std::size_t again : {std::size_t{0}, std::size_t{1}, count / 8 * 4}) {
      std::vector<Value> with_duplicate = keys;
      with_duplicate.push_back(keys[again]);
      EXPECT_EQ(add_all(with_duplicate), count) << "key " << again << " of " << count;
    }
  }
}

TEST(Keys, nan_and_tuples_may_occur_twice) {
  std::vector<Value> keys(40, Value::floating(kNan));
  keys.resize(80, Value::tuple({Value()}));
  EXPECT_EQ(add_all(keys), keys.size());
}

}  // namespace
}  // namespace fsdp::formats
