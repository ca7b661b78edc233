#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/comm/diagnostics/rendezvous_plane.h"
#include "troika/comm/messages/backend.h"
#include "troika/comm/world/node_map.h"

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

NodeMap find_nodes(const cluster::Environment& environment, cluster::Rendezvous& rendezvous,
                   Deadline deadline) {
  constexpr const char* kNodesKey = "comm/nodes";
  const auto key = [](int rank) { return fmt::format("comm/node/{}", rank); };
  // Host names have no line breaks.
  rendezvous.set(key(environment.rank), fmt::format("{}\n{}", node_identity(environment),
                                                    processors_text(allowed_processors())));
  if (environment.rank == 0) {
    std::vector<RankPlace> places;
    for (int r = 0; r < environment.world_size; ++r) {
      const auto lines = split(rendezvous.get(key(r), deadline), '\n');
      places.push_back({lines.front(), parse_processors(lines.back())});
    }
    rendezvous.set(kNodesKey, map_nodes(places).text());
  }
  return NodeMap::from_text(rendezvous.get(kNodesKey, deadline));
}

}  // namespace

GroupInfo Meeting::group_info(std::string backend) const {
  return {.backend = std::move(backend),
          .rank = environment.rank,
          .size = environment.world_size,
          .nodes = nodes};
}

Meeting hold_meeting(const MeetingPlace& place, Deadline deadline) {
  const auto& environment = place.environment;
  Meeting meeting;
  meeting.environment = environment;
  meeting.rendezvous = cluster::Rendezvous::join(environment, place.secret, deadline);
  auto map = find_nodes(environment, *meeting.rendezvous, deadline);
  meeting.nodes = std::move(map.nodes);
  meeting.is_crowded =
      map.crowded[static_cast<size_t>(meeting.nodes[static_cast<size_t>(environment.rank)])];
  meeting.lifeline =
      std::make_shared<Lifeline>(make_control_plane(meeting.rendezvous), environment.rank);
  return meeting;
}

}  // namespace troika::comm
