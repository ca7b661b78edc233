// Messages between ranks and rank 0's server, and between launches. A message of an endpoint
// (troika/net/endpoint.h) contains one or several frames.
//
// All numbers are little-endian. A frame is: u32 length of the rest, u8 message, u64 number, u32
// length of the key, key, value. Keys and values may contain any bytes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "troika/base/error.h"
#include "troika/net/endpoint.h"

namespace troika::cluster {

// Returns a single line. Invalid UTF-8 is replaced.
std::string to_text(const nlohmann::json& json);

// Must be incremented with every change of the frames or of a hello.
inline constexpr int kProtocolVersion = 6;

// The maximum size of a rank's frame.
inline constexpr size_t kMaxFrame = size_t{256} << 20;
// The maximum number of bytes that a relay adds to a frame.
inline constexpr size_t kMaxEnvelope = size_t{64} << 10;
// The maximum size of an endpoint's message.
inline constexpr size_t kMaxMessage = kMaxFrame + kMaxEnvelope;

// Channels to and from a server: rank 0's server, a relay or the hosting launch.
inline constexpr net::Channel kToServer = 1, kToRank = 2;

enum class Message : uint8_t {
  hello,    // client: value = JSON of Hello
  welcome,  // server: all ranks have joined; value = which rank relays for which (pack_answers)
  refused,  // server: value = JSON of Refusal; the connection ends
  set,      // client: number = call; answered by `value`
  get,      // client: number = call; answered by `value` once the key is set, or by `failed`
  add,      // client: number = call, value = decimal delta; answered by `value` or `failed`
  leave,    // client: number = call, value = farewell; answered by `value`
  fail,     // client: number = call, value = why it will be lost; answered by `value`
  value,    // server: number = call
  failed,   // server: number = call, value = JSON of Refusal
  lost,     // server: number = rank, value = reason
  left,     // server: number = rank, value = farewell
  ask,      // client: number = patience in ms, key = question id, value = question;
            // server: number = wave, value = question
  answer,   // client: number = wave; server: key = question id, value = answers (inquiries.h)
  bye,      // server: the keys are gone; number = 1: rank 0 was lost, value = reason; 0: it left

  // Between rank 0's server, relays, and the ranks behind relays.
  go,       // server: join through a relay; number = its port, key = its endpoint, value = its rank
  relay,    // server: this rank must relay for others
  relayed,  // relay: number = rank, value = frame from it; server: key = ranks, value = frames for
            // them
  parted,   // relay: number = rank, value = reason; its connection has ended. server: end it

  // Between the launches of an elastic run ("agents") and the server of the hosting launch.
  join,     // agent: value = JSON of AgentHello
  round,    // server: value = JSON of LaunchPlace; start the ranks
  failing,  // agent: a rank has failed
  stop,     // server: number = 1: ranks may save first; value = reason; end the ranks
  ended,    // agent: value = JSON of RoundEnd; all of its ranks have ended
  depart,   // agent: number = exit code; it was told to end, and will when its ranks have ended
  over,     // server: number = exit code for the launch, value = reason; the connection ends
};
inline constexpr Message kLastMessage = Message::over;

struct Frame {
  Message message{};
  uint64_t number = 0;
  std::string key = {};
  std::string value = {};
};

std::string encode(const Frame& frame);

// Removes the first frame from `bytes` and returns it. Throws Error(cluster, failure) for an
// invalid frame.
Frame take_frame(std::string_view& bytes);

// Identifies a connecting rank, and says how long it will wait for the others.
struct Hello {
  int protocol = kProtocolVersion;
  int rank = 0;
  int world_size = 1;
  std::string run_id = {};
  std::string host = {};
  int64_t pid = 0;
  int64_t patience_ms = 0;   // its join timeout
  int64_t left_ms = 0;       // time left of it
  std::string machine = {};  // net::loopback_id()
  int relay_port = 0;        // on the loopback interface; 0 if it cannot relay
  bool direct = false;       // must not be sent to a relay: its relay is gone or unreachable
};
std::string to_json(const Hello& hello);
std::optional<Hello> hello_from_json(const std::string& text);

// An error of rank 0's server for a rank, which throws it.
struct Refusal {
  ErrorKind kind;
  ErrorText text;
};
std::string to_json(const Refusal& refusal);
// `purpose` describes the throwing call: "<what> while <purpose>".
Error to_error(const std::string& refusal_json, const std::string& purpose = "");

}  // namespace troika::cluster
