// SPDX-License-Identifier: Apache-2.0
#include "formats/front/foreign.h"

#include <string_view>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/snapshot.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Written by Orbax: of a tree, of a step.
constexpr std::string_view kTree = "_METADATA";
constexpr std::string_view kStep = "_CHECKPOINT_METADATA";
constexpr std::string_view kManifest = "manifest.ocdbt";
constexpr std::uint64_t kMaxTreeBytes = 256U << 20U;  // a million arrays
constexpr std::uint64_t kMaxArrayBytes = 1U << 20U;   // what zarr says of one
constexpr std::size_t kMostArrays = 20;               // that are listed

// Commands that were run with Orbax 0.12 and zarr 3 (docs/formats/orbax.md).
constexpr std::string_view kFromOrbax =
    "JAX_ENABLE_X64=1 python3 -c 'import os, sys, jax, numpy, orbax.checkpoint as o, "
    "safetensors.numpy as s; s.save_file({jax.tree_util.keystr(k, simple=True, separator=\".\"): "
    "numpy.asarray(v) for k, v in jax.tree_util.tree_leaves_with_path(o.PyTreeCheckpointer()"
    ".restore(os.path.abspath(sys.argv[1])))}, sys.argv[2])'";
constexpr std::string_view kFromZarr =
    "python3 -c 'import sys, zarr, safetensors.numpy as s; z = zarr.open(sys.argv[1], mode=\"r\"); "
    "s.save_file({\"array\": z[...]} if isinstance(z, zarr.Array) else {n.replace(\"/\", \".\"): "
    "a[...] for n, a in z.members(None) if isinstance(a, zarr.Array)}, sys.argv[2])'";

std::string refusal(std::string_view kind, std::string_view command,
                    std::string_view place = "PATH") {
  return cat("is ", kind, ", and no C++ library reads it; ", command, " ", place,
             " OUT.safetensors makes safetensors of it");
}

// Returns the keys joined by dots, as the command names the array and Orbax its folder.
std::string name_of_array(const Json& array) {
  std::string name;
  const Json* const keys = array.find("key_metadata");
  if (keys == nullptr || keys->as_array() == nullptr) return name;
  for (const Json& one : *keys->as_array()) {
    const Json* const key = one.find("key");
    if (key == nullptr) return {};
    name += cat(name.empty() ? "" : ".", key->as_string() ? *key->as_string() : to_text(*key));
  }
  return name;
}

// Returns the dtype in zarr's own words; nothing where OCDBT has the description of the array.
std::string dtype_of_array(const Listing& folder, const std::string& name) {
  if (!folder.has(name)) return {};  // nor a path that leads elsewhere
  for (const auto& [file, member] :
       {std::pair("zarr.json", "data_type"), std::pair(".zarray", "dtype")}) {
    const fs::path path = folder.path() / name / file;
    if (kind_of_place(path) != PlaceKind::kFile) continue;
    const Json array = parse_json(read_text(*file_at(path), kMaxArrayBytes));
    const Json* const dtype = array.find(member);
    if (dtype != nullptr && dtype->as_string() != nullptr) return cat(' ', *dtype->as_string());
  }
  return {};
}

// Returns ": bias <f4 [4], ..." with the names and shapes of arrays.
std::string arrays_text(const Listing& folder, const Json::Object& arrays) {
  SomeNames told(kMostArrays);
  for (const auto& [key, array] : arrays) {
    const std::string name = name_of_array(array);
    const Json* const value = array.find("value_metadata");
    const Json* const shape = value == nullptr ? nullptr : value->find("write_shape");
    const bool shown = told.count() < kMostArrays;
    told.add(shown ? cat(name.empty() ? quote(key, 80) : escape(name),
                         name.empty() ? std::string() : escape(dtype_of_array(folder, name)),
                         shape == nullptr || shape->is_null() ? "" : cat(" ", to_text(*shape)))
                   : std::string());
  }
  return told.count() == 0 ? "" : cat(": ", told.text());
}

// Returns " of 3 arrays by its metadata" with them; nothing if the tree cannot be read.
std::string tree_text(const Listing& folder) {
  try {
    const Json tree = parse_json(read_text(*file_at(folder.path() / kTree), kMaxTreeBytes));
    const Json* const arrays = tree.find("tree_metadata");
    if (arrays == nullptr || arrays->as_object() == nullptr) return {};
    const Json* const zarr3 = tree.find("use_zarr3");
    const bool third = zarr3 != nullptr && zarr3->as_bool() != nullptr && *zarr3->as_bool();
    return cat(third ? " (zarr3)" : " (zarr)", " of ", arrays->as_object()->size(),
               " arrays by its ", kTree, arrays_text(folder, *arrays->as_object()));
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return {};
  }
}

}  // namespace

std::optional<std::string> foreign_folder(const Listing& folder) {
  const fs::path& path = folder.path();
  const bool ocdbt = folder.has(kManifest);
  if (folder.has(kTree) && (ocdbt || folder.has(kStep) || folder.has("_sharding")))
    return refusal(cat("an Orbax checkpoint of JAX", tree_text(folder)), kFromOrbax);
  if (folder.has(kStep)) {
    for (const std::string& name : folder.names) {
      if (is_folder(path / name) && Listing(path / name).has(kTree)) {
        return refusal(
            cat("a step of Orbax's checkpoints of JAX, with a tree in ", quote(name, 80)),
            kFromOrbax, "PATH/TREE");
      }
    }
  }
  if (ocdbt) return refusal("an OCDBT database of tensorstore", kFromOrbax);
  for (const std::string_view name : {"zarr.json", ".zarray", ".zgroup"}) {
    if (folder.has(name)) return refusal("a zarr folder", kFromZarr);
  }
  return std::nullopt;
}

}  // namespace fsdp::formats
