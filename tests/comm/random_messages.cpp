// random_messages BACKEND [--messages=N] [--seed=N] [--fault=kill|stop|mismatch --victim=RANK], on
// the ranks that a launcher started, or on four threads for back end local: the ranks send and
// receive N messages in total, with random sizes, dtypes, tags and peers, singly, in batches and
// over edges. All ranks draw this schedule from the seed. Each rank waits for the messages in its
// own order, with occasional reductions. Every element is checked. Ends with 1 if a message is
// wrong, or if a rank's memory grows by more than 256 MiB after the first tenth of the messages.
//
// With a fault, the victim kills or stops itself after half of the messages, or sends one that the
// next rank does not expect. Every other rank must get an error within 20 seconds that names the
// victim; it then prints a line "told of rank RANK".
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/process_usage.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/random.h"
#include "troika/comm/edge.h"
#include "troika/comm/local/local.h"
#include "troika/comm/world/world.h"

namespace troika {
namespace {

constexpr int64_t kMemoryBound = int64_t{256} << 20;
constexpr int kTags = 3;
constexpr int kDepth = 8;  // of edges
constexpr std::array kTypes{at::kByte, at::kBool, at::kHalf, at::kInt, at::kLong, at::kDouble};

enum class Way { single, batch, edge };

struct Message {
  int from, to, tag;
  Way way;
  at::ScalarType type;
  int64_t count;
  int fill;

  at::Tensor tensor() const { return at::full({count}, fill, type); }
  void check(const at::Tensor& received) const {
    TROIKA_CHECK(received.scalar_type() == type && received.numel() == count,
                 "a message has the shape and dtype that was sent");
    TROIKA_CHECK(received.eq(fill).all().item<bool>(), "a message arrives as it was sent");
  }
};
using Pair = std::pair<int, int>;  // from, to

// Mostly small, some of megabytes.
int64_t draw_bytes(Random& random) {
  return static_cast<int64_t>(
      random.below(uint64_t{1} << random.below(random.below(16) == 0 ? 23 : 14)));
}

int draw(Random& random, int below) {
  return static_cast<int>(random.below(static_cast<uint64_t>(below)));
}

// The random messages. All ranks draw the same ones from one seed.
class Schedule {
 public:
  Schedule(int ranks, uint64_t seed) : ranks_(ranks), random_(seed) {}

  Random& random() { return random_; }

  std::vector<Message> draw_round() {
    std::map<Pair, int> on_edge;
    std::vector<Message> messages(static_cast<size_t>(1 + draw(random_, 40)));
    for (auto& message : messages) {
      message.from = draw(random_, ranks_);
      message.to = (message.from + 1 + draw(random_, ranks_ - 1)) % ranks_;
      message.tag = draw(random_, kTags);
      message.way = static_cast<Way>(draw(random_, 3));
      message.type = kTypes[static_cast<size_t>(draw(random_, kTypes.size()))];
      message.count = draw_bytes(random_) / static_cast<int64_t>(c10::elementSize(message.type));
      message.fill = message.type == at::kBool ? 1 : draw(random_, 100);
      if (message.way != Way::edge) continue;
      const Pair pair{message.from, message.to};
      if (++on_edge[pair] > kDepth) message.way = Way::single;
      // About half of the tensors have the shape and dtype of the previous one.
      auto& last = last_on_edge_.try_emplace(pair, message).first->second;
      if (draw(random_, 2) == 0) {
        message.type = last.type;
        message.count = last.count;
        if (message.type == at::kBool) message.fill = 1;
      }
      last = message;
    }
    return messages;
  }

 private:
  const int ranks_;
  Random random_;
  std::map<Pair, Message> last_on_edge_;
};

// One rank.
class Rank {
 public:
  Rank(const comm::Group& group, uint64_t seed)
      : group_(group), own_(mix(seed, static_cast<uint64_t>(group.rank()))) {
    for (int r = 0; r < group.size(); ++r) {
      if (r == group.rank()) continue;
      to_.emplace(r, group.edge_to(r, 0, {.depth = kDepth}));
      from_.emplace(r, group.edge_from(r, 0, {.depth = kDepth}));
    }
  }

