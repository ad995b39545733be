// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/names/name_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/containers/names/unsafe_names.h"
#include "formats/containers/pickle/machine.h"
#include "formats/state/content/torch_globals.h"
#include "tests/support/expect_error.h"
#include "tests/support/torch_zip_builder.h"

namespace fsdp::formats {
namespace {

using test::call;
using test::dict_of;
using test::global;
using test::integer;
using test::list_of;
using test::none;
using test::proto;
using test::text;
using test::tuple_of;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

struct Scanned {
  std::vector<std::string> names;
  std::vector<std::string> unsafe;
  std::vector<std::string> hidden;
  std::uint64_t end = 0;
};

Scanned scan(const std::string& stream, const std::set<std::string>& allowed = {}) {
  NameScanner scanner(allowed);
  Scanned result;
  result.end = scanner.scan(MemorySource(std::as_bytes(std::span(stream))));
  for (const ScannedName& scanned : scanner.names()) {
    result.names.push_back(scanned.name.dotted());
    if (scanned.status == NameStatus::kUnsafe) result.unsafe.push_back(scanned.name.dotted());
  }
  result.hidden = scanner.hidden();
  return result;
}

std::string member(std::string_view module, std::string_view cls, std::string_view name) {
  return call(global("builtins", "getattr"), {global(module, cls), text(name)});
}

const std::string kOrdered = call(global("collections", "OrderedDict"), {});

// Opcodes of an object, and the one unsafe name in it; empty if it is sound.
struct Use {
  const char* name;
  std::string opcodes;
  std::string unsafe;
};

std::vector<Use> uses() {
  const std::string rebuild = global("torch._utils", "_rebuild_tensor_v2");
  const std::string from_type = global("torch._tensor", "_rebuild_from_type_v2");
  const auto tensor_args = [](const std::string& hooks) {
    return std::vector<std::string>{test::storage("0", 4), integer(0), test::numbers({4}),
                                    test::numbers({1}),    "\x89",     hooks};
  };
  const std::string system = global("os", "system");
  const auto dtype = [](std::string_view name, std::vector<std::string> state) {
    return call(global("numpy", "dtype"), {text(name), "\x89", "\x88"}) + tuple_of(state) + "b";
  };
  const auto state = [](std::string_view order, int size, int alignment, int flags) {
    return std::vector<std::string>{
        integer(3),    text(order),        none(),        none(), none(),
        integer(size), integer(alignment), integer(flags)};
  };
  std::vector<std::string> with_fields = state("|", 8, 1, 0);
  with_fields[3] = tuple_of({text("a")});
  with_fields[4] =
      dict_of({{text("a"), tuple_of({dtype("O8", state("|", -1, -1, 63)), integer(0)})}});
  const auto time = [&](int count) {
    std::vector<std::string> with_unit = state("<", -1, -1, 0);
    with_unit[0] = integer(4);
    with_unit.push_back(
        tuple_of({dict_of({}), tuple_of({text("ns"), integer(count), integer(1), integer(1)})}));
    return dtype("M8", with_unit);
  };
  const std::string f8 = dtype("f8", state("<", -1, -1, 0));
  const auto array = [](std::vector<std::string> contents) {
    return call(global("numpy._core.multiarray", "_reconstruct"),
                {global("numpy", "ndarray"), tuple_of({integer(0)}), text("b")}) +
           tuple_of(std::move(contents)) + "b";
  };
  const auto scalar = [](const std::string& of) {
    return call(global("numpy.core.multiarray", "scalar"), {of, text("12345678")});
  };
  const std::string endless = call(global("builtins", "range"), {integer(1 << 30)});
  return {
      // Sound ones.
      {"a tensor", call(rebuild, tensor_args(kOrdered)), ""},
      {"a subclass",
       call(from_type, {rebuild, global("torch", "Tensor"), tuple_of(tensor_args(kOrdered)),
                        dict_of({{text("a"), integer(1)}})}),
       ""},
      {"types as data",
       list_of({global("torch", "float32"), global("builtins", "list"),
                global("torch.nn.parameter", "Parameter")}),
       ""},
      {"a member of an enumeration",
       member("deepspeed.runtime.zero.config", "ZeroStageEnum", "gradients"), ""},
      {"a nested class",
       member("torch.distributed._shard.sharded_tensor.api", "ShardedTensor", "ProcessGroupState") +
           ")\x81" + dict_of({{text("a"), integer(1)}}) + "b",
       ""},
      {"a factory", call(global("collections", "defaultdict"), {global("builtins", "list")}), ""},
      {"a namespace",
       global("argparse", "Namespace") + ")\x81" + dict_of({{text("lr"), integer(1)}}) + "b", ""},
      {"a namespace of protocol 1",
       call(global("copy_reg", "_reconstructor"),
            {global("argparse", "Namespace"), global("__builtin__", "object"), none()}),
       ""},
      {"an array", array({integer(1), tuple_of({integer(1)}), f8, "\x89", text("12345678")}), ""},
      {"an array of objects",
       array({integer(1), tuple_of({integer(1)}), dtype("O8", state("|", -1, -1, 63)), "\x89",
              list_of({integer(1)})}),
       ""},
      {"an array of no dimensions", array({integer(1), ")", f8, "\x89", text("12345678")}), ""},
      {"a number of NumPy", scalar(f8), ""},
      {"bytes in a number of NumPy",
       call(global("numpy._core.multiarray", "scalar"),
            {f8, call(global("_codecs", "encode"), {text("12345678"), text("latin1")})}),
       ""},
      {"containers",
       list_of({call(global("builtins", "set"), {list_of({integer(1)})}),
                call(global("collections", "deque"), {")", integer(3)}),
                call(global("collections", "Counter"), {dict_of({})}),
                call(global("builtins", "frozenset"), {tuple_of({integer(1)})})}),
       ""},
      {"bytes",
       list_of({call(global("builtins", "bytes"), {}), call(global("builtins", "bytearray"), {}),
                call(global("builtins", "bytearray"), {text("a"), text("latin-1")})}),
       ""},
      {"fractions",
       list_of({call(global("fractions", "Fraction"), {integer(1), integer(3)}),
                call(global("fractions", "Fraction"), {text("-1/3")})}),
       ""},
      {"a range", endless, ""},
      {"dtypes of NumPy",
       list_of({dtype("f8", state("<", -1, -1, 0)), dtype("O8", state("|", -1, -1, 63)),
                dtype("S5", state("|", 5, 1, 0)), dtype("U5", state("<", 20, 4, 8)),
                dtype("V8", state("|", 8, 1, 0))}),
       ""},
      {"a version of torch", call(global("torch.torch_version", "TorchVersion"), {text("2.11.0")}),
       ""},
      {"a new version of torch",
       global("torch.torch_version", "TorchVersion") + tuple_of({text("2.11.0")}) + "\x81", ""},
      // Values that NumPy and PyTorch take for pointers, or call.
      {"a time", time(25), ""},
      {"a time of no unit", time(0), "numpy.dtype"},
      {"a dtype with fields", dtype("V8", with_fields), "numpy.dtype"},
      {"a dtype of another size", dtype("V8", state("|", 9, 1, 0)), "numpy.dtype"},
      {"a dtype of no size", dtype("S5", state("|", -1, -1, 0)), "numpy.dtype"},
      {"a dtype with the flags of objects", dtype("V8", state("|", 8, 1, 63)), "numpy.dtype"},
      {"an object without its flags", dtype("O8", state("|", -1, -1, 0)), "numpy.dtype"},
      {"a dtype with another state", dtype("f8", {integer(3)}), "numpy.dtype"},
      {"a dtype of a class",
       call(global("numpy", "dtype"), {global("numpy.dtypes", "StringDType"), "\x89", "\x88"}),
       "numpy.dtype"},
      {"a dtype of fields", call(global("numpy", "dtype"), {text("(2,)f4"), "\x89", "\x88"}),
       "numpy.dtype"},
      {"a dtype of one argument", call(global("numpy", "dtype"), {text("f8")}), "numpy.dtype"},
      {"an object as a number", scalar(dtype("O8", state("|", -1, -1, 63))),
       "numpy.core.multiarray.scalar"},
      {"a number of no dtype", scalar(integer(1)), "numpy.core.multiarray.scalar"},
      {"a number of another class", scalar(call(global("numpy.dtypes", "StringDType"), {})),
       "numpy.core.multiarray.scalar"},
      {"an array of negative sizes",
       array({integer(1), tuple_of({integer(-1), integer(-1)}), f8, "\x89", text("12345678")}),
       "numpy.ndarray"},
      {"an array of no dtype",
       array({integer(1), tuple_of({integer(1)}), none(), "\x89", text("12345678")}),
       "numpy.ndarray"},
      {"an array with another state", array({integer(1)}), "numpy.ndarray"},
      {"an array that is made large",
       call(global("numpy.core.multiarray", "_reconstruct"),
            {global("numpy", "ndarray"), tuple_of({integer(1 << 30)}), text("d")}),
       "numpy.core.multiarray._reconstruct"},
      {"a set of a range", call(global("builtins", "set"), {endless}), "builtins.set"},
      {"a frozenset of a range", call(global("builtins", "frozenset"), {endless}),
       "builtins.frozenset"},
      {"a deque of a range", call(global("collections", "deque"), {endless}), "collections.deque"},
      {"a Counter of a range", call(global("collections", "Counter"), {endless}),
       "collections.Counter"},
      {"bytes by their number", call(global("builtins", "bytes"), {integer(1 << 30)}),
       "builtins.bytes"},
      {"a bytearray by its number", call(global("builtins", "bytearray"), {integer(1 << 30)}),
       "builtins.bytearray"},
      {"a bytearray of another codec",
       call(global("builtins", "bytearray"), {text("a"), text("punycode")}), "builtins.bytearray"},
      {"a fraction with an exponent", call(global("fractions", "Fraction"), {text("1E99999999")}),
       "fractions.Fraction"},
      {"a version of something else",
       call(global("torch.torch_version", "TorchVersion"), {tuple_of({text("a")})}),
       "torch.torch_version.TorchVersion"},
      {"a new version of something else",
       global("torch.torch_version", "TorchVersion") + tuple_of({integer(2)}) + "\x81",
       "torch.torch_version.TorchVersion"},
      // Places where a name can hide.
      {"a value", dict_of({{text("a"), system}}), "os.system"},
      {"a key", dict_of({{tuple_of({integer(1), system}), integer(1)}}), "os.system"},
      {"a key of keys", dict_of({{tuple_of({tuple_of({system})}), integer(1)}}), "os.system"},
      {"a defaultdict's factory", call(global("collections", "defaultdict"), {system}),
       "os.system"},
      {"an OrderedDict's state", kOrdered + dict_of({{text("x"), system}}) + "b", "os.system"},
      {"a Counter's state",
       call(global("collections", "Counter"), {}) + dict_of({{text("x"), system}}) + "b",
       "os.system"},
      {"a tensor's hooks", call(rebuild, tensor_args(kOrdered + integer(0) + system + "s")),
       "os.system"},
      {"a subclass's state",
       call(from_type, {rebuild, global("torch", "Tensor"), tuple_of(tensor_args(kOrdered)),
                        dict_of({{text("a"), system}})}),
       "os.system"},
      {"a parameter's hooks",
       call(global("torch._utils", "_rebuild_parameter"),
            {call(rebuild, tensor_args(kOrdered)), "\x89", kOrdered + integer(0) + system + "s"}),
       "os.system"},
      {"a set", call(global("builtins", "set"), {list_of({system})}), "os.system"},
      // Listed names, used in another way.
      {"write_text", member("pathlib", "PosixPath", "write_text"), "pathlib.PosixPath.write_text"},
      {"write_text called",
       member("pathlib", "PosixPath", "write_text") +
           tuple_of({call(global("pathlib", "PosixPath"), {text("a")}), text("x")}) + "R",
       "pathlib.PosixPath.write_text"},
      {"unlink", member("pathlib", "Path", "unlink"), "pathlib.Path.unlink"},
      {"tofile", member("numpy", "ndarray", "tofile"), "numpy.ndarray.tofile"},
      {"from_file", member("torch", "UntypedStorage", "from_file"),
       "torch.UntypedStorage.from_file"},
      {"_rebuild_from_type_v2 of getattr",
       call(from_type, {global("builtins", "getattr"), global("torch", "Tensor"),
                        tuple_of({global("pathlib", "PosixPath"), text("write_text")}), none()}),
       "builtins.getattr"},
      {"_rebuild_wrapper_subclass of no tensor's class",
       call(global("torch._utils", "_rebuild_wrapper_subclass"),
            {global("pathlib", "PosixPath"), none()}),
       "pathlib.PosixPath"},
      {"getattr as a value", list_of({global("builtins", "getattr")}), "builtins.getattr"},
      {"getattr as a hook", kOrdered + integer(0) + global("__builtin__", "getattr") + "s",
       "builtins.getattr"},
      {"getattr as a factory",
       call(global("collections", "defaultdict"), {global("builtins", "getattr")}),
       "builtins.getattr"},
      {"getattr of a name that is computed",
       call(global("builtins", "getattr"),
            {global("pathlib", "PosixPath"), call(global("builtins", "bytes"), {})}),
       "builtins.getattr"},
      {"_reconstructor with another base",
       call(global("copyreg", "_reconstructor"),
            {global("pathlib", "PosixPath"), global("builtins", "str"), text("x")}),
       "copyreg._reconstructor"},
      {"another codec", call(global("_codecs", "encode"), {text("a"), text("rot13")}),
       "_codecs.encode"},
      {"a call of a dtype", call(global("torch", "float32"), {integer(1)}), "torch.float32"},
      {"a new object of a function", global("torch._utils", "_rebuild_tensor_v2") + ")\x81",
       "torch._utils._rebuild_tensor_v2"},
      {"a state for a class", global("torch", "Tensor") + dict_of({{text("a"), integer(1)}}) + "b",
       "torch.Tensor"},
      {"an item for a class", global("collections", "OrderedDict") + text("a") + integer(1) + "s",
       "collections.OrderedDict"},
      {"a mesh that is made", call(global("torch.distributed.device_mesh", "DeviceMesh"), {}),
       "torch.distributed.device_mesh.DeviceMesh"},
  };
}

TEST(NameScan, exactly_what_checkpoints_do_with_names_is_sound) {
  for (const Use& use : uses()) {
    const Scanned scanned = scan(proto(2, use.opcodes));
    if (use.unsafe.empty()) {
      EXPECT_THAT(scanned.unsafe, IsEmpty()) << use.name;
    } else {
      EXPECT_THAT(scanned.unsafe, ElementsAre(use.unsafe)) << use.name;
    }
    EXPECT_THAT(scanned.hidden, IsEmpty()) << use.name;
  }
}

TEST(NameScan, a_visit_of_the_value_finds_what_the_bytes_show) {
  for (const Use& use : uses()) {
    const std::string stream = proto(2, use.opcodes);
    TorchPickleHost host;
    Value value;
    try {
      value = read_pickle(MemorySource(std::as_bytes(std::span(stream))), host);
    } catch (const Error&) {
      EXPECT_FALSE(use.unsafe.empty()) << use.name;  // no reader makes a value of it
      continue;
    }
    if (use.unsafe.empty()) {
      EXPECT_THAT(unknown_globals_in(value), IsEmpty()) << use.name;
    } else {
      EXPECT_THAT(unknown_globals_in(value), ElementsAre(use.unsafe)) << use.name;
    }
  }
}

TEST(NameScan, an_allowed_name_may_be_used_in_any_way) {
  const std::string config = global("mine", "Config");
  const std::string stream =
      proto(2, list_of({config, call(config, {integer(1)}) + integer(1) + "b",
                        call(config, {}) + integer(1) + "a", config + ")\x81"}));
  EXPECT_THAT(scan(stream).unsafe, ElementsAre("mine.Config"));
  EXPECT_THAT(scan(stream, {"mine.Config"}).unsafe, IsEmpty());
  // The permission is for the name, not for attributes of it.
  const std::string taken = proto(2, member("mine", "Config", "run"));
  EXPECT_THAT(scan(taken, {"mine.Config"}).unsafe, ElementsAre("mine.Config.run"));
}

TEST(NameScan, every_way_to_say_a_name_is_seen) {
  const std::vector<std::pair<const char*, std::string>> streams = {
      {"GLOBAL without PROTO", "cos\nsystem\n."},
      {"STACK_GLOBAL", "\x80\x04\x8c\x02os\x8c\x06system\x93."},
      {"STACK_GLOBAL of UNICODE", "Vos\nV\\u0073ystem\n\x93."},
      {"STACK_GLOBAL of STRING", "S'os'\nS\"sys\\x74em\"\n\x93."},
      {"STACK_GLOBAL of octal escapes", "S'o\\163'\nS'system'\n\x93."},
      {"STACK_GLOBAL of SHORT_BINSTRING", "U\x02osU\x06system\x93."},
      {"STACK_GLOBAL of texts in the memo", "\x8c\x02osq\x05\x30\x8c\x06systemp7\n0h\x05g7\n\x93."},
      {"a slot that is put twice", "Vmath\nq\x01\x30Vos\nq\x01\x30h\x01Vsystem\n\x93."},
      {"GET in words of int()", "Vos\np10\n0g 1_0 \nVsystem\n\x93."},
      {"texts that are doubled and dropped", "(Vmath\n1Vos\n20Vsystem\n\x93."},
      {"INST", "(S'id'\nios\nsystem\n."},
      {"OBJ", "(cos\nsystem\nS'id'\no."},
      {"POP of a MARK", "(0cos\nsystem\n."},
      {"a frame", std::string("\x80\x04\x95\x0b\0\0\0\0\0\0\0cos\nsystem\n.", 23)},
  };
  for (const auto& [name, stream] : streams) {
    EXPECT_THAT(scan(stream).unsafe, ElementsAre("os.system")) << name;
  }
}

TEST(NameScan, a_name_that_cannot_be_told_is_said_to_be_hidden) {
  EXPECT_THAT(scan("Vos\ncbuiltins\nstr\n)R\x93.").hidden, SizeIs(1));
  EXPECT_THAT(scan("\x82\x07.").hidden,
              ElementsAre("EXT1 at byte 0 takes name 7 of the extension registry"));
  EXPECT_THAT(scan(std::string("\x84\x07\0\0\0.", 6)).hidden, SizeIs(1));
}

TEST(NameScan, stops_where_python_stops_and_keeps_what_came_before) {
  const std::set<std::string> none_allowed;
  const std::vector<std::pair<ErrorCode, std::string>> streams = {
      {ErrorCode::kOpcode, "cos\nsystem\n\xFE."},
      {ErrorCode::kStack, "cos\nsystem\nR."},
      {ErrorCode::kMemo, "cos\nsystem\nh\x07."},
      {ErrorCode::kTruncated, "cos\nsystem\nV"},
      {ErrorCode::kTruncated, "cos\nsystem\n"},
      {ErrorCode::kProto, "cos\nsystem\n\x80\x06."},
      {ErrorCode::kStack,
       "cos\nsystem\n(0"
       "0"
       "0."},
      {ErrorCode::kMemo, "cos\nsystem\ngx\n."},
  };
  for (const auto& [code, stream] : streams) {
    NameScanner scanner(none_allowed);
    test::expect_error(code, "", [&, &stream = stream] {
      scanner.scan(MemorySource(std::as_bytes(std::span(stream))));
    });
    ASSERT_THAT(scanner.names(), SizeIs(1)) << stream;
    EXPECT_EQ(scanner.names()[0].name.dotted(), "os.system");
  }
}

TEST(NameScan, a_number_is_one_in_every_spelling) {
  const std::string bytes = global("builtins", "bytes");
  const std::vector<std::pair<const char*, std::string>> numbers = {
      {"BININT", integer(1 << 30)},
      {"LONG1", std::string("\x8a\x06\0\0\0\0\0\x01", 8)},
      {"LONG1 of nine bytes", std::string("\x8a\x09\0\0\0\0\0\x01\0\0\0", 11)},
      {"LONG4", std::string("\x8b\x06\0\0\0\0\0\0\0\0\x01", 11)},
      {"LONG4 of nine bytes", std::string("\x8b\x09\0\0\0\0\0\0\0\0\x01\0\0\0", 14)},
      {"INT", "I1099511627776\n"},
      {"INT in words of int()", "I 1_099_511_627_776\n"},
      {"LONG", "L1099511627776L\n"},
  };
  for (const auto& [name, number] : numbers) {
    EXPECT_THAT(scan(bytes + number + "\x85R.").unsafe, ElementsAre("builtins.bytes")) << name;
  }
}

TEST(NameScan, a_shape_of_many_dimensions_is_read_to_its_end) {
  const auto array = [](int dimensions, int last) {
    std::vector<std::string> shape(static_cast<std::size_t>(dimensions), integer(1));
    shape.back() = integer(last);
    const std::string f8 = call(global("numpy", "dtype"), {text("f8"), "\x89", "\x88"}) +
                           tuple_of({integer(3), text("<"), none(), none(), none(), integer(-1),
                                     integer(-1), integer(0)}) +
                           "b";
    return call(global("numpy._core.multiarray", "_reconstruct"),
                {global("numpy", "ndarray"), tuple_of({integer(0)}), text("b")}) +
           tuple_of({integer(1), tuple_of(shape), f8, "\x89", text("12345678")}) + "b.";
  };
  for (const int dimensions : {1, 14, 15, 16, 17, 32}) {
    EXPECT_THAT(scan(array(dimensions, 1)).unsafe, IsEmpty()) << dimensions;
    EXPECT_THAT(scan(array(dimensions, -1)).unsafe, ElementsAre("numpy.ndarray")) << dimensions;
  }
}

TEST(NameScan, the_legacy_form_of_a_class_is_the_class) {
  const std::string container =
      tuple_of({text("module"), global("torch", "FloatStorage"), text("f"), text("s")}) + "Q";
  EXPECT_THAT(scan(proto(2, container + ")R")).unsafe, ElementsAre("torch.FloatStorage"));
}

TEST(NameScan, names_that_getattr_chains_into_each_other_stay_short) {
  std::string chain =
      "cbuiltins\ngetattr\n" + test::put(0) + "0" + text("cccc") + test::put(1) + "0";
  const int calls = 5'000;
  for (int i = 0; i < calls; ++i) chain += test::get(0);
  chain += global("a", "b");
  for (int i = 0; i < calls; ++i) chain += test::get(1) + "\x86R";
  const Scanned scanned = scan(chain + ".");
  std::size_t bytes = 0;
  for (const std::string& name : scanned.names) bytes += name.size();
  EXPECT_LT(bytes, 100'000U);
}

}  // namespace
}  // namespace fsdp::formats
