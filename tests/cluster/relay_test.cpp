// Ranks that reach rank 0 through other ranks of their machine.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <map>
#include <thread>
#include <tuple>

#include "tests/cluster/rendezvous_world.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/rendezvous/inquiries.h"
#include "troika/cluster/rendezvous/question.h"
#include "troika/net/interface.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kSize = 12;

class Relays : public testing::Test {
 protected:
  Relays() { relay_rules = {.from_world_size = 2, .ranks_each = 4}; }
  ~Relays() override { relay_rules = {}; }

  // Runs each rank in a process, and returns their exit statuses. A failed expectation gives status
  // 1.
  static std::vector<int> run_processes(int size, const Body& body) {
    const int port = free_port();
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.push_back(in_child([&] {
        body(*join(member(rank, size, port)), rank);
        if (testing::Test::HasFailure()) ::_exit(1);
      }));
    }
    std::vector<int> ends;
    for (const pid_t rank : ranks) {
      int status = -1;
      ::waitpid(rank, &status, 0);
      ends.push_back(status);
    }
    return ends;
  }

  // The victim ends when all ranks have arrived. Other ranks may still be in their last call then.
  static void meet_and_die(Rendezvous& meeting, bool is_victim) {
    try {
      all_meet(meeting, "here", kSize);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::peer) << error.what();
    }
    if (is_victim) ::raise(SIGKILL);
  }

  // Returns the first relay of several ranks, the same one on all ranks.
  static int relay_of_several(const Rendezvous& meeting) {
    std::map<int, int> ranks;
    for (const int relay : meeting.relays()) {
      if (relay != 0 && ++ranks[relay] == 2) return relay;
    }
    ADD_FAILURE() << "nobody relays";
    return 0;
  }
};

