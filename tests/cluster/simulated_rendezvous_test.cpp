// The rules of rank 0's server and of relays with many ranks, on a simulated network and clock, so
// that all events depend only on the seed.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <vector>

#include "troika/cluster/rendezvous/relay.h"
#include "troika/cluster/rendezvous/rendezvous_service.h"
#include "troika/net/simulated_network.h"

namespace troika::cluster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kServer = "ranks";
constexpr int kRanks = 1024;
constexpr int kMachine = 128;  // ranks of one

// A rank that follows the same protocol as Line and ServerConnection.
class SimulatedRank {
 public:
  SimulatedRank(net::SimulatedNetwork& network, int rank)
      : network_(network), rank_(rank), endpoint_(network.add(name())) {
    relay_ = std::make_unique<Relay>(endpoint_, kServer, kRanks);
    relay_->start();
    endpoint_.handle(kToRank, kMaxMessage,
                     [this](const std::string& peer, const std::string& message) {
                       if (peer != way_) return;
                       for (std::string_view bytes = message; !bytes.empty();) {
                         take(take_frame(bytes));
                       }
                     });
    endpoint_.listen_to_peers([this](const net::PeerChange& change) { note(change); });
  }
  ~SimulatedRank() { relay_->stop(); }

  std::string name() const { return fmt::format("rank {}", rank_); }
  void join(bool direct = false) {
    way_ = kServer;
    network_.connect(name(), kServer);
    say_hello(direct);
  }
  void say(const Frame& frame) {
    net::send_owned(endpoint_, way_, kToServer, std::make_shared<const std::string>(encode(frame)));
  }
  // Ends all connections of the rank. It does nothing more.
  void die(const std::vector<std::unique_ptr<SimulatedRank>>& ranks) {
    is_dead_ = true;
    for (const auto& other : ranks) {
      if (other.get() != this && other->way_ == name()) network_.cut(name(), other->name());
    }
    network_.cut(name(), way_);
  }

  int rank() const { return rank_; }
  bool relays() const { return relays_; }
  bool is_welcome() const { return is_welcome_; }
  bool is_dead() const { return is_dead_; }
  bool has_come_back() const { return has_come_back_; }
  std::set<int> answers;      // who answered
  std::set<uint64_t> values;  // calls that were answered
  std::set<int> lost;

 private:
  void say_hello(bool direct) {
    say({Message::hello, 0, "",
         to_json(Hello{.rank = rank_,
                       .world_size = kRanks,
                       .host = "here",
                       .patience_ms = 60'000,
                       .left_ms = 60'000,
                       .machine = fmt::format("machine {}", rank_ / kMachine),
                       .relay_port = 1,
                       .direct = direct})});
  }
  void note(const net::PeerChange& change) {
    if (is_dead_) return;
    if (change.peer == way_ && !change.is_up && way_ != kServer) {
      has_come_back_ = true;
      return join(true);
    }
    if (change.peer != kServer && change.peer != way_) relay_->note(change);
  }
  void take(const Frame& frame) {
    if (is_dead_ || relay_->pass_on(frame)) return;
    switch (frame.message) {
      case Message::relay:
        relays_ = true;
        return;
      case Message::go:
        way_ = frame.key;
        network_.connect(name(), way_);
        endpoint_.disconnect(kServer);
        return say_hello(false);
      case Message::welcome:
        is_welcome_ = true;
        return;
      case Message::ask:
        return say({Message::answer, frame.number, "", "here"});
      case Message::answer:
        return unpack_answers(frame.value, kRanks,
                              [this](int rank, const std::string&) { answers.insert(rank); });
      case Message::value:
        values.insert(frame.number);
        return;
      case Message::lost:
        lost.insert(static_cast<int>(frame.number));
        return;
      default:
        return;
    }
  }

  net::SimulatedNetwork& network_;
  const int rank_;
  net::Endpoint& endpoint_;
  std::unique_ptr<Relay> relay_;
  std::string way_;
  bool relays_ = false, is_welcome_ = false, has_come_back_ = false, is_dead_ = false;
};

