// The shards of a model's parameters on one rank of a tensor axis, computed without communication.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/layout/box.h"
#include "troika/nn/model.h"
#include "troika/parallel/tensor/split_table.h"
#include "troika/state/state_dict.h"

namespace troika::parallel {

// A part of a flat range of a shard's elements: those in one of the shard's boxes.
struct FlatPart {
  layout::Box box;       // with a flat range
  at::Tensor positions;  // of these elements in the range of the shard: Long [box.count()]
};

// The shard of one parameter: elements `ranges` of dimension `dim`, one after another.
struct ParameterCut {
  std::string name;    // in the model
  layout::Dims shape;  // of the whole parameter
  int64_t dim = 0;
  std::vector<layout::Range> ranges;
  int copies = 1;  // ranks that hold the same shard; they are adjacent
  Split split = Split::whole;

  bool is_whole() const;
  // Returns the number of elements along dim.
  int64_t size() const;
  // Returns the boxes of the shard in the whole parameter: one for each range.
  std::vector<layout::Box> boxes() const;
  // Returns the parts of the elements `flat` of the shard in row-major order, as ZeRO shards it
  // over replicas: one, possibly empty, for each range.
  std::vector<FlatPart> flat_parts(const layout::Range& flat) const;
  // Returns the parameter's parts that make up the shard, along dim. They share memory with it.
  std::vector<at::Tensor> parts_of(const at::Tensor& whole) const;
  // Returns the shard in memory of its own, or, for a whole parameter, the parameter.
  at::Tensor shard_of(const at::Tensor& whole) const;
};

// Appends an entry with a box for each range of a shard. `shard` is cut like the parameter, and
// shares memory with the entries.
void append_shard(state::StateDict& to, const state::Entry& shard, const ParameterCut& cut);

// A module for which the table has a rule.
struct RuledModule {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  SplitRule rule;
};

// Returns the modules with their rules. Throws Error(usage) naming the block for a module that
// needs a rule and has none, and for a module that the kind of its rule does not fit. `axis` is the
// name of the axis in errors.
std::vector<RuledModule> ruled_modules(const nn::Model& model, const SplitTable& table,
                                       std::string_view axis = "tensor");

// Returns the cuts of all parameters, in the order of nn::named_parameters(). Throws Error(usage)
// naming the module and both numbers if a dimension cannot be cut among the ranks.
std::vector<ParameterCut> parameter_cuts(const nn::Model& model,
                                         const std::vector<RuledModule>& modules, int rank,
                                         int ranks);

// Returns the number of units, such as heads or channels, that the ranks of an axis must divide to
// cut a module; 0: there is none.
int64_t cut_units(const RuledModule& of);

// Returns rows [begin, end) of a vocabulary for a rank. They differ by one row at most.
layout::Range vocabulary_rows(int64_t rows, int rank, int ranks);

}  // namespace troika::parallel
