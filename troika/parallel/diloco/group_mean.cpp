#include "troika/parallel/diloco/group_mean.h"

#include <utility>

#include "troika/compat/torch.h"

namespace troika::parallel {

GroupMean::GroupMean(comm::Group group, const std::string& codec, bool beside)
    : group_(std::move(group)),
      codec_(comm::make_codec({.name = codec, .error_feedback = false})),
      exact_(comm::make_codec({.name = "none"})) {
  if (!beside) return;
  beside_ = std::make_unique<HookThread>(
      *group_.split(0),
      [this](const comm::Group& own, const comm::GradientBucket& bucket) { average(own, bucket); });
}

void GroupMean::average(const comm::Group& group, const comm::GradientBucket& bucket) const {
  const at::NoGradGuard no_grad;
  const bool is_coded = bucket.index < static_cast<int64_t>(coded_);
  (is_coded ? codec_ : exact_)->average(group, bucket);
}

void GroupMean::start(const std::vector<at::Tensor>& changes,
                      const std::vector<at::Tensor>& buffers) {
  packed_.clear();
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    for (auto& packed : pack_alike(tensors)) {
      const auto index = static_cast<int64_t>(packed_.size());
      const auto flat = packed.flat;
      packed_.push_back({std::move(packed), {.index = index, .flat = flat, .parts = {flat}}});
    }
  };
  add(changes);
  coded_ = packed_.size();
  add(buffers);
  if (!beside_) return;
  for (const auto& packed : packed_) beside_->submit(packed.bucket);
}

void GroupMean::wait() {
  if (packed_.empty()) return;
  if (beside_) {
    beside_->wait();
  } else {
    for (const auto& packed : packed_) average(group_, packed.bucket);
  }
  for (const auto& packed : packed_) packed.tensors.unpack();
  packed_.clear();
}

}  // namespace troika::parallel
