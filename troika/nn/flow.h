// The tensors between the blocks of a model.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "troika/nn/block.h"

namespace troika::nn {

// The number of a name among those that the blocks of a model take and give.
using Slot = size_t;
using Slots =
    c10::SmallVector<Slot, 4>;  // takes no memory of its own for the few that most blocks have

// The names of the tensors that blocks take and give, with a number for each, so that a pass
// compares no names.
class Wiring {
 public:
  // Adds the next block.
  void add(const Block& block);

  size_t num_blocks() const { return takes_.size(); }
  size_t num_slots() const { return slots_.size(); }
  std::vector<std::string> names(const Slots& slots) const;
  // The names that blocks take and no block before gives, in the order in which they are first
  // taken.
  const std::vector<std::string>& input_names() const { return input_names_; }

  // The tensors that a block takes and gives, in the order of its own lists.
  const Slots& taken_by(size_t block) const { return takes_[block]; }
  const Slots& given_by(size_t block) const { return gives_[block]; }
  // The tensors that blocks [begin, end) take from before, in the order in which they are first
  // taken.
  Slots into(size_t begin, size_t end) const;
  // The tensors that these blocks give and that are needed after them, in the order in which they
  // are last given.
  Slots out_of(size_t begin, size_t end) const;
  // Whether what blocks [begin, end) take from before is taken by a later one, too.
  bool outlives(Slot slot, size_t begin, size_t end) const;

 private:
  struct Uses {
    std::string name;
    std::vector<size_t> takers, givers;  // blocks, in order
  };

  Slot slot_of(const std::string& name);
  // Whether a tensor that exists before block `next` is taken by it or a later one, or is an output
  // of the model: given by its last block.
  bool is_needed(Slot slot, size_t next) const;

  std::map<std::string, Slot> by_name_;
  std::vector<Uses> slots_;
  std::vector<Slots> takes_, gives_;  // of each block
  std::vector<std::string> input_names_;
};

// Throw Error(usage) unless there is one defined tensor for each name, among what a model is called
// with, and what a block gives.
void require_inputs(const std::vector<std::string>& names, const Tensors& inputs);
void require_outputs(const Block& block, const std::vector<std::string>& names,
                     const Tensors& outputs);

// Tensors while blocks [begin, end) of a model run. Each is let go of when the last block that
// needs it has taken it.
class Flow {
 public:
  // `inputs` are the tensors of Wiring::into(begin, end). Throws Error(usage) unless there is one
  // defined tensor for each. The wiring must outlive the flow.
  Flow(const Wiring& wiring, size_t begin, size_t end, Tensors inputs);

  // Takes the tensors that blocks [begin, end) need from before them. One block: those of
  // Block::takes; several: those of Wiring::into(). All blocks are of the run.
  Tensors take(size_t begin, size_t end);
  // Keeps the tensors that these blocks gave. One block: those of Block::gives; several: those of
  // Wiring::out_of(). Blocks with the last one of the model may give a loss in place of them
  // (output_layer.h).
  void give(size_t begin, size_t end, Tensors outputs);
  // The tensors that the run gives: the last give() if it was of the last block of the model, else
  // as give() says for the whole run. Called once, after the last block.
  Tensors outputs();

 private:
  Tensors take(const Slots& slots, size_t begin, size_t end);
  void keep(const Slots& slots, Tensors tensors);

  const Wiring& wiring_;
  const size_t begin_, end_;
  c10::SmallVector<at::Tensor, 4> tensors_;  // by slot; undefined where there is none
  Tensors outputs_;                          // of the run, where they were given at once
  Tensors spent_;                            // the last list that was given, for the next to take
};

}  // namespace troika::nn
