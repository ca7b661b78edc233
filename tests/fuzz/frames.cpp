// Parses messages that ranks and launches receive: frames, and the JSON, answers and relayed frames
// in them. The results are given to the rules of the rendezvous and of elastic rounds.
#include <map>
#include <string_view>

#include "tests/fuzz/fuzz.h"
#include "troika/base/error.h"
#include "troika/cluster/elastic/agent_wire.h"
#include "troika/cluster/elastic/rounds.h"
#include "troika/cluster/rendezvous/inquiries.h"
#include "troika/cluster/rendezvous/ranges.h"
#include "troika/cluster/rendezvous/relay_plan.h"
#include "troika/cluster/rendezvous/roster.h"
#include "troika/cluster/rendezvous/wire.h"

namespace troika::fuzz {

using namespace cluster;

namespace {

constexpr int kRanks = 4;

// The rules that frames reach, as the servers give them frames.
class Rules {
 public:
  Rules() {
    rounds_.admit(0, host_);
    for (int rank = 0; rank < kRanks; ++rank) inquiries_.arrived(rank);
  }

  // `connection` has said this.
  void take(uint64_t connection, const Frame& frame) {
    if (frame.message == Message::relayed) {
      std::string_view inner = frame.value;
      take(frame.number % kRanks, take_frame(inner));
    } else if (frame.message == Message::ask) {
      const auto wait = static_cast<int64_t>(frame.number % 1000);
      inquiries_.ask(static_cast<int>(connection), frame.key, frame.value, Milliseconds(wait));
    } else if (frame.message == Message::answer) {
      inquiries_.answer(static_cast<int>(connection), frame.number, frame.value);
    } else if (frame.message == Message::hello) {
      const auto hello = hello_from_json(frame.value);
      if (!hello || roster_.objection(*hello)) return;
      if (plan_.place(*hello, "endpoint").role == RelayPlan::Role::through) return;
      roster_.enter(*hello, net::Duration(0));
    } else if (const auto agent = agents_.find(connection); agent == agents_.end()) {
      greet(connection, frame);
    } else {
      handle(agent->second, frame);
    }
  }

 private:
  void greet(uint64_t connection, const Frame& frame) {
    const auto hello =
        frame.message == Message::join ? agent_hello_from_json(frame.value) : std::nullopt;
    if (hello && !rounds_.admit(next_agent_, *hello)) agents_[connection] = next_agent_++;
  }
  void handle(int agent, const Frame& frame) {
    switch (frame.message) {
      case Message::failing:
        return rounds_.failing(agent);
      case Message::ended:
        if (const auto end = round_end_from_json(frame.value)) rounds_.ended(agent, *end);
        return;
      case Message::depart:
        return rounds_.depart(agent, static_cast<int>(frame.number));
      case Message::lost:
        return rounds_.lost(agent, frame.value);
      default:
        rounds_.late("");
    }
  }

  const AgentHello host_{.host = "host", .pid = 1, .hosts = true, .options = {{"--nnodes", "1:4"}}};
  Roster roster_{kRanks, "run", "port 1"};
  RelayPlan plan_{{.from_world_size = 2, .ranks_each = 2}};
  Inquiries inquiries_{[](const std::vector<int>&, const Frame& frame) { encode(frame); },
                       [] { return net::Duration(0); }};
  Rounds rounds_{{.min_nodes = 1,
                  .max_nodes = 4,
                  .max_restarts = 2,
                  .last_call_timeout = Milliseconds(1),
                  .join_timeout = Milliseconds(1000),
                  .stop_timeout = Milliseconds(1000)},
                 host_,
                 [] { return LaunchPlace{.address = "127.0.0.1", .port = 1, .run_id = "run"}; },
                 [](int, const Frame& frame) { encode(frame); },
                 [] { return net::Duration(0); }};
  std::map<uint64_t, int> agents_;  // by connection
  int next_agent_ = 1;
};

// Broken answers must not prevent the rest of the input from being read.
void read_answers(const Frame& frame) {
  try {
    for_each_rank(frame.key, kRanks, [](int) {});
  } catch (const Error&) {
  }
  try {
    unpack_answers(frame.value, kRanks, [](int, const std::string&) {});
  } catch (const Error&) {
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const Hello hello{.rank = 1,
                    .world_size = kRanks,
                    .run_id = "run",
                    .host = "node",
                    .pid = 7,
                    .patience_ms = 9,
                    .machine = "here",
                    .relay_port = 5};
  const AgentHello agent{.host = "node", .pid = 7, .options = {{"--nnodes", "1:4"}}};
  const auto frame = [](Message message, std::string value, uint64_t number = 0) {
    return encode({.message = message, .number = number, .key = "key", .value = std::move(value)});
  };
  const std::string joined = frame(Message::join, to_json(agent));
  const std::string answers = pack_answers({{"same", {0, 1, 3}}, {"other", {2}}});
  return {
      frame(Message::relayed, frame(Message::hello, to_json(hello)), 1) +
          frame(Message::go, "1", 5),
      frame(Message::ask, "?", 1) + frame(Message::ask, "?", 2) + frame(Message::answer, "a", 0),
      encode({Message::answer, 0, "0-1,3-3", answers}),
      frame(Message::hello, to_json(hello)) + frame(Message::hello, to_json(hello)),
      joined + joined + frame(Message::failing, "") + frame(Message::ended, to_json(RoundEnd{})),
      joined + frame(Message::depart, "", 3) + frame(Message::lost, "gone"),
      frame(Message::refused, to_json(Refusal{ErrorKind::peer, {.what = "what", .got = "got"}})),
      frame(Message::round, to_json(LaunchPlace{.address = "host", .port = 5, .run_id = "run"}))};
}

void run(std::string_view input) {
  Rules rules;
  while (!input.empty()) {
    const Frame frame = take_frame(input);
    rules.take(frame.number % kRanks, frame);
    // A client reads these.
    read_answers(frame);
    launch_place_from_json(frame.value);
    to_error(frame.value, "fuzzing");
  }
}

}  // namespace troika::fuzz
