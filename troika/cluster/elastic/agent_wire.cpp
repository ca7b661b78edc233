#include "troika/cluster/elastic/agent_wire.h"

#include <nlohmann/json.hpp>

namespace troika::cluster {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AgentHello, protocol, host, pid, hosts, options)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RoundEnd, kind, code)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchPlace, address, port, run_id, node_rank, num_nodes, round,
                                   restarts)

namespace {

template <typename T>
std::optional<T> parsed(const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<T>();
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string to_json(const AgentHello& hello) {
  return to_text(nlohmann::json(hello));
}

std::optional<AgentHello> agent_hello_from_json(const std::string& text) {
  return parsed<AgentHello>(text);
}

std::string to_json(const RoundEnd& end) {
  return to_text(nlohmann::json(end));
}

std::optional<RoundEnd> round_end_from_json(const std::string& text) {
  return parsed<RoundEnd>(text);
}

std::string to_json(const LaunchPlace& place) {
  return to_text(nlohmann::json(place));
}

std::optional<LaunchPlace> launch_place_from_json(const std::string& text) {
  return parsed<LaunchPlace>(text);
}

}  // namespace troika::cluster
