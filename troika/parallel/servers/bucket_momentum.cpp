#include "troika/parallel/servers/bucket_momentum.h"

#include <cmath>
#include <string>

#include "troika/compat/torch.h"

namespace troika::parallel {

void BucketMomentum::lay_out(const std::vector<Bucket>& buckets) {
  if (factor_ == 0) return;
  for (const auto& bucket : buckets) {
    for (size_t i = 0; i < bucket.members.size(); ++i) {
      auto& momentum = momenta_[bucket.members[i]];
      if (!momentum.defined()) momentum = at::zeros_like(bucket.gradient.parts[i]);
    }
  }
}

void BucketMomentum::apply(const Bucket& bucket) const {
  if (factor_ == 0) return;
  const at::NoGradGuard no_grad;
  if (!std::isfinite(bucket.gradient.flat.sum().item<double>())) return;
  for (size_t i = 0; i < bucket.members.size(); ++i) {
    const auto& gradient = bucket.gradient.parts[i];
    const auto& momentum = momenta_.at(bucket.members[i]);
    momentum.mul_(factor_).add_(gradient);
    gradient.add_(momentum, factor_);
  }
}

state::StateDict BucketMomentum::tensors() const {
  state::StateDict result;
  for (const auto& [slot, momentum] : momenta_) {
    result.emplace_back("momentum" + std::to_string(slot), momentum);
  }
  return result;
}

}  // namespace troika::parallel
