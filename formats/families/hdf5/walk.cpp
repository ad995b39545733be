// SPDX-License-Identifier: Apache-2.0
// Walks an HDF5 file: this code runs on hostile input, in a process of its own.
#include <algorithm>
#include <exception>
#include <set>
#include <unordered_map>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hdf5/asked_file.h"
#include "formats/families/hdf5/file.h"
#include "formats/families/hdf5/library.h"
#include "formats/families/hdf5/sandbox.h"
#include "formats/families/hdf5/types.h"

namespace fsdp::formats::hdf5 {
namespace {

constexpr std::size_t kMaxDepth = 500;
// The most names of one file: links, attributes.
constexpr std::size_t kMaxNames = 10'000'000;
// A name takes at least this many bytes of a file.  With more names, several links lead to one
// group, level by level: a web of 30 groups has a billion names.
constexpr std::uint64_t kBytesPerName = 16;
constexpr std::uint64_t kFreeNames = 1000;
// A factor for the wall time: every read of a file in a store may wait for the network.
constexpr unsigned kMoreSecondsForStore = 5;
constexpr std::uint64_t kMaxDescriptionBytes = 1U << 30U;
// The number of chunks that any file may have, summed over the names of its datasets.  A file may
// have one more for each of its bytes.
constexpr std::uint64_t kFreeCells = 1U << 20U;

#if H5_VERSION_GE(2, 0, 0)
constexpr auto kReadChunk = H5Dread_chunk1;
#else
constexpr auto kReadChunk = H5Dread_chunk;
#endif

// The file as libhdf5 reads it.  Data are not read: only their places are needed.
class ReadFile : public DriverFile {
 public:
  explicit ReadFile(const ByteSource& source) : source_(source) {}
  std::uint64_t size() const override { return source_.size(); }
  bool read(std::uint64_t address, void* out, std::size_t bytes) override {
    if (out == &chunk_) {
      seen_ = StoredChunk{address, bytes, 0};
      return true;
    }
    source_.read_at(address, {static_cast<std::byte*>(out), bytes});
    return true;
  }
  bool write(std::uint64_t, const void*, std::size_t) override { return false; }
  void resize(std::uint64_t) override {}

  // The buffer that chunks are requested into: only their places are recorded, nothing is read.
  void* chunk() { return &chunk_; }
  // Returns the chunk that was requested since the last call.
  std::optional<StoredChunk> take_seen() { return std::exchange(seen_, std::nullopt); }

 private:
  const ByteSource& source_;
  char chunk_ = 0;
  std::optional<StoredChunk> seen_;
};

struct Link {
  std::string name;
  H5L_type_t type;
};

// What an iteration of libhdf5 finds.
template <typename T>
struct Collected {
  std::vector<T> items;
  bool too_many = false;
  std::exception_ptr failure;  // an exception must not pass through libhdf5

  template <typename... Parts>
  herr_t add(const Parts&... parts) noexcept {
    try {
      if (items.size() == kMaxNames) return too_many = true, -1;
      items.push_back(T{parts...});
      return 0;
    } catch (const std::exception&) {
      return failure = std::current_exception(), -1;
    }
  }
};

herr_t collect_link(hid_t, const char* name, const H5L_info_t* info, void* to) {
  return static_cast<Collected<Link>*>(to)->add(name, info->type);
}

herr_t collect_name(hid_t, const char* name, const H5A_info_t*, void* to) {
  return static_cast<Collected<std::string>*>(to)->add(name);
}

// Returns a text that identifies an object within the file.
std::string identity(hid_t object) {
#if H5_VERSION_GE(1, 12, 0)
  H5O_info2_t info{};
  if (H5Oget_info3(object, &info, H5O_INFO_BASIC) < 0)
    throw_library_error(ErrorCode::kH5Open, "object header");
  return {reinterpret_cast<const char*>(&info.token), sizeof info.token};
#else
  H5O_info_t info{};
  if (H5Oget_info2(object, &info, H5O_INFO_BASIC) < 0)
    throw_library_error(ErrorCode::kH5Open, "object header");
  return {reinterpret_cast<const char*>(&info.addr), sizeof info.addr};
#endif
}

class Walk {
 public:
  explicit Walk(const ByteSource& source) : file_(source) {}

