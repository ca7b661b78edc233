#include "troika/parallel/shard_states.h"

#include <c10/util/accumulate.h>

#include <algorithm>

#include "troika/base/error.h"

namespace troika::parallel {

layout::Box shard_of_state(const std::vector<layout::Box>& shards, const std::string& state,
                           int64_t dim, int64_t block) {
  const auto name = state.substr(0, state.rfind('.'));
  const auto shard = std::ranges::find(shards, name, &layout::Box::name);
  if (shard == shards.end()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a state is of no parameter that is trained here", .got = state});
  }
  if (dim == 0) return layout::Box::range(state, {}, {0, shard->count() > 0});
  if (block == 1) {
    auto result = *shard;
    result.name = state;
    return result;
  }
  const auto blocks = [block](int64_t count) { return (count + block - 1) / block; };
  const int64_t begin = shard->flat->begin / block;
  return layout::Box::range(state, {blocks(c10::multiply_integers(shard->shape))},
                            {begin, begin + blocks(shard->count())});
}

}  // namespace troika::parallel
