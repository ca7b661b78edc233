// Messages between the launches of an elastic run: JSON in the frames of wire.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/cluster/ranks/rank_environment.h"
#include "troika/cluster/rendezvous/wire.h"

namespace troika::cluster {

// Sent by a launch that joins.
struct AgentHello {
  int protocol = kProtocolVersion;
  std::string host = {};
  int64_t pid = 0;
  bool hosts = false;  // this launch runs the server
  // Options that must be equal on all launches of a run, as written on the command line.
  std::vector<std::pair<std::string, std::string>> options = {};
};
std::string to_json(const AgentHello& hello);
std::optional<AgentHello> agent_hello_from_json(const std::string& text);

// How the ranks of one launch ended a round.
struct RoundEnd {
  enum class Kind : int {
    finished,  // all succeeded
    saved,     // some saved on request (ExitStatus::saved), the others succeeded
    stopped,   // stopped by their launch
    bereaved,  // failed only because ranks of other launches failed
    failed,    // a rank failed by itself
  };
  Kind kind = Kind::finished;
  int code = 0;  // the exit code that the launch would have alone
};
std::string to_json(const RoundEnd& end);
std::optional<RoundEnd> round_end_from_json(const std::string& text);

std::string to_json(const LaunchPlace& place);
std::optional<LaunchPlace> launch_place_from_json(const std::string& text);

}  // namespace troika::cluster
