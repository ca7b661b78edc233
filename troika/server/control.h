// The messages between nodes and the scheduler. Internal to the room.
//
// A node sends a beat at regular intervals and after each change, and the scheduler answers with a
// state. Both describe the whole situation, not a change, so they can be lost, repeated and
// reordered without harm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/snapshot.h"

namespace troika::server {

// Channels of the room's messages.
inline constexpr net::Channel kFirstChannel = 0x7372'0000;
inline constexpr net::Channel kBeats = kFirstChannel;
inline constexpr net::Channel kStates = kFirstChannel + 1;
inline constexpr net::Channel kRequests = kFirstChannel + 2;
inline constexpr net::Channel kAnswers = kFirstChannel + 3;
inline constexpr net::Channel kCopies = kFirstChannel + 4;
inline constexpr net::Channel kReceipts = kFirstChannel + 5;
inline constexpr net::Channel kStatusQuestions = kFirstChannel + 6;
inline constexpr net::Channel kStatusAnswers = kFirstChannel + 7;
inline constexpr net::Channel kBatchReports = kFirstChannel + 8;
inline constexpr net::Channel kBatchOrders = kFirstChannel + 9;

enum class Role : uint8_t { server, worker };

// A copy that the sender has made of one of its ranges on `server`. It now has all writes.
struct CopyDone {
  uint32_t range = 0;
  std::string server;
};

// Whether the texts of maps and directories can hold this name of a node.
bool is_node_name(std::string_view name);
// Returns a random number that is not 0.
uint64_t random_number();

struct Beat {
  Role role = Role::worker;
  uint64_t instance = 0;    // distinguishes processes of the same name
  uint64_t number = 0;      // grows with each beat
  uint64_t generation = 0;  // of the node's map
  bool is_leaving = false;
  // Workers: the step that it wants to begin, and the last one that it finished; -1: none.
  int64_t wanted = -1;
  int64_t finished = -1;
  // Servers.
  std::vector<CopyDone> copies = {};
  uint64_t bytes = 0;  // of the ranges that it has
  uint64_t keys = 0;
  uint64_t requests = 0;  // that it has executed
  // The snapshot that it has an order for (0: none), and its files that are written.
  uint64_t snapshot = 0;
  std::vector<SavedRange> saved = {};
  std::string failure = {};  // why it cannot work, or cannot write the snapshot; empty if it can
  // For a scheduler that begins again: the text of the node's map, if the scheduler has asked for
  // it, and the last step that all workers have finished, as far as the node knows.
  std::string map = {};
  int64_t committed = -1;
  // Where the node's endpoint listens, as words HOST:PORT; empty if others need not know.
  std::string addresses = {};
  uint64_t directory = 0;  // fingerprint of the directory that the node has
  // Workers: bytes of requests and answers.
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  // Workers: the text of a map with the tables and the number of ranges, for a scheduler that takes
  // them from workers, until it has them; empty otherwise.
  std::string tables = {};
};
std::string to_message(const Beat& beat);
// Throws Error(server, failure) for bytes that are not a beat.
Beat parse_beat(std::string_view message);

struct State {
  uint64_t instance = 0;     // the process for which the state is
  std::string refusal = {};  // why the node cannot take part; empty if it can
  uint64_t generation = 0;
  std::string map = {};    // text of the map; empty if the node's beat had this generation
  bool may_leave = false;  // a leaving node is no longer needed
  bool wants_map = false;  // the scheduler has begun again, and asks for the node's map
  // Workers: the worker's number, the last step that it may begin, the last step that all workers
  // have finished, and the step before its first one.
  uint64_t worker = 0;
  int64_t granted = -1;
  int64_t committed = -1;
  int64_t before_first = -1;
  // Servers: the order to write their ranges into a folder, with the values after this step. 0:
  // none.
  uint64_t snapshot = 0;
  int64_t snapshot_step = -1;
  std::string snapshot_folder = {};
  // The servers' addresses: lines `s0 HOST:PORT HOST:PORT`. Empty if the node has this one.
  uint64_t directory_version = 0;
  std::string directory = {};
  bool is_over = false;  // the run is over: servers may end
};
std::string to_message(const State& state);
State parse_state(std::string_view message);

}  // namespace troika::server
