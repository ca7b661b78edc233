// What ranks and launches read from their connections: frames in pieces, and the JSON in them,
// given to the rules of the rendezvous and of elastic rounds.
#include <map>
#include <optional>

#include "tests/fuzz/fuzz.h"
#include "troika/base/error.h"
#include "troika/cluster/agent_wire.h"
#include "troika/cluster/roster.h"
#include "troika/cluster/rounds.h"
#include "troika/cluster/wire.h"

namespace troika::fuzz {

using namespace cluster;

namespace {

// As a server bounds what strangers may make it keep.
constexpr size_t kMaxFrameHere = size_t{1} << 20;

// The rules that frames reach, as the servers give them frames.
class Rules {
 public:
  Rules() { rounds_.admit(0, host_); }

  // `connection` has said this.
  void take(uint64_t connection, const Frame& frame) {
    if (frame.message == Message::hello) {
      const auto hello = hello_from_json(frame.value);
      if (hello && !roster_.objection(*hello)) roster_.enter(*hello);
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
  Roster roster_{4, "run", "port 1"};
  Rounds rounds_{{.min_nodes = 1,
                  .max_nodes = 4,
                  .max_restarts = 2,
                  .last_call_timeout = Milliseconds(1),
                  .join_timeout = Milliseconds(1000),
                  .stop_timeout = Milliseconds(1000)},
                 host_,
                 [] { return LaunchPlace{.address = "127.0.0.1", .port = 1, .run_id = "run"}; },
                 [](int, const Frame& frame) { encode(frame); }};
  std::map<uint64_t, int> agents_;  // by connection
  int next_agent_ = 1;
};

}  // namespace

std::vector<std::string> seeds() {
  const Hello hello{
      .rank = 1, .world_size = 4, .run_id = "run", .host = "node", .pid = 7, .patience_ms = 9};
  const AgentHello agent{.host = "node", .pid = 7, .options = {{"--nnodes", "1:4"}}};
  const auto frame = [](Message message, std::string value, uint64_t number = 0) {
    return encode({.message = message, .number = number, .key = "key", .value = std::move(value)});
  };
  const std::string joined = frame(Message::join, to_json(agent));
  return {
      frame(Message::hello, to_json(hello)) + frame(Message::hello, to_json(hello)),
      joined + joined + frame(Message::failing, "") + frame(Message::ended, to_json(RoundEnd{})),
      joined + frame(Message::depart, "", 3) + frame(Message::lost, "gone"),
      frame(Message::refused, to_json(Refusal{ErrorKind::peer, {.what = "what", .got = "got"}})),
      frame(Message::round, to_json(LaunchPlace{.address = "host", .port = 5, .run_id = "run"}))};
}

void run(std::string_view input) {
  Rules rules;
  Decoder decoder;
  // In two pieces; the first byte says where the first one ends.
  const size_t cut = input.empty() ? 0 : static_cast<unsigned char>(input[0]) % (input.size() + 1);
  for (const auto piece : {input.substr(0, cut), input.substr(cut)}) {
    decoder.feed(piece);
    while (const auto frame = decoder.next(kMaxFrameHere)) {
      rules.take(frame->number % 4, *frame);
      // What a client reads.
      launch_place_from_json(frame->value);
      to_error(frame->value, "fuzzing");
    }
  }
}

}  // namespace troika::fuzz
