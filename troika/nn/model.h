// A model as an ordered list of blocks, each a function of one tensor or of several named ones:
// what pipeline stages, recomputation and sharding cut from outside. A model knows nothing of any
// of them: they are wrappers of its blocks (block_wrapper.h).
//
//   auto model = std::make_shared<nn::Model>();
//   auto fc1 = model->place("fc1", torch::nn::Linear(784, 256));
//   auto fc2 = model->place("fc2", torch::nn::Linear(256, 10));
//   model->add_block({"body", {"fc1"}, {}, [fc1](const at::Tensor& x) {
//     return fc1->forward(x).relu();
//   }});
//   model->add_block({"head", {"fc2"}, {}, [fc2](const at::Tensor& x) { return fc2->forward(x);
//   }});
//
// A torch::nn::Sequential becomes one through from_sequential() (sequential.h), and any other
// module by blocks that call its parts:
//
//   auto model = std::make_shared<nn::Model>();
//   model->place_children(*net);
//   model->add_block({"encoder", {"encoder"}, {}, [net](const nn::Tensors& in) {
//     return net->encoder->forward(in[0], in[1]);
//   }, {"inputs", "mask"}});
//   model->add_block({"head", {"head"}, {}, [net](const at::Tensor& x) {
//     return net->head->forward(x);
//   }});
//   model->forward({inputs, mask});
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troika/nn/block.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/flow.h"
#include "troika/nn/state.h"

namespace troika::nn {

struct ModelOptions;

// The only one of what a model gives. Throws Error(usage) where it gives several.
at::Tensor only(Tensors tensors);

class Model : public torch::nn::Module {
 public:
  Model() = default;
  // Blocks hold pointers to the sub-modules, which a copy would share with the original.
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::vector<Block>& blocks() const { return blocks_; }

  // The names that blocks take and no block before gives, in the order in which they are first
  // taken.
  const std::vector<std::string>& input_names() const { return wiring_.input_names(); }
  const Wiring& wiring() const { return wiring_; }

  // Runs the blocks in order; each activation is released as soon as autograd lets go of it. One
  // tensor for each of input_names(), and what the last block gives; the short form is for models
  // of one input and one output. Throws Error(usage) for another number of tensors.
  Tensors forward(Tensors inputs);
  at::Tensor forward(at::Tensor input);

  // Gives the tensors of OutputLoss::gives() in place of outputs, unless `loss` is null. Throws
  // Error(usage) where the last block has no output layer.
  Tensors forward(Tensors inputs, std::shared_ptr<const OutputLoss> loss);
  // Whether the last block takes an OutputLayer, so that the model can be asked for a loss.
  bool has_output_layer() const;

  // The same for blocks [begin, end) alone, which take into() and give out_of(), see Wiring
  // (flow.h). At least one block. A loss is for parts with the last block.
  Tensors forward(size_t begin, size_t end, Tensors inputs,
                  std::shared_ptr<const OutputLoss> loss = nullptr) const;

  // Registers the sub-modules, parameters and buffers of `module` under their own names: shared,
  // not copied.
  void place_children(const torch::nn::Module& module);
  // Registers a module under a dotted path such as "layer1.0.conv1", making plain modules for the
  // levels between, and gives it back for the blocks to use.
  template <typename M>
  std::shared_ptr<M> place(const std::string& path, std::shared_ptr<M> module) {
    place_module(path, module);
    return module;
  }
  template <typename M>
  std::shared_ptr<M> place(const std::string& path, const torch::nn::ModuleHolder<M>& holder) {
    return place(path, holder.ptr());
  }

  // Throws Error(usage) for a block that takes or gives nothing, or a name twice, and where blocks
  // have a wrapper, which was made for those that there were.
  void add_block(Block block);
  // Places a module whose forward takes and gives one tensor, as a block named after its path.
  template <typename M>
  void add_block(const std::string& path, std::shared_ptr<M> module) {
    place_module(path, module);
    add_block(
        {path, {path}, {}, [module](const at::Tensor& input) { return module->forward(input); }});
  }
  template <typename M>
  void add_block(const std::string& path, const torch::nn::ModuleHolder<M>& holder) {
    add_block(path, holder.ptr());
  }

  // The options that make_model() made this model of (zoo.h); null for every other model, and once
  // a block or a module was added to it.
  const ModelOptions* options() const { return options_.get(); }

  // Parameters and buffers the block owns, under their names in the whole model.
  state::StateDict owned_state(const Block& block) const;
  // The entries of `entries` that the block owns, under such names.
  static state::StateDict owned(const Block& block, state::StateDict entries);

  // Throws Error(usage) unless block names are unique, every parameter and buffer is in exactly one
  // block, and every tensor two blocks share is borrowed by the later one. Models of make_model()
  // pass; whoever cuts a model of a user calls this first.
  void verify() const;

 private:
  friend std::shared_ptr<Model> make_model(const ModelOptions& options);
  friend class WrapperGuard;

  // Null takes the one away that there is.
  void set_wrapper(WrapperKind kind, std::shared_ptr<BlockWrapper> wrapper);

  void place_module(const std::string& path, std::shared_ptr<torch::nn::Module> module);

  std::vector<Block> blocks_;
  Wiring wiring_;
  std::shared_ptr<const ModelOptions> options_;
  std::shared_ptr<const InnerBlocks::Wrappers> wrappers_ =
      std::make_shared<InnerBlocks::Wrappers>();
};

}  // namespace troika::nn
