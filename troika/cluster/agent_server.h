// The hosting launch's end of its connections to all launches of an elastic run, its own too: one
// thread that applies Rounds.
#pragma once

#include <thread>

#include "troika/cluster/launcher.h"
#include "troika/cluster/rounds.h"
#include "troika/net/descriptor.h"
#include "troika/net/handshake.h"

namespace troika::cluster {

class AgentServer {
 public:
  // Serves on `listener` until destroyed. Rank 0 of each round gets `address`.
  AgentServer(net::Descriptor listener, net::ServerHandshake handshake,
              const LaunchOptions& options, const AgentHello& host, const std::string& address);
  // Sends what is still to be sent, waiting for launches at most a second.
  ~AgentServer();
  AgentServer(const AgentServer&) = delete;
  AgentServer& operator=(const AgentServer&) = delete;

 private:
  net::Waker stop_;
  std::thread thread_;
};

}  // namespace troika::cluster
