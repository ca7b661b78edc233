// A worker of a parameter server: pushes values to the servers and pulls them (Li et al., OSDI
// 2014).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/handle.h"
#include "troika/server/member.h"
#include "troika/server/push_filter.h"
#include "troika/server/range_requests.h"
#include "troika/server/steps.h"
#include "troika/server/vector_algebra.h"

namespace troika::server {

struct WorkerOptions {
  MemberOptions member = {};
  // Requests that are not answered within this time are sent again. Servers execute each only once.
  net::Duration resend = std::chrono::milliseconds(500);
  // If nothing was heard from the scheduler for this time, unfinished calls and leave() end with
  // Error(server, peer). 0: they end at their deadlines only.
  net::Duration patience{0};
  // For a scheduler with SchedulerOptions::takes_tables. One worker, or all workers with the same
  // tables, must bring some; none if there are no tables.
  BroughtTables brings = {};
};

// The keys of a call: consecutive ones, or an ascending list, which must stay valid until the call
// returns.
struct Keys {
  Keys(std::span<const Key> list_) : list(list_) {}
  Keys(const std::vector<Key>& list_) : list(list_) {}
  Keys(KeySpan run_) : run(run_) {}

  KeySpan run = {};
  std::span<const Key> list = {};

  uint64_t count() const { return list.empty() ? run.count : list.size(); }
  Key key(uint64_t i) const { return list.empty() ? run.first + i : list[i]; }
};

// Values to push or assign, key by key. The call copies them, unless CallOptions::keeps is set.
struct Values {
  Values(ValueType type_, std::span<const char> bytes_) : type(type_), bytes(bytes_) {}
  Values(std::span<const float> values) : type(ValueType::float32), bytes(as_chars(values)) {}
  Values(std::span<const double> values) : type(ValueType::float64), bytes(as_chars(values)) {}
  Values(const std::vector<float>& values) : Values(std::span<const float>(values)) {}
  Values(const std::vector<double>& values) : Values(std::span<const double>(values)) {}

  ValueType type;
  std::span<const char> bytes;

 private:
  template <typename T>
  static std::span<const char> as_chars(std::span<const T> values) {
    return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
  }
};

struct CallOptions {
  // The number of values of each key; only for writes to tables of width 0.
  std::span<const uint32_t> lengths = {};
  // The learning rate with which a push is applied; none: that of the table's rule. With pushes of
  // several workers in one step (Application::per_step), the first worker's counts.
  std::optional<double> rate = {};
  // If set, the values are not copied where that is possible: they stay valid while this exists,
  // and nobody changes them before the call is finished.
  std::shared_ptr<const void> keeps = {};
  // Where the values of a read go; none: memory that belongs to the handle. Long plain values of
  // consecutive keys are received straight into it. Not for tables of width 0. Throws Error(server,
  // usage) for another type or size than that of the values.
  std::optional<ValueMemory> into = {};
  // The call's requests are sent only when these calls of the same worker are finished.
  std::vector<Handle> after = {};
};

// A service on an endpoint. The endpoint must outlive it, and be connected to the scheduler and all
// servers. Any thread may call its functions; callbacks must not call those that block.
//
// Calls do not block: they return a handle. The requests of this worker to one range of the ring
// are executed in the order of its calls, so a pull sees the worker's earlier pushes (except in
// tables that apply pushes per step). Calls throw Error(server, usage) for an unknown table, keys
// that are not ascending or not in the table, and values of a wrong type or number.
class Worker {
 public:
  // Joins. Does not block. Throws Error(server, usage) if the endpoint's name has white space, and
  // for tables to bring that cannot work.
  Worker(net::Endpoint& endpoint, WorkerOptions options = {});
  // Unfinished calls end with an error. For the scheduler, the worker is then lost, unless it has
  // left.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Blocks until the scheduler has assigned the ranges to servers. Earlier calls throw. Throws
  // Error(server, timeout or peer).
  void wait_until_ready(Deadline deadline);
  // Whether wait_until_ready() would return at once.
  bool is_ready();

  // Asks for the next step. The handle is finished when the scheduler's consistency lets the step
  // begin; later calls belong to this step. The first step of a worker that joins late is the one
  // after the last step that all others have finished. Throws Error(server, usage) if the current
  // step was not ended.
  Handle begin_step();
  // Ends the step. Does not block: the step counts as finished when the servers have answered all
  // its calls. Throws Error(server, usage) if no step has begun.
  void end_step();
  // Returns the current step; -1: none.
  int64_t step();
  // Returns the last step that all workers have finished, as far as this worker knows.
  int64_t committed();
  // Blocks until all workers have finished this step. This worker's pulls then see all pushes of
  // the step. Throws Error(server): `timeout`; `peer` if the scheduler refuses this worker.
  void wait_until_committed(int64_t step, Deadline deadline);

