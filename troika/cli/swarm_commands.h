// The commands of `troika swarm` that do not train.
#pragma once

#include <string>
#include <vector>

namespace troika::cli {

struct AuthorityArguments {
  std::string run = "swarm";
  std::string key;   // file of its secret key
  std::string list;  // file of the peers that it admits
  std::string listen = "127.0.0.1:0";
  double lifetime_seconds = 3600;  // of tokens
};
// Gives tokens until SIGINT or SIGTERM, and returns the exit code. Reads the list again when it has
// changed.
int run_authority(const AuthorityArguments& arguments);

struct MonitorArguments {
  std::string run = "swarm";
  std::vector<std::string> peers;  // HOST:PORT; the first that answers
  bool once = false;
  bool json = false;
  double timeout_seconds = 10;
};
// Shows the peers of a swarm, once or until SIGINT or SIGTERM, and returns the exit code.
int run_monitor(const MonitorArguments& arguments);

}  // namespace troika::cli
