// The state that a Handle refers to. Internal to the room.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/server/handle.h"
#include "troika/server/request.h"
#include "troika/server/send.h"
#include "troika/server/vector_algebra.h"

namespace troika::server {

// The keys of a call that are in one range of the ring: the call's keys [first, first + count), or
// those at `positions`.
struct KeyGroup {
  uint32_t range = 0;
  uint64_t first = 0;
  uint64_t count = 0;
  std::vector<uint64_t> positions = {};

  uint64_t position(uint64_t i) const { return positions.empty() ? first + i : positions[i]; }
};

// The request of a call to one range.
struct RangeRequest {
  std::shared_ptr<Call> call;
  KeyGroup keys;
  // The parts of RequestHead that do not change when it is sent again. `coding` is as if the keys
  // were not absent.
  Operation operation = Operation::push;
  uint32_t table = 0;
  KeySpan run = {};
  std::optional<double> rate = {};
  Coding coding = {};
  RequestParts parts = {};
  Message answer = {};  // plain
};
// Throws Error(server, failure) if the answer does not have the values that the request asks for.
void check_answer(const RangeRequest& request, const Answer& plain);

// Until it is done, it is used only under the endpoint's rules for callbacks. After that it does
// not change.
struct Call {
  explicit Call(net::Endpoint& endpoint_) : endpoint(endpoint_) {}

  net::Endpoint& endpoint;
  int64_t timestamp = 0;
  int64_t step = -1;
  std::string what;  // for messages
  TableSpec table;
  std::vector<std::shared_ptr<RangeRequest>> requests;
  // The kinds of the vector operations that return a number; only for Operation::compute.
  std::vector<VectorKind> numbers = {};
  size_t unanswered = 0;  // of requests
  // For Traffic.
  struct CountedKeys {
    uint64_t pushed = 0;
    uint64_t left_out = 0;
  } counted;
  bool is_done = false;
  // Without a text if the call did not fail.
  struct Failure {
    std::string text = {};
    ErrorKind kind = ErrorKind::failure;
  } failure;
  std::function<std::string()> missing = {};  // describes the missing answers, for messages
  std::vector<std::function<void()>> listeners = {};
  // The result of a read: the bytes of the values or numbers and, for width 0, the number of values
  // of each key.
  std::vector<uint32_t> lengths = {};
  std::vector<char> values = {};

  // Combines the answers of a read. Called when all have arrived.
  void assemble();
  // Runs the listeners.
  void finish();

 private:
  void combine_numbers();
};

}  // namespace troika::server