  void exchange(const std::vector<Message>& messages) {
    std::vector<Pending> pending;
    std::vector<Pending> sent_over_edges;
    std::vector<const Message*> batched;
    for (const auto& message : messages) {
      const bool sends = message.from == group_.rank();
      if (!sends && message.to != group_.rank()) continue;
      if (message.way == Way::batch) {
        batched.push_back(&message);
      } else if (message.way == Way::single) {
        pending.push_back(start(message));
      } else if (sends) {
        const auto tensor = message.tensor();
        sent_over_edges.push_back({to_.at(message.to).send(tensor), {{tensor, nullptr}}});
      } else {
        pending.push_back({std::nullopt, {}, message.from});
        expected_[message.from].push_back(&message);
      }
    }
    if (!batched.empty()) pending.push_back(start_batch(batched));
    // In this rank's own random order.
    while (!pending.empty()) {
      std::swap(pending[own_.below(pending.size())], pending.back());
      const Pending one = std::move(pending.back());
      pending.pop_back();
      finish(one);
    }
    // A tensor of another shape or dtype than the previous one may stay here until its receiver
    // calls receive(). If two ranks waited for such tensors first, they could wait for each other.
    for (const auto& one : sent_over_edges) finish(one);
    expected_.clear();
  }

 private:
  struct Pending {
    std::optional<comm::Work> work;
    std::vector<std::pair<at::Tensor, const Message*>> tensors;  // null for what is sent
    int edge_from = -1;
  };

  std::pair<at::Tensor, const Message*> buffer_of(const Message& message) const {
    if (message.from == group_.rank()) return {message.tensor(), nullptr};
    return {at::empty({message.count}, message.type), &message};
  }

  Pending start(const Message& message) const {
    const auto buffer = buffer_of(message);
    const auto work = buffer.second ? group_.receive(buffer.first, message.from, message.tag)
                                    : group_.send(buffer.first, message.to, message.tag);
    return {work, {buffer}};
  }

  Pending start_batch(const std::vector<const Message*>& batched) const {
    Pending batch;
    std::vector<comm::PointToPoint> messages;
    for (const auto* message : batched) {
      const auto& [tensor, received] = batch.tensors.emplace_back(buffer_of(*message));
      messages.push_back({received ? comm::Direction::receive : comm::Direction::send, tensor,
                          received ? message->from : message->to, message->tag});
    }
    batch.work = group_.batch(messages);
    return batch;
  }

  void finish(const Pending& one) {
    if (one.work) one.work->wait();
    for (const auto& [tensor, message] : one.tensors) {
      if (message) message->check(tensor);
    }
    if (one.edge_from < 0) return;
    // The next one of this edge.
    auto& expected = expected_[one.edge_from];
    expected.front()->check(from_.at(one.edge_from).receive());
    expected.erase(expected.begin());
  }

  const comm::Group group_;
  Random own_;
  std::map<int, comm::SendingEdge> to_;
  std::map<int, comm::ReceivingEdge> from_;
  std::map<int, std::vector<const Message*>> expected_;  // on the edge from each rank
};

// The deliberate fault of one rank after half of the messages.
struct Fault {
  std::string kind;  // empty: nothing
  int victim = 1;

