#include "troika/parallel/shard_states.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "troika/base/error.h"

namespace troika::parallel {

Shard shard_of_state(const std::vector<Shard>& shards, const std::string& state, int64_t dim,
                     int64_t block) {
  const auto name = state.substr(0, state.rfind('.'));
  const auto shard =
      std::find_if(shards.begin(), shards.end(), [&](const Shard& s) { return s.name == name; });
  if (shard == shards.end()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a state is of no parameter that is trained here", .got = state});
  }
  if (dim == 0) return {.name = state, .shape = {}, .offset = 0, .count = shard->count > 0};
  if (block == 1) {
    return {.name = state, .shape = shard->shape, .offset = shard->offset, .count = shard->count};
  }
  const auto blocks = [block](int64_t count) { return (count + block - 1) / block; };
  return {.name = state,
          .shape = {blocks(c10::multiply_integers(shard->shape))},
          .offset = shard->offset / block,
          .count = blocks(shard->count)};
}

}  // namespace troika::parallel
