// ranks BACKEND[+PROTECTION] MODE [RANKS_PER_NODE], on the ranks that a launcher started; with
// RANKS_PER_NODE, the ranks act as if they were on several nodes:
//   conform   the conformance suite
//   sum       one sum
//   deadlock  the last rank calls a collective of the world, the others one of another group
//   mismatch  rank 1 calls another collective than the others
//   levels    ranks on several nodes send no messages inside of them
//   drive     waits inside of a node let messages between nodes move on; 2 nodes of 2 ranks
//   progress  messages move while both ranks wait for something else; 2 ranks
//   outlive   sub-groups inside of nodes outlive the world
//   throw     rank 1 throws and lives on while the others wait for it
//   flood     messages that are received late do not block collectives
//   protections  rank 1 wants its messages protected in another way than the others
// In deadlock, mismatch and throw, every other rank must get the right error, whatever it is doing:
// a failed rank ends every call of the others, even calls for which they no longer need it.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gmock/gmock.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "tests/comm/conformance.h"
#include "troika/base/error.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/world/world.h"

namespace troika::comm {
namespace {

// Expects that the rank got the right error.
void expect_error(const std::optional<Error>& error, ErrorKind kind, const std::string& part) {
  ASSERT_TRUE(error) << "no error";
  EXPECT_EQ(error->kind(), kind) << error->what();
  EXPECT_THAT(error->what(), testing::HasSubstr(part));
}

std::optional<Error> error_of(const std::function<void()>& call) {
  try {
    call();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

void mismatch(const std::function<Group()>& make) {
  const auto error = error_of([&] {
    const Group group = make();
    if (group.rank() == 1) {
      group.barrier({.label = "other"});
    } else {
      group.all_reduce(at::ones({8}), ReduceOp::sum, {.label = "mine"});
    }
  });
  expect_error(error, ErrorKind::usage, "ranks called different collectives");
  expect_error(error, ErrorKind::usage, "rank 1: barrier #0 'other'");
}

void deadlock(const std::function<Group()>& make) {
  const auto error = error_of([&] {
    const Group world = make();
    const Group all = *world.split(0);
    if (world.rank() == world.size() - 1) {
      world.barrier({.label = "alone"});
    } else {
      all.all_reduce(at::ones({8}), ReduceOp::sum, {.label = "together"});
    }
  });
  expect_error(error, ErrorKind::usage, "ranks wait for each other in calls of different groups");
  expect_error(error, ErrorKind::usage, "'alone'");
  expect_error(error, ErrorKind::usage, "'together'");
}

void sum(const Group& group) {
  const auto tensor = at::full({1}, group.rank());
  group.all_reduce(tensor);
  EXPECT_EQ(tensor.item<float>(), group.size() * (group.size() - 1) / 2);
}

// Returns the number of messages that this rank sent, and of those that left its node.
std::pair<uint64_t, uint64_t> sent_by(const Group& group, const std::function<void()>& call) {
  const auto before = group.counters();
  call();
  const auto after = group.counters();
  return {after.messages - before.messages,
          after.messages_between_nodes - before.messages_between_nodes};
}

void levels(const Group& group) {
  const auto& nodes = group.nodes();
  ASSERT_NE(nodes.front(), nodes.back()) << "one node";
  const auto check_only_between_nodes = [&](const char* what, const std::function<void()>& call) {
    const auto [all, between] = sent_by(group, call);
    EXPECT_EQ(all, between) << what;
    auto total = at::tensor({static_cast<int64_t>(all)});
    group.all_reduce(total);
    EXPECT_GT(total.item<int64_t>(), 0) << what;
  };
  const int n = group.size();
  for (const int64_t block : {1, 100'000}) {
    for (const auto type : {at::kFloat, at::kHalf}) {
      const auto own = group.allocate({block}, type).fill_(1);
      const auto whole = group.allocate({n * block}, type).fill_(1);
      check_only_between_nodes("all_reduce", [&] {
        group.all_reduce(whole, ReduceOp::sum, {.algorithm = Algorithm::hierarchical});
      });
      check_only_between_nodes("reduce_scatter", [&] { group.reduce_scatter(own, whole); });
      check_only_between_nodes("all_gather", [&] { group.all_gather(whole, own); });
      check_only_between_nodes("broadcast", [&] { group.broadcast(whole, n - 1); });
    }
  }

  // A sub-group inside a node is a group of back end shm.
  const int mine = nodes[static_cast<size_t>(group.rank())];
  const auto inside = *group.split(mine, -group.rank());
  EXPECT_EQ(inside.backend(), "shm");
  const auto shared = inside.allocate({300'000}, at::kFloat).fill_(group.rank());
  const auto [messages, between] = sent_by(inside, [&] { inside.all_reduce(shared); });
  EXPECT_EQ(messages, 0u);
  double expected = 0;
  for (int r = 0; r < n; ++r) expected += nodes[static_cast<size_t>(r)] == mine ? r : 0;
  EXPECT_TRUE(shared.eq(expected).all().item<bool>());

  // All but the last rank: several nodes, of different sizes.
  const auto most = group.split(group.rank() == n - 1 ? -1 : 0);
  if (!most) return;
  EXPECT_EQ(most->backend(), group.backend());
  const auto sum = most->allocate({300'001}, at::kFloat).fill_(most->rank());
  const auto sent = sent_by(
      *most, [&] { most->all_reduce(sum, ReduceOp::sum, {.algorithm = Algorithm::hierarchical}); });
  EXPECT_EQ(sent.first, sent.second);
  EXPECT_TRUE(sum.eq((n - 1) * (n - 2) / 2).all().item<bool>());
}

// Each call needs messages between nodes to move, while the ranks that must move them wait for
// their neighbours. Tested in the world and in a sub-group, for a message that is sent and for one
// that is received.
void drive(const Group& group) {
  ASSERT_EQ(group.nodes(), (std::vector<int>{0, 0, 1, 1}));
  const auto inside = *group.split(group.nodes()[static_cast<size_t>(group.rank())]);
  const auto large = at::full({4 << 20}, group.rank(), at::kFloat);
  const auto small = at::zeros({1});
  const auto synchronize_node = [&](bool in_world) {
    if (!in_world) return inside.barrier();
    const int neighbour = group.rank() ^ 1;
    const auto sent = group.send(small, neighbour);
    group.receive(at::zeros({1}), neighbour).wait();
    sent.wait();
  };
  for (const bool in_world : {false, true}) {
    for (const int from : {0, 2}) {
      const int to = 2 - from;
      if (group.rank() == 0) {
        const auto work = from == 0 ? group.send(large, to) : group.receive(large, from);
        synchronize_node(in_world);
        work.wait();
      } else if (group.rank() == 2) {
        (from == 0 ? group.receive(large, from) : group.send(large, to)).wait();
        group.send(small, 1).wait();
        synchronize_node(in_world);
      } else {
        if (group.rank() == 1) group.receive(small, 2).wait();
        synchronize_node(in_world);
      }
      const int filled_by = group.rank() == to || group.rank() == from ? from : group.rank();
      EXPECT_TRUE(large.eq(filled_by).all().item<bool>());
      large.fill_(group.rank());
    }
  }
}

// Each of two ranks in turn starts its end of a long message and then waits for a byte in a pipe.
// The other rank writes this byte when its own end is done.
void progress(const Group& group) {
  const TemporaryFolder folder;
  const auto pipe = group.broadcast_text((folder / "word").string());
  if (group.rank() == 0) {
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  }
  group.barrier();
  const int other = 1 - group.rank();
  for (int round = 0; round < 4; ++round) {
    const bool sends = (group.rank() + round) % 2 == 0;
    const bool is_away = round / 2 == group.rank();
    const auto tensor = at::full({4 << 20}, sends ? round : -1, at::kFloat);
    const auto work = sends ? group.send(tensor, other) : group.receive(tensor, other);
    char word = 0;
    const int end = is_away ? ::open(pipe.c_str(), O_RDONLY) : -1;
    if (is_away) {
      EXPECT_EQ(::read(end, &word, 1), 1) << "round " << round;
      work.wait();
      ::close(end);
    } else {
      work.wait(Deadline::after(std::chrono::seconds(30)));
      const int out = ::open(pipe.c_str(), O_WRONLY);
      EXPECT_EQ(::write(out, &word, 1), 1);
      ::close(out);
    }
    EXPECT_TRUE(tensor.eq(round).all().item<bool>());
    group.barrier();
  }
}

// Sub-groups keep working when handles to the world are gone, here on all ranks but one of each
// node.
void outlive(const std::function<Group()>& make) {
  std::optional<Group> world = make();
  const auto inside = world->split(world->nodes()[static_cast<size_t>(world->rank())]);
  if (inside->rank() > 0) world.reset();
  // After this time, all ranks would know of a rank that had left.
  const auto end = Deadline::after(Milliseconds(500));
  for (bool more = true; more;) {
    const auto goes_on = at::full({8}, end.passed() ? 0 : 1);
    inside->all_reduce(goes_on);
    more = goes_on.eq(inside->size()).all().item<bool>();
  }
}

// More small and large messages than any transport can hold.
void flood(const Group& group) {
  constexpr int kMessages = 3000;
  const int next = (group.rank() + 1) % group.size();
  const int before = (group.rank() + group.size() - 1) % group.size();
  for (const int64_t count : {1, 2000, 50'000}) {
    const int messages = count > 2000 ? 200 : kMessages;
    std::vector<Work> sent;
    for (int i = 0; i < messages; ++i)
      sent.push_back(group.send(at::full({count}, i, at::kFloat), next, 5));
    sum(group);
    for (int i = 0; i < messages; ++i) {
      const auto tensor = at::zeros({count});
      group.receive(tensor, before, 5).wait();
      ASSERT_TRUE(tensor.eq(i).all().item<bool>()) << "message " << i << " of " << count;
    }
    for (const Work& work : sent) work.wait();
  }
}

void protections(int rank, const cluster::Environment& environment) {
  const auto error = error_of([&] {
    world(environment,
          {.backend = "tcp", .group = {.protection = rank == 1 ? "authenticated" : "none"}});
  });
  expect_error(error, ErrorKind::usage, "refused to be connected; got protection");
}

void one_throws(int rank, const std::function<Group()>& make) {
  try {
    const auto error = error_of([&] {
      const Group group = make();
      if (rank == 1) throw std::runtime_error("the disk is full");
      group.barrier({.label = "waiting"});
    });
    expect_error(error, ErrorKind::peer, "rank 1 is gone: its program failed");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the disk is full");
  }
}

}  // namespace
}  // namespace troika::comm

int main(int argc, char** argv) {
  using namespace troika;
  testing::InitGoogleTest(&argc, argv);
  const std::string mode = argv[2];
  try {
    auto environment = cluster::discover();
    if (argc > 3) {
      environment.local_world_size = std::atoi(argv[3]);
      environment.num_nodes = environment.world_size / environment.local_world_size;
      environment.node_rank = environment.rank / environment.local_world_size;
      environment.local_rank = environment.rank % environment.local_world_size;
    }
    const std::string backend = argv[1];
    const auto plus = backend.find('+');
    comm::WorldOptions options{.backend = backend.substr(0, plus)};
    // The same runs show long messages over several connections.
    if (plus != backend.npos) {
      options.group.protection = backend.substr(plus + 1);
      options.group.streams = 2;
    }
    const auto make = [&] { return comm::world(environment, options); };
    if (mode == "conform") comm::conform(make());
    if (mode == "sum") comm::sum(make());
    if (mode == "levels") comm::levels(make());
    if (mode == "drive") comm::drive(make());
    if (mode == "progress") comm::progress(make());
    if (mode == "outlive") comm::outlive(make);
    if (mode == "deadlock") comm::deadlock(make);
    if (mode == "mismatch") comm::mismatch(make);
    if (mode == "flood") comm::flood(make());
    if (mode == "protections") comm::protections(environment.rank, environment);
    if (mode == "throw") comm::one_throws(environment.rank, make);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  // Expectations fail the process that made them.
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed();
}
