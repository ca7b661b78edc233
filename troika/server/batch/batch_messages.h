// The messages between the coordinator of a batch method and its replicas. Internal to the room.
//
// A replica sends a report at regular intervals and after each change, and the coordinator an order
// in answer to each report and after each change. Both describe the whole situation, not a change,
// so they can be lost, repeated and reordered without harm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troika::server {

struct BatchReport {
  uint64_t worker = 0;    // the number of the replica's worker
  int64_t ready = -1;     // the step of which the replica has the parameters; -1: none
  uint64_t finished = 0;  // the last assignment for which it has a result; 0: none
  double loss = 0;        // of this assignment
  int64_t asked = -1;     // the round that it has asked for; -1: none
};
std::string to_message(const BatchReport& report);
// Throws Error(server, failure) for bytes that are not a report.
BatchReport parse_report(std::string_view message);

struct BatchOrder {
  uint64_t number = 0;       // grows with each order to the worker
  uint64_t worker = 0;       // the worker to which it is addressed
  int64_t step = -1;         // the step of the current pass; -1: none has begun
  bool has_ended = false;    // all portions of the pass are committed
  bool is_over = false;      // there will be no more passes
  uint64_t assignment = 0;   // the last one of this worker; 0: none
  uint64_t portion = 0;      // of the assignment
  int64_t assigned = -1;     // the step of the assignment
  uint64_t judged = 0;       // the last assignment whose result has arrived; 0: none
  bool counts = false;       // whether that result is committed
  int64_t round = -1;        // the last round that has ended; -1: none
  std::string failure = {};  // why there will be no more passes; empty: they were ended
};
std::string to_message(const BatchOrder& order);
// Throws Error(server, failure) for bytes that are not an order.
BatchOrder parse_order(std::string_view message);

}  // namespace troika::server
