// SPDX-License-Identifier: Apache-2.0
// fsdp_ckpt._native: opened checkpoints for Python.  What Python sees is in fsdp_ckpt/_open.py and
// fsdp_ckpt/torch.py; here are the calls that they are made of.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <future>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/crc32.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/huge_pages.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/remote/remote_stores.h"
#include "formats/containers/pickle/back_reference.h"
#include "formats/front/open.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/check.h"
#include "formats/state/model/memory_reader.h"
#include "formats/state/model/select.h"

namespace nb = nanobind;

namespace fsdp::python {
namespace {

using formats::cat;
using formats::Value;
using formats::ValueKind;

// A tuple that deep is not a key: Python would hash shared parts again and again.
constexpr std::uint32_t kMaxKeyDepth = 8;

// Bytes that Python allocated, and bytes for Python, which takes them by DLPack or as a buffer.
using Bytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<nb::array_api, std::uint8_t, nb::ndim<1>>;

// Runs `work` in a thread of its own, without the GIL.  Meanwhile Python handles signals; if a
// handler raises (Ctrl-C), the work is asked to stop, and the exception is thrown on.
template <typename Work>
void apart(const Work& work) {
  nb::gil_scoped_release release;
  std::promise<void> ended;
  std::future<void> end = ended.get_future();
  const auto body = [&] {
    try {
      work();
      ended.set_value();
    } catch (...) {
      ended.set_exception(std::current_exception());
    }
  };
  std::thread worker;
  try {
    worker = std::thread(body);
  } catch (const std::system_error&) {
    body();  // the system has no further thread
  }
  std::exception_ptr raised;
  while (end.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    nb::gil_scoped_acquire acquire;
    if (raised || PyErr_CheckSignals() == 0) continue;
    raised = std::make_exception_ptr(nb::python_error());
    formats::interrupt_signal = SIGINT;
  }
  if (worker.joinable()) worker.join();
  if (raised) {
    formats::interrupt_signal = 0;
    std::rethrow_exception(raised);
  }
  end.get();
}

// Registers the stores of URLs at the first URL.  Connections and the threads that read ahead do
// not survive a fork: a process that was forked after the first URL may not read one.
void prepare_place(const std::string& path) {
  if (!formats::is_url(path)) return;
  static std::once_flag once;
  static pid_t owner = 0;
  std::call_once(once, [] {
    formats::register_remote_stores();
    owner = ::getpid();
  });
  if (owner != ::getpid()) {
    throw Error(
        ErrorCode::kUnsupported,
        cat(formats::escape(path),
            ": this process was forked from one that had read a URL, and connections do not "
            "survive that; start it with multiprocessing's method spawn"));
  }
}

// Returns memory for tensors, zeroed by the kernel when it is first touched.
Memory make_memory(std::size_t bytes) {
  const std::size_t mapped = std::max<std::size_t>(bytes, 1);
  void* const memory =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  formats::advise_huge(memory, mapped);
  struct Mapping {
    void* memory;
    std::size_t bytes;
  };
  const nb::capsule owner(new Mapping{memory, mapped}, [](void* held) noexcept {
    const auto* const mapping = static_cast<const Mapping*>(held);
    ::munmap(mapping->memory, mapping->bytes);
    delete mapping;
  });
  return Memory(static_cast<std::uint8_t*>(memory), {bytes}, owner);
}

nb::object text(std::string_view utf8) {
  // Lone surrogates are three bytes in a Value.
  PyObject* const made =
      PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "surrogatepass");
  if (made == nullptr) {
    PyErr_Clear();  // a name of a file that is not UTF-8
    return nb::steal(
        PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "surrogateescape"));
  }
  return nb::steal(made);
}

nb::object bytes_of(const std::string& held) {
  return nb::bytes(held.data(), held.size());
}

nb::object numbers(std::span<const std::int64_t> values) {
  nb::list made;
  for (const std::int64_t value : values) made.append(value);
  return nb::tuple(made);
}

