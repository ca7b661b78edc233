#include "troika/server/batch/batch_replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/server/control.h"
#include "troika/server/key_groups.h"
#include "troika/server/send.h"

namespace troika::server {

BatchReplica::BatchReplica(net::Endpoint& endpoint, Worker& worker, BatchReplicaOptions options)
    : endpoint_(endpoint), worker_(worker), options_(std::move(options)) {
  report_.worker = worker_.number();
  const auto map = worker_.map();
  for (const auto& name : {options_.parameters, options_.gradient}) {
    const auto& table = map->tables[table_index(*map, name)];
    if (table.keys > 0 && table.width == 1 && table.type == ValueType::float64) continue;
    throw Error("server", ErrorKind::usage,
                {.what = "a vector of a batch method",
                 .got = to_text(table),
                 .expected = "a dense table of float64 of width 1"});
  }
  endpoint_.handle(kBatchOrders, 4096, [this](const std::string& peer, const std::string& text) {
    try {
      if (peer == service()) take(parse_order(text));
    } catch (const Error& error) {
      log::warn("an order of {}: {}", peer, error.what());
    }
  });
  net::act_on(endpoint_, [this] { tick(); });
}

BatchReplica::~BatchReplica() {
  endpoint_.handle(kBatchOrders, 0, {});
  net::act_on(endpoint_, [this] {
    *exists_ = false;
    endpoint_.cancel(timer_, net::Outcome::cancelled);
  });
}

void BatchReplica::after(const Handle& call, std::function<void()> act) {
  call.then([this, call, act = std::move(act), exists = exists_] {
    if (!*exists) return;
    if (call.error().empty()) return act();
    if (failure_.empty()) failure_ = call.error();
  });
}

void BatchReplica::take(const BatchOrder& order) {
  if (order.worker != report_.worker || order.number <= order_.number) return;
  order_ = order;
  // The judgement comes before the end of the pass: the push at the end has the result.
  if (order.judged == report_.finished && !result_.empty()) {
    if (order.counts) {
      sum_.resize(result_.size());
      for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += result_[i];
    }
    result_.clear();
  }
  if (order.assignment > taken_ && order.assigned < order.step) {
    // The pass ended before this replica began to compute its portion.
    taken_ = report_.finished = order.assignment;
    report();
  }
  if (phase_ == Phase::open && order.step == begun_ && order.has_ended) end_pass();
  if (phase_ == Phase::idle && order.step > begun_) begin_pass();
  fetch();
}

void BatchReplica::begin_pass() {
  phase_ = Phase::beginning;
  after(worker_.begin_step(), [this] {
    // A worker that joins late may begin a later step than the coordinator has begun.
    begun_ = worker_.step();
    phase_ = Phase::open;
    if (order_.step == begun_ && order_.has_ended) return end_pass();
    fetch();
  });
}

void BatchReplica::fetch() {
  if (phase_ != Phase::open || order_.step != begun_ || fetching_ == begun_) return;
  fetching_ = begun_;
  const auto map = worker_.map();
  const auto& table = map->tables[table_index(*map, options_.parameters)];
  const auto fetched = worker_.pull(options_.parameters, KeySpan{0, table.keys});
  after(fetched, [this, fetched, step = begun_] {
    if (phase_ != Phase::open || begun_ != step) return;
    fetched_ = fetched;
    report_.ready = step;
    report();
  });
}

void BatchReplica::end_pass() {
  if (!sum_.empty()) {
    after(worker_.push(options_.gradient, KeySpan{0, sum_.size()}, sum_), [] {});
  }
  sum_.clear();
  fetched_.reset();
  phase_ = Phase::idle;
  worker_.end_step();
}

std::optional<BatchReplica::Work> BatchReplica::take_work() {
  const bool has_work =
      fetched_ && order_.step == begun_ && order_.assignment > taken_ && !order_.has_ended;
  if (!has_work) return std::nullopt;
  taken_ = order_.assignment;
  return Work{taken_, order_.portion, begun_, *fetched_};
}

std::optional<BatchReplica::Work> BatchReplica::poll() {
  std::optional<Work> work;
  net::act_on(endpoint_, [&] { work = take_work(); });
  return work;
}

std::optional<BatchReplica::Work> BatchReplica::next(Deadline deadline) {
  std::optional<Work> work;
  std::string failure;
  bool is_over = false;
  const bool is_in_time = endpoint_.run_until(
      [&] {
        is_over = (order_.is_over && order_.failure.empty()) ||
                  (report_.asked >= 0 && order_.round >= report_.asked);
        if (!is_over) failure = problem();
        // This function may be called again after it has returned true.
        if (failure.empty() && !is_over && !work) work = take_work();
        return work || is_over || !failure.empty();
      },
      time_left(deadline));
  if (is_in_time && failure.empty()) return work;
  throw Error(
      "server", is_in_time ? ErrorKind::peer : ErrorKind::timeout,
      {.what = "replica " + endpoint_.name() + " gets no portion of " + options_.coordinator,
       .got = failure});
}

void BatchReplica::finish(const Work& work, double loss, std::vector<double> gradient) {
  const size_t expected = work.parameters().size();
  if (gradient.size() != expected) {
    throw Error("server", ErrorKind::usage,
                {.what = "the gradient of a portion",
                 .got = std::to_string(gradient.size()) + " elements",
                 .expected = std::to_string(expected)});
  }
  net::act_on(endpoint_, [&] {
    report_.finished = work.assignment;
    report_.loss = loss;
    result_ = std::move(gradient);
    report();
  });
}

void BatchReplica::ask(int64_t round) {
  net::act_on(endpoint_, [&] {
    report_.asked = round;
    report();
  });
}

bool BatchReplica::has_ended(int64_t round) {
  bool has_ended = false;
  net::act_on(endpoint_, [&] { has_ended = order_.round >= round; });
  return has_ended;
}

bool BatchReplica::is_wanted(const Work& work) {
  bool is_wanted = false;
  net::act_on(endpoint_, [&] { is_wanted = order_.step == work.step && !order_.has_ended; });
  return is_wanted;
}

void BatchReplica::give_up(const Work& work) {
  net::act_on(endpoint_, [&] {
    report_.finished = work.assignment;
    result_.clear();
    report();
  });
}

std::string BatchReplica::problem() {
  if (!failure_.empty()) return failure_;
  if (order_.is_over) return order_.failure;
  const auto now = worker_.surroundings();
  if (now.refusal.empty() && options_.patience.count() > 0 &&
      now.scheduler_silence > options_.patience) {
    return fmt::format("the scheduler was last heard of {:.1f} s ago",
                       std::chrono::duration<double>(now.scheduler_silence).count());
  }
  if (!now.refusal.empty() || order_.number == 0) return now.refusal;
  const auto map = worker_.map();
  const bool has_coordinator = std::ranges::any_of(
      map->workers, [&](const auto& entry) { return entry.second == options_.coordinator; });
  return has_coordinator ? "" : "the coordinator has left or was lost";
}

void BatchReplica::report() {
  net::send_owned(endpoint_, service(), kBatchReports,
                  std::make_shared<const std::string>(to_message(report_)));
}

void BatchReplica::tick() {
  report();
  timer_ = endpoint_.after(options_.resend, [this] { tick(); });
}

}  // namespace troika::server