  Description run() {
    const Handle access = access_to(file_);
    const Handle opened(H5Fopen("file", H5F_ACC_RDONLY, access.get()), H5Fclose);
    if (!opened.ok()) throw_library_error(ErrorCode::kH5Open, "libhdf5 cannot open it");
    const Handle root(H5Gopen2(opened.get(), "/", H5P_DEFAULT), H5Gclose);
    if (!root.ok()) throw_library_error(ErrorCode::kH5Open, "root group");
    group(root.get());
    return std::move(out_);
  }

 private:
  // Walks the group at path_.
  void group(hid_t id) {
    if (path_.size() > kMaxDepth)
      throw Error(ErrorCode::kLimitDepth, cat("groups nest deeper than ", kMaxDepth));
    const std::string self = identity(id);
    if (!above_.insert(self).second) {
      throw Error(ErrorCode::kH5Link,
                  path_text(path_) + ": links form a cycle: the group contains itself");
    }
    const std::size_t before = out_.datasets.size() + out_.attributes.size();
    group_attributes(id);
    const std::vector<Link> links = links_of(id);
    for (const Link& link : links) {
      path_.push_back(link.name);
      object(id, link);
      path_.pop_back();
    }
    if (links.empty() && before == out_.datasets.size() + out_.attributes.size() && !path_.empty())
      out_.empty_groups.push_back(path_);
    above_.erase(self);
  }

  std::vector<Link> links_of(hid_t id) {
    unsigned order = 0;
    const Handle made(H5Gget_create_plist(id), H5Pclose);
    if (made.ok()) (void)H5Pget_link_creation_order(made.get(), &order);
    const H5_index_t index =
        (order & H5P_CRT_ORDER_TRACKED) != 0 ? H5_INDEX_CRT_ORDER : H5_INDEX_NAME;
    Collected<Link> links;
    const herr_t status = H5Literate(id, index, H5_ITER_INC, nullptr, collect_link, &links);
    if (links.failure) std::rethrow_exception(links.failure);
    if (links.too_many) throw_too_many();
    if (status < 0) throw_library_error(ErrorCode::kH5Open, path_text(path_) + ": links");
    count_names(links.items.size());
    return std::move(links.items);
  }

  void object(hid_t parent, const Link& link) {
    if (!is_utf8(link.name))
      throw Error(ErrorCode::kUtf8, path_text(path_) + ": the name is not UTF-8");
    if (link.name.empty() || link.name == "." || link.name.find('/') != std::string::npos)
      throw Error(ErrorCode::kH5Open, path_text(path_) + ": is not the name of an object");
    if (link.type != H5L_TYPE_HARD && link.type != H5L_TYPE_SOFT) {
      throw Error(ErrorCode::kH5Link,
                  path_text(path_) + (link.type == H5L_TYPE_EXTERNAL
                                          ? ": is a link into another file, which is not followed"
                                          : ": is a link of a kind that is not followed"));
    }
    const Handle id(H5Oopen(parent, link.name.c_str(), H5P_DEFAULT), H5Oclose);
    if (!id.ok()) {
      throw_library_error(link.type == H5L_TYPE_SOFT ? ErrorCode::kH5Link : ErrorCode::kH5Open,
                          path_text(path_) + (link.type == H5L_TYPE_SOFT
                                                  ? ": soft link that leads to no object here"
                                                  : ": object"));
    }
    switch (H5Iget_type(id.get())) {
      case H5I_GROUP:
        return group(id.get());
      case H5I_DATASET:
        return dataset(id.get());
      default:
        out_.left_out.push_back({path_, "a named datatype"});
    }
  }

  void dataset(hid_t id) {
    const auto [at, fresh] = known_.try_emplace(identity(id), out_.datasets.size());
    if (!fresh) {
      count_cells(out_.datasets[at->second].chunks.size());
      out_.datasets.push_back(out_.datasets[at->second]);
      out_.datasets.back().path = path_;
      return;
    }
    in_context([&] { return path_text(path_); }, [&] { out_.datasets.push_back(described(id)); });
  }