  // Applies the table's update rule to the values of the keys.
  Handle push(std::string_view table, const Keys& keys, const Values& values,
              const CallOptions& options = {});
  // Reads the values of the keys.
  Handle pull(std::string_view table, const Keys& keys, const CallOptions& options = {});
  // Pushes, and reads the values after the push.
  Handle push_pull(std::string_view table, const Keys& keys, const Values& values,
                   const CallOptions& options = {});
  // Replaces the values of the keys, and resets the state of the update rule.
  Handle assign(std::string_view table, const Keys& keys, const Values& values,
                const CallOptions& options = {});

  // Read and replace whole keys: values, the rule's state and the number of updates, as
  // state_width() describes, key by key. Filters do not apply. Throw Error(server, usage) also for
  // tables without such states.
  Handle pull_state(std::string_view table, const Keys& keys, const CallOptions& options = {});
  Handle assign_state(std::string_view table, const Keys& keys, const Values& states,
                      const CallOptions& options = {});

  // Executes operations on whole dense tables in their order, at the servers. The finished handle
  // has their numbers as values of type double, in the order of the operations that return one.
  // Each range of the ring executes them once, like a write, and the numbers of ranges are combined
  // in the order of ranges; so the bits of the result depend on the number of ranges, but not on
  // that of servers. The states of update rules do not change, and filters do not apply. Pulls and
  // other calls of this worker are executed before or after all operations. A call of another
  // worker may be executed before them in one range and after them in another one, so workers must
  // agree on who changes a vector when. `options` may have `after` only. Throws Error(server,
  // usage) also for tables that are sparse, or differ in type, width or number of keys.
  Handle compute(const VectorOperations& operations, const CallOptions& options = {});

  // Sets the filters of a table's pushes and pulls, for calls from now on. Values that the filter
  // `significant` has kept are forgotten; flush() sends them. Filters that leave out keys apply to
  // push(), not to push_pull() and assign(); `half` and `fixed` do not apply to assign(). Throws
  // Error(server, usage) for an unknown table, a chain that cannot work (check_filters()), or
  // before wait_until_ready() has returned.
  void set_filters(std::string_view table, const Filters& push, const Filters& pull = {});
  // Pushes the values that the filter `significant` has kept, unfiltered.
  Handle flush(std::string_view table);
  Traffic traffic();
  Surroundings surroundings();
  // Returns the newest map of ranges and workers that this worker has; generation 0 before it has
  // one.
  std::shared_ptr<const RingMap> map();
  // Returns the number of this worker in the map; 0 before the scheduler has given it one.
  uint64_t number();

  // Blocks until all calls are finished and the scheduler has confirmed that this worker may leave.
  // Throws Error(server): `timeout`; `peer` if the scheduler is lost (WorkerOptions::patience).
  void leave(Deadline deadline);

 private:
  Handle start(Operation operation, std::string_view table, const Keys& keys, const Values* values,
               const CallOptions& options);
  // Returns the map, and calls `act` under the endpoint's rules for callbacks. Throws Error(server,
  // usage) if there is no map yet.
  std::shared_ptr<const RingMap> map_for(const std::string& what,
                                         const std::function<void()>& act = {});
  void add_requests(const std::shared_ptr<Call>& call, Operation operation, uint32_t table,
                    const Keys& keys, const Values* values, const CallOptions& options,
                    const PushFilter* filter, uint32_t ranges);
  Handle enqueue(const std::shared_ptr<Call>& call, const CallOptions& options);
  void release(const std::shared_ptr<Call>& call);
  void follow(const State& state);
  void take_answers(const std::string& peer, std::string message);
  void take_answer(const RangeRequest& request, const std::string& error);
  void end(const std::shared_ptr<Call>& call);
  void fail_all(const std::string& reason);
  // Why no call can succeed, as far as this worker knows; empty if calls can.
  std::string hopeless() const;
  void tick();

  net::Endpoint& endpoint_;
  const net::Duration resend_, patience_;
  RangeRequests requests_;
  Steps steps_;
  int64_t last_timestamp_ = 0;
  std::map<int64_t, std::shared_ptr<Call>> calls_;  // unfinished calls, by timestamp
  std::map<std::string, std::shared_ptr<PushFilter>, std::less<>> filters_;  // by table
  uint64_t number_ = 0;
  net::Ticket timer_ = 0;
  Member member_;
};

}  // namespace troika::server
