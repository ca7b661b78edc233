#include "troika/nn/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

namespace {

void collect_modules(const torch::nn::Module& module, const std::string& prefix,
                     std::set<std::string>& names) {
  for (const auto& child : module.named_children()) {
    names.insert(prefix + child.key());
    collect_modules(*child.value(), prefix + child.key() + ".", names);
  }
}

[[noreturn]] void refuse(ErrorText text) {
  throw Error("nn", ErrorKind::usage, text);
}

void verify_names(const std::vector<Block>& blocks, const std::set<std::string>& modules,
                  const state::StateDict& state) {
  std::set<std::string> tensors;
  for (const auto& [name, tensor] : state) tensors.insert(name);
  std::set<std::string> seen;
  for (const Block& block : blocks) {
    if (!seen.insert(block.name).second) {
      refuse({.what = fmt::format("two blocks are named {}", block.name)});
    }
    for (const std::string& name : block.owns) {
      if (!modules.contains(name) && !tensors.contains(name)) {
        refuse({.what = fmt::format("block {} owns {}, which the model does not have", block.name,
                                    name),
                .hint = "name a sub-module or a parameter in full, as in layer1.0.conv1"});
      }
    }
    for (const std::string& name : block.borrows) {
      if (!tensors.contains(name) || owns(block, name)) {
        refuse({.what = fmt::format("block {} borrows {}, which no other block owns", block.name,
                                    name)});
      }
    }
  }
}

const Block& owner_of(const std::vector<Block>& blocks, const std::string& name) {
  const Block* owner = nullptr;
  for (const Block& block : blocks) {
    if (!owns(block, name)) continue;
    if (owner) {
      refuse({.what = fmt::format("{} is owned by two blocks", name),
              .got = owner->name + " and " + block.name,
              .expected = "one owner",
              .hint = "the other block borrows it"});
    }
    owner = &block;
  }
  if (!owner) {
    refuse({.what = fmt::format("{} is in no block", name),
            .hint = "add it or its module to what the block that uses it owns"});
  }
  return *owner;
}

void verify_flow(const Block& block, const std::vector<std::string>& names, const char* verb) {
  std::set<std::string> seen;
  for (const auto& name : names) {
    if (seen.insert(name).second) continue;
    refuse({.what = fmt::format("block {} {} `{}` twice", block.name, verb, name)});
  }
  if (names.empty()) refuse({.what = fmt::format("block {} {} nothing", block.name, verb)});
}

}  // namespace

bool is_within(std::string_view module, std::string_view name) {
  return name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.');
}

bool owns(const Block& block, std::string_view name) {
  return std::ranges::any_of(block.owns,
                             [&](const std::string& owned) { return is_within(owned, name); });
}

at::Tensor only(Tensors tensors) {
  if (tensors.size() == 1) return std::move(tensors.front());
  refuse({.what = "the model gives several tensors",
          .got = std::to_string(tensors.size()),
          .expected = "one",
          .hint = "call it with nn::Tensors"});
}

bool Model::has_output_layer() const {
  return !blocks_.empty() && blocks_.back().forward.takes_output_layer();
}

Tensors Model::forward(Tensors inputs) {
  return forward(std::move(inputs), nullptr);
}

Tensors Model::forward(Tensors inputs, std::shared_ptr<const OutputLoss> loss) {
  if (blocks_.empty() && !loss) return inputs;
  return forward(0, blocks_.size(), std::move(inputs), std::move(loss));
}

at::Tensor Model::forward(at::Tensor input) {
  Tensors inputs;
  inputs.push_back(std::move(input));  // an initializer list would hold the tensor until the end
  return only(forward(std::move(inputs)));
}

Tensors Model::forward(size_t begin, size_t end, Tensors inputs,
                       std::shared_ptr<const OutputLoss> loss) const {
  if (loss && (!has_output_layer() || end != blocks_.size())) {
    refuse({.what = "the model has no output layer that computes a loss",
            .got = has_output_layer() ? "a part without the last block"
                                      : "a last block without an output layer",
            .expected = "a last block whose forward takes an nn::OutputLayer"});
  }
  return InnerBlocks(*this, wrappers_, 0)(
      {.begin = begin, .end = end, .backward_from = end - 1, .loss = std::move(loss)},
      std::move(inputs));
}

