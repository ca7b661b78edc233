#include "troika/parallel/servers/replica_numbers.h"

#include <algorithm>

#include "troika/parallel/servers/served_model.h"
#include "troika/server/worker.h"

namespace troika::parallel {

namespace {

// The keys: the number of pushes, who has given last what all take at a cut, the last
// cut that each replica has begun, and the steps by staleness.
constexpr server::KeySpan kPushes{0, 1}, kGiven{1, 1};
constexpr int kMarks = 2;  // the first replica's key
constexpr const char* kTable = "replicas";

// Not 0, with which the table begins.
double mark_of(int64_t cut) {
  return static_cast<double>(cut + 1);
}

double mark_of_giver(int64_t cut, int number) {
  constexpr double kMoreThanReplicas = 1 << 20;
  return mark_of(cut) * kMoreThanReplicas + number;
}

}  // namespace

ReplicaNumbers::ReplicaNumbers(int replica, int replicas, const std::string& prefix,
                               const std::vector<std::string>& prefixes)
    : table_(prefix + kTable), replica_(replica), replicas_(replicas), steps_(kMostStaleness + 1) {
  for (const auto& of_place : prefixes) tables_.push_back(of_place + kTable);
  total_.resize(spec().keys);
  reported_ = total_;
}

server::TableSpec ReplicaNumbers::spec() const {
  return {.name = table_,
          .type = server::ValueType::float64,
          .keys = static_cast<uint64_t>(kMarks + replicas_ + kMostStaleness + 1),
          .initial = 0,
          .application = server::Application::per_push,
          .update = {.kind = server::UpdateKind::sum}};
}

void ReplicaNumbers::add_gradient() {
  if (oldest_ < 0) oldest_ = seen_;
}

void ReplicaNumbers::count_push() {
  const std::vector<double> one{1.0};
  sent_.push_back({worker_->push_pull(table_, kPushes, one), ++own_, std::exchange(oldest_, -1)});
  take_counts();
}

server::Handle ReplicaNumbers::start_fetch() {
  own_at_fetch_ = own_;
  return worker_->pull(table_, kPushes);
}

void ReplicaNumbers::take_fetch(const server::Handle& fetch, Deadline deadline) {
  fetch.wait(deadline);
  seen_ = static_cast<int64_t>(fetch.values<double>()[0]) - own_at_fetch_;
}

double ReplicaNumbers::pushes(Deadline deadline) const {
  const auto pulled = worker_->pull(table_, kPushes);
  pulled.wait(deadline);
  return pulled.values<double>()[0];
}

void ReplicaNumbers::take_counts() {
  while (!sent_.empty() && sent_.front().count.is_done()) {
    const auto& push = sent_.front();
    if (push.count.error().empty()) {
      const auto others = static_cast<int64_t>(push.count.values<double>()[0]) - push.own;
      const int64_t staleness = std::clamp<int64_t>(others - push.before, 0, kMostStaleness);
      ++steps_[static_cast<size_t>(staleness)];
    }
    sent_.pop_front();
  }
}

void ReplicaNumbers::begin_cut(int64_t cut, Deadline deadline) {
  for (const auto& push : sent_) push.count.wait(deadline);
  take_counts();
  const std::vector<double> own(steps_.begin(), steps_.end());
  std::ranges::fill(steps_, 0);
  const auto first = static_cast<server::Key>(kMarks + replicas_);
  worker_->push(table_, server::KeySpan{first, own.size()}, own);
  const std::vector<double> mark{mark_of(cut)};
  worker_->assign(table_, server::KeySpan{static_cast<server::Key>(kMarks + replica_), 1}, mark)
      .wait(deadline);
}

void ReplicaNumbers::read_cut(Deadline deadline) {
  const auto pulled = worker_->pull(table_, server::KeySpan{0, spec().keys});
  pulled.wait(deadline);
  const auto values = pulled.values<double>();
  total_.assign(values.begin(), values.end());
  seen_ = static_cast<int64_t>(total_[0]) - own_;
}

bool ReplicaNumbers::is_participant(int64_t cut, int number) const {
  const auto marks = total_.begin() + kMarks;
  if (marks[replica_] != mark_of(cut)) return false;
  return std::count(marks, marks + replica_, mark_of(cut)) == number;
}

void ReplicaNumbers::end_giving(int64_t cut, int number, Deadline deadline) {
  const std::vector<double> mark{mark_of_giver(cut, number)};
  worker_->assign(table_, kGiven, mark).wait(deadline);
}

bool ReplicaNumbers::has_been_given(int64_t cut, int number, Deadline deadline) const {
  std::vector<server::Handle> pulled;
  for (const auto& table : tables_) pulled.push_back(worker_->pull(table, kGiven));
  return std::ranges::all_of(pulled, [&](const server::Handle& given) {
    given.wait(deadline);
    return given.values<double>()[0] == mark_of_giver(cut, number);
  });
}

std::vector<std::pair<std::string, double>> ReplicaNumbers::take_statistics() {
  std::vector<int64_t> steps;
  for (size_t i = static_cast<size_t>(kMarks + replicas_); i < total_.size(); ++i) {
    steps.push_back(static_cast<int64_t>(total_[i] - reported_[i]));
  }
  reported_ = total_;
  return staleness_metrics(steps);
}

}  // namespace troika::parallel
