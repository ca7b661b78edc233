#include "troika/parallel/cross_barrier.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "troika/compat/torch.h"
#include "troika/parallel/block_parameters.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/reducer.h"

namespace troika::parallel {

CrossBarrier::CrossBarrier(const nn::Model& model, Reducer& reducer, BucketSums& sums)
    : model_(model), reducer_(reducer), sums_(sums) {}

void CrossBarrier::begin(std::function<void()> update) {
  // A reducer that leaves sums does not rebuild its buckets any more.
  if (needs_.empty()) {
    std::map<std::string, size_t> buckets;
    for (const auto& slot : reducer_.slots()) buckets.emplace(slot.name, slot.bucket);
    needs_ = buckets_needed(model_, buckets);
  }
  update_ = std::move(update);
  // Gradients come in the reverse of the order in which the next forward pass uses parameters.
  for (size_t i = reducer_.buckets().size(); i-- > 0;) left_.push_back(i);
}

void CrossBarrier::finish() {
  finish_those(std::vector<size_t>(left_));
}

nn::Tensors CrossBarrier::run(const nn::BlockRun& run, nn::Tensors inputs,
                              const nn::InnerBlocks& next) {
  if (!left_.empty()) run.end == needs_.size() ? finish() : finish_those(needs_[run.begin]);
  return next(run, std::move(inputs));
}

void CrossBarrier::finish_those(const std::vector<size_t>& buckets) {
  const auto is_needed = [&](size_t bucket) {
    return std::ranges::find(buckets, bucket) != buckets.end();
  };
  std::ranges::stable_partition(left_, is_needed);
  while (!left_.empty() && is_needed(left_.front())) {
    const auto place = static_cast<ptrdiff_t>(sums_.finish_any(left_));
    const size_t bucket = left_[static_cast<size_t>(place)];
    reducer_.give_mean(bucket);
    update_();
    reducer_.take_mean(bucket);
    left_.erase(left_.begin() + place);
  }
}

}  // namespace troika::parallel
