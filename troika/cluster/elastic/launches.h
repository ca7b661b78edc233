// The launches that are in an elastic run, and the rules by which others may join them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/cluster/elastic/agent_wire.h"

namespace troika::cluster {

// Launches are numbered in the order of arrival.
class Launches {
 public:
  // `host` is the launch that hosts the run. It also arrives as a launch.
  explicit Launches(AgentHello host) : host_(std::move(host)) {}

  // Returns why a launch may not join: another version of Troika, other options, or a second host.
  std::optional<Refusal> refusal_of(const AgentHello& hello) const;
  void add(int number, const AgentHello& hello) { launches_[number].hello = hello; }
  void remove(int number) { launches_.erase(number); }
  // Marks a launch that takes part in no further round.
  void depart(int number) { launches_.at(number).is_departing = true; }

  bool contains(int number) const { return launches_.contains(number); }
  bool hosts(int number) const { return launches_.at(number).hello.hosts; }
  // Returns the name of a launch: "process 12 on a.example".
  static std::string name_of(const AgentHello& hello);
  std::string name(int number) const { return name_of(launches_.at(number).hello); }
  // Returns the launches that do not depart, the host first.
  std::vector<int> ready() const;
  // Removes all launches and returns their numbers.
  std::vector<int> take_all();

 private:
  struct Launch {
    AgentHello hello;
    bool is_departing = false;
  };

  const AgentHello host_;
  std::map<int, Launch> launches_;
};

}  // namespace troika::cluster
