#include "troika/server/scheduler.h"

#include <fmt/format.h>

#include <optional>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/server/send.h"
#include "troika/server/snapshot.h"

namespace troika::server {

namespace {

constexpr size_t kMostBeat = size_t{64} << 20;
constexpr net::Duration kNoticeInterval = std::chrono::seconds(10);

// Returns the step of the snapshot with which to begin; -1 without one.
int64_t step_of_snapshot(const SchedulerOptions& options) {
  if (options.snapshot.empty()) return -1;
  const auto index = read_index(options.snapshot);
  const auto text = [](const std::vector<TableSpec>& tables) {
    std::string all;
    for (const auto& table : tables) all += (all.empty() ? "" : "; ") + to_text(table);
    return all;
  };
  if (index.tables != options.tables || index.ranges.size() != options.ranges) {
    throw Error("server", ErrorKind::usage,
                {.what = "the tables of snapshot " + options.snapshot,
                 .got = fmt::format("{} ranges, {}", index.ranges.size(), text(index.tables)),
                 .expected = fmt::format("{} ranges, {}", options.ranges, text(options.tables))});
  }
  return index.step;
}

}  // namespace

Scheduler::Scheduler(net::Endpoint& endpoint, SchedulerOptions options)
    : endpoint_(endpoint),
      interval_(options.limit / 8),
      ends_(options.ends),
      membership_(options, step_of_snapshot(options)) {
  endpoint_.handle(kBeats, kMostBeat, [this](const std::string& peer, const std::string& message) {
    take(peer, message);
  });
  endpoint_.handle(kStatusQuestions, 64, [this](const std::string& peer, const std::string&) {
    net::send_owned(endpoint_, peer, kStatusAnswers,
                    std::make_shared<const std::string>(membership_.status(endpoint_.now())));
  });
  net::act_on(endpoint_, [this] { tick(); });
}

Scheduler::~Scheduler() {
  for (const auto channel : {kBeats, kStatusQuestions}) endpoint_.handle(channel, 0, {});
  net::act_on(endpoint_, [this] { endpoint_.cancel(timer_, net::Outcome::cancelled); });
}

void Scheduler::take(const std::string& peer, const std::string& message) {
  try {
    if (membership_.take(peer, parse_beat(message), endpoint_.now())) tell_all();
  } catch (const Error& error) {
    log::warn("a beat of {}: {}", peer, error.what());
    return;
  }
  tell(peer);
}

void Scheduler::tick() {
  const auto now = endpoint_.now();
  const bool has_news = note_ends();
  if (membership_.expire(now) || has_news) tell_all();
  const auto missing = membership_.missing();
  if (missing.empty()) next_notice_ = now + kNoticeInterval;
  if (now >= next_notice_) {
    log::warn("[server] the run waits: {}", missing);
    next_notice_ = now + kNoticeInterval;
  }
  timer_ = endpoint_.after(interval_, [this] { tick(); });
}

bool Scheduler::note_ends() {
  if (ends_.empty() || !std::filesystem::exists(ends_)) return false;
  bool has_news = false;
  for (const auto& line : split(read_file(ends_), '\n')) {
    const auto space = line.find(' ');
    if (space == std::string::npos) continue;
    has_news = membership_.note_end(line.substr(0, space), line.substr(space + 1)) || has_news;
  }
  return has_news;
}

void Scheduler::tell(const std::string& name) {
  net::send_owned(endpoint_, name, kStates,
                  std::make_shared<const std::string>(to_message(membership_.state_for(name))));
}

void Scheduler::tell_all() {
  for (const auto& name : membership_.nodes()) tell(name);
}

void Scheduler::set_consistency(Consistency consistency) {
  net::act_on(endpoint_, [&] {
    if (membership_.set_consistency(std::move(consistency))) tell_all();
  });
}

void Scheduler::save(const std::filesystem::path& folder, Deadline deadline) {
  namespace fs = std::filesystem;
  const std::unique_lock is_alone(saving_, std::try_to_lock);
  if (!is_alone) throw Error("server", ErrorKind::usage, {.what = "two snapshots at a time"});
  if (fs::exists(folder)) {
    throw Error("server", ErrorKind::usage,
                {.what = "the snapshot's folder exists", .got = folder.string()});
  }
  if (!endpoint_.run_until([this] { return !membership_.is_taking_over(); }, time_left(deadline))) {
    throw Error("server", ErrorKind::timeout,
                {.what = "the snapshot " + folder.string() + " failed",
                 .got = "a scheduler that has not taken over yet"});
  }
  auto whole = fs::absolute(folder).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // the name ended with a slash
  const fs::path part = fmt::format("{}.part-{:016x}", whole.string(), random_number());
  make_folder(part);
  net::act_on(endpoint_, [&] {
    membership_.begin_snapshot(part.string());
    tell_all();
  });
  std::optional<SnapshotIndex> index;
  std::string problem;
  ErrorKind kind = ErrorKind::failure;
  const auto is_over = [&] {
    problem = membership_.snapshot_problem();
    index = membership_.finished_snapshot();
    return index || !problem.empty();
  };
  if (!endpoint_.run_until(is_over, time_left(deadline))) {
    kind = ErrorKind::timeout;
    net::act_on(endpoint_, [&] { problem = "waits for " + membership_.snapshot_wait(); });
  }
  try {
    if (problem.empty()) {
      write_index(part, *index);
      sync_path(part);
      fs::rename(part, whole);
      sync_path(whole.parent_path());
    }
  } catch (const std::exception& error) {
    problem = error.what();
  }
  net::act_on(endpoint_, [this] {
    membership_.end_snapshot();
    tell_all();
  });
  if (problem.empty()) return;
  std::error_code ignored;
  fs::remove_all(part, ignored);
  throw Error("server", kind,
              {.what = "the snapshot " + folder.string() + " failed", .got = problem});
}

void Scheduler::wait_for(int servers, int workers, Deadline deadline) {
  NodeCounts counts;
  const auto is_over = [&] {
    counts = membership_.counts();
    return (counts.servers >= servers && counts.workers >= workers) ||
           !membership_.failure().empty();
  };
  if (endpoint_.run_until(is_over, time_left(deadline))) return;
  throw Error("server", ErrorKind::timeout,
              {.what = "not all nodes joined in time",
               .got = fmt::format("{} servers and {} workers", counts.servers, counts.workers),
               .expected = fmt::format("{} and {}", servers, workers)});
}

bool Scheduler::wait_for_workers_to_end(Deadline deadline, const std::function<bool()>& gives_up) {
  bool have_ended = false;
  const auto is_over = [&] {
    have_ended = membership_.have_workers_ended();
    return have_ended || (gives_up && gives_up());
  };
  if (!endpoint_.run_until(is_over, time_left(deadline))) {
    throw Error("server", ErrorKind::timeout, {.what = "the workers have not ended in time"});
  }
  if (!have_ended) return false;
  net::act_on(endpoint_, [this] {
    membership_.end_run();
    tell_all();
  });
  return true;
}

std::string Scheduler::ask_for_status(net::Endpoint& endpoint, const std::string& scheduler,
                                      Deadline deadline) {
  std::string answer;
  endpoint.handle(kStatusAnswers, kMostBeat, [&](const std::string& peer, std::string message) {
    if (peer == scheduler) answer = std::move(message);
  });
  net::send_owned(endpoint, scheduler, kStatusQuestions,
                  std::make_shared<const std::string>("status"));
  const bool is_there = endpoint.run_until([&] { return !answer.empty(); }, time_left(deadline));
  endpoint.handle(kStatusAnswers, 0, {});
  if (is_there) return answer;
  throw Error("server", ErrorKind::timeout,
              {.what = "the scheduler did not answer in time", .got = scheduler});
}

std::string Scheduler::failure() {
  std::string failure;
  net::act_on(endpoint_, [&] { failure = membership_.failure(); });
  return failure;
}

bool Scheduler::wait_until_all_have_heard(net::Duration time) {
  return endpoint_.run_until([this] { return membership_.have_all_heard(); }, time);
}

RingMap Scheduler::map() {
  RingMap map;
  net::act_on(endpoint_, [&] { map = membership_.map(); });
  return map;
}

std::string Scheduler::status() {
  std::string text;
  net::act_on(endpoint_, [&] { text = membership_.status(endpoint_.now()); });
  return text;
}

}  // namespace troika::server