nb::object path_of(const formats::KeyPath& path) {
  nb::list steps;
  for (const formats::PathStep& step : path) {
    if (const auto* const name = std::get_if<std::string>(&step)) {
      steps.append(text(*name));
    } else if (const auto* const number = std::get_if<std::int64_t>(&step)) {
      steps.append(*number);
    } else {
      steps.append(nb::none());
    }
  }
  return nb::tuple(steps);
}

// A part of a tensor and the memory that it is read into.
using Wanted = std::tuple<std::size_t, std::vector<std::int64_t>, std::vector<std::int64_t>, Bytes>;

class Opened {
 public:
  Opened(const std::string& path, const std::vector<std::string>& allowed_globals) : path_(path) {
    apart([&] {
      prepare_place(path);
      checkpoint_ = formats::open_checkpoint(
          path, {{allowed_globals.begin(), allowed_globals.end()}, &formats::this_process()});
      formats::Findings findings = checkpoint_->findings();
      formats::check_extents(index(), findings);
      formats::throw_if_damaged(findings, shown());
    });
    covered_.resize(index().tensors.size());
  }

  nb::dict description() const {
    const formats::CheckpointDescription& known = checkpoint_->description();
    nb::dict made;
    made["path"] = text(known.path);
    made["format"] = text(known.format);
    made["layout"] = text(known.layout);
    made["ranks"] = known.ranks;
    return made;
  }

  // Returns a tuple for each entry, in the checkpoint's order: whether it is a tensor, its number
  // among tensors or values, key and path; of a tensor also dtype, shape and size of an element.
  nb::list entries() const {
    nb::list made;
    for (const formats::Index::EntryRef& ref : index().order) {
      if (!ref.is_tensor) {
        const formats::ValueEntry& value = index().values[ref.position];
        made.append(nb::make_tuple(false, ref.position, text(value.key), path_of(value.path)));
        continue;
      }
      const formats::TensorEntry& tensor = index().tensors[ref.position];
      made.append(nb::make_tuple(true, ref.position, text(tensor.key), path_of(tensor.path),
                                 text(formats::torch_name(tensor.dtype)), numbers(tensor.shape),
                                 formats::item_bytes(tensor.dtype)));
    }
    return made;
  }

