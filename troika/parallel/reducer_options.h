// The options of a Reducer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/trace.h"
#include "troika/comm/group.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/buckets.h"

namespace troika::parallel {

struct ReducerOptions {
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  bool find_unused_parameters = false;
  bool static_graph = false;
  std::vector<std::string> bucket_order = {};
  // If not empty, the names in each bucket; overrides the sizes and bucket_order.
  std::vector<std::vector<std::string>> buckets = {};
  // Unless `all`, buckets are made only once, and after finish() parameters have no .grad: the mean
  // is in Bucket::own_block.
  Keeps keeps = Keeps::all;
  // See make_buckets(). Not used if `keeps` is `all`.
  int64_t shard_multiple = 1;
  // The ranks that keep the same block in other sharding groups. Blocks are averaged over them as
  // well. Not used if `keeps` is `all`.
  std::optional<comm::Group> copies = {};
  // Averages buckets instead of the group's all-reduce. Only for Keeps::all, and without hook.
  std::shared_ptr<BucketSums> sums = {};
  // finish() does not wait for `sums`, and leaves all parameters without .grad; see
  // Reducer::give_mean(). Not in the first step, after which buckets are rebuilt.
  bool leaves_sums = false;
  Trace* trace = nullptr;
};

}  // namespace troika::parallel
