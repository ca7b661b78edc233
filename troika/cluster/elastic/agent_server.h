// The hosting launch's side of the connections to all launches of an elastic run, including itself.
// Rounds makes the decisions.
#pragma once

#include <string>

#include "troika/cluster/elastic/rounds.h"
#include "troika/cluster/ranks/launch_options.h"
#include "troika/cluster/rendezvous/server_endpoint.h"

namespace troika::cluster {

// Uses a peer's `rank` as the agent's number.
class RoundService : public Service {
 public:
  // `address` is given to each round as the address of rank 0. `unwelcome` returns a note on
  // rejected connections for timeout errors.
  RoundService(net::Endpoint& endpoint, const LaunchOptions& options, const AgentHello& host,
               const std::string& address, std::function<std::string()> unwelcome);

 private:
  void send_to(int agent, const Frame& frame);
  void handle(Peer& from, const Frame& frame) override;
  void greet(Peer& from, const Frame& frame);
  void part_from(Peer& gone) override;
  std::optional<net::Duration> due() const override;
  void late() override;

  const std::function<std::string()> unwelcome_;
  Rounds rounds_;
  int agents_ = 0;
};

class AgentServer {
 public:
  // Serves until destroyed.
  AgentServer(Listening here, const RunSecret& secret, const LaunchOptions& options,
              const AgentHello& host, const std::string& address);
  // Sends pending messages, for at most a second.
  ~AgentServer() { endpoint_.stop(service_); }
  AgentServer(const AgentServer&) = delete;
  AgentServer& operator=(const AgentServer&) = delete;

 private:
  ServerEndpoint endpoint_;
  RoundService service_;
};

}  // namespace troika::cluster
