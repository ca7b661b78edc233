// One rank of bench/slow_link: all-reduces of 16 MiB of float32 over a link of known bandwidth,
// against the least time such a link allows a ring, 2(n-1)/n S / bandwidth on n hosts of one rank
// or, hierarchically, of several (Patarasuk and Yuan, JPDC 69(2), 2009).
//
// slow_link_rank BACKEND ALGORITHM BITS_PER_SECOND, with the variables of torchrun. Rank 0 prints
// one JSON object. `calls` counts warm-up calls too: they cross the link like the others.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/world/world.h"

namespace {

using troika::comm::Group;

constexpr int64_t kBytes = int64_t{16} << 20;
constexpr int64_t kElements = kBytes / static_cast<int64_t>(sizeof(float));
constexpr int kWarmUpCalls = 2;
constexpr int kTimedCalls = 5;

struct Result {
  std::vector<double> seconds;  // of each timed call, on the rank where it took longest
  uint64_t bytes = 0;           // that this rank sent to other hosts in one call
};

// Returns the values of a rank: whole numbers, because their sums are exact in any order.
at::Tensor contribution(int rank) {
  constexpr int64_t kPeriod = 1021;  // no divisor of a block
  return at::arange(kElements, at::kLong).remainder(kPeriod).add(rank).to(at::kFloat);
}

void check(const at::Tensor& sum, int ranks) {
  const auto expected = contribution(0) * ranks + ranks * (ranks - 1) / 2;
  if (at::equal(sum, expected)) return;
  const auto wrong = (sum != expected).sum().item<int64_t>();
  throw troika::Error("bench", troika::ErrorKind::failure,
                      {.what = "the all-reduce gave wrong sums",
                       .got = std::to_string(wrong) + " wrong elements",
                       .expected = "none"});
}

Result measure(const Group& group, troika::comm::Algorithm algorithm) {
  Result result;
  const auto tensor = group.allocate({kElements}, at::kFloat);
  const auto mine = contribution(group.rank());
  const auto timed = at::zeros({kTimedCalls}, at::kDouble);
  for (int call = -kWarmUpCalls; call < kTimedCalls; ++call) {
    tensor.copy_(mine);
    group.barrier();
    const auto before = group.counters().bytes_between_nodes;
    const troika::Stopwatch watch;
    group.all_reduce(tensor, troika::comm::ReduceOp::sum, {.algorithm = algorithm});
    if (call >= 0) timed[call] = watch.seconds();
    const auto bytes = group.counters().bytes_between_nodes - before;
    if (call > -kWarmUpCalls && bytes != result.bytes) {
      throw troika::Error("bench", troika::ErrorKind::failure,
                          {.what = "equal calls sent different numbers of bytes",
                           .got = std::to_string(bytes),
                           .expected = std::to_string(result.bytes)});
    }
    result.bytes = bytes;
    check(tensor, group.size());
  }
  group.all_reduce(timed, troika::comm::ReduceOp::max);
  result.seconds.assign(timed.data_ptr<double>(), timed.data_ptr<double>() + kTimedCalls);
  return result;
}

// Returns the sum over each host's ranks.
std::vector<int64_t> by_host(const Group& group, uint64_t bytes, int hosts) {
  const auto sums = at::zeros({hosts}, at::kLong);
  sums[group.nodes()[static_cast<size_t>(group.rank())]] = static_cast<int64_t>(bytes);
  group.all_reduce(sums);
  return {sums.data_ptr<int64_t>(), sums.data_ptr<int64_t>() + hosts};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) try {
  const auto bandwidth = argc == 4 ? troika::parse_double(argv[3]) : std::nullopt;
  if (!bandwidth || *bandwidth <= 0) {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "cannot read the arguments",
                         .got = std::to_string(argc - 1) + " words",
                         .expected = "BACKEND ALGORITHM BITS_PER_SECOND"});
  }
  const auto algorithm = troika::comm::algorithm_from(argv[2]);
  const Group group = troika::comm::world({.backend = argv[1]});
  const auto result = measure(group, algorithm);
  const int hosts = static_cast<int>(std::set(group.nodes().begin(), group.nodes().end()).size());
  const auto sent = by_host(group, result.bytes, hosts);
  if (group.rank() != 0) return 0;

  const int64_t formula = 2 * (hosts - 1) * kBytes / hosts;
  const double bound = static_cast<double>(formula) * 8 / *bandwidth;
  const double seconds = median(result.seconds);
  std::cout << nlohmann::json{{"hosts", hosts},
                              {"ranks", group.size()},
                              {"backend", group.backend()},
                              {"algorithm", troika::comm::name(algorithm)},
                              {"tensor_bytes", kBytes},
                              {"bits_per_second", *bandwidth},
                              {"calls", kWarmUpCalls + kTimedCalls},
                              {"seconds", seconds},
                              {"all_seconds", result.seconds},
                              {"bound_seconds", bound},
                              {"ratio", bound / seconds},
                              {"sent_bytes_by_host", sent},
                              {"formula_bytes", formula}}
                   .dump(2)
            << std::endl;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return troika::exit_code(error);
}
