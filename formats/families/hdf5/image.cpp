// SPDX-License-Identifier: Apache-2.0
// Lays an HDF5 file out: libhdf5 writes it into memory, without the data.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <string_view>
#include <unordered_set>

#include "formats/bytes/base/budget.h"
#include "formats/bytes/base/byte_reader.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/team.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/local_file.h"
#include "formats/families/hdf5/file.h"
#include "formats/families/hdf5/library.h"
#include "formats/families/hdf5/sandbox.h"
#include "formats/families/hdf5/types.h"

namespace fsdp::formats::hdf5 {
namespace {

// Memory that libhdf5 takes for each object that it lays out.
constexpr std::size_t kBytesPerObject = 2048;
// Bytes of the structure as stored in the file; in memory libhdf5 takes several times as much.
constexpr std::size_t kCacheBytes = std::size_t{4} << 20U;

// The file without its data.  Runs of bytes never overlap; bytes that data overwrite are dropped.
class StructureFile : public DriverFile {
 public:
  std::uint64_t size() const override { return size_; }

  bool read(std::uint64_t address, void* out, std::size_t bytes) override {
    std::memset(out, 0, bytes);
    for (auto run = first_after(address); run != runs_.end() && run->first < address + bytes;
         ++run) {
      const std::uint64_t from = std::max(address, run->first);
      const std::uint64_t to = std::min(address + bytes, run->first + run->second.size());
      std::memcpy(static_cast<char*>(out) + (from - address),
                  run->second.data() + (from - run->first), to - from);
    }
    return true;
  }

  bool write(std::uint64_t address, const void* bytes, std::size_t count) override {
    size_ = std::max<std::uint64_t>(size_, address + count);
    if (bytes == chunk_.data()) {
      last_data_ = {address, count, 0};
      clear(address, count);
      return true;
    }
    const auto* const text = static_cast<const char*>(bytes);
    auto run = first_after(address);
    if (run != runs_.end() && run->first <= address &&
        run->first + run->second.size() >= address + count) {
      run->second.replace(address - run->first, count, text, count);
      return true;
    }
    clear(address, count);
    runs_.emplace(address, std::string(text, count));
    return true;
  }

  void resize(std::uint64_t bytes) override {
    if (bytes < size_) clear(bytes, size_ - bytes);
    size_ = bytes;
  }

  void clear(std::uint64_t address, std::uint64_t count) {
    if (count == 0) return;
    auto run = first_after(address);
    while (run != runs_.end() && run->first < address + count) {
      const std::uint64_t begin = run->first;
      std::string bytes = std::move(run->second);
      run = runs_.erase(run);
      const std::uint64_t end = begin + bytes.size();
      if (end > address + count)
        run = runs_.emplace(address + count, bytes.substr(address + count - begin)).first;
      if (begin < address) runs_.emplace(begin, bytes.substr(0, address - begin));
    }
  }

  // Returns a buffer that marks data: bytes written from the buffer are dropped.
  const void* chunk_of(std::uint64_t bytes) {
    if (chunk_.size() < bytes) chunk_.resize(bytes);
    return chunk_.data();
  }
  StoredChunk take_last_data() { return std::exchange(last_data_, {}); }
  std::vector<std::pair<std::uint64_t, std::string>> take_runs() {
    return {std::make_move_iterator(runs_.begin()), std::make_move_iterator(runs_.end())};
  }

 private:
  using Runs = std::map<std::uint64_t, std::string>;
  Runs::iterator first_after(std::uint64_t address) {
    auto run = runs_.upper_bound(address);
    if (run != runs_.begin()) {
      const auto before = std::prev(run);
      if (before->first + before->second.size() > address) return before;
    }
    return run;
  }

  Runs runs_;
  std::uint64_t size_ = 0;
  std::string chunk_;
  StoredChunk last_data_;
};

[[noreturn]] void refused(const std::string& what) {
  throw_library_error(ErrorCode::kUnsupported, "libhdf5 refuses " + what);
}

Handle checked(hid_t id, Handle::Close how, const char* what) {
  Handle handle(id, how);
  if (!handle.ok()) refused(what);
  return handle;
}

void check(herr_t status, const char* what) {
  if (status < 0) refused(what);
}

class Layout {
 public:
  explicit Layout(const FilePlan& plan) : plan_(plan), file_(created()) {
    link_properties_ = checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "link properties");
    check(H5Pset_char_encoding(link_properties_.get(), H5T_CSET_UTF8), "UTF-8");
    attribute_properties_ =
        checked(H5Pcreate(H5P_ATTRIBUTE_CREATE), H5Pclose, "attribute properties");
    check(H5Pset_char_encoding(attribute_properties_.get(), H5T_CSET_UTF8), "UTF-8");
  }

