// One launch of an elastic run: its connection to the hosting launch, and the server if this launch
// hosts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "troika/base/error.h"
#include "troika/cluster/discovery/endpoint.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/elastic/agent_server.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {

// Only connect() blocks, for seconds. Call exchange() when poll() reports fd() as readable. Not
// thread-safe.
class Agent {
 public:
  struct Stop {
    bool may_save;
    std::string why;
  };
  struct Over {
    int code;
    std::string why;
  };

  // Hosts the run if the endpoint is on this machine and no other launch here hosts already. Throws
  // Error(cluster, usage) for an invalid endpoint.
  Agent(const LaunchOptions& options, const RunSecret& secret);

  // Makes one attempt to reach the host. Returns false if the caller should retry after a moment.
  // Throws Error(cluster, timeout) after the join timeout and Error(cluster, usage) if the host
  // does not hold the secret.
  bool connect();
  bool is_connected() const { return is_connected_; }
  int fd() const { return inbox_.news.fd(); }
  // Processes the messages that have arrived.
  void exchange();

  // Both return a message only once. A new round discards a pending stop of the previous round.
  std::optional<LaunchPlace> take_round();
  std::optional<Stop> take_stop();
  const std::optional<Over>& over() const { return over_; }
  // Set if the host was lost or has refused this launch.
  const std::optional<Error>& problem() const { return problem_; }

  void failing() { send({Message::failing}); }
  void ended(const RoundEnd& end) { send({Message::ended, 0, "", to_json(end)}); }
  void depart(int code) { send({Message::depart, static_cast<uint64_t>(code)}); }
  bool hosts() const { return server_ != nullptr; }

 private:
  void send(const Frame& frame);
  void take_in(const Frame& frame);

  std::string host_name() const;
  std::string place() const;
  bool wait_for_host(const std::string& problem) const;

  Endpoint endpoint_;
  Milliseconds patience_;
  Deadline deadline_;
  RunSecret secret_;
  Refusals refusals_;
  AgentHello hello_;
  std::unique_ptr<AgentServer> server_;
  bool is_connected_ = false;
  std::optional<LaunchPlace> round_;
  std::optional<Stop> stop_;
  std::optional<Over> over_;
  std::optional<Error> problem_;

  // Filled by the endpoint's callbacks, read by exchange().
  struct Inbox {
    net::Waker news;  // wakes the thread in poll()
    std::string frames = {};
    std::optional<std::string> end = {};  // why the connection has ended
  };
  Inbox inbox_;
  net::TcpEndpoint line_;  // last member: its callbacks run until it is destroyed
};

}  // namespace troika::cluster
