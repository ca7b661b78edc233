// Momentum of gradients before they are encoded for summation servers (the momentum of BytePS's
// compressors: Zheng et al., NeurIPS 2019, arXiv 1905.10936). Internal to the folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "troika/parallel/buckets.h"
#include "troika/state/state_dict.h"

namespace troika::parallel {

// Replaces a gradient g by g + factor m, with m = factor m + g. That is the update of SGD with
// Nesterov momentum, whose mean over ranks is that of the mean gradient. Parameters keep their
// momentum when buckets are laid out anew; if their number or shapes have changed, all of them
// begin anew. A bucket with values that are not finite stays as it is, and so does its momentum.
// Without a factor it does nothing.
class BucketMomentum {
 public:
  explicit BucketMomentum(double factor) : factor_(factor) {}

  // Takes note of the parameters of these buckets.
  void lay_out(const std::vector<Bucket>& buckets);
  void apply(const Bucket& bucket) const;
  // Forgets what came before.
  void clear() const;
  // Returns the momentum itself, of parameter P as "momentumP".
  state::StateDict tensors() const;

 private:
  const double factor_;
  std::map<size_t, at::Tensor> momenta_;  // by index of slot
};

}  // namespace troika::parallel