  FileImage run() {
    image_.places.resize(plan_.datasets.size());
    MemoryCharge library;
    library.grow_to((plan_.datasets.size() + plan_.links.size() + plan_.texts.size()) *
                    kBytesPerObject);
    for (std::size_t i = 0; i < plan_.datasets.size(); ++i) {
      throw_if_interrupted();
      add(plan_.datasets[i], image_.places[i]);
    }
    for (const PlannedLink& link : plan_.links) {
      throw_if_interrupted();
      check(H5Lcreate_hard(file_.get(), name(plan_.datasets[link.dataset].path).c_str(),
                           group_of(link.path), link.path.back().c_str(), link_properties_.get(),
                           H5P_DEFAULT),
            "a second name");
    }
    for (const PlannedText& text : plan_.texts) {
      throw_if_interrupted();
      add_text(group_of(text.path), text.path.back(), text.text);
    }
    group_ = Handle(-1, H5Gclose);
    if (!file_.close_now()) refused("the file");
    image_.bytes = memory_.size();
    image_.structure = memory_.take_runs();
    return std::move(image_);
  }

 private:
  static std::string name(const Path& path, std::size_t steps = SIZE_MAX) {
    std::string text;
    for (std::size_t i = 0; i < std::min(steps, path.size()); ++i) text += "/" + path[i];
    return text.empty() ? "/" : text;
  }

  Handle created() {
    const Handle access = access_to(memory_);
    // Chooses the format that HDF5 1.10 and later read, in which every part of the structure has a
    // checksum.
    check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110), "its version");
    // Bounds libhdf5's own cache of the structure, in addition to the copy here.
    H5AC_cache_config_t cache{};
    cache.version = H5AC__CURR_CACHE_CONFIG_VERSION;
    check(H5Pget_mdc_config(access.get(), &cache), "its cache");
    cache.initial_size = std::max(cache.min_size, std::size_t{1} << 20U);
    cache.max_size = std::max(cache.initial_size, kCacheBytes);
    check(H5Pset_mdc_config(access.get(), &cache), "a cache of that size");
    const Handle properties = checked(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "file properties");
    check(H5Pset_obj_track_times(properties.get(), false), "no times");
    return checked(H5Fcreate("file", H5F_ACC_TRUNC, properties.get(), access.get()), H5Fclose,
                   "the file");
  }

  // Returns the group above the last step, and makes it if it is missing.  Valid until the next
  // call.
  hid_t group_of(const Path& path) {
    const std::size_t above = path.size() - 1;
    std::string wanted = name(path, above);
    if (group_.ok() && wanted == group_name_) return group_.get();
    std::size_t known = above;
    while (known > 0 && !groups_.contains(name(path, known))) --known;
    for (std::size_t steps = known + 1; steps <= above; ++steps) {
      groups_.insert(name(path, steps));
      const Handle properties = checked(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, "group properties");
      check(H5Pset_obj_track_times(properties.get(), false), "no times");
      const Handle made = checked(H5Gcreate2(file_.get(), name(path, steps).c_str(),
                                             link_properties_.get(), properties.get(), H5P_DEFAULT),
                                  H5Gclose, "a group");
    }
    group_ = checked(H5Gopen2(file_.get(), wanted.c_str(), H5P_DEFAULT), H5Gclose, "a group");
    group_name_ = std::move(wanted);
    return group_.get();
  }

  void add(const PlannedDataset& planned, DatasetPlace& place) {
    const FileType type = file_type(planned.dtype);
    std::vector<hsize_t> sizes(planned.shape.begin(), planned.shape.end());
    const Handle space = checked(
        sizes.empty() ? H5Screate(H5S_SCALAR)
                      : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
        H5Sclose, "a dataspace");
    const bool chunked = !planned.chunk_shape.empty();
    const Handle dataset = checked(H5Dcreate2(group_of(planned.path), planned.path.back().c_str(),
                                              type.type.get(), space.get(), link_properties_.get(),
                                              properties_for(planned.chunk_shape), H5P_DEFAULT),
                                   H5Dclose, "a dataset");
    if (type.attribute) add_text(dataset.get(), kDTypeAttribute, *type.attribute);
    if (planned.number) add_number(dataset.get(), kNumberAttribute, *planned.number);
    if (planned.crc) add_number(dataset.get(), kCrcAttribute, *planned.crc);
    const Dataset described = planned.described();
    if (described.numel() == 0) return;
    if (chunked) {
      add_chunks(dataset.get(), described, place);
      return;
    }
    place.address = H5Dget_offset(dataset.get());
    if (place.address == HADDR_UNDEF) refused("space for a dataset");
    memory_.clear(place.address, described.bytes());
  }

  // Returns the creation properties of datasets with these chunks; empty: contiguous.  Keeps the
  // last properties, because most datasets equal the one before.
  hid_t properties_for(const std::vector<std::int64_t>& chunk_shape) {
    if (dataset_properties_.ok() && chunk_shape == properties_chunk_shape_)
      return dataset_properties_.get();
    Handle properties = checked(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "properties");
    check(H5Pset_obj_track_times(properties.get(), false), "no times");
    check(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER), "no fill");
    if (chunk_shape.empty()) {
      check(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY), "an allocation time");
    } else {
      const std::vector<hsize_t> chunk(chunk_shape.begin(), chunk_shape.end());
      check(H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data()),
            "a chunk size");
      check(H5Pset_fletcher32(properties.get()), "fletcher32");
      check(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_INCR), "an allocation time");
    }
    dataset_properties_ = std::move(properties);
    properties_chunk_shape_ = chunk_shape;
    return dataset_properties_.get();
  }

  void add_chunks(hid_t dataset, const Dataset& described, DatasetPlace& place) {
    const std::uint64_t bytes = described.chunk_bytes() + kFletcherBytes;
    std::vector<hsize_t> at(described.shape.size(), 0);
    do {
      check(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, at.data(), bytes, memory_.chunk_of(bytes)),
            "a chunk");
      const StoredChunk stored = memory_.take_last_data();
      if (stored.bytes != bytes) refused("a chunk of that size");
      place.chunks.push_back(stored.address);
    } while (next_chunk(described, at));
  }

  Handle attribute(hid_t object, std::string_view attribute_name, hid_t type) {
    const Handle space = checked(H5Screate(H5S_SCALAR), H5Sclose, "a dataspace");
    return checked(H5Acreate2(object, std::string(attribute_name).c_str(), type, space.get(),
                              attribute_properties_.get(), H5P_DEFAULT),
                   H5Aclose, "an attribute");
  }
  void add_text(hid_t object, std::string_view attribute_name, const std::string& text) {
    const Handle type = text_type();
    const Handle made = attribute(object, attribute_name, type.get());
    const char* const words = text.c_str();
    check(H5Awrite(made.get(), type.get(), &words), "an attribute's text");
  }
  void add_number(hid_t object, std::string_view attribute_name, std::uint64_t number) {
    const Handle made = attribute(object, attribute_name, H5T_STD_U64LE);
    check(H5Awrite(made.get(), H5T_NATIVE_UINT64, &number), "an attribute's number");
  }

  const FilePlan& plan_;
  StructureFile memory_;
  Handle file_;
  Handle link_properties_{-1, H5Pclose};
  Handle attribute_properties_{-1, H5Pclose};
  std::unordered_set<std::string> groups_;  // their names from the root down
  Handle group_{-1, H5Gclose};              // the last one asked for
  std::string group_name_;
  Handle dataset_properties_{-1, H5Pclose};  // the last ones asked for
  std::vector<std::int64_t> properties_chunk_shape_;
  FileImage image_;
};

