#include "troika/parallel/block_parameters.h"

#include <algorithm>
#include <map>
#include <set>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

std::vector<std::vector<std::string>> buckets_of_blocks(const nn::Model& model) {
  std::vector<std::vector<std::string>> result;
  for (auto block = model.blocks().rbegin(); block != model.blocks().rend(); ++block) {
    std::map<std::string, std::vector<std::string>> by_type;
    for (const auto& entry : model.owned_state(*block)) {
      if (entry.is_buffer || !entry.tensor.requires_grad()) continue;
      by_type[entry.tensor.device().str() + c10::toString(entry.tensor.scalar_type())].push_back(
          entry.name);
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
      const auto bucket = buckets.find(name);  // none: not trained, so not shared out
      if (bucket != buckets.end()) needed.insert(bucket->second);
    };
    for (const auto& entry : model.owned_state(block)) need(entry.name);
    for (const auto& name : block.borrows) need(name);
    result.emplace_back(needed.begin(), needed.end());
  }
  return result;
}

BlockParameters::BlockParameters(nn::Model& model, const std::vector<Slot>& slots,
                                 ParameterShards& shards)
    : model_(model), shards_(shards) {
  std::map<std::string, size_t> buckets;
  for (const Slot& slot : slots) {
    buckets.emplace(slot.name, slot.bucket);
    bucket_count_ = std::max(bucket_count_, slot.bucket + 1);
  }
  needs_ = buckets_needed(model, buckets);
}

void BlockParameters::attach() {
  const std::weak_ptr<BlockParameters> weak = weak_from_this();
  model_.run_blocks_by([weak](size_t block, const at::Tensor& input) {
    const auto self = weak.lock();
    TROIKA_CHECK(self, "the model's sharding has ended");
    return self->run(block, input);
  });
}

at::Tensor BlockParameters::run(size_t block, const at::Tensor& input) {
  const bool keeps_graph = at::GradMode::is_enabled();
  const auto count = static_cast<int64_t>(needs_.size());
  const auto index = static_cast<int64_t>(block);
  if (keeps_graph) all_ = false;
  if (!all_) enter(block, index + 1 < count ? index + 1 : -1);
  auto output = model_.blocks()[block].forward(input);
  if (keeps_graph && output.requires_grad()) {
    // Called with the gradient of the output, so before the block's own backward, and after that of
    // the block behind it: autograd takes what was made last first, and all of that was.
    output.register_hook([self = weak_from_this(), block, index](const at::Tensor&) {
      if (const auto alive = self.lock()) alive->enter(block, index - 1);
    });
  }
  return output;
}

void BlockParameters::enter(size_t block, int64_t next) {
  const auto& now = needs_[block];
  const auto needed = [&](size_t bucket) {
    const auto in = [bucket](const std::vector<size_t>& list) {
      return std::find(list.begin(), list.end(), bucket) != list.end();
    };
    return in(now) || (next >= 0 && in(needs_[static_cast<size_t>(next)]));
  };
  for (size_t b = 0; b < bucket_count_; ++b) {
    if (shards_.is_releasable(b) && !needed(b)) shards_.release(b);
  }
  for (const size_t b : now) shards_.start_gather(b);
  if (next >= 0) {
    for (const size_t b : needs_[static_cast<size_t>(next)]) shards_.start_gather(b);
  }
  for (const size_t b : now) shards_.wait(b);
}

void BlockParameters::gather_all() {
  for (size_t b = 0; b < bucket_count_; ++b) shards_.start_gather(b);
  for (size_t b = 0; b < bucket_count_; ++b) shards_.wait(b);
  all_ = true;
}

void BlockParameters::release_all() {
  for (size_t b = 0; b < bucket_count_; ++b) {
    if (shards_.is_releasable(b)) shards_.release(b);
  }
  all_ = false;
}

}  // namespace troika::parallel
