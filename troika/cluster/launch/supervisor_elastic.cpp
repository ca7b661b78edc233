// The supervisor in an elastic run: the hosting launch starts and ends the rounds.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

#include "troika/base/exit_code.h"
#include "troika/cluster/launch/supervisor.h"
#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

// The pause between attempts to reach the host.
constexpr Milliseconds kPause{200};

bool are_gone(const std::vector<RankEnd>& ends) {
  return std::ranges::all_of(ends, [](const auto& end) { return end.ended_ns != 0; });
}

RoundEnd as_round_end(const std::vector<RankEnd>& ends) {
  using Kind = RoundEnd::Kind;
  if (const auto* first = first_failure(ends)) {
    const int code = first->status.as_exit_code();
    const bool blames_others =
        first->status.signal == 0 && code == static_cast<int>(ExitCode::peer);
    return {blames_others ? Kind::bereaved : Kind::failed, code};
  }
  if (const auto saved = saved_code(ends)) return {Kind::saved, *saved};
  const auto stopped = std::ranges::find_if_not(ends, [](const auto& e) { return e.status.ok(); });
  if (stopped == ends.end()) return {Kind::finished, 0};
  return {Kind::stopped, stopped->status.as_exit_code()};
}

}  // namespace

int Supervisor::run_elastic() {
  agent_.emplace(options_, secret_);
  while (!agent_->connect()) {
    step(kPause);
    if (stop_signal_ != 0) return conclude_elastic({});
  }
  std::vector<RankEnd> ends;
  while (const auto place = await_round()) {
    const int first = place->rank(0, options_.processes);
    say(fmt::format("[cluster] round {}: machine {} of {}, ranks {}-{} of {}{}\n", place->round,
                    place->node_rank, place->num_nodes, first, first + options_.processes - 1,
                    place->num_nodes * options_.processes,
                    place->restarts == 0 ? ""
                                         : fmt::format(", restart {} of {}", place->restarts,
                                                       options_.max_restarts)));
    auto completed = complete_round(ranks_at(*place));
    if (!completed) {
      agent_->ended({RoundEnd::Kind::failed, static_cast<int>(ExitCode::not_executable)});
      ends.clear();
      continue;
    }
    ends = std::move(*completed);
    if (const auto* failure = first_failure(ends)) say(report(ends, *failure, net::host_name()));
    agent_->ended(as_round_end(ends));
    // A process that cannot be killed may hold what the next round needs.
    if (!are_gone(ends)) return conclude_elastic(ends);
  }
  return conclude_elastic(ends);
}

std::optional<LaunchPlace> Supervisor::await_round() {
  while (true) {
    if (agent_->over()) return std::nullopt;
    if (agent_->problem()) throw Error(*agent_->problem());
    // The hosting launch stays until the others have ended, unless a second signal arrives.
    if (stop_signal_ != 0 && (!agent_->hosts() || told_twice_)) return std::nullopt;
    if (const auto place = agent_->take_round()) {
      if (stop_signal_ == 0) return place;
      // The round was sent before the signal arrived. Ends it at once, since the others' ranks wait
      // for ours.
      agent_->ended({RoundEnd::Kind::stopped, 128 + stop_signal_});
    }
    step(Milliseconds::max());
  }
}

void Supervisor::follow_others() {
  if (const auto stop = agent_->take_stop()) {
    say(fmt::format("[cluster] ends the round: {}\n", stop->why));
    return stop->may_save ? stop_all(SIGTERM) : begin_grace_time();
  }
  if (agent_->problem() || agent_->over()) begin_grace_time();
}

int Supervisor::conclude_elastic(const std::vector<RankEnd>& ends) {
  const auto& over = agent_->over();
  const auto saved = saved_code(ends);
  if (over && !over->why.empty()) say(fmt::format("[cluster] the run ends: {}\n", over->why));
  const int code = over ? over->code : static_cast<int>(ExitCode::failure);
  if (stop_signal_ != 0) {
    say_stopped();
    return saved.value_or(over ? over->code : 128 + stop_signal_);
  }
  const bool all_went_well = code == 0 || ExitStatus{code}.saved();
  if (over && all_went_well && !first_failure(ends)) logs_.remove_temporary();
  return code;
}

}  // namespace troika::cluster
