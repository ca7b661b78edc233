// Messages between the launches of an elastic run, as JSON in the frames of wire.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/cluster/rank_environment.h"
#include "troika/cluster/wire.h"

namespace troika::cluster {

// A launch that joins.
struct AgentHello {
  int protocol = kProtocolVersion;
  std::string host = {};
  int64_t pid = 0;
  bool hosts = false;  // the server is its own
  // All launches of a run must agree on these, as written on the command line.
  std::vector<std::pair<std::string, std::string>> options = {};
};
std::string to_json(const AgentHello& hello);
std::optional<AgentHello> agent_hello_from_json(const std::string& text);

// How the ranks of one launch ended a round.
struct RoundEnd {
  enum class Kind : int {
    finished,  // all succeeded
    saved,     // on request (ExitStatus::saved), or succeeded
    stopped,   // by their launch
    bereaved,  // they report the failure of ranks elsewhere
    failed,    // one did by itself
  };
  Kind kind = Kind::finished;
  int code = 0;  // exit code of the launch, were it alone
};
std::string to_json(const RoundEnd& end);
std::optional<RoundEnd> round_end_from_json(const std::string& text);

std::string to_json(const LaunchPlace& place);
std::optional<LaunchPlace> launch_place_from_json(const std::string& text);

}  // namespace troika::cluster
