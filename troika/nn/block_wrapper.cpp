#include "troika/nn/block_wrapper.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"

namespace troika::nn {

namespace {

// Wrappers from this level on are called block by block.
constexpr auto kBlockLevel = static_cast<size_t>(WrapperKind::gather);

// Returns the names of the tensors that block `index` gives.
const std::vector<std::string>& given_by(const std::vector<Block>& blocks, size_t index,
                                         const BlockRun& run) {
  return run.loss && index + 1 == blocks.size() ? run.loss->gives() : blocks[index].gives;
}

}  // namespace

Tensors InnerBlocks::operator()(const BlockRun& run, Tensors inputs) const {
  TROIKA_CHECK(run.begin < run.end && run.end <= model_->blocks().size(), "no such blocks");
  if (level_ > kBlockLevel) {
    TROIKA_CHECK(run.end == run.begin + 1, "inside of a block there are no others");
    return run_in_block(level_, run, std::move(inputs));
  }
  for (size_t level = level_; level < kBlockLevel; ++level) {
    if (const auto& wrapper = (*wrappers_)[level]) {
      return wrapper->run(run, std::move(inputs), {*model_, wrappers_, level + 1});
    }
  }
  return run_each(run, std::move(inputs));
}

Tensors InnerBlocks::run_each(const BlockRun& run, Tensors&& inputs) const {
  const auto& blocks = model_->blocks();
  if (run.end == run.begin + 1) {
    require_inputs(blocks[run.begin].takes, inputs);
    return run_one(run, std::move(inputs));
  }
  Flow flow(model_->wiring(), run.begin, run.end, std::move(inputs));
  for (size_t i = run.begin; i < run.end; ++i) {
    const BlockRun one{.begin = i, .end = i + 1, .backward_from = i, .loss = run.loss};
    flow.give(i, i + 1, run_one(one, flow.take(i, i + 1)));
  }
  return flow.outputs();
}

Tensors InnerBlocks::run_one(const BlockRun& run, Tensors&& inputs) const {
  const auto& blocks = model_->blocks();
  const DrawsOfBlock draws(run.begin);
  Tensors outputs = run_in_block(kBlockLevel, run, std::move(inputs));
  require_outputs(blocks[run.begin], given_by(blocks, run.begin, run), outputs);
  return outputs;
}

Tensors InnerBlocks::run_in_block(size_t level, const BlockRun& run, Tensors&& inputs) const {
  for (; level < kWrapperKinds; ++level) {
    if (const auto& wrapper = (*wrappers_)[level]) {
      return wrapper->run(run, std::move(inputs), {*model_, wrappers_, level + 1});
    }
  }
  const auto& blocks = model_->blocks();
  const bool is_last = run.end == blocks.size();
  const OutputLayer layer(is_last ? run.loss : nullptr, is_last ? run.output : nullptr);
  return blocks[run.begin].forward(std::move(inputs), layer);
}

WrapperGuard::WrapperGuard(Model& model, std::shared_ptr<BlockWrapper> wrapper)
    : kind_(wrapper->kind()) {
  model.set_wrapper(kind_, std::move(wrapper));
  model_ = &model;
}

WrapperGuard& WrapperGuard::operator=(WrapperGuard&& other) noexcept {
  if (this != &other) {
    reset();
    model_ = std::exchange(other.model_, nullptr);
    kind_ = other.kind_;
  }
  return *this;
}

void WrapperGuard::reset() {
  if (model_) std::exchange(model_, nullptr)->set_wrapper(kind_, nullptr);
}

}  // namespace troika::nn
