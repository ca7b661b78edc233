// The tensors between the blocks of a model.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "troika/nn/block.h"

namespace troika::nn {

// The number of a tensor name within a model.
using Slot = size_t;
using Slots = c10::SmallVector<Slot, 4>;  // allocates nothing for the few slots of most blocks

// Numbers the names of the tensors that blocks take and give, so that a forward pass compares no
// names.
class Wiring {
 public:
  // Adds the next block.
  void add(const Block& block);

  size_t num_blocks() const { return takes_.size(); }
  size_t num_slots() const { return slots_.size(); }
  std::vector<std::string> names(const Slots& slots) const;
  // Returns the names that blocks take and that no earlier block gives, in the order of their first
  // use.
  const std::vector<std::string>& input_names() const { return input_names_; }

  // Return the tensors that a block takes and gives, in the order of its own lists.
  const Slots& taken_by(size_t block) const { return takes_[block]; }
  const Slots& given_by(size_t block) const { return gives_[block]; }
  // Returns the tensors that blocks [begin, end) take from outside, in the order of their first
  // use.
  Slots into(size_t begin, size_t end) const;
  // Returns the tensors that blocks [begin, end) give and that are needed after them, in the order
  // in which they are last given.
  Slots out_of(size_t begin, size_t end) const;
  // Returns the last block before `next` that gives the tensor; nothing if it is still an input of
  // the model.
  std::optional<size_t> giver_before(Slot slot, size_t next) const;
  // Whether a tensor that blocks [begin, end) take from outside is also taken by a later block.
  bool outlives(Slot slot, size_t begin, size_t end) const;

 private:
  struct Uses {
    std::string name;
    std::vector<size_t> takers, givers;  // blocks, in order
  };

  Slot slot_of(const std::string& name);
  // Whether a tensor that exists before block `next` is taken by that block or a later one, or is
  // an output of the model, which the last block gives.
  bool is_needed(Slot slot, size_t next) const;

  std::map<std::string, Slot> by_name_;
  std::vector<Uses> slots_;
  std::vector<Slots> takes_, gives_;  // by block
  std::vector<std::string> input_names_;
};

// Throw Error(usage) unless there is one defined tensor per name: among the inputs of a model, and
// among the outputs of a block.
void require_inputs(const std::vector<std::string>& names, const Tensors& inputs);
void require_outputs(const Block& block, const std::vector<std::string>& names,
                     const Tensors& outputs);

// Holds the tensors while blocks [begin, end) of a model run. Releases each tensor once the last
// block that needs it has taken it.
class Flow {
 public:
  // `inputs` are the tensors of Wiring::into(begin, end). Throws Error(usage) unless there is one
  // defined tensor per slot. The wiring must outlive the flow.
  Flow(const Wiring& wiring, size_t begin, size_t end, Tensors inputs);

  // Returns the tensors that blocks [begin, end) need from earlier blocks. For one block, these are
  // the tensors of Block::takes; for several, those of Wiring::into(). The range must be within the
  // blocks of this object.
  Tensors take(size_t begin, size_t end);
  // Stores the tensors that these blocks gave. For one block, these are the tensors of
  // Block::gives; for several, those of Wiring::out_of(). Blocks that include the model's last one
  // may give a loss instead (output_layer.h).
  void give(size_t begin, size_t end, Tensors outputs);
  // Returns the outputs of all blocks: the tensors of the last give() if that included the model's
  // last block, otherwise those of Wiring::out_of(). Called once, after the last block.
  Tensors outputs();

 private:
  Tensors take(const Slots& slots, size_t begin, size_t end);
  void keep(const Slots& slots, Tensors tensors);

  const Wiring& wiring_;
  const size_t begin_, end_;
  c10::SmallVector<at::Tensor, 4> tensors_;  // by slot; undefined if absent
  Tensors outputs_;                          // if the last give() had all of them
  Tensors spent_;                            // the last given list; the next take() reuses it
};

}  // namespace troika::nn
