#include "troika/cluster/launch/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/exit_code.h"
#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

// The limit for events that should come soon: the end of a process after SIGKILL, the rest of its
// output.
constexpr Milliseconds kCertainTime{3000};

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options)
    : options_(options),
      secret_(secret_of_launch(options)),
      logs_(options.log_dir),
      signals_({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE}),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO) {}

int Supervisor::run() {
  if (options_.roles) return run_roles();
  if (options_.fault_tolerant) return run_replicas();
  return options_.elastic ? run_elastic() : run_alone();
}

int Supervisor::run_alone() {
  for (auto place = decide_place(options_);; place = next_place(options_, std::move(place))) {
    const auto ends = complete_round(ranks_at(place));
    if (!ends) return static_cast<int>(ExitCode::not_executable);
    if (!may_restart(*ends, place.restarts)) return conclude(*ends);
    say(report(*ends, *first_failure(*ends), "") +
        fmt::format("[cluster] restart {} of {}\n", place.restarts + 1, options_.max_restarts));
  }
}

std::optional<std::vector<RankEnd>> Supervisor::complete_round(const Processes& processes) {
  if (!start_round(processes)) return std::nullopt;
  loop();
  sweep();
  drain();
  return end_round();
}

bool Supervisor::start_round(const Processes& processes) {
  const int again = options_.fault_tolerant ? options_.max_restarts : 0;
  processes_.begin(options_.processes + again);
  phase_ = Phase::running;
  phase_end_.reset();
  try {
    for (int i = 0; i < options_.processes; ++i) start(processes(i));
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    say(fmt::format("{}\n", error.what()));
    kill_all();
    loop();
    sweep();
    processes_.clear();
    return false;
  }
}

auto Supervisor::ranks_at(const LaunchPlace& place) const -> Processes {
  return [this, place](int local_rank) {
    const int rank = place.rank(local_rank, options_.processes);
    return StartedProcess{
        .name = fmt::format("rank {}", rank),
        .stem = fmt::format("rank-{}", rank),
        .number = rank,
        .log = place.round == 0 ? RankOutput::Log::fresh : RankOutput::Log::goes_on,
        .is_shown = local_rank == 0,
        .environment = [this, place, local_rank](const auto& error_file) {
          return rank_environment(
              options_, place, secret_of_round(secret_.secret, place), local_rank,
              {.error_file = error_file, .flight_record = logs_.flight_record()});
        }};
  };
}

void Supervisor::start(const StartedProcess& process) {
  using PassOn = RankOutput::PassOn;
  const auto pass_on = process.is_shown ? PassOn::bytes
                       : options_.tee   ? PassOn::lines
                                        : PassOn::nothing;
  RankOutput output(process.name, logs_.log(process.stem), process.log, pass_on, out_, err_);
  const auto error_file = logs_.error_file(process.stem);
  std::filesystem::remove(error_file);  // left by an earlier launch
  Child child = spawn(options_.command, process.environment(error_file));
  logs_.mark_logs();
  processes_.add(process.number, options_.roles ? process.name : "", std::move(child),
                 std::move(output));
  stems_[process.number] = process.stem;
}

void Supervisor::loop() {
  while (!processes_.have_ended() || !outlived_.planned.empty()) {
    // Before the first step, because a round may be cancelled right after its start.
    if (agent_ && phase_ == Phase::running) follow_others();
    auto left = phase_end_ ? phase_end_->left() : Milliseconds::max();
    if (options_.fault_tolerant) left = std::min(left, attend_replicas());
    step(left);
    if (phase_end_ && phase_end_->passed()) {
      if (phase_ == Phase::killing) return;  // the kernel cannot end the process
      advance();
    }
  }
}

void Supervisor::step(Milliseconds at_most) {
  struct Source {
    RankOutput* output;
    RankOutput::Stream* stream;
  };
  std::vector<pollfd> entries{{signals_.fd(), POLLIN, 0}};
  for (const Outlet* outlet : {&out_, &err_}) {
    // poll() reports errors even without requested events, which would loop; it ignores a negative
    // descriptor.
    entries.push_back({outlet->pending() ? outlet->fd() : -1, POLLOUT, 0});
  }
  entries.push_back({agent_ ? agent_->fd() : -1, POLLIN, 0});
  const size_t first = entries.size();
  std::vector<Source> sources;
  for (const auto& rank : processes_.all()) {
    for (auto& stream : rank->output.streams()) {
      if (!stream.wanted()) continue;
      entries.push_back({stream.pipe.get(), POLLIN, 0});
      sources.push_back({&rank->output, &stream});
    }
  }
  constexpr int64_t kLongest = std::numeric_limits<int>::max();
  const int64_t timeout =
      at_most == Milliseconds::max() ? -1 : std::min<int64_t>(at_most.count(), kLongest);
  if (::poll(entries.data(), entries.size(), static_cast<int>(timeout)) <= 0) return;
  if (entries[1].revents) out_.write_some();
  if (entries[2].revents) err_.write_some();
  if (entries[3].revents) agent_->exchange();
  for (size_t i = 0; i < sources.size(); ++i) {
    if (entries[first + i].revents) sources[i].output->read(*sources[i].stream);
  }
  if (entries[0].revents) {
    for (const int signal : signals_.take()) handle_signal(signal);
  }
}

