// One server of a parameter server: holds ranges of the ring and executes the requests of workers
// (Li et al., OSDI 2014).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/gathered_messages.h"
#include "troika/server/held_range.h"
#include "troika/server/member.h"
#include "troika/server/update.h"

namespace troika::server {

struct ServerOptions {
  MemberOptions member = {};
  // Update rules that tables can use by name. All servers must have the same ones.
  UserUpdates updates = {};
  // Writes that another server does not confirm within this time are sent to it again.
  net::Duration resend = std::chrono::milliseconds(500);
};

// A service on an endpoint. It does all its work in the endpoint's callbacks, also the updates of
// values. The endpoint must outlive the server, and must be connected to the scheduler, to all
// workers and to all other servers. Any thread may call the functions, but callbacks must not.
class Server {
 public:
  // Joins. Does not block. Throws Error(server, usage) if the endpoint's name has white space.
  Server(net::Endpoint& endpoint, ServerOptions options = {});
  // For other nodes the server is then lost, unless it has left.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Blocks until the scheduler has given this server a role. Throws Error(server): `timeout`;
  // `usage` if this server does not have a table's update rule; `peer` if the scheduler refuses
  // this server.
  void wait_until_ready(Deadline deadline);
  Surroundings surroundings();
  // Hands all ranges over to the other servers and blocks until they have them. Throws
  // Error(server, timeout) after the deadline; the server then continues to hand over its ranges.
  void leave(Deadline deadline);

 private:
  // A message that needs a newer map or step than this server has, or a range that is not made yet.
  struct Early {
    net::Channel channel;
    std::string peer;
    std::string message;
  };

  // The scheduler's order to write a snapshot, and what was done.
  struct SnapshotWork {
    bool is_ordered = false;  // by the newest state
    uint64_t order = 0;
    int64_t step = -1;
    std::string folder;
    std::map<uint32_t, SavedRange> saved = {};
    std::string failure = {};
  };

  void receive(net::Channel channel, const std::string& peer, std::string message);
  void take(net::Channel channel, const std::string& peer, std::string message);
  // Keeps a message that is early, if there is room.
  void keep(net::Channel channel, const std::string& peer, std::string message);
  // Returns false if the message needs a newer map, a step that the scheduler has not committed, or
  // a range that is not made yet.
  bool try_take(net::Channel channel, const std::string& peer, std::string& message);
  void follow(const State& state);
  void follow_map();
  void follow_snapshot(const State& state);
  void take_early();
  // Makes one range, or writes its file, so that beats and requests pass between them. Calls itself
  // again while there are more.
  void do_long_work();
  bool make_one();
  // Ends all work, and returns false.
  bool fail(const Error& error);
  void load(uint32_t index, HeldRange& range) const;
  bool save_one();
  void fill(Beat& beat);
  void tick();

  net::Endpoint& endpoint_;
  GatheringEndpoint answers_;  // sends those of the ranges
  const ServerOptions options_;
  std::vector<Table> tables_;  // set once, with the first map
  std::map<uint32_t, HeldRange> ranges_;
  std::deque<Early> early_;
  size_t early_bytes_ = 0;
  std::set<uint32_t> to_make_;  // ranges of this server that are not made yet
  SnapshotWork snapshot_;
  std::string failure_;  // why this server cannot work
  uint64_t requests_ = 0;
  int64_t committed_ = -1;  // the last step that all workers have finished, by the newest state
  net::Ticket timer_ = 0;
  net::Ticket long_timer_ = 0;  // 0: there are no ranges to make and no files to write
  Member member_;
};

}  // namespace troika::server
