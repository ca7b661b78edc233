// A directory in which every peer holds all records, and passes new ones to its neighbours.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/swarm/alive.h"
#include "troika/swarm/directory.h"
#include "troika/swarm/gossip_message.h"
#include "troika/swarm/gossip_neighbours.h"

namespace troika::swarm {

inline constexpr net::Channel kGossip = 0x5351'0000;

struct GossipLimits {
  size_t most_records = size_t{1} << 16;
  size_t most_of_peer = 32;      // records of one peer
  double most_per_second = 100;  // records of one peer, with bursts of twice as many
};

// A record travels along all connections between peers, but to each neighbour only from one that
// does not know that it has it. When a connection comes up, both ends tell which records they have,
// and send each other what is missing. So two parts of a swarm that were apart have one set of
// records after one connection between them.
//
// A neighbour that sends a malformed or forged record is disconnected, because no peer passes such
// a record on. Construct and destroy it under Endpoint's rules for callbacks.
class GossipDirectory : public Directory {
 public:
  // The references must outlive it. Connections that are already up are not known to it.
  GossipDirectory(net::Endpoint& endpoint, const Identity& identity, RecordRules rules,
                  WallClock clock, GossipLimits limits = {}, GossipReader reader = own_reader());
  ~GossipDirectory() override;
  GossipDirectory(const GossipDirectory&) = delete;
  GossipDirectory& operator=(const GossipDirectory&) = delete;

  // Puts this token into the records that are published from now on.
  void use_token(std::string token) { token_ = std::move(token); }
  // To be called for each change that the endpoint's listener gets.
  void take_change(const net::PeerChange& change);

  void publish(const std::string& kind, const std::string& sub_key, int64_t epoch,
               WallTime lifetime, const std::string& body) override;
  std::vector<Record> find(const std::string& kind) const override;
  void watch(std::function<void(const Record&)> changed) override;
  WallTime now() const override { return clock_(); }

 private:
  struct Held {
    SignedRecord record;
    std::string hash;           // of the key
    std::vector<bool> knowing;  // the neighbours that have it, by slot

    // Returns whether it was not there yet.
    bool add_knowing(size_t slot);
  };
  struct Author {
    size_t records = 0;
    double allowance = 0;
    WallTime at{};
  };

  void take(const std::string& peer, const std::string& text);
  void take_records(const std::string& peer, const GossipMessage& message);
  void send_missing(const std::string& peer, const GossipMessage::Holdings& theirs);
  void send_holdings(const std::string& peer);
  // Does nothing for a peer that is no neighbour.
  void add_knowing(Held& held, const std::string& peer);
  // Tells once that the clock of a neighbour is wrong, and its records therefore do not count.
  void complain_of_clock(const std::string& peer, RecordFault fault);
  // Whether the record was taken.
  bool store(const SignedRecord& record, const std::string& from);
  bool is_allowed(const SignedRecord& record, bool is_new);
  void flush();
  void remove_expired();

  net::Endpoint& endpoint_;
  const Identity& identity_;
  const RecordRules rules_;
  const WallClock clock_;
  const GossipLimits limits_;
  const GossipReader reader_;
  std::function<void(const Record&)> changed_;
  std::map<RecordKey, Held> held_;
  std::map<std::string, Author> authors_;
  GossipNeighbours neighbours_;
  std::set<RecordKey> waiting_;      // to be passed on
  std::set<std::string> ill_timed_;  // neighbours whose clock was complained about
  std::string token_;
  Alive alive_;
};

}  // namespace troika::swarm
