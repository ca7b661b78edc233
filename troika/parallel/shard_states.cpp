#include "troika/parallel/shard_states.h"

#include <algorithm>

#include "troika/base/error.h"

namespace troika::parallel {

Shard shard_of_state(const std::vector<Shard>& shards, const std::string& state, int64_t dim) {
  const auto name = state.substr(0, state.rfind('.'));
  const auto shard =
      std::find_if(shards.begin(), shards.end(), [&](const Shard& s) { return s.name == name; });
  if (shard == shards.end()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a state is of no parameter that is trained here", .got = state});
  }
  if (dim == 0) return {.name = state, .shape = {}, .offset = 0, .count = shard->count > 0};
  return {.name = state, .shape = shard->shape, .offset = shard->offset, .count = shard->count};
}

}  // namespace troika::parallel
