// The hosting launch's end of its connections to all launches of an elastic run, its own too: it
// applies Rounds.
#pragma once

#include <string>

#include "troika/cluster/launcher.h"
#include "troika/cluster/rounds.h"
#include "troika/cluster/server_endpoint.h"

namespace troika::cluster {

// A peer's `rank` is the agent's number here.
class RoundService : public Service {
 public:
  // Rank 0 of each round gets `address`. `unwelcome` is asked for a note to the error of launches
  // that waited in vain.
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
  // Sends what is still to be sent, waiting for launches at most a second.
  ~AgentServer() { endpoint_.stop(service_); }
  AgentServer(const AgentServer&) = delete;
  AgentServer& operator=(const AgentServer&) = delete;

 private:
  ServerEndpoint endpoint_;
  RoundService service_;
};

}  // namespace troika::cluster
