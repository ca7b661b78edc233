// One process of the script byteps: averages of 16 MiB of float32 by an all-reduce of the group and
// by summation servers, in turns.
//
// byteps_rank PARTITION_BYTES CREDIT_BYTES CALLS, with the variables of torchrun, and those of
// roles where spare machines have servers. Rank 0 prints one JSON object.
#include <ATen/ATen.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/world/world.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/summation.h"

namespace {

using troika::comm::Group;

constexpr int64_t kElements = (int64_t{16} << 20) / static_cast<int64_t>(sizeof(float));

// Returns the values of a rank: whole numbers, because their means over 2 and 4 ranks are exact.
at::Tensor contribution(int rank) {
  constexpr int64_t kPeriod = 1021;  // no divisor of a partition
  return at::arange(kElements, at::kLong).remainder(kPeriod).add(rank).to(at::kFloat);
}

void check(const at::Tensor& mean, int ranks) {
  if (at::allclose(mean, contribution(0) + (ranks - 1) / 2.0)) return;
  throw troika::Error("bench", troika::ErrorKind::failure, {.what = "wrong means"});
}

int64_t argument(int argc, char** argv, int index) {
  const auto value = index < argc ? troika::parse_int(argv[index]) : std::nullopt;
  if (value && *value >= 0) return *value;
  throw troika::Error("bench", troika::ErrorKind::usage,
                      {.what = "cannot read the arguments",
                       .got = std::to_string(argc - 1) + " words",
                       .expected = "PARTITION_BYTES CREDIT_BYTES CALLS"});
}

}  // namespace

int main(int argc, char** argv) try {
  const troika::layout::SummationExchange sums{.partition_bytes = argument(argc, argv, 1),
                                               .credit_bytes = argument(argc, argv, 2)};
  const int64_t calls = argument(argc, argv, 3);
  const auto role = troika::parallel::launched_role();
  const bool is_launched = role.role != troika::server::WorldRole::alone;
  troika::layout::ServerExchange servers{.count = is_launched ? role.servers : 0};
  if (is_launched && role.role != troika::server::WorldRole::worker) {
    auto own = role;
    own.protection = troika::net::Protection::none;
    troika::parallel::serve(own, servers, /*sums=*/true);
    return 0;
  }
  const Group group = troika::comm::world({.backend = "tcp"});
  troika::parallel::SummationServers service(group, {.servers = servers, .sums = sums});
  std::vector<troika::parallel::Bucket> buckets(1);
  const auto& flat = buckets[0].gradient.flat = at::empty({kElements}, at::kFloat);
  service.lay_out(buckets);
  const auto mine = contribution(group.rank());
  const auto timed = at::zeros({2, calls}, at::kDouble);
  for (int64_t call = -1; call < calls; ++call) {
    for (int way = 0; way < 2; ++way) {
      flat.copy_(mine);
      group.barrier();
      const troika::Stopwatch watch;
      if (way == 0) {
        group.all_reduce(flat, troika::comm::ReduceOp::average);
      } else {
        service.start(buckets[0]);
        service.finish();
      }
      if (call >= 0) timed[way][call] = watch.seconds();
      check(flat, group.size());
    }
  }
  group.all_reduce(timed, troika::comm::ReduceOp::max);
  if (group.rank() != 0) return 0;
  const auto list = [&](int way) {
    const auto* const begin = timed[way].data_ptr<double>();
    return std::vector<double>(begin, begin + calls);
  };
  std::cout << nlohmann::json{{"bytes", kElements * static_cast<int64_t>(sizeof(float))},
                              {"all_reduce", list(0)},
                              {"summation", list(1)}}
            << std::endl;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return troika::exit_code(error);
}
