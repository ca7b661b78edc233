#include "troika/cluster/elastic/round_results.h"

#include <algorithm>

namespace troika::cluster {

bool RoundResults::end(int launch, const RoundEnd& how) {
  if (open_.erase(launch) == 0) return false;
  ends_.push_back(how);
  return true;
}

const RoundEnd* RoundResults::first(RoundEnd::Kind kind) const {
  const auto found = std::ranges::find(ends_, kind, &RoundEnd::kind);
  return found == ends_.end() ? nullptr : &*found;
}

const RoundEnd* RoundResults::failure() const {
  const auto* failed = first(RoundEnd::Kind::failed);
  return failed ? failed : first(RoundEnd::Kind::bereaved);
}

bool RoundResults::all_finished() const {
  return ends_.size() == size_ && std::ranges::all_of(ends_, [](const RoundEnd& end) {
           return end.kind == RoundEnd::Kind::finished;
         });
}

}  // namespace troika::cluster
