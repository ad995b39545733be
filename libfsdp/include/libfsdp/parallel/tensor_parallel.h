// SPDX-License-Identifier: Apache-2.0
// Tensor-parallel layers: ordinary modules, each of which holds a part of its weight, along one
// dimension of a mesh.  As PyTorch's parallelize_module with ColwiseParallel, RowwiseParallel and
// SequenceParallel.  Names and shapes of parameters are those of torch::nn, also in checkpoints.
//
//   up = register_module("up", ColumnParallelLinear(ParallelLinearOptions{dim, hidden}, tp));
//   down = register_module("down", RowParallelLinear(ParallelLinearOptions{hidden, dim}, tp));
//   ... down(torch::gelu(up(x)));       // one all-reduce
//
// Ranks of the dimension must get the same input and draw the same random numbers: layers draw
// whole weights and keep a part, so that a model has the same values as without parallelism.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "libfsdp/device_mesh.h"
#include "libfsdp/meta_device.h"
#include "libfsdp/placement.h"

namespace fsdp {

struct ParallelLinearOptions {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = true;
  // The dimension of the activations along which each rank has a part of the sequence: a column
  // layer gathers its input, a row layer scatters its output.  None: they are whole on every rank.
  std::optional<std::int64_t> sequence_dim = {};
  // Column: return all features instead of this rank's.  Row: take all features.
  bool whole_features = false;
  // Column: true if the input already comes from differentiable::copy() or all_gather(), so that
  // layers of one input share the collective.  A second collective would sum gradients twice.
  bool prepared_input = false;
};

// The base of the layers.
class ParallelLayer : public PlacedModule, public ResetParameters {
 public:
  PlacedParameter placed(const std::string& name) const override;
  const DeviceMesh& mesh() const noexcept { return mesh_; }

 protected:
  explicit ParallelLayer(DeviceMesh mesh) : mesh_(std::move(mesh)) { mesh_.group(); }
  // Records that a parameter is cut along `dim`, and returns memory for this rank's part.
  at::Tensor part(const std::string& name, std::vector<std::int64_t> shape, int dim);
  // Writes this rank's part of a whole tensor, to which `fill` writes the values.
  void fill_part(const std::string& name, const at::Tensor& own,
                 const std::function<void(const at::Tensor& whole)>& fill) const;

 private:
  const DeviceMesh mesh_;
  std::vector<std::pair<std::string, PlacedParameter>> parts_;
};

// y = x W^T + b with the rows of W, and the elements of b, divided over the ranks.
// weight: [out / ranks, in], bias: [out / ranks].
class ColumnParallelLinearImpl : public torch::nn::Module, public ParallelLayer {
 public:
  ColumnParallelLinearImpl(ParallelLinearOptions options, const DeviceMesh& mesh);
  void reset_parameters() override;
  // [..., in] -> [..., out / ranks], or [..., out] with whole_features.
  at::Tensor forward(const at::Tensor& input);

  const ParallelLinearOptions options;
  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(ColumnParallelLinear);

// y = x W^T + b with the columns of W divided over the ranks.
// weight: [out, in / ranks], bias: [out] on every rank.
class RowParallelLinearImpl : public torch::nn::Module, public ParallelLayer {
 public:
  RowParallelLinearImpl(ParallelLinearOptions options, const DeviceMesh& mesh);
  void reset_parameters() override;
  // [..., in / ranks], or [..., in] with whole_features -> [..., out].
  at::Tensor forward(const at::Tensor& input);

  const ParallelLinearOptions options;
  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(RowParallelLinear);

struct ParallelEmbeddingOptions {
  std::int64_t num_embeddings = 0;
  std::int64_t embedding_dim = 0;
  // true: each rank holds rows of the table, and looks up only those; false: features of all rows.
  bool cuts_vocabulary = true;
  // See ParallelLinearOptions.
  std::optional<std::int64_t> sequence_dim = {};
};

// weight: [num_embeddings / ranks, embedding_dim], or [num_embeddings, embedding_dim / ranks].
class ParallelEmbeddingImpl : public torch::nn::Module, public ParallelLayer {
 public:
  ParallelEmbeddingImpl(ParallelEmbeddingOptions options, const DeviceMesh& mesh);
  void reset_parameters() override;
  // [...] -> [..., embedding_dim].  Throws: c10::Error for a token outside the table.
  at::Tensor forward(const at::Tensor& tokens);

  const ParallelEmbeddingOptions options;
  at::Tensor weight;
};
TORCH_MODULE(ParallelEmbedding);

struct SequenceParallelNormOptions {
  std::int64_t features = 0;
  double eps = 1e-5;
  bool rms = false;   // RMSNorm; else LayerNorm
  bool bias = false;  // of a LayerNorm
};

// A norm over the last dimension of this rank's part of the sequence.  Its parameters are whole,
// and get the sum of all ranks' gradients.
class SequenceParallelNormImpl : public torch::nn::Module, public ResetParameters {
 public:
  SequenceParallelNormImpl(SequenceParallelNormOptions options, const DeviceMesh& mesh);
  void reset_parameters() override;
  at::Tensor forward(const at::Tensor& input);

  const SequenceParallelNormOptions options;
  at::Tensor weight;
  at::Tensor bias;

 private:
  const DeviceMesh mesh_;
};
TORCH_MODULE(SequenceParallelNorm);

// Returns the mean cross entropy of [N, vocabulary / ranks] logits, as a column layer gives them,
// to [N] targets in the whole vocabulary, without gathering the logits.  Rows whose target is
// `ignore_index` do not count.  PyTorch: loss_parallel().
at::Tensor cross_entropy_of_parts(const at::Tensor& logits, const at::Tensor& targets,
                                  std::int64_t vocabulary, const DeviceMesh& mesh,
                                  std::int64_t ignore_index = -100);

}  // namespace fsdp
