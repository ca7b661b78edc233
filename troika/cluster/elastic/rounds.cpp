#include "troika/cluster/elastic/rounds.h"

#include <fmt/format.h>

#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "troika/base/exit_code.h"

namespace troika::cluster {

namespace {

using Kind = RoundEnd::Kind;

bool can_be_retried(int code) {
  return code != static_cast<int>(ExitCode::usage) &&
         code != static_cast<int>(ExitCode::not_executable);
}

}  // namespace

Rounds::Rounds(RoundRules rules, AgentHello host, std::function<LaunchPlace()> next_place,
               Send send, std::function<net::Duration()> now)
    : rules_(rules),
      next_place_(std::move(next_place)),
      send_(std::move(send)),
      now_(std::move(now)),
      agents_(std::move(host)),
      join_due_(now_() + rules.join_timeout) {}

std::optional<Refusal> Rounds::admit(int agent, const AgentHello& hello) {
  if (auto refusal = agents_.refusal_of(hello)) return refusal;
  if (phase_ == Phase::over || host_code_) {
    return Refusal{ErrorKind::peer,
                   {.what = "the run is over",
                    .got = "another launch, " + Launches::name_of(hello),
                    .expected = "launches that come before its end"}};
  }
  agents_.add(agent, hello);
  // If some launches have finished, the others will soon: the new launch waits.
  if (phase_ == Phase::running && results_.size() < static_cast<size_t>(rules_.max_nodes) &&
      !results_.has_ends()) {
    changes_ = true;
    stop(/*may_save=*/true,
         fmt::format("to continue with one more machine ({})", agents_.name(agent)));
  }
  consider();
  return std::nullopt;
}

void Rounds::failing(int agent) {
  if (phase_ == Phase::running && results_.open().contains(agent)) stop_after_failure(agent);
}

void Rounds::stop_after_failure(int agent) {
  stop(/*may_save=*/false, fmt::format("a rank of {} failed", agents_.name(agent)));
}

void Rounds::ended(int agent, const RoundEnd& end) {
  if (!results_.end(agent, end)) return;
  // A launch that cannot execute the program has not sent `failing` before.
  const bool has_failed = end.kind == Kind::failed || end.kind == Kind::bereaved;
  if (phase_ == Phase::running && has_failed) stop_after_failure(agent);
  conclude_if_ended();
}

void Rounds::depart(int agent, int code) {
  if (phase_ == Phase::over || !agents_.contains(agent)) return;
  agents_.depart(agent);
  if (agents_.hosts(agent)) host_code_ = code;
  const std::string why = fmt::format("{} was told to end", agents_.name(agent));
  if (phase_ == Phase::gathering) {
    if (host_code_) return end_with(code, why + ", and it hosts the run");
    return consider();
  }
  changes_ |= results_.open().contains(agent);
  if (phase_ == Phase::running && (host_code_ || results_.open().contains(agent))) {
    stop(/*may_save=*/true, why);
  }
}

void Rounds::lost(int agent, const std::string& reason) {
  if (phase_ == Phase::over || !agents_.contains(agent)) return;
  const std::string why = fmt::format("{} was lost: {}", agents_.name(agent), reason);
  agents_.remove(agent);
  if (results_.lose(agent)) {
    changes_ = true;
    if (phase_ == Phase::running) stop(/*may_save=*/false, why);
    conclude_if_ended();
  }
  consider();
}

void Rounds::end_all(const Refusal& why) {
  phase_ = Phase::over;
  for (const int agent : agents_.take_all()) {
    send_(agent, {Message::refused, 0, "", to_json(why)});
  }
}

void Rounds::end_with(int code, const std::string& why) {
  phase_ = Phase::over;
  for (const int agent : agents_.take_all()) {
    send_(agent, {Message::over, static_cast<uint64_t>(code), "", why});
  }
}

void Rounds::gather() {
  phase_ = Phase::gathering;
  join_due_ = now_() + rules_.join_timeout;
  last_call_.reset();
  consider();
}

void Rounds::consider() {
  if (phase_ != Phase::gathering) return;
  const auto agents = agents_.ready();
  const bool host_is_there = !agents.empty() && agents_.hosts(agents.front());
  const int count = static_cast<int>(agents.size());
  if (!host_is_there || count < rules_.min_nodes) {
    last_call_.reset();
  } else if (count >= rules_.max_nodes) {
    start();
  } else if (!last_call_) {
    last_call_ = now_() + rules_.last_call_timeout;
  }
}

void Rounds::start() {
  auto agents = agents_.ready();
  if (std::ssize(agents) > rules_.max_nodes) agents.resize(static_cast<size_t>(rules_.max_nodes));
  phase_ = Phase::running;
  changes_ = false;
  results_ = RoundResults(agents);
  auto place = next_place_();
  place.num_nodes = static_cast<int>(agents.size());
  place.round = round_++;
  place.restarts = restarts_;
  for (; place.node_rank < place.num_nodes; ++place.node_rank) {
    const int agent = agents[static_cast<size_t>(place.node_rank)];
    send_(agent, {Message::round, 0, "", to_json(place)});
  }
}

void Rounds::stop(bool may_save, const std::string& why) {
  phase_ = Phase::stopping;
  stop_due_ = now_() + rules_.stop_timeout;
  for (const int agent : results_.open())
    send_(agent, {Message::stop, may_save ? 1u : 0u, "", why});
}

void Rounds::conclude_if_ended() {
  const bool is_round = phase_ == Phase::running || phase_ == Phase::stopping;
  if (is_round && results_.open().empty()) conclude();
}

void Rounds::conclude() {
  const RoundEnd* failure = results_.failure();
  // When launches join or leave, ranks fail because others are gone: then only failures that a
  // retry cannot fix count.
  if (failure && (!changes_ || !can_be_retried(failure->code))) {
    if (host_code_ || restarts_ == rules_.max_restarts || !can_be_retried(failure->code)) {
      return end_with(failure->code, "");
    }
    ++restarts_;
    return gather();
  }
  const RoundEnd* saved = results_.first(Kind::saved);
  const RoundEnd* stopped = results_.first(Kind::stopped);
  if (host_code_) {
    return end_with(saved ? saved->code : *host_code_, "the launch that hosts it was told to end");
  }
  const bool is_requeued = saved && saved->code == static_cast<int>(ExitCode::requeued);
  if (changes_ && !results_.all_finished() && !is_requeued) return gather();
  end_with(saved ? saved->code : (stopped ? stopped->code : 0), "");
}

std::optional<net::Duration> Rounds::due() const {
  if (phase_ == Phase::stopping) return stop_due_;
  if (phase_ != Phase::gathering) return std::nullopt;
  return last_call_ ? *last_call_ : join_due_;
}

void Rounds::late(const std::string& note) {
  if (phase_ == Phase::stopping) {
    const Refusal why{ErrorKind::timeout,
                      {.what = fmt::format("a launch did not end its ranks within {}",
                                           show_span(rules_.stop_timeout.count()))}};
    for (const int agent : std::set<int>(results_.open())) {
      send_(agent, {Message::refused, 0, "", to_json(why)});
      lost(agent, "it does not end its ranks");
    }
    return;
  }
  if (phase_ != Phase::gathering) return;
  if (last_call_) return start();
  std::string there;
  for (const int agent : agents_.ready())
    there += (there.empty() ? "" : ", ") + agents_.name(agent);
  end_all(
      {ErrorKind::timeout,
       {.what = fmt::format("too few machines within {}", show_span(rules_.join_timeout.count())),
        .got = there.empty() ? "none" : fmt::format("{} ({})", agents_.ready().size(), there),
        .expected = fmt::format("at least {}", rules_.min_nodes),
        .hint = "MIN of --nnodes, and --rdzv-join-timeout" + note}});
}

}  // namespace troika::cluster
