#include "troika/train/loop/own_order.h"

#include <utility>

#include "troika/compat/torch.h"
#include "troika/data/sampler.h"

namespace troika::train {

OwnOrder::OwnOrder(const data::Dataset& training, int64_t batch, uint64_t seed,
                   const data::LoaderOptions& options)
    : training_(training), batch_(batch), seed_(seed), options_(options), loader_(begin(0)) {}

std::unique_ptr<data::Loader> OwnOrder::begin(int64_t pass) const {
  const data::Sampler sampler({.size = training_.size(), .global_batch = batch_, .seed = seed_});
  return std::make_unique<data::Loader>(training_, sampler.batches({.epoch = pass, .position = 0}),
                                        sampler.augmentation_seed(pass), options_);
}

data::Batch OwnOrder::next() {
  auto batch = loader_->next();
  if (!batch) {
    loader_ = begin(++pass_);
    batch = loader_->next();
  }
  return std::move(*batch);
}

}  // namespace troika::train
