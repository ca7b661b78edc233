#include "troika/parallel/bucket_sums.h"

#include <algorithm>
#include <iterator>

#include "troika/base/log.h"

namespace troika::parallel {

state::StateDict without_sums(const state::StateDict& state) {
  state::StateDict rest;
  std::ranges::copy_if(state, std::back_inserter(rest), [](const state::Entry& entry) {
    return !entry.first.starts_with(kStateOfSums);
  });
  if (rest.size() < state.size()) {
    log::warn(
        "[parallel] what codecs had left out of gradients is dropped: this run has no summation "
        "servers");
  }
  return rest;
}

}  // namespace troika::parallel