bool Model::has_wrapper(WrapperKind kind) const {
  return wrappers_->at(static_cast<size_t>(kind)) != nullptr;
}

void Model::set_wrapper(WrapperKind kind, std::shared_ptr<BlockWrapper> wrapper) {
  auto wrappers = std::make_shared<InnerBlocks::Wrappers>(*wrappers_);
  auto& place = wrappers->at(static_cast<size_t>(kind));
  if (place && wrapper) {
    constexpr std::array<const char*, kWrapperKinds> kNames{"offload", "recompute", "gather",
                                                            "context", "tensor"};
    refuse({.what = "the blocks of a model have one wrapper of each kind",
            .got = fmt::format("a second one of kind {}", kNames.at(static_cast<size_t>(kind))),
            .expected = "a kind that the model does not have",
            .hint = "end the nn::WrapperGuard of the first"});
  }
  place = std::move(wrapper);
  wrappers_ = std::move(wrappers);
}

void Model::place_children(const torch::nn::Module& module) {
  for (const auto& child : module.named_children()) register_module(child.key(), child.value());
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
    register_parameter(entry.key(), entry.value(), entry.value().requires_grad());
  }
  for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
    register_buffer(entry.key(), entry.value());
  }
  options_.reset();
}

void Model::add_block(Block block) {
  TROIKA_CHECK(block.forward, "block " + block.name + " has no forward");
  verify_flow(block, block.takes, "takes");
  verify_flow(block, block.gives, "gives");
  if (std::ranges::any_of(*wrappers_, [](const auto& wrapper) { return wrapper != nullptr; })) {
    refuse({.what = fmt::format("block {} was added to a model whose blocks have a wrapper",
                                block.name),
            .hint = "add all blocks before recomputation, sharding and offloading"});
  }
  wiring_.add(block);
  blocks_.push_back(std::move(block));
  options_.reset();
}

void Model::place_module(const std::string& path, std::shared_ptr<torch::nn::Module> module) {
  torch::nn::Module* level = this;
  std::vector<std::string> names = split(path, '.');
  const std::string last = std::move(names.back());
  names.pop_back();
  for (const std::string& name : names) {
    const auto children = level->named_children();
    const auto* child = children.find(name);
    level = child ? child->get()
                  : level->register_module(name, std::make_shared<torch::nn::Module>()).get();
  }
  level->register_module(last, std::move(module));
  options_.reset();
}

void Model::set_lora(const LoraOptions& lora) {
  if (!options_) return;
  auto options = *options_;
  options.lora = lora;
  options_ = std::make_shared<const ModelOptions>(std::move(options));
}

state::StateDict Model::owned_state(const Block& block) const {
  return owned(block, named_state(*this));
}

state::StateDict Model::owned(const Block& block, state::StateDict entries) {
  std::erase_if(entries, [&](const state::Entry& entry) { return !owns(block, entry.first); });
  return entries;
}

void Model::verify() const {
  const auto state = named_state(*this, Ties::every_name);
  std::set<std::string> modules;
  collect_modules(*this, "", modules);
  verify_names(blocks_, modules, state);

  struct First {
    std::string name;
    const Block* owner;
  };
  std::map<const void*, First> first;
  for (const auto& [name, tensor] : state) {
    const Block& owner = owner_of(blocks_, name);
    const auto [known, is_new] =
        first.try_emplace(tensor.unsafeGetTensorImpl(), First{name, &owner});
    const First& original = known->second;
    if (is_new || original.owner == &owner || std::ranges::count(owner.borrows, original.name)) {
      continue;
    }
    refuse({.what = fmt::format("{} is the same tensor as {} of block {}", name, original.name,
                                original.owner->name),
            .hint = fmt::format("let block {} borrow {}", owner.name, original.name)});
  }
}

}  // namespace troika::nn
