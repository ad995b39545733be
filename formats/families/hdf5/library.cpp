// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hdf5/library.h"

#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>
#endif

#include <cstddef>
#include <memory>
#include <new>
#include <optional>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::hdf5 {
namespace {

// An open file as libhdf5 sees it: its own record first.
struct OpenFile {
  H5FD_t base{};
  DriverFile* file = nullptr;
  haddr_t end = 0;  // end of the allocated space
};
static_assert(offsetof(OpenFile, base) == 0);

OpenFile& open_file(H5FD_t* base) {
  return *reinterpret_cast<OpenFile*>(base);
}
const OpenFile& open_file(const H5FD_t* base) {
  return *reinterpret_cast<const OpenFile*>(base);
}

// The error thrown while reading or writing the file; the library only learns of the failure.
// Guarded by library_mutex.
std::optional<Error> thrown;
bool memory_ran_out = false;

// Calls code that may throw, at the border to C.
template <typename Call>
herr_t told(const Call& call) {
  try {
    return call() ? 0 : -1;
  } catch (const Error& error) {
    thrown = error;
  } catch (const std::bad_alloc&) {
    memory_ran_out = true;
  } catch (const std::exception&) {
    // the library reports it in its own words
  }
  return -1;
}

H5FD_t* driver_open(const char* /*name*/, unsigned /*flags*/, hid_t access, haddr_t /*most*/) {
  const void* const info = H5Pget_driver_info(access);
  if (info == nullptr) return nullptr;
  auto opened = std::make_unique<OpenFile>();
  opened->file = *static_cast<DriverFile* const*>(info);
  return &opened.release()->base;
}

herr_t driver_close(H5FD_t* base) {
  delete &open_file(base);
  return 0;
}

herr_t driver_query(const H5FD_t* /*base*/, unsigned long* flags) {
  // Sets no features: nothing is joined or buffered, and every allocation ends where the next
  // begins.
  if (flags != nullptr) *flags = 0;
  return 0;
}

haddr_t driver_end(const H5FD_t* base, H5FD_mem_t /*type*/) {
  return open_file(base).end;
}
herr_t driver_set_end(H5FD_t* base, H5FD_mem_t /*type*/, haddr_t end) {
  open_file(base).end = end;
  return 0;
}
haddr_t driver_size(const H5FD_t* base, H5FD_mem_t /*type*/) {
  return open_file(base).file->size();
}

herr_t driver_read(H5FD_t* base, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address,
                   std::size_t bytes, void* out) {
  return told([&] { return open_file(base).file->read(address, out, bytes); });
}

herr_t driver_write(H5FD_t* base, H5FD_mem_t /*type*/, hid_t /*transfer*/, haddr_t address,
                    std::size_t bytes, const void* in) {
  return told([&] { return open_file(base).file->write(address, in, bytes); });
}

herr_t driver_truncate(H5FD_t* base, hid_t /*transfer*/, hbool_t /*closing*/) {
  return told([&] {
    open_file(base).file->resize(open_file(base).end);
    return true;
  });
}

// The HDF Group reserves such values for testing.
constexpr int kDriverNumber = 509;

const H5FD_class_t& driver() {
  static const H5FD_class_t driver = [] {
    H5FD_class_t made{};
#if H5_VERSION_GE(1, 14, 0)
    made.version = H5FD_CLASS_VERSION;
    made.value = static_cast<H5FD_class_value_t>(kDriverNumber);
#else
    (void)kDriverNumber;
#endif
    made.name = "fsdp";
    made.maxaddr = static_cast<haddr_t>(INT64_MAX);
    made.fc_degree = H5F_CLOSE_STRONG;
    made.fapl_size = sizeof(DriverFile*);
    made.open = driver_open;
    made.close = driver_close;
    made.query = driver_query;
    made.get_eoa = driver_end;
    made.set_eoa = driver_set_end;
    made.get_eof = driver_size;
    made.read = driver_read;
    made.write = driver_write;
    made.truncate = driver_truncate;
    const H5FD_mem_t map[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
    for (int i = 0; i < H5FD_MEM_NTYPES; ++i) made.fl_map[i] = map[i];
    return made;
  }();
  return driver;
}

hid_t driver_id() {
  static const hid_t id = H5FDregister(&driver());
  return id;
}

struct Words {
  std::string outermost;
  std::string innermost;
  bool out_of_memory = false;
};

herr_t add_words(unsigned n, const H5E_error2_t* error, void* to) {
  auto& words = *static_cast<Words*>(to);
  const std::string text = error->desc != nullptr ? error->desc : "";
  if (n == 0) words.outermost = text;
  words.innermost = text;
  if (error->min_num == H5E_NOSPACE || error->min_num == H5E_CANTALLOC) words.out_of_memory = true;
  // Some parts of libhdf5 report a lack of memory only as text.
  for (const char* said : {"memory allocation failed", "H5MM_", "out of memory"}) {
    if (text.find(said) != text.npos) words.out_of_memory = true;
  }
  return 0;
}

Words words_now() {
  Words words;
  (void)H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, add_words, &words);
  return words;
}

std::string text_of(const Words& words) {
  if (words.innermost.empty()) return "libhdf5 gives no reason";
  if (words.innermost == words.outermost) return escape(words.outermost);
  return escape(words.outermost + ": " + words.innermost);
}

}  // namespace

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

Library::Library() : lock_(library_mutex()) {
  thrown.reset();
  memory_ran_out = false;
  // If memory ran out, the library's exit handler would crash the process.
  (void)H5dont_atexit();
  const bool started = H5open() >= 0 && driver_id() >= 0;
  if (!started) throw_library_error(ErrorCode::kUnsupported, "libhdf5 does not start");
  (void)H5Eget_auto2(H5E_DEFAULT, &report_, &report_data_);
  (void)H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Library::~Library() {
  (void)H5Eset_auto2(H5E_DEFAULT, report_, report_data_);
}

void throw_library_error(ErrorCode code, const std::string& what) {
  if (thrown && is_no_answer(thrown->code())) throw thrown->in(what);
  if (memory_ran_out) throw std::bad_alloc();
  const Words words = words_now();
  throw Error(words.out_of_memory ? ErrorCode::kH5ReaderFailed : code,
              what + ": " + text_of(words));
}

Handle access_to(DriverFile& file) {
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  DriverFile* const pointer = &file;
  if (!access.ok() || H5Pset_driver(access.get(), driver_id(), &pointer) < 0)
    throw_library_error(ErrorCode::kUnsupported, "libhdf5");
  return access;
}

}  // namespace fsdp::formats::hdf5
