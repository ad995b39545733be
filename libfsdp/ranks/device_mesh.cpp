// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/device_mesh.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "libfsdp/internal/comm/errors.h"

namespace fsdp {

struct DeviceMesh::Root {
  struct Axis {
    MeshDim dim;
    int coordinate = 0;
    std::shared_ptr<ProcessGroup> group;
  };
  std::shared_ptr<ProcessGroup> all;
  std::vector<Axis> axes;
};

DeviceMesh::DeviceMesh(const std::shared_ptr<ProcessGroup>& group,
                       const std::vector<MeshDim>& dims) {
  FSDP_CHECK(group, "DeviceMesh: the group is a null pointer");
  auto root = std::make_shared<Root>();
  root->all = group;
  std::int64_t ranks = 1;
  for (const MeshDim& dim : dims) {
    const bool again = std::any_of(root->axes.begin(), root->axes.end(),
                                   [&](const auto& axis) { return axis.dim.name == dim.name; });
    FSDP_CHECK(!dim.name.empty() && !again, "DeviceMesh: the name '", dim.name,
               again ? "' is used twice" : "' is empty");
    FSDP_CHECK(dim.size >= 1 && dim.size <= group->size(), "DeviceMesh: dimension '", dim.name,
               "' has the size ", dim.size, ", expected 1 to ", group->size());
    ranks *= dim.size;
    root->axes.push_back({dim, 0, nullptr});
  }
  FSDP_CHECK(!dims.empty() && ranks == group->size(), "DeviceMesh: the sizes multiply to ", ranks,
             ", and the group has ", group->size(), " ranks");
  int stride = group->size();
  for (Root::Axis& axis : root->axes) {
    stride /= axis.dim.size;
    axis.coordinate = group->rank() / stride % axis.dim.size;
    if (axis.dim.size == group->size()) {
      axis.group = group;
      continue;
    }
    std::vector<int> members(static_cast<std::size_t>(axis.dim.size));
    const int first = group->rank() - axis.coordinate * stride;
    for (int i = 0; i < axis.dim.size; ++i)
      members[static_cast<std::size_t>(i)] = first + i * stride;
    axis.group = group->subgroup(members);
  }
  dims_.resize(dims.size());
  std::iota(dims_.begin(), dims_.end(), std::size_t{0});
  root_ = std::move(root);
}

DeviceMesh::DeviceMesh(std::shared_ptr<const Root> root, std::vector<std::size_t> dims)
    : root_(std::move(root)), dims_(std::move(dims)) {}

DeviceMesh DeviceMesh::operator[](const std::string& name) const {
  return select({name});
}

DeviceMesh DeviceMesh::select(const std::vector<std::string>& names) const {
  std::vector<std::size_t> chosen;
  for (const std::string& name : names) {
    const auto found = std::find_if(dims_.begin(), dims_.end(), [&](std::size_t dim) {
      return root_->axes[dim].dim.name == name;
    });
    FSDP_CHECK(found != dims_.end(), "DeviceMesh: there is no dimension '", name, "' in (", text(),
               ")");
    FSDP_CHECK(std::find(chosen.begin(), chosen.end(), *found) == chosen.end(),
               "DeviceMesh: dimension '", name, "' is named twice");
    chosen.push_back(*found);
  }
  return {root_, std::move(chosen)};
}

const std::string& DeviceMesh::name(std::size_t dim) const {
  return root_->axes[dims_.at(dim)].dim.name;
}

int DeviceMesh::size(std::size_t dim) const {
  return root_->axes[dims_.at(dim)].dim.size;
}

int DeviceMesh::coordinate(std::size_t dim) const {
  return root_->axes[dims_.at(dim)].coordinate;
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::group(std::size_t dim) const {
  return root_->axes[dims_.at(dim)].group;
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::group() const {
  FSDP_CHECK(dims_.size() == 1, "DeviceMesh: expected a mesh of one dimension, found (", text(),
             "): choose one by mesh[name]");
  return group(0);
}

DeviceMesh DeviceMesh::root() const {
  std::vector<std::size_t> dims(root_->axes.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  return {root_, std::move(dims)};
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::all_ranks() const noexcept {
  return root_->all;
}

std::pair<int, int> DeviceMesh::copy() const {
  std::pair<int, int> result{0, 1};
  for (std::size_t dim = 0; dim < root_->axes.size(); ++dim) {
    if (std::find(dims_.begin(), dims_.end(), dim) != dims_.end()) continue;
    const Root::Axis& axis = root_->axes[dim];
    result.first = result.first * axis.dim.size + axis.coordinate;
    result.second *= axis.dim.size;
  }
  return result;
}

std::string DeviceMesh::text() const {
  std::string result;
  for (const std::size_t dim : dims_) {
    const MeshDim& own = root_->axes[dim].dim;
    result += (result.empty() ? "" : ", ") + own.name + "=" + std::to_string(own.size);
  }
  return result;
}

}  // namespace fsdp