// Encodes the image as the child sends it: numbers of eight bytes, little-endian.
std::string encoded(const FileImage& image) {
  Packed out;
  out.number(image.bytes).number(image.places.size());
  for (const DatasetPlace& place : image.places) {
    out.number(place.address).number(place.chunks.size());
    for (const std::uint64_t chunk : place.chunks) out.number(chunk);
  }
  out.number(image.structure.size());
  for (const auto& [address, bytes] : image.structure) out.number(address).text(bytes);
  return out.take();
}

FileImage decoded(std::string_view sent) {
  ByteReader in(std::as_bytes(std::span(sent)));
  // Reads a count of items that take at least `bytes` each.
  const auto count = [&](std::uint64_t bytes) {
    const std::uint64_t value = in.u64("image");
    if (value > in.remaining() / bytes)
      throw Error(ErrorCode::kH5ReaderFailed, "the process that lays HDF5 out sent no image");
    return static_cast<std::size_t>(value);
  };
  FileImage image;
  image.bytes = in.u64("image");
  image.places.resize(count(16));
  for (DatasetPlace& place : image.places) {
    place.address = in.u64("image");
    place.chunks.resize(count(8));
    for (std::uint64_t& chunk : place.chunks) chunk = in.u64("image");
  }
  image.structure.resize(count(16));
  for (auto& [address, bytes] : image.structure) {
    address = in.u64("image");
    bytes = in.text(count(1), "image");
  }
  return image;
}

// The limits of the child: generous, because the plan is ours.
SandboxLimits limits_for(const FilePlan& plan) {
  const std::uint64_t objects = plan.datasets.size() + plan.links.size() + plan.texts.size();
  constexpr unsigned kSeconds = 3600;
  return {.memory_bytes = (std::uint64_t{4} << 30U) + 4 * kBytesPerObject * objects,
          .cpu_seconds = kSeconds,
          .wall_seconds = 2 * kSeconds,
          .output_bytes = INT64_MAX};
}

}  // namespace

// Runs in a child process, as reading does: if memory runs out, libhdf5 crashes instead of giving
// up, and its state is unusable afterwards.
FileImage lay_out(const FilePlan& plan) {
  // The child reads nothing.  Its input is a pipe without a writer, which needs no /dev.
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe");
  const FileDescriptor nothing(ends[0]);
  FileDescriptor(ends[1]).reset();
  const auto laid_out = [&] {
    std::unique_lock lock(library_mutex());
    return run_sandboxed(nothing.get(), limits_for(plan), [&] {
      lock.unlock();  // the child's copy
      try {
        const Library library;
        return encoded(Layout(plan).run());
      } catch (const std::bad_alloc&) {
        throw Error(ErrorCode::kOutOfMemory, "not enough memory to lay out the HDF5 file");
      }
    });
  };
  try {
    return decoded(laid_out());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    throw Error(error.code(), error.what(), {Remedy::kMoreMemory});
  }
}

}  // namespace fsdp::formats::hdf5
