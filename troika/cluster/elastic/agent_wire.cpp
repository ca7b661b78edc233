#include "troika/cluster/elastic/agent_wire.h"

#include <nlohmann/json.hpp>

namespace troika::cluster {

namespace {

template <typename Read>
auto parsed(const std::string& text, const Read& read)
    -> std::optional<decltype(read(nlohmann::json()))> {
  try {
    return read(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string to_json(const AgentHello& hello) {
  return to_text({{"protocol", hello.protocol},
                  {"host", hello.host},
                  {"pid", hello.pid},
                  {"hosts", hello.hosts},
                  {"options", hello.options}});
}

std::optional<AgentHello> agent_hello_from_json(const std::string& text) {
  return parsed(text, [](const nlohmann::json& json) {
    return AgentHello{json.at("protocol"), json.at("host"), json.at("pid"), json.at("hosts"),
                      json.at("options")};
  });
}

std::string to_json(const RoundEnd& end) {
  return to_text({{"kind", static_cast<int>(end.kind)}, {"code", end.code}});
}

std::optional<RoundEnd> round_end_from_json(const std::string& text) {
  return parsed(text, [](const nlohmann::json& json) {
    return RoundEnd{static_cast<RoundEnd::Kind>(json.at("kind").get<int>()), json.at("code")};
  });
}

std::string to_json(const LaunchPlace& place) {
  return to_text({{"address", place.address},
                  {"port", place.port},
                  {"run_id", place.run_id},
                  {"node_rank", place.node_rank},
                  {"num_nodes", place.num_nodes},
                  {"round", place.round},
                  {"restarts", place.restarts}});
}

std::optional<LaunchPlace> launch_place_from_json(const std::string& text) {
  return parsed(text, [](const nlohmann::json& json) {
    return LaunchPlace{.address = json.at("address"),
                       .port = json.at("port"),
                       .run_id = json.at("run_id"),
                       .node_rank = json.at("node_rank"),
                       .num_nodes = json.at("num_nodes"),
                       .round = json.at("round"),
                       .restarts = json.at("restarts")};
  });
}

}  // namespace troika::cluster