  Dataset described(hid_t id) {
    Dataset out;
    out.path = path_;
    const Handle type(H5Dget_type(id), H5Tclose);
    const Handle space(H5Dget_space(id), H5Sclose);
    const Handle made(H5Dget_create_plist(id), H5Pclose);
    if (!type.ok() || !space.ok() || !made.ok()) throw_library_error(ErrorCode::kH5Open, "dataset");
    const auto dtype = dtype_of(type.get());
    if (!dtype) {
      throw Error(ErrorCode::kH5Type, "holds " + type_words(type.get()) +
                                          ", expected little-endian numbers, bool or complex");
    }
    out.dtype = *dtype;
    shape_of(space.get(), out);
    layout_of(made.get(), out);
    dataset_attributes(id, out);
    check_claim(out, file_.size());
    fill_of(made.get(), type.get(), out);
    if (out.numel() == 0) out.storage = Dataset::Storage::kFill;
    if (out.storage == Dataset::Storage::kContiguous) {
      const haddr_t address = H5Dget_offset(id);
      if (address == HADDR_UNDEF) {
        out.storage = Dataset::Storage::kFill;
      } else {
        out.address = address;
      }
    }
    if (out.storage == Dataset::Storage::kCompact) {
      out.data.resize(out.bytes());
      if (H5Dread(id, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, out.data.data()) < 0)
        throw_library_error(ErrorCode::kH5Open, "compact data");
    }
    if (out.storage == Dataset::Storage::kChunked) chunks_of(id, space.get(), out);
    return out;
  }

  static void shape_of(hid_t space, Dataset& out) {
    switch (H5Sget_simple_extent_type(space)) {
      case H5S_SCALAR:
        return;
      case H5S_SIMPLE:
        break;
      default:
        throw Error(ErrorCode::kH5Type, "has no dataspace: it holds nothing");
    }
    hsize_t sizes[H5S_MAX_RANK];
    const int rank = H5Sget_simple_extent_dims(space, sizes, nullptr);
    if (rank < 0) throw_library_error(ErrorCode::kH5Open, "dataspace");
    for (int d = 0; d < rank; ++d) {
      if (sizes[d] > static_cast<hsize_t>(INT64_MAX))
        throw Error(ErrorCode::kLimitSize, cat("claims a dimension of ", sizes[d], " elements"));
      out.shape.push_back(static_cast<std::int64_t>(sizes[d]));
    }
  }

  static void layout_of(hid_t made, Dataset& out) {
    if (H5Pget_external_count(made) > 0)
      throw Error(ErrorCode::kH5Link, "keeps its data in other files, which are not opened");
    switch (H5Pget_layout(made)) {
      case H5D_COMPACT:
        out.storage = Dataset::Storage::kCompact;
        break;
      case H5D_CONTIGUOUS:
        out.storage = Dataset::Storage::kContiguous;
        break;
      case H5D_CHUNKED:
        out.storage = Dataset::Storage::kChunked;
        break;
      case H5D_VIRTUAL:
        throw Error(ErrorCode::kH5Link, "is virtual: its data lie in other datasets");
      default:
        throw_library_error(ErrorCode::kH5Open, "layout");
    }
    filters_of(made, out);
    if (out.storage != Dataset::Storage::kChunked) return;
    hsize_t sizes[H5S_MAX_RANK];
    const int rank = H5Pget_chunk(made, H5S_MAX_RANK, sizes);
    if (rank < 0) throw_library_error(ErrorCode::kH5Open, "chunk size");
    for (int d = 0; d < rank; ++d) out.chunk_shape.push_back(static_cast<std::int64_t>(sizes[d]));
    unsigned options = 0;
    if (H5Pget_chunk_opts(made, &options) >= 0 && options != 0)
      throw Error(ErrorCode::kUnsupported,
                  "has edge chunks without filters, which is not supported");
  }

  static void filters_of(hid_t made, Dataset& out) {
    const int count = H5Pget_nfilters(made);
    for (int i = 0; i < count; ++i) {
      unsigned flags = 0;
      unsigned config = 0;
      std::size_t values = 0;
      char name[64] = "";
      const H5Z_filter_t filter = H5Pget_filter2(made, static_cast<unsigned>(i), &flags, &values,
                                                 nullptr, sizeof name, name, &config);
      if (filter < 0) throw_library_error(ErrorCode::kH5Open, "filters");
      if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE &&
          filter != H5Z_FILTER_FLETCHER32) {
        name[sizeof name - 1] = '\0';
        throw Error(ErrorCode::kUnsupported,
                    cat("has filter ", filter, " (", quote(name),
                        "), expected deflate, shuffle or fletcher32; rewrite the file with "
                        "h5repack -f NONE or -f GZIP=6"));
      }
      out.filters.push_back(static_cast<Filter>(filter));
    }
    if (count > 0 && out.storage != Dataset::Storage::kChunked)
      throw Error(ErrorCode::kH5Open, "has filters and no chunks");
  }

