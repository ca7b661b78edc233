#include "troika/train/profile/searched_servers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "troika/base/error.h"
#include "troika/nn/precision.h"
#include "troika/train/options/resolve_plan.h"

namespace troika::train {

int64_t servers_of(const layout::Plan& plan) {
  const bool is_summation = plan.exchange.method == layout::ExchangeMethod::summation;
  return is_summation ? plan.exchange.servers.count : 0;
}

layout::Cluster searched_cluster(const layout::Plan& configured, const comm::Group& group,
                                 const std::optional<layout::Cluster>& described) {
  const int64_t servers = servers_of(configured);
  if (!described) {
    auto cluster = cluster_of(group);
    for (int64_t i = 0; i < servers; ++i) cluster.spares.push_back(fmt::format("server-{}", i));
    return cluster;
  }
  const auto require = [](bool holds, const char* what, int64_t got, const std::string& expected) {
    if (holds) return;
    throw Error("train", ErrorKind::usage,
                {.what = what, .got = std::to_string(got), .expected = expected});
  };
  const int ranks = cluster_of(group).ranks();
  require(described->ranks() == ranks, "devices of --cluster", described->ranks(),
          fmt::format("{}, the ranks of the run", ranks));
  const auto spares = static_cast<int64_t>(described->spares.size());
  require(servers == 0 || spares == servers, "spare hosts of --cluster", spares,
          fmt::format("{}, the servers that were launched", servers));
  return *described;
}

std::vector<bool> profiles_for_sums(const plan::StepProblem& problem, c10::DeviceType device,
                                    bool needs_servers) {
  const auto& cluster = problem.cluster;
  const auto has_own = [&](const std::string& host) {
    return cluster.network_of(host).bandwidth > 0;
  };
  const bool has_link =
      problem.profiles.front().network.link.bandwidth > 0 ||
      (std::ranges::all_of(cluster.hosts, has_own) && std::ranges::all_of(cluster.spares, has_own));
  if (!cluster.spares.empty() && !has_link) {
    throw Error("train", ErrorKind::usage,
                {.what = "the links of machines with servers",
                 .got = "one machine, on which none was measured",
                 .expected = "a bandwidth",
                 .hint = "--cluster FILE describes them: docs/plan.md#cluster"});
  }
  std::vector<bool> can_sum;
  for (const auto& profile : problem.profiles) {
    can_sum.push_back(device == c10::DeviceType::CPU &&
                      !nn::parse_precision(profile.precision).needs_masters());
  }
  if (!needs_servers || std::ranges::count(can_sum, true) > 0) return can_sum;
  throw Error("train", ErrorKind::usage,
              {.what = "gradients that summation servers average",
               .got = "precision " + problem.profiles.front().precision,
               .expected = "gradients of 32 or 64 bits on the CPU"});
}

}  // namespace troika::train
