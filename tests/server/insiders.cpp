// Peers that have the run's secret send invalid messages to the nodes of a parameter server:
//
//   server_insiders [--seconds=S] [--seed=N]
//
// First, the messages of a world that works are recorded: a scheduler, two servers and two workers.
// Then a scheduler, a server and a worker are each alone among peers that use the names of their
// worlds. The peers send what was recorded, with numbers that the node expects and then with random
// changes, and frames that no endpoint sends. Each server and worker begins again several times in
// a second, so that it does not remain in a state in which it refuses all. A crash ends the program
// with a signal. The program fails if a node does not answer any more, or if memory grows.
#include <fmt/format.h>
#include <poll.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/fuzz/mutate.h"
#include "tests/server/recorded_world.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/machine_memory.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"
#include "troika/net/dial.h"
#include "troika/net/frame_writer.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/server/control.h"
#include "troika/server/gathered_messages.h"
#include "troika/server/request.h"
#include "troika/server/scheduler.h"
#include "troika/server/server.h"
#include "troika/server/worker.h"

namespace troika::server {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostMessageBytes = size_t{64} << 10;
constexpr int64_t kMostGrowth = int64_t{96} << 20;
constexpr net::Channel kEcho = 1;
constexpr int kRoundsOfLife = 50;

// A node of a parameter server, alone among insiders. It begins again when they say so.
class Victim {
 public:
  Victim(std::string name, const net::Secret& secret) : endpoint_(endpoint_options(name, secret)) {
    endpoint_.handle(kEcho, 64, [this](const std::string& peer, std::string message) {
      net::send_owned(endpoint_, peer, kEcho, std::make_shared<const std::string>(message));
    });
    begin();
  }
  const std::string& name() const { return endpoint_.name(); }
  const net::Address& address() const { return endpoint_.addresses()[0]; }
  void begin() {
    const bool is_server = name() == "s0";
    server_.reset();
    worker_.reset();
    if (name() == "scheduler") {
      if (!scheduler_)
        scheduler_.emplace(endpoint_, SchedulerOptions{.tables = tables(), .ranges = 2});
    } else if (is_server) {
      server_.emplace(endpoint_, ServerOptions{.member = {.beat = milliseconds(5)}});
    } else {
      worker_.emplace(endpoint_, WorkerOptions{.member = {.beat = milliseconds(5)},
                                               .resend = milliseconds(20)});
    }
  }
  // Lets a worker have calls that wait for answers.
  void call() {
    if (!worker_ || !worker_->is_ready()) return;
    try {
      worker_->push("w", KeySpan{0, 1}, std::vector<double>{1});
      worker_->push_pull("w", KeySpan{0, kLong}, std::vector<double>(kLong, 1));
      worker_->pull("rows", std::vector<Key>{1, 7, 1000, 77'000});
      worker_->pull("lengths", std::vector<Key>{0, 3, 19});
      worker_->begin_step();
    } catch (const Error&) {
      // The tables of a changed map are others.
    }
  }

 private:
  net::TcpEndpoint endpoint_;
  std::optional<Scheduler> scheduler_;
  std::optional<Server> server_;
  std::optional<Worker> worker_;
};

// The peers of a victim, one endpoint for each name in its world.
class Insiders {
 public:
  Insiders(Victim& victim, const net::Secret& secret, const std::vector<Recorded>& recorded,
           uint64_t seed)
      : victim_(victim), random_(seed) {
    for (const auto& one : recorded) {
      texts_.push_back(one.message);
      // The values of answers have a channel each.
      const auto kind = std::min(one.channel, kFirstValues);
      if (one.to == victim.name()) samples_[kind].push_back(one);
    }
    for (const char* name : {"scheduler", "s0", "s1", "w0", "w1"}) {
      if (name == victim.name()) continue;
      auto& peer = peers_[name];
      peer = std::make_unique<net::TcpEndpoint>(
          net::TcpOptions{.name = name, .secret = secret, .listen = {}});
      // Messages that a peer does not take wait at the victim, and then all others do.
      for (const auto channel :
           {kBeats, kStates, kRequests, kAnswers, kCopies, kReceipts, kStatusAnswers}) {
        peer->handle(channel, size_t{1} << 30,
                     [this, channel, peer = peer.get()](const std::string&, std::string message) {
                       note(channel, message);
                       if (channel == kAnswers) refuse_values(*peer, std::move(message));
                     });
      }
      peer->handle(kEcho, 64, [this](const std::string&, const std::string& text) {
        const std::lock_guard lock(mutex_);
        echo_ = text;
      });
      peer->connect(victim.name(), {victim.address()}, soon());
    }
  }

  // Sends some messages, of which most are changed if `changes`. Returns how many.
  int send_some(bool changes) {
    int sent = 0;
    for (const auto& [kind, samples] : samples_) {
      for (int i = 0; i < 4; ++i) sent += send(samples[random_.below(samples.size())], changes);
    }
    return sent;
  }
  // Ends the connections: messages that the victim does not take would hold up later ones.
  void disconnect() {
    for (auto& [name, peer] : peers_) peer->disconnect(victim_.name());
  }
  // Whether messages get past the first checks: a server executes requests, and a worker takes
  // answers.
  void expect_effect() {
    const std::lock_guard lock(mutex_);
    const bool has_effect = victim_.name() == "scheduler" || executed_ > 0 || received_ > 0;
    if (has_effect) return;
    throw Error("server", ErrorKind::failure,
                {.what = victim_.name() + " has taken no request or answer"});
  }
  // Whether the victim answers each peer.
  void expect_answers() {
    for (auto& [name, peer] : peers_) {
      const auto text = fmt::format("{} {}", name, ++echoes_);
      peer->connect(victim_.name(), {victim_.address()}, soon());
      net::send_by(*peer, victim_.name(), kEcho, text, soon());
      const auto has_answer = [&] {
        const std::lock_guard lock(mutex_);
        return echo_ == text;
      };
      if (!peer->run_until(has_answer, std::chrono::seconds(60))) {
        throw Error("server", ErrorKind::failure,
                    {.what = victim_.name() + " does not answer", .got = name});
      }
    }
  }

 private:
  // The numbers with which a message to the victim gets past the first checks.
  struct Expected {
    uint64_t instance = 0;                   // of the victim
    std::optional<RequestHead> push = {};    // of the victim
    uint64_t worker = 1, number = 0;         // of the victim's requests
    std::map<uint32_t, uint64_t> sent = {};  // the numbers of requests to the victim, by range
  };

  void note(net::Channel channel, const std::string& message) {
    const std::lock_guard lock(mutex_);
    try {
      if (channel == kBeats) {
        const auto beat = parse_beat(message);
        expected_.instance = beat.instance;
        executed_ = std::max(executed_, beat.requests);
        received_ = std::max(received_, beat.received_bytes);
      }
      if (channel != kRequests) return;
      const auto head = parse_head(message);
      if (head.operation == Operation::push) expected_.push = head;
      expected_.worker = head.worker;
      expected_.number = head.number;
    } catch (const Error&) {
      // Gathered requests have no head.
    }
  }
  void refuse_values(net::Endpoint& peer, std::string answers) {
    try {
      for_each_message(std::move(answers), [&](const std::string& one) {
        const auto channel = parse_answer(one).apart;
        if (channel != 0) peer.receive(victim_.name(), channel, {}, {});
      });
    } catch (const Error&) {
      // A changed request may ask for an unknown form.
    }
  }
  std::string prepared(const Recorded& sample) {
    const std::lock_guard lock(mutex_);
    auto message = sample.message;
    try {
      if (sample.channel == kStates) {
        auto state = parse_state(message);
        state.instance = expected_.instance;
        return to_message(state);
      }
      if (sample.channel == kRequests) {
        auto head = parse_head(message);
        head.number = head.floor = ++expected_.sent[head.range];
        std::string text;
        write_head(head, text);
        return text + message.substr(kRequestHead);
      }
      if (sample.channel == kAnswers && expected_.push && random_.below(2) == 0) {
        std::string text;
        const auto& push = *expected_.push;
        write_answer({.worker = push.worker, .number = push.number, .range = push.range},
                     ValueType::float64, {}, 0, text);
        return text;
      }
      if (sample.channel == kAnswers && message.size() >= 16) {
        std::memcpy(message.data(), &expected_.worker, 8);
        std::memcpy(message.data() + 8, &expected_.number, 8);
      }
      if (sample.channel == kBeats) {
        auto beat = parse_beat(message);
        beat.number = ++beats_;
        return to_message(beat);
      }
    } catch (const Error&) {
      // Gathered messages stay as they are.
    }
    return message;
  }
  bool send(const Recorded& sample, bool changes) {
    auto& peer = *peers_.at(sample.from);
    if (open_ > 64) return false;
    auto message = prepared(sample);
    if (changes && random_.below(4) > 0) {
      message = fuzz::mutated(std::move(message), texts_, kMostMessageBytes, random_);
    }
    ++open_;
    net::send_owned(peer, victim_.name(), sample.channel,
                    std::make_shared<const std::string>(std::move(message)), net::Priority::normal,
                    [this](const net::Result&) { --open_; });
    return true;
  }

  Victim& victim_;
  Random random_;
  std::vector<std::string> texts_;
  std::map<net::Channel, std::vector<Recorded>> samples_;
  std::mutex mutex_;
  Expected expected_;
  uint64_t executed_ = 0, received_ = 0;
  std::string echo_;
  int echoes_ = 0;
  uint64_t beats_ = 0;
  std::atomic<int> open_ = 0;
  std::map<std::string, std::unique_ptr<net::TcpEndpoint>> peers_;  // ends first
};

// Connects, and sends frames that no endpoint sends, until the victim ends the connection.
void send_frames(const Victim& victim, const net::Secret& secret, Random& random,
                 const std::vector<Recorded>& recorded) {
  const net::Hello hello{"x", random(), net::Protection::encrypted, 0, 1};
  auto dialed = net::dial(victim.name(), victim.address(), secret, hello, {soon()});
  if (!std::holds_alternative<net::Dialed>(dialed)) return;
  const auto& [socket, keys] = std::get<net::Dialed>(dialed);
  net::FrameWriter writer(keys.send, net::Protection::encrypted);
  std::vector<net::OutFrame> written;
  std::string reason;
  for (int i = 0; i < 200; ++i) {
    const auto& sample = recorded[random.below(recorded.size())];
    const auto number = [&] {
      return random.below(2) ? random.below(100) : random() >> random.below(64);
    };
    net::FrameHead head{.kind = static_cast<net::FrameKind>(random.below(9)),
                        .channel = sample.channel,
                        .id = number(),
                        .size = number()};
    const bool has_payload =
        head.kind == net::FrameKind::message || head.kind == net::FrameKind::data;
    const auto message =
        std::make_shared<net::Outgoing>(net::Outgoing{.message = std::string_view(sample.message)});
    if (has_payload)
      head.length = static_cast<uint32_t>(std::min(sample.message.size(), kMostMessageBytes));
    if (head.kind == net::FrameKind::data) head.size = 0;
    writer.add({head, message});
    while (!writer.is_empty()) {
      if (!writer.flush(socket.get(), written, reason)) return;
      if (!writer.is_empty() && !net::wait_for(socket.get(), POLLOUT, soon())) return;
    }
  }
}

int run(double seconds, uint64_t seed) {
  // A changed state may order a snapshot into any folder.
  const TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  const auto secret = net::Secret::random();
  const auto recorded = record(secret);
  Random random(seed);
  std::vector<std::unique_ptr<Victim>> victims;
  std::vector<std::unique_ptr<Insiders>> insiders;
  for (const char* name : {"scheduler", "s0", "w0"}) {
    victims.push_back(std::make_unique<Victim>(name, secret));
    insiders.push_back(std::make_unique<Insiders>(*victims.back(), secret, recorded, random()));
  }
  const Stopwatch watch;
  int64_t messages = 0, before = 0;
  for (int round = 0; watch.seconds() < seconds; ++round) {
    for (size_t i = 0; i < victims.size(); ++i) {
      // A node that has just begun gets what it needs to work.
      messages += insiders[i]->send_some(round % kRoundsOfLife >= kRoundsOfLife / 4);
      victims[i]->call();
      if (round % kRoundsOfLife == kRoundsOfLife - 1) {
        insiders[i]->disconnect();
        victims[i]->begin();
      }
      if (round % 20 == 19) send_frames(*victims[i], secret, random, recorded);
      if (round % kRoundsOfLife == 0) insiders[i]->expect_answers();
    }
    if (before == 0 || watch.seconds() < seconds / 4) before = memory::resident();
  }
  for (auto& some : insiders) {
    some->expect_answers();
    some->expect_effect();
  }
  const int64_t growth = memory::resident() - before;
  fmt::print("{} messages of {} recorded ones to 3 nodes in {:.0f} s, memory grew by {} MiB\n",
             messages, recorded.size(), watch.seconds(), growth >> 20);
  if (growth <= kMostGrowth) return 0;
  fmt::print(stderr, "error: memory grew by {} MiB; expected at most {}\n", growth >> 20,
             kMostGrowth >> 20);
  return 1;
}

}  // namespace
}  // namespace troika::server

int main(int argc, char** argv) try {
  double seconds = 60;
  int64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = word.substr(std::min(word.size(), word.find('=') + 1));
    if (word.starts_with("--seconds=")) {
      seconds = troika::parse_double(value).value_or(-1);
    } else if (word.starts_with("--seed=")) {
      seed = troika::parse_int(value).value_or(-1);
    } else {
      seconds = -1;
    }
    if (seconds < 0 || seed < 0) {
      throw troika::Error("test", troika::ErrorKind::usage,
                          {.what = "an argument",
                           .got = argv[i],
                           .expected = "--seconds=S or --seed=N, not negative"});
    }
  }
  return troika::server::run(seconds, static_cast<uint64_t>(seed));
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return 2;
}
