// The commands of `troika swarm` that do not train.
#pragma once

#include <cstddef>
#include <cstdint>
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
  std::string http;  // HOST:PORT at which it serves a web page instead; empty: none
  double timeout_seconds = 10;
};
// Shows the peers of a swarm, once or until SIGINT or SIGTERM, and returns the exit code.
int run_monitor(const MonitorArguments& arguments);

struct SwarmSimulationArguments {
  size_t peers = 100;
  double hours = 1;
  uint64_t seed = 1;
  // SHARE:UP:DOWN:LATENCY:SPEED[:MODE], see the option
  std::vector<std::string> kinds = {"1:200:200:10:10", "1:100:100:20:10", "1:50:50:30:10",
                                    "1:20:20:40:10"};
  double joins = 0, kills = 0, stops = 0;  // per hour
  double liars = 0;                        // share
  std::vector<std::string> lies = {"sign_flip"};
  std::string aggregation = "mean";
  size_t group_size = 0;
  int64_t target_batch = 16'384;
  int64_t batch = 8;
  uint64_t numbers = 18'000'000;
  double bytes_per_number = 4;
  size_t carried = 1024;
  std::string json;  // file
};
// Simulates a swarm, prints what it did, and returns the exit code.
int run_swarm_simulation(const SwarmSimulationArguments& arguments);

}  // namespace troika::cli