  static void fill_of(hid_t made, hid_t type, Dataset& out) {
    out.fill.assign(item_bytes(out.dtype), '\0');
    H5D_fill_value_t defined = H5D_FILL_VALUE_UNDEFINED;
    if (H5Pfill_value_defined(made, &defined) < 0 || defined != H5D_FILL_VALUE_USER_DEFINED) return;
    if (H5Pget_fill_value(made, type, out.fill.data()) < 0)
      throw_library_error(ErrorCode::kH5Open, "fill value");
  }

  // Requests the data of each chunk without reading them.  (H5Dget_chunk_info searches all chunks
  // for each one.)
  void chunks_of(hid_t id, hid_t space, Dataset& out) {
    hsize_t stored = 0;
    if (H5Dget_num_chunks(id, space, &stored) < 0)
      throw_library_error(ErrorCode::kH5Open, "number of chunks");
    const std::vector<std::int64_t> grid = grid_of(out);
    std::uint64_t cells = 1;
    for (const std::int64_t size : grid) cells *= static_cast<std::uint64_t>(size);
    count_cells(cells);
    std::vector<hsize_t> at(out.shape.size(), 0);
    std::uint64_t found = 0;
    out.chunks.reserve(static_cast<std::size_t>(cells));
    for (std::uint64_t cell = 0; cell < cells; ++cell) {
      StoredChunk chunk;
      std::uint32_t mask = 0;
      (void)file_.take_seen();
      if (found < stored && kReadChunk(id, H5P_DEFAULT, at.data(), &mask, file_.chunk()) >= 0) {
        if (const auto seen = file_.take_seen()) {
          chunk = *seen;
          chunk.filter_mask = mask;
          ++found;
        }
      }
      out.chunks.push_back(chunk);
      next_chunk(out, at);
    }
    if (found != stored) {
      throw Error(ErrorCode::kH5Open,
                  cat("the index names ", stored, " chunks, and ", found, " can be found"));
    }
  }

  std::vector<std::string> attribute_names(hid_t id) {
    Collected<std::string> names;
    const herr_t status =
        H5Aiterate2(id, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_name, &names);
    if (names.failure) std::rethrow_exception(names.failure);
    if (names.too_many) throw_too_many();
    if (status < 0) throw_library_error(ErrorCode::kH5Open, path_text(path_) + ": attributes");
    count_names(names.items.size());
    for (const std::string& name : names.items) {
      if (!is_utf8(name))
        throw Error(ErrorCode::kUtf8, path_text(path_) + ": an attribute's name is not UTF-8");
    }
    return std::move(names.items);
  }

  void group_attributes(hid_t id) {
    for (const std::string& name : attribute_names(id)) {
      std::optional<Attribute> attribute;
      in_context([&] { return path_text(path_); }, [&] { attribute = plain(id, name); });
      if (!attribute) continue;
      attribute->path = path_;
      attribute->path.push_back(name);
      out_.attributes.push_back(*std::move(attribute));
    }
  }

  void dataset_attributes(hid_t id, Dataset& out) {
    for (const std::string& name : attribute_names(id)) {
      const bool ours =
          name == kDTypeAttribute || name == kCrcAttribute || name == kNumberAttribute;
      if (!ours) {
        out_.left_out.push_back({path_, "attribute " + quote(name) + " of a dataset"});
        continue;
      }
      const auto attribute = plain(id, name);
      const Scalar* value =
          attribute && attribute->items.size() == 1 ? &attribute->items[0] : nullptr;
      if (value == nullptr) throw Error(ErrorCode::kH5Type, "attribute " + quote(name));
      if (name == kDTypeAttribute) {
        set_dtype(*value, out);
        continue;
      }
      // A number that fits std::int64_t is held as one.
      const auto* number = std::get_if<std::int64_t>(value);
      if (number == nullptr || *number < 0 || (name == kCrcAttribute && *number > UINT32_MAX))
        throw Error(ErrorCode::kH5Type,
                    "attribute " + quote(name) + " is not a whole number in range");
      if (name == kCrcAttribute) {
        out.crc = static_cast<std::uint32_t>(*number);
      } else {
        out.number = static_cast<std::uint64_t>(*number);
      }
    }
  }

