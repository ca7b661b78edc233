// Rank 0's logic of a rendezvous: gathers the ranks, stores the keys and reports lost ranks, over
// the messages of any endpoint.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/rendezvous/inquiries.h"
#include "troika/cluster/rendezvous/key_store.h"
#include "troika/cluster/rendezvous/members.h"
#include "troika/cluster/rendezvous/relay_plan.h"
#include "troika/cluster/rendezvous/roster.h"
#include "troika/cluster/rendezvous/service.h"

namespace troika::cluster {

class RendezvousService : public Service {
 public:
  // `unwelcome` returns a note on rejected connections for timeout errors.
  RendezvousService(net::Endpoint& endpoint, Roster roster, RelayRules rules,
                    std::function<std::string()> unwelcome);

  // Sends the last messages to all ranks. `bye`: rank 0 leaves instead of being lost.
  void finish(bool bye);

 private:
  void handle(Peer& from, const Frame& frame) override;
  void part_from(Peer& gone) override;
  void after_event() override;
  std::optional<net::Duration> due() const override;
  void late() override;

  void greet(Peer& from, const Frame& frame);
  void handle_relayed(Peer& relay, const Frame& frame);
  void handle_rank(int rank, const Frame& frame);
  void admit(Peer& way, const Hello& hello);
  void take_back(Peer& way, int rank);
  void lose(int rank, const std::string& reason);

  void set(const std::string& key, const std::string& value);
  void get(int rank, const Frame& frame);
  void add(int rank, const Frame& frame);
  void leave(int rank, const Frame& frame);
  // Sends `news` to all present ranks within this time.
  void announce(const Frame& news, Milliseconds within);
  void send_news();
  void fail_all(const Refusal& why);

  const std::function<std::string()> unwelcome_;
  Roster roster_;
  RelayPlan plan_;
  Members members_;
  bool gathering_ = true;
  std::optional<Refusal> failed_;
  KeyStore keys_;
  std::optional<Refusal> first_loss_;
  std::optional<uint64_t> host_leave_;  // rank 0's call, answered when all others have left
  std::string news_;                    // frames not yet sent to the present ranks
  std::string old_news_;                // earlier frames, for ranks that reconnect
  net::Duration news_due_{};
  Inquiries inquiries_;
};

}  // namespace troika::cluster
