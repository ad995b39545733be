// SPDX-License-Identifier: Apache-2.0
#include "formats/families/torch/stream.h"

#include <array>
#include <cstdio>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/bytes/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/torch_zip_builder.h"

namespace fsdp::formats {
namespace {

using test::call;
using test::expect_error;
using test::float_tensor;
using test::global;
using test::integer;
using test::none;
using test::Numbers;
using test::numbers;
using test::storage;
using test::tensor_call;
using test::text;
using test::TorchZip;
using test::tuple_of;
using testing::ElementsAre;

TorchFile read(const std::string& content) {
  const auto bytes = test::to_bytes(content);
  return read_torch_file(MemorySource(bytes), 5);
}

// Only the object, over storages 0 (10 floats) and 1 (10 floats).
TorchFile read_root(const std::string& root) {
  TorchZip zip;
  zip.root = root;
  zip.storages = {{"0", std::string(40, 'a')}, {"1", std::string(40, 'b')}};
  return read(zip.bytes());
}

// The header of a tar's member.
std::string tar_member(const std::string& name, std::uint64_t bytes) {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  std::array<char, 12> octal{};
  std::snprintf(octal.data(), octal.size(), "%011lo", static_cast<unsigned long>(bytes));
  block.replace(124, 11, octal.data(), 11);
  block.replace(257, 5, "ustar");
  return block;
}

TEST(TorchFile, of_one_tensor_says_where_its_bytes_lie) {
  const std::string bytes = float_tensor({2, 3}).bytes();
  const TorchFile file = read(bytes);
  const auto tensor = dense_tensor(file.root);
  ASSERT_TRUE(tensor);
  EXPECT_EQ(tensor->dtype, DType::kFloat32);
  EXPECT_THAT(tensor->shape, ElementsAre(2, 3));
  EXPECT_THAT(tensor->strides, ElementsAre(3, 1));
  EXPECT_EQ(tensor->storage->archive, 5U);
  const StorageRecord& record = file.records.at("0");
  EXPECT_EQ(record.bytes, 24U);
  EXPECT_EQ(bytes.substr(record.offset, 24), std::string(24, '\0'));
  EXPECT_FALSE(file.big_endian || file.legacy || file.without_crcs);
  EXPECT_TRUE(file.unknown_globals.empty());
}

TEST(TorchFile, tells_streams_apart_by_their_first_bytes) {
  const auto sniff = [](std::string bytes) {
    const auto content = test::to_bytes(bytes);
    return sniff_torch_stream(MemorySource(content));
  };
  EXPECT_EQ(sniff(float_tensor({1}).bytes()), TorchStream::kZip);
  EXPECT_EQ(sniff(test::to_text(test::read_data("golden/2.11.0/legacy_pt/full.pt"))),
            TorchStream::kLegacy);
  EXPECT_EQ(sniff(std::string(257, '\0') + "ustar"), TorchStream::kTar);
  for (const char* other : {"", "P", "PK", "PK\5\6", "\x80\x02}."})
    EXPECT_EQ(sniff(other), TorchStream::kOther);
}

TEST(TorchFile, that_is_another_program_or_age_is_refused) {  // P30
  expect_error(ErrorCode::kUnsupported, "a tar of PyTorch 0.1.10",
               [] { read(tar_member("sys_info", 0)); });
  expect_error(ErrorCode::kUnsupported, "a tar of PyTorch 0.1.10", [] {
    read(tar_member("././@PaxHeader", 600) + std::string(1024, 'x') + tar_member("pickle", 0));
  });
  expect_error(ErrorCode::kUnknownFormat, "is a tar archive, not a checkpoint",
               [] { read(tar_member("step-400/.metadata", 0) + std::string(1024, '\0')); });
  expect_error(ErrorCode::kUnknownFormat, "is a tar archive",
               [] { read(tar_member("big", 0xFFFFFFFF)); });
  expect_error(ErrorCode::kEmpty, "has no bytes", [] { read(""); });
  expect_error(ErrorCode::kZipEocd, "", [] { read("neither of them, but long enough to be one"); });
  TorchZip script = float_tensor({1});
  script.more_records = {{"constants.pkl", "x"}};
  expect_error(ErrorCode::kUnsupported, "TorchScript", [&] { read(script.bytes()); });
  for (const char* version : {"0", "11", "", "3x", "-1", "99999", "\n"}) {
    TorchZip zip = float_tensor({1});
    zip.version = version;
    expect_error(ErrorCode::kUnsupported, "version of the archive is", [&] { read(zip.bytes()); });
  }
}

TEST(TorchFile, of_a_big_endian_machine_says_so) {  // Z21
  TorchZip zip = float_tensor({2});
  zip.byteorder = "big";
  EXPECT_TRUE(read(zip.bytes()).big_endian);
  zip.byteorder.reset();  // before PyTorch 2.1
  EXPECT_FALSE(read(zip.bytes()).big_endian);
  zip.byteorder = "BIG";
  expect_error(ErrorCode::kByteorder, "byteorder is 'BIG', expected 'little' or 'big'",
               [&] { read(zip.bytes()); });
}

TEST(TorchFile, records_must_stand_in_one_folder) {
  TorchZip zip = float_tensor({1});
  zip.prefix = "a/b";
  expect_error(ErrorCode::kRecordMissing, "'a/data.pkl' is missing", [&] { read(zip.bytes()); });
}

TEST(TorchFile, persistent_ids_are_storages_and_nothing_else) {
  struct Case {
    const char* name;
    std::string id;  // opcodes
    ErrorCode code;
    const char* fragment;
  };
  const auto id = [](const std::string& cls, const std::string& key, const std::string& location,
                     const std::string& count) {
    return tuple_of({text("storage"), cls, key, location, count});
  };
  const std::string floats = global("torch", "FloatStorage");
  const std::vector<Case> cases = {
      {"P25 a text", text("0"), ErrorCode::kPersid, "expected a tuple"},
      {"P25 an empty tuple", ")", ErrorCode::kPersid, "expected a tuple"},
      {"P25 another kind", tuple_of({text("module"), floats, text("0"), text("cpu"), integer(10)}),
       ErrorCode::kPersid, "found 'module' of 5"},
      {"P25 four items", tuple_of({text("storage"), floats, text("0"), text("cpu")}),
       ErrorCode::kPersid, "found 'storage' of 4"},
      {"P26 unknown type", id(global("torch", "NoStorage"), text("0"), text("cpu"), integer(10)),
       ErrorCode::kStorage, "unknown storage type 'torch.NoStorage'"},
      {"P26 type is a text", id(text("FloatStorage"), text("0"), text("cpu"), integer(10)),
       ErrorCode::kStorage, "unknown storage type without a name"},
      {"P26 negative count", id(floats, text("0"), text("cpu"), integer(-1)), ErrorCode::kStorage,
       "storage '0' has no valid number of elements"},
      {"P26 huge count", id(floats, text("0"), text("cpu"), integer(INT64_MAX)),
       ErrorCode::kOverflow, "storage size"},
      {"P28 count is True", id(floats, text("0"), text("cpu"), "\x88"), ErrorCode::kStorage,
       "no valid number"},
      {"P28 count is None", id(floats, text("0"), text("cpu"), none()), ErrorCode::kStorage,
       "no valid number"},
      {"P28 key is a number", id(floats, integer(0), text("cpu"), integer(10)), ErrorCode::kStorage,
       "key is not text"},
      {"P28 location is a number", id(floats, text("0"), integer(0), integer(10)),
       ErrorCode::kStorage, "location is not text"},
      {"Z22 empty key", id(floats, text(""), text("cpu"), integer(10)), ErrorCode::kStorage,
       "1 to 4096 bytes"},
      {"Z22 NUL in the key", id(floats, text(std::string("0\0", 2)), text("cpu"), integer(10)),
       ErrorCode::kStorage, "1 to 4096 bytes"},
      {"no such record", id(floats, text("7"), text("cpu"), integer(10)), ErrorCode::kRecordMissing,
       "'archive/data/7' is missing"},
      {"record of another size", id(floats, text("0"), text("cpu"), integer(9)),
       ErrorCode::kRecordSize, "has 40 bytes, expected 36 for 9 elements of float32"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    expect_error(c.code, c.fragment, [&] { read_root(c.id + "Q"); });
  }
  expect_error(ErrorCode::kStorage, "storage '0' is first 10 of float32, then 5 of float64", [] {
    read_root(tuple_of({storage("0", 10), storage("0", 5, "DoubleStorage")}));
  });
  EXPECT_EQ(read_root(tuple_of({storage("0", 10), storage("0", 10)})).storages.size(), 1U);
}

TEST(TorchFile, tensors_must_lie_inside_their_storage) {  // P27
  struct Case {
    const char* name;
    std::int64_t offset;
    Numbers shape, strides;
    const char* fragment;  // empty: sound
  };
  const std::vector<Case> cases = {
      {"whole", 0, {10}, {1}, ""},
      {"scalar at the end", 9, {}, {}, ""},
      {"transposed", 0, {2, 5}, {1, 2}, ""},
      {"expanded", 9, {1'000'000}, {0}, ""},
      {"empty, with strides beyond", 0, {0, 7}, {70, 10}, ""},
      {"one too many", 0, {11}, {1}, "needs 11 elements, storage '0' has 10"},
      {"offset at the end", 10, {}, {}, "needs 11 elements"},
      {"stride beyond", 0, {2, 2}, {9, 1}, "needs 11 elements"},
      {"negative stride", 9, {2}, {-1}, "negative size or stride"},
      {"negative size", 0, {-1}, {1}, "negative size or stride"},
      {"ranks differ", 0, {2, 2}, {1}, "size has 2 dimensions, stride 1"},
      {"65 dimensions", 0, Numbers(65, 1), Numbers(65, 1), "size has 65 dimensions"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto read_it = [&] {
      read_root(tensor_call(storage("0", 10), c.offset, c.shape, c.strides));
    };
    if (*c.fragment == '\0') {
      EXPECT_NO_THROW(read_it());
    } else {
      expect_error(ErrorCode::kTensorBounds, c.fragment, read_it);
    }
  }
  expect_error(ErrorCode::kOverflow, "tensor extent", [] {
    read_root(tensor_call(storage("0", 10), 0, {INT64_MAX, 3}, {INT64_MAX, 1}));
  });
  expect_error(ErrorCode::kOverflow, "tensor size", [] {
    read_root(tensor_call(storage("0", 10), 0, {INT64_MAX, INT64_MAX}, {0, 0}));
  });
}

TEST(TorchFile, arguments_of_a_tensor_have_their_types) {  // P28, P11
  const std::string rebuild = global("torch._utils", "_rebuild_tensor_v2");
  const std::string hooks = call(global("collections", "OrderedDict"), {});
  const auto with = [&](const std::string& of, const std::string& offset, const std::string& size,
                        const std::string& stride) {
    return call(rebuild, {of, offset, size, stride, "\x89", hooks});
  };
  const std::string one = numbers({1});
  struct Case {
    const char* name;
    std::string root;
    ErrorCode code;
    const char* fragment;
  };
  const std::vector<Case> cases = {
      {"storage is None", with(none(), integer(0), one, one), ErrorCode::kType,
       "argument 1 is not a storage"},
      {"offset is False", with(storage("0", 10), "\x89", one, one), ErrorCode::kType,
       "storage offset is not an integer"},
      {"offset is negative", with(storage("0", 10), integer(-1), one, one), ErrorCode::kType,
       "storage offset is not an integer"},
      {"size is a number", with(storage("0", 10), integer(0), integer(1), one), ErrorCode::kType,
       "size or stride is not a tuple of integers"},
      {"size holds True", with(storage("0", 10), integer(0), tuple_of({"\x88"}), one),
       ErrorCode::kType, "size or stride is not a tuple of integers"},
      {"stride holds a text", with(storage("0", 10), integer(0), one, tuple_of({text("1")})),
       ErrorCode::kType, "size or stride is not a tuple of integers"},
      {"no arguments", call(rebuild, {}), ErrorCode::kReduce,
       "_rebuild_tensor_v2: expected 6 arguments, found 0"},
      {"eight arguments", call(rebuild, std::vector<std::string>(8, none())), ErrorCode::kReduce,
       "found 8"},
      {"untyped storage", with(storage("0", 40, "UntypedStorage"), integer(0), one, one),
       ErrorCode::kType, "the storage is untyped, so the tensor has no dtype"},
      {"parameter of nothing", call(global("torch._utils", "_rebuild_parameter"), {}),
       ErrorCode::kReduce, "_rebuild_parameter: expected 3 arguments, found 0"},
      {"parameter with state of nothing",
       call(global("torch._utils", "_rebuild_parameter_with_state"), {}), ErrorCode::kReduce,
       "expected 4 arguments, found 0"},
      {"subclass of nothing",
       call(global("torch._tensor", "_rebuild_from_type_v2"), {none(), none(), none(), none()}),
       ErrorCode::kReduce, "expected (function, type, arguments, state)"},
      {"subclass of a bad tensor",
       call(global("torch._tensor", "_rebuild_from_type_v2"), {rebuild, none(), ")", none()}),
       ErrorCode::kReduce, "_rebuild_tensor_v2: expected 6 arguments, found 0"},
      {"torch.Size of a number", call(global("torch", "Size"), {integer(1)}), ErrorCode::kReduce,
       "torch.Size"},
      {"bytes beyond latin1",
       call(global("_codecs", "encode"), {text("\xe2\x82\xac"), text("latin1")}),
       ErrorCode::kReduce, "_codecs.encode"},
      {"bytes by another codec", call(global("_codecs", "encode"), {text("a"), text("zlib")}),
       ErrorCode::kReduce, "_codecs.encode"},
      {"call of a number", integer(1) + ")R", ErrorCode::kReduce, ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    expect_error(c.code, c.fragment, [&] { read_root(c.root); });
  }
}

TEST(TorchFile, what_newobj_makes_is_no_tensor_whatever_its_class) {
  for (const char* name : {"_rebuild_parameter", "_rebuild_parameter_with_state",
                           "_rebuild_tensor_v2", "_rebuild_qtensor"}) {
    const Value root = read_root(global("torch._utils", name) + ")\x81").root;
    EXPECT_FALSE(dense_tensor(root)) << name;
    EXPECT_EQ(special_tensor(root), "") << name;
  }
  const std::string size = global("torch", "Size") + ")\x81";
  expect_error(ErrorCode::kType, "size or stride is not a tuple of integers", [&] {
    read_root(call(global("torch._utils", "_rebuild_tensor_v2"),
                   {storage("0", 10), integer(0), size, size, "\x89", none()}));
  });
}

TEST(TorchFile, names_that_are_no_data_are_listed) {  // P7
  const TorchFile file = read_root(
      tuple_of({global("os", "system"),
                call(global("builtins", "getattr"), {global("torch", "Tensor"), text("__dict__")}),
                global("collections", "OrderedDict"), global("mine", "Config")}));
  EXPECT_THAT(file.unknown_globals,
              ElementsAre("mine.Config", "os.system", "torch.Tensor.__dict__"));
  EXPECT_EQ(unknown_globals_in(file.root), file.unknown_globals);
}

TEST(TorchFile, every_kind_of_tensor_is_told) {
  const auto kinds = [](const char* path, const char* key) {
    const auto bytes = test::read_data(path);
    const Value root = read_torch_file(MemorySource(bytes)).root;
    const Value* value = root.find(key);
    return value == nullptr ? "missing" : dense_tensor(*value) ? "dense" : special_tensor(*value);
  };
  EXPECT_EQ(kinds("golden/2.11.0/quantized_pt/full.pt", "channel"), "quantized");
  EXPECT_EQ(kinds("golden/2.11.0/sparse_pt/full.pt", "coo"), "sparse");
  EXPECT_EQ(kinds("golden/2.11.0/sparse_pt/full.pt", "bsc"), "sparse");
  EXPECT_EQ(kinds("golden/2.11.0/parameters_pt/full.pt", "plain"), "dense");
  EXPECT_EQ(kinds("golden/2.11.0/parameters_pt/full.pt", "tagged"), "dense");
  EXPECT_EQ(kinds("golden/2.11.0/parameters_pt/full.pt", "buffer"), "dense");
}

TEST(TorchFile, a_storage_it_does_not_have_is_refused) {
  const TorchFile file = read(float_tensor({1}).bytes());
  StorageRef other;
  other.key = "9";
  Spill spill;
  expect_error(ErrorCode::kStorage, "file: has no storage '9'", [&] {
    storage_data(file, other, {nullptr, "file", 0, 0}, spill);
  });
}

// Returns where the storages of a legacy file begin: after five pickles.
std::string legacy() {
  return test::to_text(test::read_data("golden/2.11.0/legacy_pt/full.pt"));
}

TEST(TorchLegacy, is_refused_where_its_parts_contradict) {  // P30
  const std::string sound = legacy();
  EXPECT_TRUE(read(sound).legacy);
  expect_error(ErrorCode::kTrailing, "1 bytes follow the last storage", [&] { read(sound + "x"); });
  expect_error(ErrorCode::kTruncated, "needed", [&] { read(sound.substr(0, sound.size() - 1)); });
  const std::string magic = sound.substr(0, 15);  // PROTO 2, LONG1 of ten bytes, STOP
  const auto built = [&](const std::string& version, const std::string& info,
                         const std::string& root, const std::string& keys,
                         const std::string& rest) {
    return magic + test::proto(2, version) + test::proto(2, info) + test::proto(2, root) +
           test::proto(2, keys) + rest;
  };
  const std::string info = test::dict_of({{text("little_endian"), "\x88"}});
  const auto id = [&](const std::string& view) {
    return tuple_of({text("storage"), global("torch", "FloatStorage"), text("k"), text("cpu"),
                     integer(2), view}) +
           "Q";
  };
  const std::string count = test::little_endian(2, 8);
  const std::string root = tensor_call(id(none()), 0, {2}, {1});
  const std::string keys = test::list_of({text("k")});
  EXPECT_EQ(read(built(integer(1001), info, root, keys, count + "aaaabbbb")).records.at("k").bytes,
            8U);

  expect_error(ErrorCode::kUnsupported, "protocol version is 1000, expected 1001",
               [&] { read(built(integer(1000), info, root, keys, count + "aaaabbbb")); });
  expect_error(ErrorCode::kUnsupported, "big-endian machine", [&] {
    read(built(integer(1001), test::dict_of({{text("little_endian"), "\x89"}}), root, keys,
               count + "aaaabbbb"));
  });
  expect_error(
      ErrorCode::kUnsupported, "storage 'k' is a view of another storage, which is not supported",
      [&] {
        read(built(integer(1001), info,
                   tensor_call(id(tuple_of({text("v"), integer(0), integer(1)})), 0, {2}, {1}),
                   keys, count + "aaaabbbb"));
      });
  expect_error(ErrorCode::kType, "storage keys are not a list",
               [&] { read(built(integer(1001), info, root, none(), "")); });
  expect_error(ErrorCode::kStorage, "'other' is listed, but nothing refers to it", [&] {
    read(built(integer(1001), info, root, test::list_of({text("other")}), count));
  });
  expect_error(ErrorCode::kStorage, "storage without a name is listed",
               [&] { read(built(integer(1001), info, root, test::list_of({integer(1)}), count)); });
  expect_error(ErrorCode::kRecordMissing, "storage 'k' is missing",
               [&] { read(built(integer(1001), info, root, "]", "")); });
  expect_error(ErrorCode::kRecordSize, "has 3 elements, expected 2", [&] {
    read(built(integer(1001), info, root, keys, test::little_endian(3, 8) + "aaaabbbb"));
  });
  expect_error(ErrorCode::kTruncated, "storage 'k' needs 8 bytes",
               [&] { read(built(integer(1001), info, root, keys, count + "aaaa")); });
  expect_error(ErrorCode::kStorage, "storage 'k' is listed twice", [&] {
    read(built(integer(1001), info, root, test::list_of({text("k"), text("k")}),
               count + "aaaabbbb" + count + "aaaabbbb"));
  });
  expect_error(ErrorCode::kTrailing, "",
               [&] { read(built(integer(1001), info, root, keys, count + "aaaabbbb" + "c")); });
}

}  // namespace
}  // namespace fsdp::formats