TEST_F(Relays, AFewRanksHaveTheConnectionsToRankZero) {
  const auto errors = run_all(world(kSize, free_port()), [&](Rendezvous& meeting, int rank) {
    std::map<int, int> ranks;
    for (const int relay : meeting.relays()) ++ranks[relay];
    EXPECT_EQ(meeting.relays()[0], 0);
    EXPECT_EQ(ranks[0], 1) << "only rank 0 itself";
    EXPECT_THAT(ranks.size(), 4u) << "rank 0, and relays of 4, 4 and 3 ranks";
    for (const auto& [relay, count] : ranks) {
      EXPECT_EQ(meeting.relays()[static_cast<size_t>(relay)], relay) << "relays for itself";
    }
    meeting.set("from " + std::to_string(rank), "x");
    for (int peer = 0; peer < kSize; ++peer) {
      EXPECT_EQ(meeting.get("from " + std::to_string(peer), Deadline::after(kLong)), "x");
    }
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(Relays, RankZeroNeedsFewDescriptors) {
  constexpr int kMany = 96;
  relay_rules = {.from_world_size = 2, .ranks_each = 8};
  const int port = free_port();
  const pid_t rank_0 = in_child([&] {
    // Ninety-six connections do not fit.
    const rlimit few{92, 92};
    ::setrlimit(RLIMIT_NOFILE, &few);
    const auto meeting = join(member(0, kMany, port));
    all_meet(*meeting, "here", kMany);
    meeting->on_asked([](const std::string&) { return "!"; });
    const auto answers = meeting->ask_all("?", Deadline::after(kLong)).text;
    EXPECT_TRUE(std::ranges::all_of(answers, [](const auto& text) { return text == "!"; }));
    all_meet(*meeting, "asked", kMany);
    meeting->leave();
    if (testing::Test::HasFailure()) ::_exit(1);
  });
  auto members = world(kMany, port);
  members.erase(members.begin());
  const auto errors = run_all(members, [&](Rendezvous& meeting, int) {
    meeting.on_asked([](const std::string&) { return "!"; });
    all_meet(meeting, "here", kMany);
    all_meet(meeting, "asked", kMany);
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
  int status = -1;
  ::waitpid(rank_0, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(Relays, AKilledRelayIsNamedToAllAndItsRanksGoOn) {
  const auto ends = run_processes(kSize, [](Rendezvous& meeting, int rank) {
    const News losses = losses_of(meeting);
    const int victim = relay_of_several(meeting);
    meet_and_die(meeting, rank == victim);
    EXPECT_EQ(losses.first().first, victim);
    EXPECT_THAT(losses.first().second, HasSubstr("(process "));
    // Reconnected ranks can do everything again.
    meeting.set("from " + std::to_string(rank), "x");
    EXPECT_EQ(meeting.get("from " + std::to_string(rank), Deadline::after(kLong)), "x");
    meeting.add("back", 1);
    while (meeting.get("back", Deadline::after(kLong)) != std::to_string(kSize - 1)) {
      std::this_thread::yield();
    }
    meeting.leave();
    EXPECT_THAT(losses.all(), ElementsAre(testing::Pair(victim, testing::_)));
  });
  EXPECT_EQ(std::ranges::count(ends, 0), kSize - 1);
  EXPECT_EQ(std::ranges::count(ends, SIGKILL), 1);
}

TEST_F(Relays, AKilledRankZeroIsNamedToAll) {
  const auto ends = run_processes(kSize, [](Rendezvous& meeting, int rank) {
    const News losses = losses_of(meeting);
    meet_and_die(meeting, rank == 0);
    EXPECT_EQ(losses.first().first, 0);
    try {
      meeting.set("key", "");
      ADD_FAILURE() << "nobody keeps keys";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith("[cluster] rank 0, which holds the keys, was lost while "
                                           "setting key \"key\"; got "));
    }
    meeting.leave();
    EXPECT_EQ(losses.all().size(), 1u);
  });
  EXPECT_EQ(ends[0], SIGKILL);
  EXPECT_EQ(std::ranges::count(ends, 0), kSize - 1);
}

TEST_F(Relays, RanksWithoutRelayAndRankZeroAreTold) {
  const auto ends = run_processes(kSize, [](Rendezvous& meeting, int rank) {
    const News losses = losses_of(meeting);
    const int victim = relay_of_several(meeting);
    meet_and_die(meeting, rank == 0 || rank == victim);
    EXPECT_THAT(losses.first().first, AnyOf(0, victim));
    for (const auto& [lost, why] : losses.all()) EXPECT_THAT(lost, AnyOf(0, victim)) << why;
    meeting.leave();
  });
  EXPECT_EQ(std::ranges::count(ends, 0), kSize - 2);
}

TEST_F(Relays, OnlyAStoppedRelayIsBlamed) {
  // Pipes, because a stopped relay would hold back the answers of the rendezvous.
  const net::Pipe met = net::make_pipe(), asked = net::make_pipe();
  const auto say = [](const net::Pipe& pipe) { EXPECT_EQ(::write(pipe.write.get(), "x", 1), 1); };
  const auto hear = [](const net::Pipe& pipe, int times) {
    char byte;
    for (int i = 0; i < times; ++i) {
      ASSERT_TRUE(net::wait_for(pipe.read.get(), POLLIN, Deadline::after(kLong)));
      ASSERT_EQ(::read(pipe.read.get(), &byte, 1), 1);
    }
  };
  const auto ends = run_processes(kSize, [&](Rendezvous& meeting, int rank) {
    const int victim = relay_of_several(meeting);
    const auto relays = meeting.relays();
    const auto is_its = [&](int r) { return relays[static_cast<size_t>(r)] == victim; };
    const News losses = losses_of(meeting);
    if (rank == victim) meeting.set("pid", std::to_string(::getpid()));
    all_meet(meeting, "listening", kSize);
    if (rank == victim) {
      hear(met, kSize - 1);
      ::raise(SIGSTOP);
    }
    say(met);
    const auto ask = [&] { return meeting.ask_all("?", Deadline::after(Milliseconds(1500))); };
    while (ask().text[static_cast<size_t>(victim)]) std::this_thread::yield();
    // By now it has stopped, perhaps during that question.
    const Answers answers = ask();
    for (int peer = 0; peer < kSize; ++peer) {
      const auto& text = answers.text[static_cast<size_t>(peer)];
      if (peer == rank) continue;
      EXPECT_EQ(text.has_value(), !is_its(rank) && !is_its(peer)) << rank << " asked " << peer;
      EXPECT_TRUE(text || answers.silent[static_cast<size_t>(peer)] == victim);
    }
    say(asked);
    if (rank == 0) {
      hear(asked, kSize - 1);
      ::kill(std::stoi(meeting.get("pid", Deadline::after(kLong))), SIGKILL);
    }
    EXPECT_EQ(losses.first().first, victim) << "told to rank " << rank;
    meeting.leave();
  });
  EXPECT_EQ(std::ranges::count(ends, 0), kSize - 1);
  EXPECT_EQ(std::ranges::count(ends, SIGKILL), 1);
}

TEST_F(Relays, ARelayThatLeavesIsNoLossAndItsRanksGoOn) {
  const auto errors = run_all(world(kSize, free_port()), [](Rendezvous& meeting, int rank) {
    const int leaver = relay_of_several(meeting);
    if (rank == leaver) return meeting.leave("early");
    const News losses = losses_of(meeting);
    EXPECT_EQ(departures_of(meeting).first(), News::Item(leaver, "early"));
    // Until its own relay has ended, if it is that one.
    while (meeting.relays()[static_cast<size_t>(rank)] == leaver) std::this_thread::yield();
    all_meet(meeting, "all that are left", kSize - 1);
    EXPECT_TRUE(losses.empty());
    meeting.leave();
  });
  EXPECT_THAT(errors, Each(""));
}

// A relay ends just after its first rank has connected.
TEST_F(Relays, ARelayThatDiesBeforeAllArrivedEndsTheGathering) {
  const int port = free_port();
  const RunSecret secret = secret_of_ranks(member(1, kSize, port));
  net::Pipe relays = net::make_pipe();
  const pid_t victim = in_child([&] {
    net::TcpEndpoint endpoint(
        {.name = "victim", .secret = role_key(secret, Role::relay), .listen = {{"127.0.0.1", 0}}});
    const std::string server = listener_name(Role::ranks, port);
    const auto wait_for_frame = [&] {
      std::string bytes(1000, ' ');
      net::receive_by(endpoint, server, kToRank, bytes, Deadline::after(kLong));
    };
    endpoint.listen_to_peers([&](const net::PeerChange& change) {
      if (change.is_up && change.peer != server) ::raise(SIGKILL);
    });
    while (endpoint.try_connect(server, {"127.0.0.1", port}, role_key(secret, Role::ranks),
                                {Deadline::after(kLong)})) {
    }
    const auto hello = encode({Message::hello, 0, "",
                               to_json(Hello{.rank = 1,
                                             .world_size = kSize,
                                             .host = "here",
                                             .pid = 7,
                                             .patience_ms = 20'000,
                                             .left_ms = 20'000,
                                             .machine = net::loopback_id(),
                                             .relay_port = endpoint.addresses()[0].port})});
    net::send_by(endpoint, server, kToServer, hello, Deadline::after(kLong));
    wait_for_frame();  // the word to relay
    EXPECT_EQ(::write(relays.write.get(), "x", 1), 1);
    wait_for_frame();
  });
  auto rank_0 =
      std::async(std::launch::async, [&] { return run_all({member(0, kSize, port)}, nothing); });
  char byte;
  ASSERT_EQ(::read(relays.read.get(), &byte, 1), 1);
  // Rank 0 ends because of this, and ranks that come later cannot be notified.
  auto errors = run_all({member(2, kSize, port)}, nothing);
  errors.push_back(rank_0.get()[0]);
  int status = -1;
  ::waitpid(victim, &status, 0);
  EXPECT_EQ(status, SIGKILL);
  EXPECT_THAT(errors, Each(StartsWith("[cluster] rank 1 was lost before all ranks had arrived")));
}

TEST(RelayPlan, TheFirstOfEachMachineRelaysForTheNext) {
  RelayPlan plan({.from_world_size = 8, .ranks_each = 3});
  using Role = RelayPlan::Role;
  const auto place = [&](int rank, const std::string& machine, bool direct = false) {
    const auto it = plan.place({.rank = rank,
                                .world_size = 8,
                                .machine = machine,
                                .relay_port = 100 + rank,
                                .direct = direct},
                               std::to_string(rank));
    EXPECT_EQ(it.endpoint, it.role == Role::through ? std::to_string(it.relay) : "");
    return std::tuple(it.role, it.relay, it.port);
  };
  EXPECT_EQ(place(0, "a"), std::tuple(Role::direct, -1, 0));
  EXPECT_EQ(place(5, "a"), std::tuple(Role::relay, -1, 0));
  EXPECT_EQ(place(2, "b"), std::tuple(Role::relay, -1, 0));
  EXPECT_EQ(place(3, "a"), std::tuple(Role::through, 5, 105));
  EXPECT_EQ(place(1, "b"), std::tuple(Role::through, 2, 102));
  EXPECT_EQ(place(4, "a", true), std::tuple(Role::direct, -1, 0)) << "could not reach it";
  EXPECT_EQ(place(4, "a"), std::tuple(Role::through, 5, 105));
  EXPECT_EQ(place(6, "a"), std::tuple(Role::relay, -1, 0)) << "the first has its three";
  EXPECT_EQ(place(7, "a"), std::tuple(Role::through, 6, 106));
  EXPECT_EQ(place(7, ""), std::tuple(Role::direct, -1, 0));
  EXPECT_EQ(plan.place({.rank = 1, .world_size = 7, .machine = "a", .relay_port = 1}, "1").role,
            Role::direct)
      << "a small world";
}

TEST(RelayPlan, TheMostConnections) {
  const RelayRules rules;
  EXPECT_EQ(most_connections(rules, 64, 8), 64);
  EXPECT_EQ(most_connections(rules, 1024, 1), 34);
  EXPECT_EQ(most_connections(rules, 1024, 128), 161);
  EXPECT_EQ(most_connections(rules, 1024, 1024), 1024);
  EXPECT_EQ(most_connections(rules, 1024, -1), 1024);
}

// Rank 5 asks seven others; 4 relays for 4 to 6, 2 for 2 and 3.
TEST(Question, BlamesTheFirstOnTheWayThatIsSilent) {
  const std::vector<int> relays{0, 0, 2, 2, 4, 4, 4, 0};
  const auto ask = [&](const std::vector<int>& answering) {
    Question question("", 5, 8);
    question.take("");
    if (!answering.empty()) question.take(pack_answers({{"x", answering}}));
    return question;
  };
  const auto silent = [&](Question question) { return question.finish("own", 4, relays).silent; };
  EXPECT_THAT(silent(ask({0, 1, 2, 3, 4, 7})), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)) << "itself";
  EXPECT_THAT(silent(ask({0, 1, 4, 6})), ElementsAre(0, 1, 2, 2, 4, 5, 6, 7)) << "its relay";
  EXPECT_THAT(silent(ask({})), ElementsAre(0, 0, 0, 0, 0, 5, 0, 0)) << "rank 0";
  Question unanswered("", 5, 8);
  EXPECT_THAT(silent(unanswered), ElementsAre(4, 4, 4, 4, 4, 5, 4, 4)) << "the asker's relay";
  Question without("", 5, 8);
  without.gone(4);
  EXPECT_THAT(silent(without), ElementsAre(0, 0, 0, 0, 4, 5, 0, 0));
}

}  // namespace
}  // namespace troika::cluster
