#include "troika/cli/elastic_batch.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/layout/cluster.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::cli {

namespace {

// Larger common multiples are treated as not existing.
constexpr int64_t kLargestBatch = 1'000'000'000;

// Into how many shares a batch is divided on that many machines of `ranks` ranks each.
int64_t shares_on(int64_t machines, int64_t ranks, const train::TrainOptions& options) {
  const auto cluster =
      layout::Cluster::uniform(static_cast<int>(machines), static_cast<int>(ranks));
  return train::resolve_plan(options, cluster).mesh.sample_shares();
}

// The smallest batch divisible into each of these numbers of shares; 0 if it is too large.
int64_t common_batch(const std::vector<int64_t>& shares) {
  int64_t batch = 1;
  for (const int64_t count : shares) {
    batch = std::lcm(batch, count);
    if (batch > kLargestBatch) return 0;
  }
  return batch;
}

}  // namespace

void require_elastic_batch(const train::TrainOptions& options,
                           const cluster::Environment& environment,
                           const cluster::Variables& variables) {
  const auto range = split(variables("TROIKA_NNODES").value_or(""), ':');
  const auto min = parse_int(range.front()), max = parse_int(range.back());
  if (range.size() != 2 || !min || !max || *min == *max) return;
  const int64_t batch = options.data.global_batch_size;
  std::string uneven;
  std::vector<int64_t> shares;
  for (int64_t machines = *min; machines <= *max; ++machines) {
    shares.push_back(shares_on(machines, environment.local_world_size, options));
    if (batch % shares.back() == 0) continue;
    uneven += fmt::format("{}{}", uneven.empty() ? "" : ", ", machines);
  }
  if (batch > 0 && uneven.empty()) return;
  const int64_t common = common_batch(shares);
  throw Error(
      "train", ErrorKind::usage,
      {.what = "the global batch must stay the same when machines come and go",
       .got = batch == 0 ? fmt::format("data.batch_size = {} on each of a changing number of ranks",
                                       options.data.batch_size)
                         : fmt::format("data.global_batch_size = {}, which does not divide among "
                                       "the replicas on {} machines",
                                       batch, uneven),
       .expected = common > 0 ? fmt::format("data.global_batch_size, a multiple of {}", common)
                              : fmt::format("a smaller range than --nnodes {}:{}", *min, *max),
       .hint = fmt::format("--nnodes {}:{} with {} ranks each", *min, *max,
                           environment.local_world_size)});
}

}  // namespace troika::cli
