// Handles to the asynchronous calls of a worker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/net/endpoint.h"
#include "troika/server/table.h"

namespace troika::server {

struct Call;

// Memory for the values of a call that reads, key by key. Nobody else uses it before the call is
// finished; what it has after a call that failed is undefined. `owner` must not be null.
struct ValueMemory {
  ValueMemory(ValueType type_, std::span<char> bytes_, std::shared_ptr<void> owner_)
      : type(type_), bytes(bytes_), owner(std::move(owner_)) {}
  ValueMemory(const std::shared_ptr<std::vector<float>>& values)
      : ValueMemory(ValueType::float32, as_chars(values.get()), values) {}
  ValueMemory(const std::shared_ptr<std::vector<double>>& values)
      : ValueMemory(ValueType::float64, as_chars(values.get()), values) {}

  ValueType type;
  std::span<char> bytes;  // they stay valid while `owner` exists
  std::shared_ptr<void> owner;

 private:
  template <typename T>
  static std::span<char> as_chars(std::vector<T>* values) {
    if (values == nullptr) return {};
    return {reinterpret_cast<char*>(values->data()), values->size() * sizeof(T)};
  }
};

// A call that was started; copies refer to the same call. The worker must outlive it, but the
// values of a finished call stay valid without the worker. Any thread may call its functions, but
// only one thread at a time may read the values. Callbacks must not call functions that block.
class Handle {
 public:
  explicit Handle(std::shared_ptr<Call> call) : call_(std::move(call)) {}

  // Grows with each call of the worker.
  int64_t timestamp() const;
  bool is_done() const;
  // Blocks until the call is finished. Throws Error(server): `timeout` after the deadline, naming
  // the ranges and servers whose answers are missing (the call continues); `usage` if a server
  // refused the request; `peer` if values were lost with their servers, or if the scheduler refuses
  // this worker.
  void wait(Deadline deadline) const;
  // Calls `listener` once, when the call is finished, or now if it is finished already. The
  // listener runs under the endpoint's rules for callbacks.
  void then(std::function<void()> listener) const;
  // Returns the error message of a finished call; empty if it succeeded.
  std::string error() const;

  // Returns the values of a finished pull, key by key in the order of the call's keys; empty for
  // calls that do not read and for those that failed. Throws Error(server, usage) unless `T` is the
  // table's type. The span is valid as long as a copy of the handle exists. It is that of
  // CallOptions::into, if the call has it.
  template <typename T>
  std::span<const T> values() const {
    const auto bytes =
        value_bytes(sizeof(T) == sizeof(float) ? ValueType::float32 : ValueType::float64);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // The number of values of each key, for tables of width 0; 0 for keys without values.
  std::span<const uint32_t> lengths() const;

 private:
  friend class Worker;
  std::span<const char> value_bytes(ValueType type) const;

  std::shared_ptr<Call> call_;
};

}  // namespace troika::server
