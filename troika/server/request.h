// Requests of workers to the server that has a range of the ring, and their answers. Internal to
// the room.
//
// A worker numbers its requests to each range from 1. A server executes a worker's requests in the
// order of their numbers, each once, even if they arrive several times.
//
// A request's message has three parts: a head, the keys, and the rest. Keys and values may be
// encoded (filter.h). A server decodes a request when it arrives; masters and copies keep plain
// messages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "troika/server/send.h"
#include "troika/server/table.h"
#include "troika/server/value_coding.h"

namespace troika::server {

enum class Operation : uint8_t {
  push,
  pull,
  push_pull,
  assign,
  pull_state,
  assign_state,
  // Vector operations (vector_kernels.h) on whole tables, of which the request has no keys. It
  // counts as a write also if it changes no vector: copies on other servers keep its numbers too.
  compute,
};

inline bool writes(Operation operation) {
  return operation != Operation::pull && operation != Operation::pull_state;
}
inline bool reads(Operation operation) {
  return !writes(operation) || operation == Operation::push_pull || operation == Operation::compute;
}
// Whether the table's update rule applies the values of a write.
inline bool pushes(Operation operation) {
  return operation == Operation::push || operation == Operation::push_pull;
}
// Whether messages have the states of keys (state_width()) instead of values.
inline bool has_states(Operation operation) {
  return operation == Operation::pull_state || operation == Operation::assign_state;
}
// Returns how many numbers of the table's type a key has in a message of this operation; 0: each
// key has its own number.
inline uint32_t width_of(const TableSpec& table, Operation operation) {
  return has_states(operation) ? static_cast<uint32_t>(state_width(table)) : table.width;
}

// Returns words for messages that stand before the table, such as `push to`.
const char* phrase_of(Operation operation);

// How a request or an answer is encoded. All 0: plain.
struct Coding {
  ValueForm values = ValueForm::plain;
  ValueForm answer_values = ValueForm::plain;  // the form of the values in the answer
  bool keys_are_packed = false;
  bool values_are_packed = false;
  bool packs_answer = false;
  bool keys_are_absent = false;  // the server has them, from an earlier request
  uint64_t signature = 0;        // of the keys, under which the server keeps them; 0: it does not

  bool is_plain() const { return *this == Coding{}; }
  bool operator==(const Coding&) const = default;
};

// The part of a request that may change when it is sent again. 96 bytes in a message.
struct RequestHead {
  uint64_t generation = 0;  // of the worker's map
  uint64_t worker = 0;      // the worker's number in that map
  uint64_t number = 0;      // of this request, among those of the worker to the range
  uint64_t floor = 0;       // the worker has the answers to all requests below this number
  int64_t step = -1;        // the worker's step; -1: none
  int64_t committed = -1;   // all workers have finished the steps up to this one
  uint32_t range = 0;
  uint32_t table = 0;  // index in the map's tables
  Operation operation = Operation::push;
  Coding coding = {};
  KeySpan run = {};                 // the keys, if consecutive
  std::optional<double> rate = {};  // CallOptions::rate
};
// The maximum number of a step.
inline constexpr int64_t kMostStep = int64_t{1} << 62;
// Throws Error(server, failure) for a number that is not -1 or a step.
void check_step(int64_t step);
void write_head(const RequestHead& head, std::string& to);
inline constexpr size_t kRequestHead = 96;

// The operation of a request, and its arguments. The spans refer to the message.
struct RequestBody {
  Operation operation = Operation::push;
  uint32_t table = 0;
  KeySpan run = {};
  std::span<const Key> keys = {};  // the keys if they are not consecutive, ascending
  std::span<const uint32_t> lengths =
      {};                             // values of each key; only for writes to tables of width 0
  std::span<const char> values = {};  // of all keys; only for writes
  std::optional<double> rate = {};    // of pushes: CallOptions::rate

  uint64_t key_count() const { return keys.empty() ? run.count : keys.size(); }
  Key key(size_t i) const { return keys.empty() ? run.first + i : keys[i]; }
};

// The parts of a message after its head. Each is a multiple of 8 bytes long.
struct RequestParts {
  Message keys;
  Message rest;
  SharedBytes values;      // behind `rest`, if they were not copied into it
  size_t plain_bytes = 0;  // the size of the whole message if it were plain

  size_t bytes() const { return keys->size() + rest->size() + values.bytes.size(); }
};
// Encodes the body as `coding` says, and changes `coding` where that is not possible or not
// shorter. `seed` is for stochastic rounding. `type` is that of the values. Plain values are not
// copied if `owner` keeps them alive.
RequestParts make_parts(const RequestBody& body, ValueType type, Coding& coding, uint64_t seed,
                        std::shared_ptr<const void> owner = {});
// Returns the part for absent keys.
const Message& absent_keys();

struct Request {
  RequestHead head;
  RequestBody body;
};
// Throw Error(server, failure) for bytes that are not a request; parse_request() also for an
// encoded one. `message` must outlive the result.
RequestHead parse_head(std::string_view message);
Request parse_request(std::string_view message);
// Returns the plain message of an encoded one. `keys` are those of absent keys. Throws like
// parse_request().
std::string decode_request(std::string_view message, ValueType type, std::span<const Key> keys);
// Returns the plain message of a body. `head` must be plain.
std::string plain_message(RequestHead head, const RequestBody& body);

struct Answer {
  uint64_t worker = 0;
  uint64_t number = 0;
  uint32_t range = 0;
  ValueForm form = ValueForm::plain;
  bool is_packed = false;
  bool has_kept_keys = false;  // the request's keys can be absent from now on
  bool lacks_keys = false;     // the request was not executed, because its keys are absent
  std::string error = {};      // the reason of a refusal; empty if the request was executed
  std::span<const uint32_t> lengths =
      {};                             // values of each key; only for reads of tables of width 0
  std::span<const char> values = {};  // only for reads
};
// Appends an answer up to its values, which are plain and follow. They have `bytes` bytes.
void write_answer_head(const Answer& answer, size_t bytes, std::string& to);
// Encodes the values of a plain answer as `coding` says.
void write_answer(const Answer& answer, ValueType type, const Coding& coding, uint64_t seed,
                  std::string& to);
// Throws Error(server, failure) for bytes that are not an answer. `message` must outlive the
// result.
Answer parse_answer(std::string_view message);
// Returns the plain message of an encoded answer.
std::string decode_answer(const Answer& answer, ValueType type);

}  // namespace troika::server
