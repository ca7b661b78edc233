#include "troika/cluster/launch/rank_processes.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "troika/base/clock.h"

namespace troika::cluster {

RankProcesses::~RankProcesses() {
  // Ranks are left only after an exception.
  for (const auto& rank : ranks_) {
    signal_group(rank->pid, SIGKILL);
    cluster::reap(rank->pid);
  }
}

void RankProcesses::add(int rank, std::string role, Child child, RankOutput output) {
  guardian_->watch(child.pid);
  output.attach(std::move(child.out), std::move(child.err));
  ranks_.push_back(std::make_unique<RankProcess>(RankProcess{child.pid, std::move(output)}));
  ranks_.back()->end.rank = rank;
  ranks_.back()->end.role = std::move(role);
}

bool RankProcesses::have_ended() const {
  return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->has_ended; });
}

bool RankProcesses::note_ended() {
  bool has_failure = false;
  for (const auto& rank : ranks_) {
    if (rank->has_ended) continue;
    const auto status = status_of(rank->pid);
    if (!status) continue;
    rank->has_ended = true;
    rank->end.status = *status;
    rank->end.ended_ns = realtime_ns();
    if (!status->ok() && !status->saved()) has_failure = true;
  }
  for (const pid_t pid : strays()) ::waitpid(pid, nullptr, WNOHANG);
  return has_failure;
}

std::vector<pid_t> RankProcesses::drop_replaced() {
  std::vector<pid_t> dropped;
  std::erase_if(ranks_, [&](const auto& rank) {
    const bool is_replaced = std::ranges::any_of(ranks_, [&](const auto& other) {
      return other && other != rank && other->end.rank == rank->end.rank && !other->has_ended;
    });
    if (!is_replaced || !rank->has_ended || rank->output.open()) return false;
    signal_group(rank->pid, SIGKILL);
    cluster::reap(rank->pid);
    dropped.push_back(rank->pid);
    return true;
  });
  return dropped;
}

void RankProcesses::forward(int signal) const {
  for (const auto& rank : ranks_) {
    if (!rank->has_ended) ::kill(rank->pid, signal);
  }
}

void RankProcesses::stop(int signal) {
  for (const auto& rank : ranks_) {
    if (rank->has_ended) continue;
    if (!rank->end.stopped_ns) rank->end.stopped_ns = realtime_ns();
    signal_group(rank->pid, signal);
    signal_group(rank->pid, SIGCONT);  // so that a stopped process handles the signal
  }
}

void RankProcesses::kill() {
  for (const auto& rank : ranks_) kill(rank->pid);
}

void RankProcesses::kill(pid_t pid) {
  for (const auto& rank : ranks_) {
    if (rank->has_ended || rank->pid != pid) continue;
    if (!rank->end.stopped_ns) rank->end.stopped_ns = realtime_ns();
    rank->end.had_to_be_killed = true;
    signal_group(rank->pid, SIGKILL);
  }
}

void RankProcesses::kill_groups() const {
  for (const auto& rank : ranks_) signal_group(rank->pid, SIGKILL);
}

RankProcesses::Strays RankProcesses::kill_strays() const {
  const auto left = strays();
  auto result = left.empty() ? Strays::none : Strays::ended;
  for (const pid_t pid : left) {
    ::kill(pid, SIGKILL);
    if (::waitpid(pid, nullptr, WNOHANG) == 0) result = Strays::running;
  }
  return result;
}

void RankProcesses::reap() const {
  for (const auto& rank : ranks_) {
    if (rank->has_ended) cluster::reap(rank->pid);
  }
}

std::vector<pid_t> RankProcesses::strays() const {
  std::vector<pid_t> found;
  for (const pid_t pid : children()) {
    const bool is_rank = std::ranges::any_of(ranks_, [&](const auto& r) { return r->pid == pid; });
    if (!is_rank && !(guardian_ && pid == guardian_->pid()) &&
        !std::ranges::count(children_before_, pid)) {
      found.push_back(pid);
    }
  }
  return found;
}

}  // namespace troika::cluster
