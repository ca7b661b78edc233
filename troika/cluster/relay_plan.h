// Which ranks relay for others, so that rank 0 need not hold a connection to every rank: the rules,
// without sockets.
//
// The first rank that arrives from a machine relays for the next ones of that machine, up to
// `ranks_each`; the one after those is the machine's next relay. Relays and their ranks meet on the
// loopback interface.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "troika/cluster/wire.h"

namespace troika::cluster {

struct RelayRules {
  int from_world_size = 65;  // smaller worlds have no relays
  int ranks_each = 32;       // the relay among them
};

// The connections of rank 0's server when all ranks are there, at most, on so many machines; -1 for
// an unknown number of them.
int most_connections(const RelayRules& rules, int world_size, int machines);

class RelayPlan {
 public:
  explicit RelayPlan(RelayRules rules) : rules_(rules) {}

  enum class Role { direct, relay, through };
  struct Place {
    Role role = Role::direct;
    int relay = -1;  // for Role::through: its rank, where it listens, and its endpoint's name
    int port = 0;
    std::string endpoint = {};
  };
  // `endpoint` has said hello.
  Place place(const Hello& hello, const std::string& endpoint);

 private:
  struct Relay {
    int rank, port;
    std::string endpoint;
    int ranks;
  };

  RelayRules rules_;
  std::map<std::string, Relay> latest_;  // by machine
};

}  // namespace troika::cluster