  void commit(const comm::Group& group) const {
    if (group.rank() != victim) return;
    if (kind == "kill") ::raise(SIGKILL);
    if (kind == "stop") ::raise(SIGSTOP);
    // No other message has this type.
    if (kind == "mismatch") group.send(at::ones({3}, at::kFloat), (victim + 1) % group.size());
  }
};

int64_t held_bytes() {
  const auto usage = test::process_usage();
  return usage.resident_bytes + usage.shared_bytes;
}

void run(const comm::Group& group, int64_t messages, uint64_t seed, const Fault& fault) {
  Schedule schedule(group.size(), seed);
  Rank rank(group, seed);
  const auto start = Clock::now();
  int64_t base = 0, done = 0, rounds = 0;
  bool is_committed = false;
  while (done < messages) {
    const auto round = schedule.draw_round();
    if (done >= messages / 2 && !std::exchange(is_committed, true)) fault.commit(group);
    rank.exchange(round);
    if (schedule.random().below(4) == 0) {
      const auto count = static_cast<int64_t>(1 + schedule.random().below(100'000));
      const auto sum = at::full({count}, 1.0, at::kFloat);
      group.all_reduce(sum);
      TROIKA_CHECK(sum.eq(group.size()).all().item<bool>(), "a reduction among messages is right");
    }
    done += static_cast<int64_t>(round.size());
    if (++rounds <= 10 || done <= messages / 10) base = held_bytes();
    if (const int64_t held = held_bytes(); held > base + kMemoryBound) {
      throw Error("messages", ErrorKind::failure,
                  {.what = "memory grows",
                   .got = fmt::format("{} MiB", held >> 20),
                   .expected = fmt::format("at most {} MiB", (base + kMemoryBound) >> 20)});
    }
  }
  group.barrier();
  if (group.rank() != 0) return;
  fmt::print(
      "{}: {} messages between {} ranks, seed {}, {:.0f} s, {} MiB held at the start and {} "
      "at the end: no fault\n",
      group.backend(), done, group.size(), seed,
      std::chrono::duration<double>(Clock::now() - start).count(), base >> 20, held_bytes() >> 20);
}

// Runs until the fault, and reports whether this rank got an error in time that names the victim.
// The victim itself need not get one.
void run_under_fault(const comm::Group& group, int64_t messages, uint64_t seed,
                     const Fault& fault) {
  const auto pids = at::zeros({group.size()}, at::kLong);
  group.all_gather(pids, at::full({1}, int64_t{::getpid()}, at::kLong));
  const auto start = Clock::now();
  try {
    run(group, messages, seed, fault);
  } catch (const Error& error) {
    const auto name = fmt::format("rank {}", fault.victim);
    const bool is_named = std::string_view(error.what()).find(name) != std::string_view::npos;
    const bool in_time = Clock::now() - start < std::chrono::seconds(20);
    if (is_named && in_time && group.rank() != fault.victim) {
      fmt::print("told of {}: {}\n", name, error.what());
      std::fflush(stdout);
    } else {
      fmt::print(stderr, "rank {}: {}\n", group.rank(), error.what());
    }
    // A stopped process does not end in any other way.
    const auto pid = static_cast<pid_t>(pids[fault.victim].item<int64_t>());
    if (fault.kind == "stop" && pid != ::getpid()) ::kill(pid, SIGKILL);
    return;
  }
  throw Error("messages", ErrorKind::failure, {.what = "nobody was told of the fault"});
}

int main(int argc, char** argv) {
  int64_t messages = 400;
  uint64_t seed = 1;
  Fault fault;
  for (int i = 2; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const std::string value(argument.substr(argument.find('=') + 1));
    if (argument.starts_with("--messages=")) messages = std::stoll(value);
    if (argument.starts_with("--seed=")) seed = std::stoull(value);
    if (argument.starts_with("--fault=")) fault.kind = value;
    if (argument.starts_with("--victim=")) fault.victim = std::stoi(value);
  }
  comm::WorldOptions options;
  if (fault.kind == "stop") options.group.timeout = Milliseconds(2000);
  const auto body = [&](const comm::Group& group) {
    if (fault.kind.empty()) {
      run(group, messages, seed, fault);
    } else {
      run_under_fault(group, messages, seed, fault);
    }
  };
  if (argv[1] == std::string_view("local")) {
    comm::local::run(4, body, options.group);
  } else {
    options.backend = argv[1];
    body(comm::world(options));
  }
  // MPI_Finalize would wait for ranks that ended without it.
  if (!fault.kind.empty()) std::_Exit(0);
  return 0;
}

}  // namespace
}  // namespace troika

int main(int argc, char** argv) try {
  return troika::main(argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "fault: %s\n", error.what());
  return 1;
}
