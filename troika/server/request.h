// Requests of workers to the server that has a range of the ring, and their answers. Internal to
// the room.
//
// A worker numbers its requests to each range from 1. A server executes a worker's requests in the
// order of their numbers, each once, even if they arrive several times.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "troika/server/table.h"

namespace troika::server {

enum class Operation : uint8_t { push, pull, push_pull, assign };

inline bool writes(Operation operation) {
  return operation != Operation::pull;
}
inline bool reads(Operation operation) {
  return operation == Operation::pull || operation == Operation::push_pull;
}

// The part of a request that may change when it is sent again. 56 bytes in a message.
struct RequestHead {
  uint64_t generation = 0;  // of the worker's map
  uint64_t worker = 0;      // the worker's number in that map
  uint64_t number = 0;      // of this request, among those of the worker to the range
  uint64_t floor = 0;       // the worker has the answers to all requests below this number
  int64_t step = -1;        // the worker's step; -1: none
  int64_t committed = -1;   // all workers have finished the steps up to this one
  uint32_t range = 0;
};
void write_head(const RequestHead& head, std::string& to);

// The operation of a request, and its arguments. The spans refer to the message.
struct RequestBody {
  Operation operation = Operation::push;
  uint32_t table = 0;              // index in the map's tables
  KeySpan run = {};                // the keys, if consecutive
  std::span<const Key> keys = {};  // the keys otherwise, ascending
  std::span<const uint32_t> lengths =
      {};                             // values of each key; only for writes to tables of width 0
  std::span<const char> values = {};  // of all keys; only for writes

  uint64_t key_count() const { return keys.empty() ? run.count : keys.size(); }
  Key key(size_t i) const { return keys.empty() ? run.first + i : keys[i]; }
};
void write_body(const RequestBody& body, std::string& to);

struct Request {
  RequestHead head;
  RequestBody body;
};
// Throws Error(server, failure) for bytes that are not a request. `message` must outlive the
// result.
Request parse_request(std::string_view message);

struct Answer {
  uint64_t worker = 0;
  uint64_t number = 0;
  uint32_t range = 0;
  std::string error = {};  // the reason of a refusal; empty if the request was executed
  std::span<const uint32_t> lengths =
      {};                             // values of each key; only for reads of tables of width 0
  std::span<const char> values = {};  // only for reads
};
void write_answer(const Answer& answer, std::string& to);
// Throws Error(server, failure) for bytes that are not an answer. `message` must outlive the
// result.
Answer parse_answer(std::string_view message);

}  // namespace troika::server
