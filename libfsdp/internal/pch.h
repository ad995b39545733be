// SPDX-License-Identifier: Apache-2.0
// Headers that nearly every file of the library includes, compiled once.  Files still include what
// they use.
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/library.h>
#include <torch/torch.h>
