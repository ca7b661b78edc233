// A launch of an elastic run as one of several: its connection to the one that hosts them, and the
// server, if that is this one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "troika/base/error.h"
#include "troika/cluster/agent_server.h"
#include "troika/cluster/endpoint.h"
#include "troika/cluster/run_secret.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {

// Nothing here waits but connect(), for seconds; poll() on fd() tells when to call exchange(). For
// a single thread.
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

  // Hosts the others where the endpoint is this machine and no other launch on it does. Throws
  // Error(cluster, usage) for an endpoint that is none.
  Agent(const LaunchOptions& options, const RunSecret& secret);

  // One attempt to reach the host; false: to be repeated after a moment. Throws Error: (cluster,
  // timeout) when the join timeout has passed, (cluster, usage) for a host that does not hold the
  // secret.
  bool connect();
  bool is_connected() const { return is_connected_; }
  int fd() const { return inbox_.news.fd(); }
  // Takes what has come.
  void exchange();

  // Each returns what has come once; a new round voids a stop of the one before.
  std::optional<LaunchPlace> take_round();
  std::optional<Stop> take_stop();
  const std::optional<Over>& over() const { return over_; }
  // The host is lost or has refused this launch.
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

  // The endpoint's callbacks leave this for exchange().
  struct Inbox {
    net::Waker news;  // wakes whoever polls
    std::string frames = {};
    std::optional<std::string> end = {};  // how the connection has ended
  };
  Inbox inbox_;
  net::TcpEndpoint line_;  // whose callbacks run until it is gone
};

}  // namespace troika::cluster
