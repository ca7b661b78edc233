// Momentum of gradients before they are encoded for summation servers (the momentum of BytePS's
// compressors: Zheng et al., NeurIPS 2019, arXiv 1905.10936). Internal to the folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "troika/parallel/buckets.h"
#include "troika/state/state_dict.h"

namespace troika::parallel {

// Precedes the name of a parameter in BucketMomentum::tensors().
inline constexpr std::string_view kMomentum = "momentum.";

// Replaces a gradient g by g + factor m, with m = factor m + g. That is the update of SGD with
// Nesterov momentum, whose mean over ranks is that of the mean gradient. A bucket with values that
// are not finite stays as it is, and so does its momentum. Without a factor it does nothing.
class BucketMomentum {
 public:
  explicit BucketMomentum(double factor) : factor_(factor) {}

  // Takes note of the parameters of these buckets. A parameter of a name and shape that it knew
  // keeps its momentum; the others begin without, and those that are gone lose theirs.
  void lay_out(const std::vector<Bucket>& buckets);
  void apply(const Bucket& bucket) const;
  // Forgets what came before.
  void clear() const;
  // Moves the tensors of tensors() whose names and shapes are those of parameters to these. The
  // others keep what they have.
  void take(std::map<std::string, at::Tensor>& tensors) const;
  // Returns the momentum itself, of parameter NAME as "momentum.NAME".
  state::StateDict tensors() const;

 private:
  const double factor_;
  std::map<std::string, at::Tensor> momenta_;  // by name of parameter
};

}  // namespace troika::parallel
