#include "troika/parallel/servers/bucket_momentum.h"

#include <cmath>
#include <string>
#include <utility>

#include "troika/compat/torch.h"

namespace troika::parallel {

void BucketMomentum::lay_out(const std::vector<Bucket>& buckets) {
  if (factor_ == 0) return;
  std::map<size_t, at::Tensor> laid;
  bool are_same = true;
  for (const auto& bucket : buckets) {
    for (size_t i = 0; i < bucket.members.size(); ++i) {
      const auto& part = bucket.gradient.parts[i];
      const auto before = momenta_.find(bucket.members[i]);
      are_same = are_same && before != momenta_.end() && before->second.sizes() == part.sizes();
      laid.emplace(bucket.members[i], at::zeros_like(part));
    }
  }
  if (!are_same || laid.size() != momenta_.size()) momenta_ = std::move(laid);
}

void BucketMomentum::clear() const {
  const at::NoGradGuard no_grad;
  for (const auto& [slot, momentum] : momenta_) momentum.zero_();
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
