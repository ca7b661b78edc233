// The training samples of a peer of a swarm, in an order of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "troika/data/dataset.h"
#include "troika/data/loader.h"

namespace troika::train {

// Passes over a data set without end. The samples of pass p are permutation(size, mix(seed, p)), in
// batches of equal size; those that fill no batch at the end of a pass are left out of it.
class OwnOrder {
 public:
  // `training` must outlive it and have at least `batch` samples.
  OwnOrder(const data::Dataset& training, int64_t batch, uint64_t seed,
           const data::LoaderOptions& options);

  // Returns the next batch. Blocks while it is loaded, and throws the errors of Loader::next().
  data::Batch next();

 private:
  std::unique_ptr<data::Loader> begin(int64_t pass) const;

  const data::Dataset& training_;
  const int64_t batch_;
  const uint64_t seed_;
  const data::LoaderOptions options_;
  int64_t pass_ = 0;
  std::unique_ptr<data::Loader> loader_;
};

}  // namespace troika::train