void Supervisor::handle_signal(int signal) {
  switch (signal) {
    case SIGCHLD:
      return look_for_ended();
    case SIGUSR1:
    case SIGUSR2:
      // The program handles the signal, which would kill its child processes.
      return processes_.forward(signal);
    case SIGINT:
    case SIGTERM:
    case SIGHUP:
      if (std::exchange(stop_signal_, signal) != 0) {
        told_twice_ = true;
        kill_all();
      } else {
        if (agent_ && agent_->is_connected()) agent_->depart(128 + signal);
        stop_all(signal);
      }
      return;
    default:  // SIGPIPE: Outlet gets the error itself
      return;
  }
}

void Supervisor::look_for_ended() {
  const bool has_failure = processes_.note_ended();
  if (phase_ != Phase::running) return;
  if (options_.roles) return follow_roles();
  if (options_.fault_tolerant) return follow_replicas();
  if (!has_failure) return;
  begin_grace_time();
  if (agent_) agent_->failing();
}

void Supervisor::begin_grace_time() {
  phase_ = Phase::grace;
  phase_end_ = Deadline::after(options_.grace_time);
}

void Supervisor::advance() {
  if (phase_ == Phase::grace) {
    stop_all(SIGTERM);
  } else {
    kill_all();
  }
}

void Supervisor::stop_all(int signal) {
  outlived_.planned.clear();
  phase_ = Phase::stopping;
  phase_end_ = Deadline::after(options_.shutdown_timeout);
  processes_.stop(signal);
}

void Supervisor::kill_all() {
  outlived_.planned.clear();
  phase_ = Phase::killing;
  phase_end_ = Deadline::after(kCertainTime);
  processes_.kill();
}

// Kills all processes that the ranks left running: their process groups, and orphans outside of the
// groups, which are now children of the launcher.
void Supervisor::sweep() {
  using Strays = RankProcesses::Strays;
  processes_.kill_groups();
  const auto deadline = Deadline::after(kCertainTime);
  for (auto found = processes_.kill_strays(); found != Strays::none && !deadline.passed();
       found = processes_.kill_strays()) {
    if (found == Strays::running) step(deadline.left());  // until SIGCHLD
  }
  processes_.reap();
}

// Reads the rest of the ranks' output, and waits until the readers of the launcher's own outputs
// have taken everything. As for any program, only Ctrl-C limits this wait.
void Supervisor::drain() {
  const auto deadline = Deadline::after(kCertainTime);
  const auto open = [](const auto& rank) { return rank->output.open(); };
  while (std::ranges::any_of(processes_.all(), open) && !deadline.passed()) step(deadline.left());
  while ((out_.pending() || err_.pending()) && (stop_signal_ == 0 || !deadline.passed())) {
    step(stop_signal_ == 0 ? Milliseconds::max() : deadline.left());
  }
}

std::vector<RankEnd> Supervisor::end_round() {
  std::vector<RankEnd> ends;
  for (const auto& rank : processes_.all()) {
    rank->end.note = read_failure(logs_.error_file(stems_.at(rank->end.rank)));
    rank->end.last_error_line = rank->output.last_error_line();
    rank->end.is_shown = rank->output.is_shown();
    rank->end.log = rank->output.log();
    if (!rank->has_ended) rank->end.status = {0, SIGKILL};
    ends.push_back(rank->end);
  }
  processes_.clear();
  return ends;
}

bool Supervisor::may_restart(const std::vector<RankEnd>& ends, int restarts) const {
  const RankEnd* first = first_failure(ends);
  // A process that cannot be killed may still hold the device or files that the next round needs.
  const bool are_gone =
      std::ranges::all_of(ends, [](const auto& end) { return end.ended_ns != 0; });
  return first && are_gone && stop_signal_ == 0 && restarts < options_.max_restarts &&
         first->status.as_exit_code() != static_cast<int>(ExitCode::usage);
}

void Supervisor::say_stopped() const {
  const auto logs = logs_.has_logs() ? fmt::format(", logs are in {}", logs_.path().string()) : "";
  say(fmt::format("[cluster] stopped by {}{}\n", signal_name(stop_signal_), logs));
}

int Supervisor::conclude(const std::vector<RankEnd>& ends) {
  const RankEnd* first = first_failure(ends);
  const auto saved = saved_code(ends);
  if (first) say(report(ends, *first, options_.num_nodes > 1 ? net::host_name() : ""));
  if (stop_signal_ != 0) {
    say_stopped();
    return saved.value_or(128 + stop_signal_);
  }
  if (!first && !outlived_.keeps_logs) logs_.remove_temporary();
  return first ? first->status.as_exit_code() : saved.value_or(0);
}

}  // namespace troika::cluster