  // Returns offset and size of each chunk of a tensor.
  nb::list chunks(std::size_t number) const {
    const formats::ChunkList& chunks = tensor(number).chunks;
    nb::list made;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const formats::BoxView box = chunks.box(i);
      made.append(nb::make_tuple(numbers(box.offset), numbers(box.size)));
    }
    return made;
  }

  // Returns memory for `bytes` bytes of elements.  Throws: kLimitRatio if the files are too small
  // to hold so many.
  Memory memory(std::uint64_t bytes) const {
    const std::uint64_t most = formats::expansion_limit(index());
    if (bytes > most) {
      throw Error(ErrorCode::kLimitRatio,
                  cat(shown(), ": ", formats::human_bytes(bytes), " are to be read, at most ",
                      formats::human_bytes(most), " are; take slices"));
    }
    return make_memory(bytes);
  }

  // Reads boxes of tensors, dense and row-major, and compares checksums.  Storages that are read in
  // part are read again whole; with `apart_only` their parts are returned, as text for
  // check_together.
  std::string read(const std::vector<Wanted>& wanted, bool verify, bool apart_only,
                   unsigned threads) {
    std::string parts;
    apart([&] {
      prepare_place(path_);
      parts = read_here(wanted, verify, apart_only, threads);
    });
    return parts;
  }

  // Returns a value; `make` makes what Python has no plain type for: see of() below.
  nb::object value(std::size_t number, const nb::callable& make) {
    if (number >= index().values.size()) throw nb::index_error("no value has that number");
    return locked([&] { return checkpoint_->value(index().values[number]); }, make);
  }

  nb::object tree(const nb::callable& make) {
    return locked(
        [&] { return formats::with_values(*checkpoint_, formats::content_of(*checkpoint_)); },
        make);
  }

 private:
  const formats::Index& index() const { return checkpoint_->index(); }
  const std::string& shown() const { return checkpoint_->description().path; }
  const formats::TensorEntry& tensor(std::size_t number) const {
    if (number >= index().tensors.size()) throw nb::index_error("no tensor has that number");
    return index().tensors[number];
  }

  // Checks the chunks of a tensor when it is first read.
  void check_covered(std::size_t number) {
    const std::scoped_lock lock(covered_mutex_);
    if (covered_[number]) return;
    formats::Findings findings;
    formats::check_coverage(tensor(number), findings);
    formats::throw_if_damaged(findings, shown());
    covered_[number] = true;
  }

  // Returns where the first of the chunks lies that holds the beginning of the box.
  std::pair<std::uint32_t, std::uint64_t> place_of(const formats::TensorEntry& entry,
                                                   const formats::Box& box) const {
    const std::vector<std::int64_t> ones(box.size.size(), 1);
    for (std::size_t i = 0; i < entry.chunks.size(); ++i) {
      if (!formats::intersect(entry.chunks.box(i), {box.offset, ones})) continue;
      return {entry.chunks.location(i).file, entry.chunks.location(i).offset};
    }
    return {};
  }

  std::string read_here(const std::vector<Wanted>& wanted, bool verify, bool apart_only,
                        unsigned threads) {
    const auto cache = std::make_shared<formats::ChunkCache>();
    std::vector<std::pair<std::pair<std::uint32_t, std::uint64_t>, formats::MemoryPiece>> placed;
    for (const auto& [number, offset, size, memory] : wanted) {
      const formats::TensorEntry& entry = tensor(number);
      check_covered(number);
      formats::Box box{offset, size};
      bool inside = offset.size() == entry.shape.size() && size.size() == entry.shape.size();
      for (std::size_t d = 0; inside && d < size.size(); ++d) {
        inside = offset[d] >= 0 && size[d] >= 0 && offset[d] <= entry.shape[d] &&
                 size[d] <= entry.shape[d] - offset[d];
      }
      if (!inside) {
        throw Error(ErrorCode::kUsage,
                    cat(shown(), ": ", formats::quote(entry.key, 200), ": the box ",
                        formats::box_text(box.view()), " is not inside the shape ",
                        formats::shape_text(entry.shape)));
      }
      const std::uint64_t bytes = formats::volume(box.view()) * formats::item_bytes(entry.dtype);
      if (bytes != memory.size()) {
        throw Error(ErrorCode::kUsage,
                    cat(shown(), ": ", formats::quote(entry.key, 200), ": the box has ", bytes,
                        " bytes, and the memory ", memory.size()));
      }
      if (bytes == 0) continue;
      formats::MemoryPiece piece;
      const std::span<std::byte> out(reinterpret_cast<std::byte*>(memory.data()), bytes);
      piece.target = [out] { return formats::BlockTarget{out, false}; };
      const auto place = place_of(entry, box);
      piece.piece =
          formats::box_piece(std::make_shared<formats::TensorSource>(*checkpoint_, number, cache),
                             std::move(box), entry.dtype);
      placed.emplace_back(place, std::move(piece));
    }
    std::stable_sort(placed.begin(), placed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<formats::MemoryPiece> pieces;
    pieces.reserve(placed.size());
    for (auto& [place, piece] : placed) pieces.push_back(std::move(piece));
    formats::MemoryReadOptions how;
    how.threads = threads;
    how.whole = !apart_only;
    how.cancelled = [] { return formats::interrupted(); };
    const auto parts = formats::read_into_memory(pieces, verify, how);
    checkpoint_->check_unchanged();
    return formats::text_of(parts);
  }

  // Values belong to one thread at a time.  The lock is taken without the GIL, so that no thread
  // waits for one of them with the other in its hands.
  template <typename Get>
  nb::object locked(const Get& get, const nb::callable& make) {
    std::unique_lock<std::mutex> lock(values_mutex_, std::defer_lock);
    {
      nb::gil_scoped_release release;
      lock.lock();
    }
    Value held;
    apart([&] {
      prepare_place(path_);
      held = get();
    });
    Made made;
    return of(held, make, made);
  }

  // What was made of shared containers and storages, which stay shared.
  struct Made {
    std::unordered_map<const void*, nb::object> containers;
    std::unordered_map<std::string, nb::object> storages;
  };

  // Returns a value as Python has it.  Nothing in it is looked up or called: `make` gets
  //   ("tensor", number)                            a tensor of the index
  //   ("view", storage, dtype, offset, shape, strides)   a tensor inside a value; storage: its
  //   bytes
  //   ("name", "module.name")                       a class or function
  //   ("object", callable, args, state, items, entries)  a call that was recorded
  //   ("again", number)                             what contains this value
  nb::object of(const Value& value, const nb::callable& make, Made& made) {
    if (const auto number = formats::tensor_number(value)) return make("tensor", *number);
    switch (value.kind()) {
      case ValueKind::kNone:
        return nb::none();
      case ValueKind::kBool:
        return nb::bool_(*value.as_bool());
      case ValueKind::kInt:
        return nb::int_(*value.as_int());
      case ValueKind::kFloat:
        return nb::float_(*value.as_float());
      case ValueKind::kString:
        return text(*value.as_string());
      case ValueKind::kBytes:
        return bytes_of(*value.as_bytes());
      case ValueKind::kByteArray:
        return nb::steal(PyByteArray_FromStringAndSize(
            value.as_bytes()->data(), static_cast<Py_ssize_t>(value.as_bytes()->size())));
      case ValueKind::kBigInt:
        return nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
            .attr("from_bytes")(bytes_of(*value.as_bytes()), "little", nb::arg("signed") = true);
      case ValueKind::kOpaque:
        return make("again", formats::back_reference(value).value_or(0));
      case ValueKind::kGlobal:
        return make("name", text(value.as_global()->dotted()));
      case ValueKind::kStorage:
        return make("name", text(cat("storage ", value.as_storage()->key)));
      default:
        break;
    }
    if (value.identity() == nullptr) return nb::tuple(nb::list());  // ()
    const auto found = made.containers.find(value.identity());
    if (found != made.containers.end()) return found->second;
    nb::object container = container_of(value, make, made);
    made.containers.emplace(value.identity(), container);
    return container;
  }

  nb::object container_of(const Value& value, const nb::callable& make, Made& made) {
    switch (value.kind()) {
      case ValueKind::kDict:
        return dict_of(value.entries(), make, made);
      case ValueKind::kObject:
        return object_of(value, make, made);
      default:
        break;
    }
    const nb::list items = list_of(value.items(), make, made);
    switch (value.kind()) {
      case ValueKind::kTuple:
        return nb::tuple(items);
      case ValueKind::kSet:
        for (const Value& item : value.items()) check_key(item);
        return nb::steal(PySet_New(items.ptr()));
      case ValueKind::kFrozenSet:
        for (const Value& item : value.items()) check_key(item);
        return nb::steal(PyFrozenSet_New(items.ptr()));
      default:
        return items;
    }
  }

  void check_key(const Value& key) const {
    if (key.depth() <= kMaxKeyDepth) return;
    throw Error(ErrorCode::kLimitDepth, cat(shown(), ": a key of a dict or a member of a set is ",
                                            key.depth(), " levels deep, at most ", kMaxKeyDepth,
                                            " are taken; fsdp-ckpt extract prints the value"));
  }

  nb::list list_of(std::span<const Value> items, const nb::callable& make, Made& made) {
    nb::list list;
    for (const Value& item : items) list.append(of(item, make, made));
    return list;
  }

  nb::dict dict_of(std::span<const Value::Entry> entries, const nb::callable& make, Made& made) {
    nb::dict dict;
    for (const auto& [key, value] : entries) {
      check_key(key);
      dict[of(key, make, made)] = of(value, make, made);
    }
    return dict;
  }

  nb::object object_of(const Value& value, const nb::callable& make, Made& made) {
    if (const auto view = formats::dense_tensor(value)) return view_of(*view, make, made);
    const formats::ObjectData& call = *value.as_object();
    return make("object", of(call.callable, make, made), of(call.args, make, made),
                of(call.state, make, made), list_of(call.list_items, make, made),
                dict_of(call.dict_items, make, made));
  }

  // Returns a tensor inside a value.  Its storage is read once, and shared by the views of it.
  nb::object view_of(const formats::TensorValue& view, const nb::callable& make, Made& made) {
    if (view.conjugate || view.negate || view.storage->tensor) {
      throw Error(ErrorCode::kUnsupported,
                  cat(shown(), ": a tensor inside a value is a conjugate or negative view"));
    }
    nb::object& storage = made.storages[cat(view.storage->archive, " ", view.storage->key)];
    if (!storage.is_valid()) {
      formats::MemoryPiece piece;
      piece.piece = formats::storage_piece(*checkpoint_, *view.storage);
      const std::uint64_t bytes =
          formats::volume(piece.piece.box.view()) * formats::item_bytes(piece.piece.dtype);
      auto memory = this->memory(bytes);
      const std::span<std::byte> out(reinterpret_cast<std::byte*>(memory.data()), bytes);
      piece.target = [out] { return formats::BlockTarget{out, false}; };
      if (bytes != 0) {
        apart([&] {
          formats::MemoryReadOptions how;
          how.whole = true;
          how.cancelled = [] { return formats::interrupted(); };
          formats::read_into_memory(std::span(&piece, 1), true, how);
        });
      }
      storage = nb::cast(memory);
    }
    return make("view", storage, text(formats::torch_name(view.dtype)), view.storage_offset,
                numbers(view.shape), numbers(view.strides));
  }

  std::string path_;
  std::unique_ptr<formats::StoredCheckpoint> checkpoint_;
  std::mutex covered_mutex_;
  std::vector<bool> covered_;
  std::mutex values_mutex_;
};

