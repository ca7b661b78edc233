// Messages between the ranks and rank 0's server, and between launches: each is one frame or
// several of them, over the channels of an endpoint (troika/net/endpoint.h).
//
// All numbers are little-endian. A frame is u32 length of the rest, u8 message, u64 number, u32
// length of the key, key, value. Keys and values are any bytes.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "troika/base/error.h"
#include "troika/net/endpoint.h"

namespace troika::cluster {

// On one line; bytes that are no UTF-8 are replaced.
std::string to_text(const nlohmann::json& json);

// Raised with every change of the frames or of a hello.
inline constexpr int kProtocolVersion = 6;

// No frame of a rank may be longer.
inline constexpr size_t kMaxFrame = size_t{256} << 20;
// A relay puts no more around a frame.
inline constexpr size_t kMaxEnvelope = size_t{64} << 10;
// An endpoint takes no longer message.
inline constexpr size_t kMaxMessage = kMaxFrame + kMaxEnvelope;

// To rank 0's server, a relay or the hosting launch, and from there.
inline constexpr net::Channel kToServer = 1, kToRank = 2;

enum class Message : uint8_t {
  hello,    // client: value = JSON of Hello
  welcome,  // server: all ranks are there; value = who relays for whom (pack_answers)
  refused,  // server: value = JSON of Refusal; the connection ends
  set,      // client: number = call; answered by `value`
  get,      // client: number = call; answered by `value` once the key is set, or by `failed`
  add,      // client: number = call, value = decimal delta; answered by `value` or `failed`
  leave,    // client: number = call, value = farewell; answered by `value`
  fail,     // client: number = call, value = why it is about to be lost; answered by `value`
  value,    // server: number = call
  failed,   // server: number = call, value = JSON of Refusal
  lost,     // server: number = rank, value = why
  left,     // server: number = rank, value = farewell
  ask,      // client: number = ms it waits, key = inquiry, value = question; server: number = wave
  answer,   // client: number = wave; server: key = inquiry, value = answers (inquiries.h)
  bye,      // server: the keys are gone; number = 1: rank 0 was lost, value = why; 0: it left

  // Between rank 0's server, the ranks that relay for others of their machine, and those others.
  go,       // server: number = port, key = the relay's endpoint, value = rank; join through it
  relay,    // server: the rank relays for others beside itself from now on
  relayed,  // relay: number = rank, value = frame from it; server: key = ranks, value = frames for
            // them
  parted,   // relay: number = rank, value = why; its connection has ended; server: end it

  // Between the launches of an elastic run ("agents") and the server of the one that hosts them.
  join,     // agent: value = JSON of AgentHello
  round,    // server: value = JSON of LaunchPlace; start your ranks
  failing,  // agent: a rank has failed
  stop,     // server: number = 1: let ranks save first; value = why; end your ranks
  ended,    // agent: value = JSON of RoundEnd; all its ranks are gone
  depart,   // agent: number = exit code; it was told to end, and does when its ranks have
  over,     // server: number = exit code for the launch, value = why; the connection ends
};
inline constexpr Message kLastMessage = Message::over;

struct Frame {
  Message message{};
  uint64_t number = 0;
  std::string key = {};
  std::string value = {};
};

std::string encode(const Frame& frame);

// Takes the first frame out of a message's bytes. Throws Error(cluster, failure) for bytes that
// encode() did not make.
Frame take_frame(std::string_view& bytes);

// Who a connecting rank is, and how long it will wait for the others.
struct Hello {
  int protocol = kProtocolVersion;
  int rank = 0;
  int world_size = 1;
  std::string run_id = {};
  std::string host = {};
  int64_t pid = 0;
  int64_t patience_ms = 0;   // from the start of its join()
  int64_t left_ms = 0;       // from now
  std::string machine = {};  // net::loopback_id()
  int relay_port = 0;        // on the loopback interface, where it can relay; else 0
  bool direct = false;       // its relay is gone or out of reach
};
std::string to_json(const Hello& hello);
std::optional<Hello> hello_from_json(const std::string& text);

// An error of rank 0's server on its way to a rank, which throws it.
struct Refusal {
  ErrorKind kind;
  ErrorText text;
};
std::string to_json(const Refusal& refusal);
// `purpose` is what the throwing call was at: "<what> while <purpose>".
Error to_error(const std::string& refusal_json, const std::string& purpose = "");

}  // namespace troika::cluster
