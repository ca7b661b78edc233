#include "troika/parallel/pipeline/weight_versions.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

WeightVersions::WeightVersions(std::vector<at::Tensor> parameters, bool stashes)
    : parameters_(std::move(parameters)), stashes_(stashes) {}

WeightVersions::Memory WeightVersions::memory() const {
  Memory result;
  for (const auto& parameter : parameters_) result.push_back(compat::memory_of(parameter));
  return result;
}

void WeightVersions::use(const Memory& memory) const {
  for (size_t i = 0; i < parameters_.size(); ++i) compat::use_memory(parameters_[i], memory[i]);
}

void WeightVersions::drop_before(int64_t version) {
  older_.erase(older_.begin(), older_.lower_bound(version));
}

void WeightVersions::begin_next(bool keeps) {
  if (keeps) {
    auto current = memory();
    Memory next;
    for (const auto& one : current) {
      next.push_back(stashes_ ? compat::copy_of(one) : compat::counted_apart(one));
    }
    use(next);
    older_.emplace(newest_, std::move(current));
  }
  ++newest_;
}

void WeightVersions::restart() {
  older_.clear();
  newest_ = 0;
}

WeightVersions::Using::Using(WeightVersions& versions, int64_t version)
    : versions_(versions), is_older_(version != versions.newest_) {
  if (!is_older_) return;
  const auto found = versions.older_.find(version);
  TROIKA_CHECK(found != versions.older_.end(), "the version of a micro-batch in flight is kept");
  TROIKA_CHECK(versions.aside_.empty(), "one version is used at a time");
  versions.aside_ = versions.memory();
  versions.use(found->second);
}

WeightVersions::Using::~Using() {
  if (is_older_) versions_.use(std::exchange(versions_.aside_, {}));
}

}  // namespace troika::parallel