// Raises fsdp_ckpt.FsdpCkptError for an Error.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    std::string message = error.what();
    if (error.hint().remedy == Remedy::kAllowGlobal)
      message += cat("; allow_global=", formats::quote(error.hint().subject, 200), " accepts it");
    const nb::object kind = nb::module_::import_("fsdp_ckpt._process").attr("FsdpCkptError");
    const nb::object raised = kind(2, text(code_name(error.code())), text(message));
    PyErr_SetObject(kind.ptr(), raised.ptr());
  }
}

// Compares the storages that several processes read parts of; each text is a result of read().
// Returns the bytes of storages that they together did not read whole.
std::uint64_t check_together(const std::vector<std::string>& texts) {
  std::vector<std::vector<formats::PartialRead>> readers;
  readers.reserve(texts.size());
  for (const std::string& one : texts) readers.push_back(formats::partial_reads_from(one));
  return formats::check_together(readers);
}

using FileToSeal = std::tuple<std::string, std::uint64_t, std::uint32_t>;

std::string seal_text(const std::vector<FileToSeal>& files) {
  std::vector<formats::SealedFile> sealed;
  sealed.reserve(files.size());
  for (const auto& [name, bytes, crc] : files) sealed.push_back({name, bytes, crc});
  return formats::seal_text(std::move(sealed));
}

