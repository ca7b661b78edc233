#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/comm/diagnostics/rendezvous_plane.h"
#include "troika/comm/messages/backend.h"

namespace troika::comm {

namespace {

// Equal on ranks that share a machine's memory: host name, boot id, and the launcher's node rank.
std::string node_identity(const cluster::Environment& environment) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string boot;
  try {
    boot = trim(read_file("/proc/sys/kernel/random/boot_id"));
  } catch (const Error&) {
  }
  return fmt::format("{}/{}/{}", host.data(), boot, environment.node_rank);
}

std::vector<int> find_nodes(const cluster::Environment& environment,
                            cluster::Rendezvous& rendezvous, Deadline deadline) {
  constexpr const char* kNodesKey = "comm/nodes";
  const auto key = [](int rank) { return fmt::format("comm/node/{}", rank); };
  rendezvous.set(key(environment.rank), node_identity(environment));
  if (environment.rank == 0) {
    std::vector<std::string> seen;
    std::string numbers;
    for (int r = 0; r < environment.world_size; ++r) {
      const auto identity = rendezvous.get(key(r), deadline);
      const auto known = std::ranges::find(seen, identity);
      numbers += fmt::format("{}{}", r == 0 ? "" : ",", known - seen.begin());
      if (known == seen.end()) seen.push_back(identity);
    }
    rendezvous.set(kNodesKey, numbers);
  }
  std::vector<int> nodes;
  for (const auto& number : split(rendezvous.get(kNodesKey, deadline), ',')) {
    nodes.push_back(std::stoi(number));
  }
  return nodes;
}

}  // namespace

Station Meeting::station(std::string backend) const {
  return {.backend = std::move(backend),
          .rank = environment.rank,
          .size = environment.world_size,
          .nodes = nodes};
}

Meeting meet(const MeetingPlace& place, Deadline deadline) {
  const auto& environment = place.environment;
  Meeting meeting;
  meeting.environment = environment;
  meeting.rendezvous = cluster::Rendezvous::join(environment, place.secret, deadline);
  meeting.nodes = find_nodes(environment, *meeting.rendezvous, deadline);
  meeting.lifeline = std::make_shared<Lifeline>(make_control_plane(meeting.rendezvous),
                                                environment.rank, environment.world_size);
  return meeting;
}

}  // namespace troika::comm
