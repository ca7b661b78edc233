// The part of a server or worker that exchanges beats and states with the scheduler. Internal to
// the room.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "troika/net/endpoint.h"
#include "troika/server/control.h"
#include "troika/server/ring_map.h"

namespace troika::server {

struct MemberOptions {
  std::string scheduler = "scheduler";  // the name of the scheduler's endpoint
  // The interval of beats. The scheduler's limit should be several times as long.
  net::Duration beat = std::chrono::milliseconds(200);
  // Where the endpoint listens, as words HOST:PORT that other machines understand. The scheduler
  // passes servers' addresses on to all nodes (Surroundings); a program that connects the endpoints
  // itself needs none.
  std::string addresses = {};
};

// A node's knowledge of the others.
struct Surroundings {
  std::map<std::string, std::string> servers;  // the servers that take part, with their addresses
  bool is_over = false;                        // the scheduler has ended the run
  std::string refusal;                         // why the scheduler does not let this node take part
  std::string failure = {};                    // why this node cannot work
  net::Duration scheduler_silence{0};          // since the scheduler was last heard of
};

// Except for the constructor and the destructor, all functions and callbacks run under the
// endpoint's rules for callbacks. The endpoint must outlive it.
class Member {
 public:
  // `fill` completes each beat before it is sent. `on_state` runs when a state of the scheduler has
  // arrived and map() has been updated. Throws Error(server, usage) for a name with white space.
  Member(net::Endpoint& endpoint, MemberOptions options, Role role, std::function<void(Beat&)> fill,
         std::function<void(const State&)> on_state);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Sends a beat now.
  void beat();
  void leave();
  bool may_leave() const { return may_leave_; }

  // Generation 0 until the scheduler has answered. Never null.
  const std::shared_ptr<const RingMap>& map() const { return map_; }
  // Why the scheduler does not let this node take part; empty if it does.
  const std::string& refusal() const { return refusal_; }
  Surroundings surroundings() const;
  // The time since the scheduler was last heard of.
  net::Duration silence() const { return endpoint_.now() - heard_; }
  // Returns a text for messages that says when the scheduler was last heard of.
  std::string scheduler_age() const;

 private:
  void take(const std::string& peer, const std::string& message);
  void tick();

  net::Endpoint& endpoint_;
  const MemberOptions options_;
  const std::function<void(Beat&)> fill_;
  const std::function<void(const State&)> on_state_;
  Beat beat_;
  std::shared_ptr<const RingMap> map_ = std::make_shared<const RingMap>();
  std::string refusal_;
  bool may_leave_ = false;
  bool sends_map_ = false;  // the scheduler has asked for it
  bool is_over_ = false;
  std::map<std::string, std::string> servers_;  // with their addresses
  net::Duration heard_;
  net::Ticket timer_ = 0;
};

}  // namespace troika::server
