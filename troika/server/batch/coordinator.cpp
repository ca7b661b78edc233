#include "troika/server/batch/coordinator.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/server/batch/batch_messages.h"
#include "troika/server/control.h"
#include "troika/server/key_groups.h"
#include "troika/server/send.h"

namespace troika::server {

Coordinator::Coordinator(net::Endpoint& endpoint, Worker& worker, CoordinatorOptions options)
    : endpoint_(endpoint),
      worker_(worker),
      options_(std::move(options)),
      portions_(options_.portions, options_.backups) {
  endpoint_.handle(kBatchReports, 4096, [this](const std::string& peer, const std::string& text) {
    try {
      take(peer, parse_report(text));
    } catch (const Error& error) {
      log::warn("a report of {}: {}", peer, error.what());
    }
  });
  net::act_on(endpoint_, [this] { tick(); });
}

Coordinator::~Coordinator() {
  endpoint_.handle(kBatchReports, 0, {});
  net::act_on(endpoint_, [this] {
    endpoint_.cancel(timer_, net::Outcome::cancelled);
    is_over_ = true;
    send_all();
  });
}

void Coordinator::check_table() {
  const auto map = worker_.map();
  const auto& table = map->tables[table_index(*map, options_.gradient)];
  const bool fits = table.application == Application::per_step &&
                    table.update == UpdateSpec{.kind = UpdateKind::sum};
  if (fits) return;
  throw Error(
      "server", ErrorKind::usage,
      {.what = "the table of the gradient", .got = to_text(table), .expected = "per_step sum"});
}

double Coordinator::evaluate(Deadline deadline) {
  check_table();
  worker_.compute({VectorOperation::fill(options_.gradient, 0)}).wait(deadline);
  net::act_on(endpoint_, [this] { portions_.begin(); });
  bool is_complete = false;
  while (!is_complete) {
    worker_.begin_step().wait(deadline);
    const int64_t step = worker_.step();
    net::act_on(endpoint_, [&] {
      step_ = step;
      has_ended_ = false;
      assign();
      send_all();
    });
    bool has_all = false;
    const bool is_in_time = endpoint_.run_until(
        [&] {
          lose_departed();
          has_all = portions_.is_complete();
          return has_all || is_stopped() || (options_.replicas > 0 && replicas_left() == 0);
        },
        time_left(deadline));
    net::act_on(endpoint_, [&] {
      has_ended_ = true;
      send_all();
    });
    worker_.end_step();
    if (is_in_time && !has_all) {
      throw Error("server", ErrorKind::peer,
                  {.what = "no replica is left to compute a pass", .got = "0 replicas"});
    }
    if (!is_in_time) {
      throw Error(
          "server", ErrorKind::timeout,
          {.what = fmt::format("a pass over {} portions did not end in time", options_.portions),
           .got = fmt::format("{} replicas", replicas_.size()),
           .hint = "does each replica compute its portions?"});
    }
    worker_.wait_until_committed(step, deadline);
    net::act_on(endpoint_, [&] {
      lose_departed();
      is_complete = portions_.is_complete();
      if (is_complete) ++counts_.passes;
    });
  }
  double loss = 0;
  net::act_on(endpoint_, [&] { loss = portions_.loss(); });
  return loss;
}

uint64_t Coordinator::replicas_left() {
  const auto map = worker_.map();
  return map->workers.size() - map->workers.count(worker_.number());
}

bool Coordinator::all_ask(int64_t round) {
  const auto map = worker_.map();
  for (const auto& [worker, name] : map->workers) {
    if (worker == worker_.number()) continue;
    const auto found = replicas_.find(worker);
    if (found == replicas_.end() || found->second.asked < round) return false;
  }
  return true;
}

bool Coordinator::wait_until_asked(int64_t round, Deadline deadline) {
  bool is_over = false;
  const bool is_in_time = endpoint_.run_until(
      [&] {
        lose_departed();
        const auto left = replicas_left();
        const bool have_begun = left + worker_.map()->departed.size() >= options_.replicas;
        is_over = is_stopped() || (have_begun && left == 0);
        return is_over || (have_begun && all_ask(round));
      },
      time_left(deadline));
  if (is_in_time) return !is_over;
  throw Error("server", ErrorKind::timeout,
              {.what = fmt::format("not all replicas asked for round {} in time", round),
               .got = fmt::format("{} replicas", replicas_.size())});
}

void Coordinator::end_round(int64_t round) {
  net::act_on(endpoint_, [&] {
    round_ = round;
    send_all();
  });
}

void Coordinator::fail(const std::string& reason) {
  net::act_on(endpoint_, [&] {
    failure_ = reason;
    is_over_ = true;
    send_all();
  });
}

CoordinatorCounts Coordinator::counts() {
  CoordinatorCounts counts;
  net::act_on(endpoint_, [&] {
    counts = counts_;
    counts.backups = portions_.backups_begun();
  });
  return counts;
}

void Coordinator::take(const std::string& peer, const BatchReport& report) {
  const auto map = worker_.map();
  const auto known = map->workers.find(report.worker);
  if (known == map->workers.end() || known->second != peer) return;
  auto& replica = replicas_[report.worker];
  replica.name = peer;
  replica.ready = std::max(replica.ready, report.ready);
  replica.asked = std::max(replica.asked, report.asked);
  judge(report.worker, replica, report);
  assign();
  send(report.worker, replica);
}

void Coordinator::judge(uint64_t worker, Replica& replica, const BatchReport& report) {
  if (report.finished != replica.assignment || replica.judged == replica.assignment) return;
  replica.judged = replica.assignment;
  // A result of an earlier step is not part of the sum that the replica pushes in this one.
  const bool is_late = has_ended_ || replica.step != step_;
  if (is_late) portions_.release(worker);
  replica.counts = !is_late && portions_.commit(worker, step_, report.loss);
  ++(replica.counts ? counts_.committed : counts_.dropped);
}

void Coordinator::lose_departed() {
  for (const auto& [worker, finished] : worker_.map()->departed) {
    if (replicas_.erase(worker) > 0) counts_.repeated += portions_.lose(worker, finished);
  }
  assign();
}

void Coordinator::assign() {
  if (has_ended_) return;
  for (auto& [worker, replica] : replicas_) {
    if (replica.ready != step_ || replica.judged != replica.assignment) continue;
    const auto portion = portions_.next(worker);
    if (!portion) continue;
    ++replica.assignment;
    replica.portion = *portion;
    replica.step = step_;
    send(worker, replica);
  }
}

void Coordinator::send(uint64_t worker, const Replica& replica) {
  const BatchOrder order{.number = ++orders_,
                         .worker = worker,
                         .step = step_,
                         .has_ended = has_ended_,
                         .is_over = is_over_,
                         .assignment = replica.assignment,
                         .portion = replica.portion,
                         .assigned = replica.step,
                         .judged = replica.judged,
                         .counts = replica.counts,
                         .round = round_,
                         .failure = failure_};
  net::send_owned(endpoint_, replica.name, kBatchOrders,
                  std::make_shared<const std::string>(to_message(order)));
}

void Coordinator::send_all() {
  for (const auto& [worker, replica] : replicas_) send(worker, replica);
}

void Coordinator::tick() {
  lose_departed();
  send_all();
  timer_ = endpoint_.after(options_.resend, [this] { tick(); });
}

std::vector<double> ServedVectors::compute(const VectorOperations& operations) {
  const auto computed = worker_.compute(operations);
  computed.wait(Deadline::after(limit_));
  const auto numbers = computed.values<double>();
  return {numbers.begin(), numbers.end()};
}

std::vector<TableSpec> vector_tables(const std::vector<std::string>& names, uint64_t length,
                                     const std::string& gradient) {
  std::vector<TableSpec> tables;
  for (const auto& name : names) {
    tables.push_back({.name = name, .type = ValueType::float64, .keys = length});
    if (name == gradient) tables.back().application = Application::per_step;
  }
  return tables;
}

}  // namespace troika::server
