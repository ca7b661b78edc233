#include "troika/server/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/server/held_range.h"
#include "troika/server/key_groups.h"
#include "troika/server/wire.h"

namespace troika::server {

Worker::Worker(net::Endpoint& endpoint, WorkerOptions options)
    : endpoint_(endpoint),
      resend_(options.resend),
      patience_(options.patience),
      requests_(endpoint, options.resend,
                [this](const auto& request, const auto& error) { take_answer(*request, error); }),
      member_(
          endpoint, options.member, Role::worker,
          [this, brought = to_text(options.brings)](Beat& beat) {
            beat.tables = beat.generation == 0 ? brought : "";
            beat.wanted = steps_.wanted();
            beat.finished = steps_.finished();
            beat.committed = steps_.committed();
            beat.sent_bytes = requests_.traffic().request_bytes;
            beat.received_bytes = requests_.traffic().answer_bytes;
          },
          [this](const State& state) { follow(state); }) {
  endpoint_.handle(kAnswers, kMostMessage + 4096,
                   [this](const std::string& peer, std::string message) {
                     take_answers(peer, std::move(message));
                   });
  net::act_on(endpoint_, [this] { tick(); });
}

Worker::~Worker() {
  endpoint_.handle(kAnswers, 0, {});
  net::act_on(endpoint_, [this] {
    endpoint_.cancel(timer_, net::Outcome::cancelled);
    fail_all("the worker has ended");
  });
}

std::string Worker::hopeless() const {
  const bool is_silent = patience_.count() > 0 && member_.silence() > patience_;
  return is_silent ? member_.scheduler_age() : member_.refusal();
}

void Worker::tick() {
  const auto reason = hopeless();
  if (reason.empty()) {
    requests_.resend();
  } else {
    fail_all(reason);
  }
  timer_ = endpoint_.after(resend_ / 4, [this] { tick(); });
}

void Worker::follow(const State& state) {
  if (!member_.refusal().empty()) return fail_all(member_.refusal());
  number_ = state.worker;
  const auto begun = steps_.follow(state);
  const auto failed = requests_.follow(member_.map(), state.worker, state.committed);
  for (const auto& [request, reason] : failed) {
    request->call->failure = {reason, ErrorKind::peer};
    if (--request->call->unanswered == 0) end(request->call);
  }
  if (begun) end(begun);
}

void Worker::fail_all(const std::string& reason) {
  while (!calls_.empty()) {
    const auto call = calls_.begin()->second;
    call->failure = {reason, ErrorKind::peer};
    end(call);
  }
}

void Worker::end(const std::shared_ptr<Call>& call) {
  if (call->is_done) return;
  if (call->failure.text.empty()) call->assemble();
  calls_.erase(call->timestamp);
  for (const auto& request : call->requests) {
    if (!request->is_answered) requests_.stop(*request);
  }
  call->requests.clear();
  const bool is_news = call->step >= 0 && steps_.remove_call(call->step);
  call->finish();
  if (is_news) member_.beat();
}

void Worker::take_answers(const std::string& peer, std::string message) {
  const auto take = [&](const auto& act) {
    try {
      act();
    } catch (const Error& error) {
      log::warn("an answer of {}: {}", peer, error.what());
    }
  };
  requests_.begin();
  take([&] {
    for_each_message(std::move(message), [&](std::string one) {
      const auto answer = std::make_shared<const std::string>(std::move(one));
      take([&] { requests_.take(peer, answer); });
    });
  });
  requests_.end();
}

void Worker::take_answer(const RangeRequest& request, const std::string& error) {
  const auto call = request.call;
  if (call->is_done) return;
  if (!error.empty() && call->failure.text.empty()) call->failure = {error, ErrorKind::usage};
  if (--call->unanswered == 0) end(call);
}

std::shared_ptr<const RingMap> Worker::map_for(const std::string& what,
                                               const std::function<void()>& act) {
  std::shared_ptr<const RingMap> map;
  net::act_on(endpoint_, [&] {
    map = member_.map();
    if (act) act();
  });
  if (map->generation == 0) {
    throw Error("server", ErrorKind::usage,
                {.what = what + " came too early", .hint = "call wait_until_ready() first"});
  }
  return map;
}

Handle Worker::start(Operation operation, std::string_view table, const Keys& keys,
                     const Values* values, const CallOptions& options) {
  const auto call = std::make_shared<Call>(endpoint_);
  call->what = fmt::format("the {} table {}", phrase_of(operation), table);
  std::shared_ptr<PushFilter> filter;
  int64_t step = -1;
  const auto map = map_for(call->what, [&] {
    const auto found = filters_.find(table);
    if (found != filters_.end() && !has_states(operation)) filter = found->second;
    call->timestamp = ++last_timestamp_;
    step = steps_.current();
  });
  const auto index = table_index(*map, table);
  call->table = map->tables[index];
  check_call(operation, call->table, call->what, keys, values, options);
  call->prepare(operation, keys.count(), options.into);
  if (writes(operation)) call->counted.pushed = keys.count();
  const auto ranges = static_cast<uint32_t>(map->ranges.size());
  if (filter && filter->selects() && operation == Operation::push) {
    const RequestBody all{
        .run = keys.run, .keys = keys.list, .lengths = options.lengths, .values = values->bytes};
    const auto kept = filter->select(all, step, static_cast<uint64_t>(call->timestamp));
    call->counted.left_out = keys.count() - kept.keys.size();
    if (kept.keys.empty()) return enqueue(call, options);
    const Values left(values->type, kept.values);
    // Keys that are still consecutive need no list.
    const bool is_whole = keys.list.empty() && kept.keys.size() == keys.count();
    add_requests(call, operation, index, is_whole ? keys : Keys(kept.keys), &left,
                 {.lengths = kept.lengths, .rate = options.rate}, filter.get(), ranges);
  } else {
    add_requests(call, operation, index, keys, values, options, filter.get(), ranges);
  }
  if (filter && filter->needs_values() && reads(operation)) {
    const auto list = std::make_shared<std::vector<Key>>(keys.list.begin(), keys.list.end());
    call->listeners.push_back([filter, list, run = keys.run, call = call.get()] {
      if (!call->failure.text.empty()) return;
      filter->saw({.run = run, .keys = *list, .lengths = call->lengths, .values = call->values()});
    });
  }
  return enqueue(call, options);
}

void Worker::add_requests(const std::shared_ptr<Call>& call, Operation operation, uint32_t table,
                          const Keys& keys, const Values* values, const CallOptions& options,
                          const PushFilter* filter, uint32_t ranges) {
  for (const auto& group : group_keys(call->table, keys, ranges)) {
    auto request = make_request(operation, table, call->table, keys, values, options, group, filter,
                                static_cast<uint64_t>(call->timestamp));
    request.call = call;
    call->requests.push_back(std::make_shared<RangeRequest>(std::move(request)));
  }
}

Handle Worker::enqueue(const std::shared_ptr<Call>& call, const CallOptions& options) {
  call->unanswered = call->requests.size();
  call->missing = [this, call = call.get()] {
    return requests_.missing(*call) + "; " + member_.scheduler_age();
  };
  // A reference, because a function object with so much would be allocated.
  const auto act = [&] {
    calls_[call->timestamp] = call;
    requests_.count_keys(call->counted.pushed, call->counted.left_out);
    call->step = steps_.current();
    if (call->step >= 0) steps_.add_call(call->step);
    if (!member_.refusal().empty()) return fail_all(member_.refusal());
    if (options.after.empty()) return release(call);
    const auto open = std::make_shared<size_t>(1);
    const auto one_is_done = [this, open, call] {
      if (--*open == 0) release(call);
    };
    for (const auto& handle : options.after) {
      if (handle.call_->is_done) continue;
      ++*open;
      handle.call_->listeners.push_back(one_is_done);
    }
    one_is_done();
  };
  net::act_on(endpoint_, std::ref(act));
  return Handle(call);
}

void Worker::set_filters(std::string_view table, const Filters& push, const Filters& pull) {
  const auto map = map_for("filters");
  const auto index = table_index(*map, table);
  const auto filter = std::make_shared<PushFilter>(map->tables[index], push, pull);
  net::act_on(endpoint_, [&] { filters_[std::string(table)] = filter; });
}

Handle Worker::flush(std::string_view table) {
  const auto call = std::make_shared<Call>(endpoint_);
  call->what = fmt::format("the push to table {}", table);
  const auto map = map_for(call->what);
  const auto index = table_index(*map, table);
  call->table = map->tables[index];
  FilteredPush kept;
  net::act_on(endpoint_, [&] {
    const auto found = filters_.find(table);
    if (found != filters_.end()) kept = found->second->take_kept();
    call->timestamp = ++last_timestamp_;
  });
  if (!kept.keys.empty()) {
    const Values values(call->table.type, kept.values);
    add_requests(call, Operation::push, index, Keys(kept.keys), &values, {.lengths = kept.lengths},
                 nullptr, static_cast<uint32_t>(map->ranges.size()));
  }
  return enqueue(call, {});
}

Surroundings Worker::surroundings() {
  Surroundings surroundings;
  net::act_on(endpoint_, [&] { surroundings = member_.surroundings(); });
  return surroundings;
}

std::shared_ptr<const RingMap> Worker::map() {
  std::shared_ptr<const RingMap> map;
  net::act_on(endpoint_, [&] { map = member_.map(); });
  return map;
}

uint64_t Worker::number() {
  uint64_t number = 0;
  net::act_on(endpoint_, [&] { number = number_; });
  return number;
}

Traffic Worker::traffic() {
  Traffic traffic;
  net::act_on(endpoint_, [&] { traffic = requests_.traffic(); });
  return traffic;
}

void Worker::release(const std::shared_ptr<Call>& call) {
  if (call->is_done) return;
  if (call->requests.empty()) return end(call);
  for (const auto& request : call->requests) {
    for (const auto& [failed, reason] : requests_.add(request)) {
      failed->call->failure = {reason, ErrorKind::peer};
      if (--failed->call->unanswered == 0) end(failed->call);
    }
  }
}

Handle Worker::push(std::string_view table, const Keys& keys, const Values& values,
                    const CallOptions& options) {
  return start(Operation::push, table, keys, &values, options);
}

Handle Worker::pull(std::string_view table, const Keys& keys, const CallOptions& options) {
  return start(Operation::pull, table, keys, nullptr, options);
}

Handle Worker::push_pull(std::string_view table, const Keys& keys, const Values& values,
                         const CallOptions& options) {
  return start(Operation::push_pull, table, keys, &values, options);
}

Handle Worker::assign(std::string_view table, const Keys& keys, const Values& values,
                      const CallOptions& options) {
  return start(Operation::assign, table, keys, &values, options);
}

Handle Worker::pull_state(std::string_view table, const Keys& keys, const CallOptions& options) {
  return start(Operation::pull_state, table, keys, nullptr, options);
}

Handle Worker::assign_state(std::string_view table, const Keys& keys, const Values& states,
                            const CallOptions& options) {
  return start(Operation::assign_state, table, keys, &states, options);
}

bool Worker::is_ready() {
  bool is_ready = false;
  net::act_on(endpoint_, [&] {
    const auto& map = *member_.map();
    is_ready = map.generation > 0 && (!map.master(0).empty() || map.ranges[0].is_lost);
  });
  return is_ready;
}

void Worker::wait_until_ready(Deadline deadline) {
  std::string problem;
  const auto is_over = [&] {
    problem = hopeless();
    return !problem.empty() || is_ready();
  };
  const bool is_in_time = endpoint_.run_until(is_over, time_left(deadline));
  if (is_in_time && problem.empty()) return;
  if (!is_in_time) net::act_on(endpoint_, [&] { problem = member_.scheduler_age(); });
  throw Error("server", is_in_time ? ErrorKind::peer : ErrorKind::timeout,
              {.what = "worker " + endpoint_.name() + " cannot begin", .got = problem});
}

void Worker::leave(Deadline deadline) {
  // Calls end by themselves if the scheduler is lost.
  const bool has_ended =
      endpoint_.run_until([this] { return calls_.empty(); }, time_left(deadline));
  bool may_leave = false, is_silent = false;
  const auto is_over = [&] {
    may_leave = member_.may_leave();
    is_silent = patience_.count() > 0 && member_.silence() > patience_;
    return may_leave || is_silent;
  };
  if (has_ended) {
    net::act_on(endpoint_, [this] { member_.leave(); });
    endpoint_.run_until(is_over, time_left(deadline));
    if (may_leave) return;
  }
  std::string age;
  net::act_on(endpoint_, [&] { age = member_.scheduler_age(); });
  throw Error("server", is_silent ? ErrorKind::peer : ErrorKind::timeout,
              {.what = "worker " + endpoint_.name() + " could not leave in time",
               .got = has_ended ? age : "unfinished calls"});
}

}  // namespace troika::server
