#include "troika/parallel/servers/bucket_momentum.h"

#include <cmath>
#include <utility>

#include "troika/compat/torch.h"

namespace troika::parallel {

void BucketMomentum::lay_out(const std::vector<Bucket>& buckets) {
  if (factor_ == 0) return;
  auto before = std::exchange(momenta_, {});
  for (const auto& bucket : buckets) {
    for (size_t i = 0; i < bucket.gradient.names.size(); ++i) {
      const auto& part = bucket.gradient.parts[i];
      const auto known = before.find(bucket.gradient.names[i]);
      const bool stays = known != before.end() && known->second.sizes() == part.sizes();
      momenta_.emplace(bucket.gradient.names[i], stays ? known->second : at::zeros_like(part));
    }
  }
}

void BucketMomentum::clear() const {
  const at::NoGradGuard no_grad;
  for (const auto& [name, momentum] : momenta_) momentum.zero_();
}

void BucketMomentum::apply(const Bucket& bucket) const {
  if (factor_ == 0) return;
  const at::NoGradGuard no_grad;
  if (!std::isfinite(bucket.gradient.flat.sum().item<double>())) return;
  for (size_t i = 0; i < bucket.gradient.names.size(); ++i) {
    const auto& gradient = bucket.gradient.parts[i];
    const auto& momentum = momenta_.at(bucket.gradient.names[i]);
    momentum.mul_(factor_).add_(gradient);
    gradient.add_(momentum, factor_);
  }
}

void BucketMomentum::take(std::map<std::string, at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  for (const auto& [name, momentum] : momenta_) {
    const auto found = tensors.find(std::string(kMomentum) + name);
    if (found == tensors.end() || found->second.sizes() != momentum.sizes()) continue;
    momentum.copy_(found->second);
    tensors.erase(found);
  }
}

state::StateDict BucketMomentum::tensors() const {
  state::StateDict result;
  for (const auto& [name, momentum] : momenta_) {
    result.emplace_back(std::string(kMomentum) + name, momentum);
  }
  return result;
}

}  // namespace troika::parallel
