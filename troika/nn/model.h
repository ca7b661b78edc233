// A model as an ordered list of blocks, each a function of one tensor or of several named tensors.
// Pipeline stages, recomputation and sharding work on blocks from outside, as wrappers
// (block_wrapper.h); a model does not know them.
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
// from_sequential() makes a model of a torch::nn::Sequential (sequential.h). Any other module
// becomes one by blocks that call its parts:
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

struct LoraOptions;
struct ModelOptions;

// Returns the only tensor that a model gives. Throws Error(usage) if it gives several.
at::Tensor only(Tensors tensors);

class Model : public torch::nn::Module {
 public:
  Model() = default;
  // Not copyable: blocks hold pointers to the sub-modules, which a copy would share with the
  // original.
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::vector<Block>& blocks() const { return blocks_; }

  // Returns the names that blocks take and that no earlier block gives, in the order of their first
  // use.
  const std::vector<std::string>& input_names() const { return wiring_.input_names(); }
  const Wiring& wiring() const { return wiring_; }

  // Runs the blocks in order; each activation is released once autograd no longer needs it. Takes
  // one tensor per input_names(), and returns the last block's outputs. The overload for one tensor
  // is for models with one input and one output. Throws Error(usage) for a wrong number of tensors.
  Tensors forward(Tensors inputs);
  at::Tensor forward(at::Tensor input);

  // Returns the tensors of OutputLoss::gives() instead of outputs, unless `loss` is null. Throws
  // Error(usage) if the last block has no output layer.
  Tensors forward(Tensors inputs, std::shared_ptr<const OutputLoss> loss);
  // Whether the last block takes an OutputLayer, so that the model can compute a loss.
  bool has_output_layer() const;

  // Runs only blocks [begin, end), at least one block. They take Wiring::into() and give
  // Wiring::out_of() (flow.h). A loss requires the last block.
  Tensors forward(size_t begin, size_t end, Tensors inputs,
                  std::shared_ptr<const OutputLoss> loss = nullptr) const;

  // Registers the sub-modules, parameters and buffers of `module` under their own names. They are
  // shared, not copied.
  void place_children(const torch::nn::Module& module);
  // Registers a module under a dotted path such as "layer1.0.conv1", creating plain modules for the
  // levels between, and returns it for use in blocks.
  template <typename M>
  std::shared_ptr<M> place(const std::string& path, std::shared_ptr<M> module) {
    place_module(path, module);
    return module;
  }
  template <typename M>
  std::shared_ptr<M> place(const std::string& path, const torch::nn::ModuleHolder<M>& holder) {
    return place(path, holder.ptr());
  }

  // Throws Error(usage) for a block that takes or gives nothing, or the same name twice, and if the
  // blocks already have a wrapper.
  void add_block(Block block);
  // Places a module whose forward maps one tensor to one tensor, as a block named after its path.
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

  // Returns the options that make_model() used (zoo.h). Null for all other models, and after a
  // block or a module was added.
  const ModelOptions* options() const { return options_.get(); }

  // Returns the parameters and buffers the block owns, under their names in the whole model.
  state::StateDict owned_state(const Block& block) const;
  // Returns those of `entries`, named as in the whole model, that the block owns.
  static state::StateDict owned(const Block& block, state::StateDict entries);

  // Whether a WrapperGuard keeps a wrapper of this kind around the blocks.
  bool has_wrapper(WrapperKind kind) const;

  // Throws Error(usage) unless block names are unique, every parameter and buffer is in exactly one
  // block, and every tensor shared by two blocks is borrowed by the later one. Models of
  // make_model() pass. Call it before splitting a user's model.
  void verify() const;

 private:
  friend std::shared_ptr<Model> make_model(const ModelOptions& options);
  friend void add_adapters(Model& model, const LoraOptions& options);
  friend void merge_adapters(Model& model, double scaling);
  friend class WrapperGuard;

  // Null removes the current wrapper.
  void set_wrapper(WrapperKind kind, std::shared_ptr<BlockWrapper> wrapper);

  // Changes what options() returns; nothing if that is null.
  void set_lora(const LoraOptions& lora);
  void place_module(const std::string& path, std::shared_ptr<torch::nn::Module> module);

  std::vector<Block> blocks_;
  Wiring wiring_;
  std::shared_ptr<const ModelOptions> options_;
  std::shared_ptr<const InnerBlocks::Wrappers> wrappers_ =
      std::make_shared<InnerBlocks::Wrappers>();
};

}  // namespace troika::nn