std::uint32_t crc_of(
    std::uint32_t before,
    const nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& bytes) {
  nb::gil_scoped_release release;
  return formats::crc32(before, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

// Returns the keys that a glob of `include` matches, all if there is none, and none of `exclude`.
std::vector<bool> selected(const std::vector<std::string>& keys,
                           const std::vector<std::string>& include,
                           const std::vector<std::string>& exclude) {
  const formats::KeySelection selection{formats::globs_of(include), formats::globs_of(exclude)};
  std::vector<bool> chosen;
  chosen.reserve(keys.size());
  for (const std::string& key : keys) chosen.push_back(selection.selects(key));
  return chosen;
}

}  // namespace
}  // namespace fsdp::python

NB_MODULE(_native, module) {
  using fsdp::python::Opened;
  nb::register_exception_translator(fsdp::python::translate);
  nb::class_<Opened>(module, "Opened")
      .def(nb::init<const std::string&, const std::vector<std::string>&>())
      .def("description", &Opened::description)
      .def("entries", &Opened::entries)
      .def("chunks", &Opened::chunks)
      .def("memory", &Opened::memory)
      .def("read", &Opened::read)
      .def("value", &Opened::value)
      .def("tree", &Opened::tree);
  module.def("check_together", &fsdp::python::check_together);
  module.def("seal_text", &fsdp::python::seal_text);
  module.def("crc32", &fsdp::python::crc_of);
  module.def("selected", &fsdp::python::selected);
}
