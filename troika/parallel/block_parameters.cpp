#include "troika/parallel/block_parameters.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

std::vector<std::vector<std::string>> buckets_of_blocks(const nn::Model& model) {
  std::vector<std::vector<std::string>> result;
  for (auto block = model.blocks().rbegin(); block != model.blocks().rend(); ++block) {
    std::map<std::string, std::vector<std::string>> by_type;
    for (const auto& [name, tensor] : nn::Model::owned(*block, nn::trained_parameters(model))) {
      by_type[tensor.device().str() + c10::toString(tensor.scalar_type())].push_back(name);
    }
    for (auto& [type, names] : by_type) result.push_back(std::move(names));
  }
  return result;
}

std::vector<std::vector<size_t>> buckets_needed(const nn::Model& model,
                                                const std::map<std::string, size_t>& buckets) {
  std::vector<std::vector<size_t>> result;
  for (const nn::Block& block : model.blocks()) {
    std::set<size_t> needed;
    const auto need = [&](const std::string& name) {
      const auto bucket = buckets.find(name);  // none: not trained, so not sharded
      if (bucket != buckets.end()) needed.insert(bucket->second);
    };
    for (const auto& [name, tensor] : model.owned_state(block)) need(name);
    for (const auto& name : block.borrows) need(name);
    result.emplace_back(needed.begin(), needed.end());
  }
  return result;
}

BlockOrder::BlockOrder(size_t blocks) : backward_from_(blocks) {
  std::iota(backward_from_.begin(), backward_from_.end(), 0);
}

BlockOrder::Stop BlockOrder::run(const nn::BlockRun& run) {
  const size_t after = run.begin + 1;
  if (run.again_until == 0) backward_from_[run.begin] = run.backward_from;
  const size_t end = run.again_until == 0 ? backward_from_.size() : run.again_until;
  if (after < end) return {run.begin, static_cast<int64_t>(after)};
  return {run.begin, run.again_until == 0 ? -1 : before(run.begin)};
}

BlockOrder::Stop BlockOrder::backward(size_t block) const {
  const size_t first = backward_from_[block];
  if (first < block) return {first, static_cast<int64_t>(first) + 1};
  return {block, before(block)};
}

int64_t BlockOrder::before(size_t block) const {
  return block == 0 ? -1 : static_cast<int64_t>(backward_from_[block - 1]);
}

BlockParameters::BlockParameters(const nn::Model& model, const std::vector<GradientSlot>& slots,
                                 ParameterShards& shards)
    : shards_(&shards), order_(model.blocks().size()) {
  std::map<std::string, size_t> buckets;
  for (const GradientSlot& slot : slots) {
    buckets.emplace(slot.name, slot.bucket);
    bucket_count_ = std::max(bucket_count_, slot.bucket + 1);
  }
  needs_ = buckets_needed(model, buckets);
}

nn::Tensors BlockParameters::run(const nn::BlockRun& run, nn::Tensors inputs,
                                 const nn::InnerBlocks& next) {
  TROIKA_CHECK(shards_, "the model's sharding has ended");
  const bool keeps_graph = at::GradMode::is_enabled();
  if (keeps_graph) all_ = false;
  const auto stop = order_.run(run);
  if (!all_) enter(stop);
  auto outputs = next(run, std::move(inputs));
  for (const auto& output : outputs) {
    if (!keeps_graph || !output.requires_grad()) continue;
    // Called with the gradient of the output: before the block's own backward pass, and after that
    // of the following block. Autograd runs the node that was created last first, and the following
    // block's nodes were created after this block's.
    output.register_hook([self = weak_from_this(), block = run.begin](const at::Tensor&) {
      const auto alive = self.lock();
      if (alive && alive->shards_) alive->enter(alive->order_.backward(block));
    });
  }
  return outputs;
}

void BlockParameters::enter(const BlockOrder::Stop& stop) {
  const auto& now = needs_[stop.block];
  const int64_t next = stop.next;
  const auto needed = [&](size_t bucket) {
    const auto in = [bucket](const std::vector<size_t>& list) {
      return std::find(list.begin(), list.end(), bucket) != list.end();
    };
    return in(now) || (next >= 0 && in(needs_[static_cast<size_t>(next)]));
  };
  for (size_t b = 0; b < bucket_count_; ++b) {
    if (shards_->is_releasable(b) && !needed(b)) shards_->release(b);
  }
  for (const size_t b : now) shards_->start_gather(b);
  if (next >= 0) {
    for (const size_t b : needs_[static_cast<size_t>(next)]) shards_->start_gather(b);
  }
  for (const size_t b : now) shards_->wait(b);
}

void BlockParameters::gather_all() {
  shards_->gather_all();
  all_ = true;
}

void BlockParameters::release_all() {
  shards_->release_all();
  all_ = false;
}

}  // namespace troika::parallel
