// Tables beside a model that say which parts of it each rank of a tensor axis holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/nn/zoo.h"

namespace troika::parallel {

// How a module is cut over the t ranks of a tensor axis (Shoeybi et al. 2019, arXiv 1909.08053).
enum class Split {
  // Every rank has the parameters and computes the whole module, on whole tensors.
  whole,
  // The same, but with sequence parallelism each rank computes its tokens.
  tokens,
  // Every rank has the parameters, and gets a summand of their gradients: a matrix of an adapter
  // (nn/lora.h) whose other matrix is cut.
  summed,
  // A linear layer (nn::Linear or nn::Conv1D) or a convolution (nn::Conv2d) of one group, of which
  // each rank computes some outputs. The gradient of its input is summed over ranks, unless it lies
  // inside a module of kind `input`.
  column,
  // Such a layer of which each rank has some inputs. The product is summed over ranks; the bias is
  // added once, after the sum.
  row,
  // An nn::Conv2d of several groups behind a column layer: each rank has some groups, with their
  // inputs and outputs.
  groups,
  // An nn::Embedding, or the matrix of the output layer: each rank has some rows.
  vocabulary,
  // A module (nn::Hooked) whose column layers have one input: its gradient is summed once for all.
  input,
  // An nn::BatchNorm behind a column layer or convolution of kind groups: each rank has the
  // parameters and statistics of its channels, which do not depend on other channels.
  norm_of_column,
  // An nn::Dropout behind a column layer: each rank has its part of the mask.
  dropout_of_column,
};

struct SplitRule {
  std::string module;  // full name; `*` stands for any text between two dots
  Split split = Split::whole;
  // For column layers that are linear: the outputs are `parts` matrices side by side, such as
  // queries, keys and values. Each is cut between `units` units, such as heads; 0: between any two
  // outputs.
  int64_t units = 0;
  int64_t parts = 1;
  // For column: if there are fewer units than ranks, several ranks hold the same unit.
  bool shares_units = false;
};

// The first rule that matches a module counts. Each module that has parameters or is an nn::Dropout
// needs a rule. An adapter (nn/lora.h) is cut by the rule of its layer: beside a column layer, B is
// cut by outputs, as the layer's weight; beside a row layer, A is cut by inputs. The sum over a row
// layer's inputs is that of the adapter, too, so an adapter adds no communication to the passes.
using SplitTable = std::vector<SplitRule>;

// Returns the table of a model of the zoo: mlp, ResNets, VGGs, alexnet, gpt, llama and the names of
// their sizes. For other models, it is empty, and TensorParallel refuses their first block.
SplitTable split_table(const nn::ModelOptions& options);

}  // namespace troika::parallel
