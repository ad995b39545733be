// SPDX-License-Identifier: Apache-2.0
// A new kind of store takes one class: here one in memory.  Checkpoints are written to it, read,
// verified and sealed by the code that does so on a disk.
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "formats/bytes/store/place.h"
#include "formats/bytes/store/store.h"
#include "formats/front/create.h"
#include "formats/front/open.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/content.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_bytes.h"

namespace fsdp::formats {
namespace {

using Bytes = std::vector<std::byte>;

class MemoryStore : public Store {
 public:
  std::optional<StoredFile> find(const std::string& url) const override {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(url);
    return at == files_.end() ? std::nullopt : std::optional(described(at->second));
  }
  std::optional<std::vector<StoredEntry>> list(const std::string& url) const override {
    const std::lock_guard lock(mutex_);
    std::map<std::string, StoredEntry> entries;
    for (const auto& [name, file] : files_) {
      if (!name.starts_with(url + "/")) continue;
      const std::string inner = name.substr(url.size() + 1);
      const auto slash = inner.find('/');
      const std::string member = inner.substr(0, slash);
      if (slash == std::string::npos) entries[member] = {member, described(file)};
      if (slash != std::string::npos) entries.try_emplace(member + "/", StoredEntry{member, {}});
    }
    std::vector<StoredEntry> out;
    for (auto& [name, entry] : entries) out.push_back(std::move(entry));
    return out;
  }
  void read(const std::string& url, const StoredFile&, std::uint64_t offset,
            std::span<std::byte> out) const override {
    const std::lock_guard lock(mutex_);
    const Bytes& bytes = files_.at(url).second;
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }
  std::optional<Content> fetch(const std::string& url, std::uint64_t) const override {
    const std::lock_guard lock(mutex_);
    const auto at = files_.find(url);
    if (at == files_.end()) return std::nullopt;
    return Content{described(at->second), at->second.second};
  }
  std::unique_ptr<StoreUpload> upload(const std::string& url, std::uint64_t bytes) override;
  void put(const std::string& url, std::span<const std::byte> bytes, bool only_new) override {
    const std::lock_guard lock(mutex_);
    if (only_new && files_.contains(url)) throw Error(ErrorCode::kExists, url + ": exists");
    files_[url] = {++versions_, Bytes(bytes.begin(), bytes.end())};
  }
  void remove(const std::string& url) override {
    const std::lock_guard lock(mutex_);
    files_.erase(url);
  }

 private:
  using Versioned = std::pair<std::uint64_t, Bytes>;
  static StoredFile described(const Versioned& file) {
    return {file.second.size(), std::to_string(file.first), 0};
  }
  mutable std::mutex mutex_;
  std::map<std::string, Versioned> files_;
  std::uint64_t versions_ = 0;
};

class MemoryUpload : public StoreUpload {
 public:
  MemoryUpload(MemoryStore& store, std::string url, std::uint64_t bytes)
      : store_(store), url_(std::move(url)), bytes_(bytes) {}
  std::uint64_t part_bytes() const override { return 4096; }
  void put(std::uint32_t number, std::span<const std::byte> part) override {
    std::copy(part.begin(), part.end(), bytes_.begin() + number * std::ptrdiff_t{4096});
  }
  void complete(bool only_new) override { store_.put(url_, bytes_, only_new); }

 private:
  MemoryStore& store_;
  const std::string url_;
  Bytes bytes_;
};

std::unique_ptr<StoreUpload> MemoryStore::upload(const std::string& url, std::uint64_t bytes) {
  return std::make_unique<MemoryUpload>(*this, url, bytes);
}

std::map<std::string, Bytes> tensors_of(const Checkpoint& checkpoint) {
  std::map<std::string, Bytes> tensors;
  for (const TensorEntry& tensor : checkpoint.index().tensors)
    tensors[tensor.key] = test::tensor_bytes(checkpoint, tensor);
  return tensors;
}

TEST(NewStore, takes_checkpoints_of_every_format_and_gives_them_back) {
  register_store("memory://",
                 []() -> std::unique_ptr<Store> { return std::make_unique<MemoryStore>(); });
  const auto source = open_checkpoint(test::data_path("golden/2.11.0/minimal/ckpt"));
  for (const std::string format : {"dcp", "pt", "safetensors"}) {
    const std::string url = "memory://bucket/" + format + (format == "dcp" ? "" : "/x." + format);
    CreateOptions options;
    options.output.seal = true;
    options.drop_values = format == "safetensors";
    plan_output(format, *source, content_of(*source), url, options)->write({});
    const auto copy = open_checkpoint(url);
    EXPECT_TRUE(copy->verify({}).findings.empty()) << url;
    EXPECT_EQ(tensors_of(*copy), tensors_of(*source)) << url;
  }
  EXPECT_TRUE(exists_in_store("memory://bucket/dcp/fsdp_seal.json"));
  EXPECT_TRUE(exists_in_store("memory://bucket/pt/x.pt.fsdp_seal.json"));
}

}  // namespace
}  // namespace fsdp::formats