class SimulatedWorld {
 public:
  explicit SimulatedWorld(uint64_t seed)
      : network_(seed),
        endpoint_(network_.add(kServer)),
        service_(endpoint_, Roster(kRanks, "", "here"), RelayRules{}, [] { return ""; }) {
    endpoint_.listen_to_peers([this](const net::PeerChange& change) {
      if (change.is_up) most_connections_ = std::max(most_connections_, ++connections_);
      if (!change.is_up) --connections_;
      service_.note(change);
    });
    service_.start();
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(std::make_unique<SimulatedRank>(network_, rank));
      // One after the other, as processes start.
      endpoint_.after(milliseconds(rank), [this, rank] { this->rank(rank).join(); });
    }
  }
  ~SimulatedWorld() { service_.stop(); }

  template <typename Condition>
  bool comes(const Condition& condition) {
    return endpoint_.run_until([&] { return std::ranges::all_of(ranks_, condition); }, seconds(60));
  }
  SimulatedRank& rank(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  auto& ranks() { return ranks_; }
  int connections() const { return connections_; }
  int most_connections() const { return most_connections_; }
  net::Duration now() const { return network_.now(); }

 private:
  net::SimulatedNetwork network_;
  net::Endpoint& endpoint_;
  RendezvousService service_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  int connections_ = 0, most_connections_ = 0;
};

// Times of the phases of one run.
std::vector<net::Duration> run_all_phases(uint64_t seed) {
  std::vector<net::Duration> times;
  SimulatedWorld world(seed);
  EXPECT_TRUE(world.comes([](const auto& rank) { return rank->is_welcome(); }));
  times.push_back(world.now());
  EXPECT_EQ(world.connections(), 1 + kRanks / 32);
  EXPECT_LT(world.most_connections(), 1 + kRanks / 32 + 8) << "they continue as others connect";
  for (const auto& rank : world.ranks()) rank->say({Message::ask, 60'000, "asked", "?"});
  // A rank that asks alone knows its own answer; here all ranks ask at the same time.
  EXPECT_TRUE(world.comes([](const auto& rank) { return rank->answers.size() >= kRanks - 1; }));
  times.push_back(world.now());
  for (const auto& rank : world.ranks()) rank->say({Message::leave, 1, "", ""});
  EXPECT_TRUE(world.comes([](const auto& rank) { return rank->values.contains(1); }));
  times.push_back(world.now());
  EXPECT_TRUE(world.comes([](const auto& rank) { return rank->lost.empty(); }));
  return times;
}

TEST(SimulatedRendezvous, ManyRanksGatherAskAndLeaveTheSameEachTime) {
  EXPECT_EQ(run_all_phases(7), run_all_phases(7));
}

// Rank 0, a relay and a rank that goes through another relay end.
TEST(SimulatedRendezvous, ADeathIsToldAtOnceAndTheRanksOfARelayComeBack) {
  SimulatedWorld world(11);
  ASSERT_TRUE(world.comes([](const auto& rank) { return rank->is_welcome(); }));
  const auto relay =
      std::ranges::find_if(world.ranks(), [](const auto& rank) { return rank->relays(); });
  for (const int victim : {0, (*relay)->rank(), kRanks - 1}) {
    const auto before = world.now();
    world.rank(victim).die(world.ranks());
    EXPECT_TRUE(world.comes(
        [&](const auto& rank) { return rank->is_dead() || rank->lost.contains(victim); }));
    EXPECT_LT(world.now() - before, milliseconds(50));
  }
  EXPECT_EQ(
      std::ranges::count_if(world.ranks(), [](const auto& rank) { return rank->has_come_back(); }),
      31);
  for (const auto& rank : world.ranks()) EXPECT_LE(rank->lost.size(), 3u) << rank->rank();
}

}  // namespace
}  // namespace troika::cluster