  static void set_dtype(const Scalar& value, Dataset& out) {
    const auto* name = std::get_if<std::string>(&value);
    const auto named = name == nullptr ? std::nullopt : dtype_from_torch_name(*name);
    if (!named) {
      throw Error(ErrorCode::kH5Type,
                  "attribute 'dtype' is " +
                      (name == nullptr ? std::string("no text") : quote(*name)) +
                      ", expected the name of a PyTorch dtype");
    }
    if (*named == out.dtype) return;
    const bool is_bits = out.dtype == DType::kUInt8 || out.dtype == DType::kUInt16 ||
                         out.dtype == DType::kUInt32 || out.dtype == DType::kUInt64;
    if (!is_bits || item_bytes(*named) != item_bytes(out.dtype)) {
      throw Error(ErrorCode::kH5Type, cat("attribute 'dtype' says ", *name, ", but elements are ",
                                          torch_name(out.dtype), ", expected unsigned integers of ",
                                          8 * item_bytes(*named), " bits"));
    }
    out.dtype = *named;
  }

  // Returns a plain attribute without its path, which the caller sets; records others as left out.
  std::optional<Attribute> plain(hid_t object, const std::string& name) {
    std::string why;
    return in_context([&] { return "attribute " + quote(name); },
                      [&] {
                        auto attribute = plain_attribute(object, name, why);
                        if (!attribute)
                          out_.left_out.push_back({path_, "attribute " + quote(name) + why});
                        return attribute;
                      });
  }

  void count_names(std::size_t count) {
    names_ += count;
    if (names_ > kMaxNames) throw_too_many();
    const std::uint64_t most = kFreeNames + file_.size() / kBytesPerName;
    if (names_ > most) {
      throw Error(ErrorCode::kLimitNodes, cat("has more than ", most, " names in ", file_.size(),
                                              " bytes: many links lead to the same groups"));
    }
  }
  void count_cells(std::uint64_t count) {
    cells_ += count;
    const std::uint64_t most = std::max(kFreeCells, file_.size());
    if (cells_ > most) {
      throw Error(ErrorCode::kLimitNodes,
                  cat("the datasets have more than ", most, " chunks together"));
    }
  }
  [[noreturn]] static void throw_too_many() {
    throw Error(ErrorCode::kLimitNodes, cat("has more than ", kMaxNames, " links and attributes"));
  }

  ReadFile file_;
  Path path_;
  std::set<std::string> above_;  // groups on path_
  std::unordered_map<std::string, std::size_t> known_;
  std::size_t names_ = 0;
  std::uint64_t cells_ = 0;
  Description out_;
};

// Describes a file without a descriptor: the child asks for its bytes.
std::string describe_asked(const File& file, SandboxLimits sandbox,
                           std::unique_lock<std::mutex>& lock) {
  sandbox.wall_seconds *= kMoreSecondsForStore;
  const Connection connection = connect_here();
  const AskedFile asked(connection.child.get(), file.size());
  const SandboxService service{connection.parent.get(),
                               [&] { answer_asked(connection.parent.get(), file); }};
  return run_sandboxed(
      connection.child.get(), sandbox,
      [&] {
        lock.unlock();  // the child's copy
        return encode(describe(asked));
      },
      &service);
}

}  // namespace

Description describe(const ByteSource& file) {
  const Library library;
  // No plugins and no links into other files, for the rest of this process.
  (void)H5PLset_loading_state(0);
  (void)H5Lunregister(H5L_TYPE_EXTERNAL);
  return Walk(file).run();
}

Description read_description(const File& file, const ReaderLimits& limits) {
  const std::uint64_t memory = std::min(limits.memory_bytes, memory_left());
  const SandboxLimits sandbox{memory, limits.cpu_seconds, limits.wall_seconds,
                              std::min(kMaxDescriptionBytes, memory)};
  const std::string sent = [&] {
    // The child inherits the library's present state: with the lock, no thread is inside a call.
    std::unique_lock lock(library_mutex());
    if (file.fd() < 0) return describe_asked(file, sandbox, lock);
    return run_sandboxed(file.fd(), sandbox, [&] {
      lock.unlock();  // the child's copy
      return encode(describe(file));
    });
  }();
  return decode(std::as_bytes(std::span(sent)), file.size());
}

}  // namespace fsdp::formats::hdf5
