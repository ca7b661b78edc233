#include "troika/cluster/elastic/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/exit_code.h"
#include "troika/cluster/rendezvous/roster.h"

namespace troika::cluster {

namespace {

using Kind = RoundEnd::Kind;

std::string show(const AgentHello& hello) {
  return fmt::format("process {} on {}", hello.pid, hello.host);
}

bool can_be_retried(int code) {
  return code != static_cast<int>(ExitCode::usage) &&
         code != static_cast<int>(ExitCode::not_executable);
}

}  // namespace

Rounds::Rounds(RoundRules rules, AgentHello host, std::function<LaunchPlace()> next_place,
               Send send, std::function<net::Duration()> now)
    : rules_(rules),
      host_(std::move(host)),
      next_place_(std::move(next_place)),
      send_(std::move(send)),
      now_(std::move(now)),
      join_due_(now_() + rules.join_timeout) {}

std::string Rounds::who(int agent) const {
  return show(agents_.at(agent).hello);
}

std::optional<Refusal> Rounds::admit(int agent, const AgentHello& hello) {
  if (hello.protocol != kProtocolVersion) {
    return Refusal{
        ErrorKind::usage,
        {.what = "launches run different versions of Troika",
         .got = fmt::format("protocol {} from {}", hello.protocol, show(hello)),
         .expected = fmt::format("protocol {} as {} speaks", kProtocolVersion, show(host_))}};
  }
  const auto [own, others] = std::ranges::mismatch(hello.options, host_.options);
  if (own != hello.options.end() || others != host_.options.end()) {
    const bool is_same =
        own != hello.options.end() && others != host_.options.end() && own->first == others->first;
    const auto value = [&](const auto& it, const auto& of) {
      return it == of.end() ? "fewer options" : is_same ? it->second : it->first;
    };
    return Refusal{ErrorKind::usage,
                   {.what = fmt::format("launches of one run disagree on {}",
                                        is_same ? own->first : "which options there are"),
                    .got = fmt::format("{} from {}", value(own, hello.options), show(hello)),
                    .expected = fmt::format("{} as {} has, which hosts them",
                                            value(others, host_.options), show(host_))}};
  }
  const auto hosts = [](const auto& entry) { return entry.second.hello.hosts; };
  if (hello.hosts && std::ranges::any_of(agents_, hosts)) {
    return Refusal{ErrorKind::usage,
                   {.what = "two launches host one run",
                    .got = show(hello),
                    .expected = fmt::format("{} alone", show(host_))}};
  }
  if (phase_ == Phase::over || host_code_) {
    return Refusal{ErrorKind::peer,
                   {.what = "the run is over",
                    .got = fmt::format("another launch, {}", show(hello)),
                    .expected = "launches that come before its end"}};
  }
  agents_[agent].hello = hello;
  // If some launches have finished, the others will soon: the new launch waits.
  if (phase_ == Phase::running && size_ < rules_.max_nodes && ends_.empty()) {
    changes_ = true;
    stop(/*may_save=*/true, fmt::format("to go on with one more machine ({})", show(hello)));
  }
  consider();
  return std::nullopt;
}

void Rounds::failing(int agent) {
  if (phase_ == Phase::running && open_.contains(agent)) stop_after_failure(agent);
}

void Rounds::stop_after_failure(int agent) {
  stop(/*may_save=*/false, fmt::format("a rank of {} failed", who(agent)));
}

void Rounds::ended(int agent, const RoundEnd& end) {
  if (open_.erase(agent) == 0) return;
  ends_.push_back(end);
  // A launch that cannot execute the program has not sent `failing` before.
  const bool has_failed = end.kind == Kind::failed || end.kind == Kind::bereaved;
  if (phase_ == Phase::running && has_failed) stop_after_failure(agent);
  conclude_if_ended();
}

void Rounds::depart(int agent, int code) {
  if (phase_ == Phase::over || !agents_.contains(agent)) return;
  agents_.at(agent).departing = true;
  if (agents_.at(agent).hello.hosts) host_code_ = code;
  const std::string why = fmt::format("{} was told to end", who(agent));
  if (phase_ == Phase::gathering) {
    if (host_code_) return end_with(code, why + ", and it hosts the run");
    return consider();
  }
  changes_ |= open_.contains(agent);
  if (phase_ == Phase::running && (host_code_ || open_.contains(agent))) {
    stop(/*may_save=*/true, why);
  }
}

void Rounds::lost(int agent, const std::string& reason) {
  if (phase_ == Phase::over || !agents_.contains(agent)) return;
  const std::string why = fmt::format("{} was lost: {}", who(agent), reason);
  remove(agent);
  if (open_.erase(agent) != 0) {
    changes_ = true;
    if (phase_ == Phase::running) stop(/*may_save=*/false, why);
    conclude_if_ended();
  }
  consider();
}

void Rounds::remove(int agent) {
  agents_.erase(agent);
}

void Rounds::end_all(const Refusal& why) {
  phase_ = Phase::over;
  for (const auto& [agent, unused] : agents_) {
    send_(agent, {Message::refused, 0, "", to_json(why)});
  }
  agents_.clear();
}

void Rounds::end_with(int code, const std::string& why) {
  phase_ = Phase::over;
  for (const auto& [agent, unused] : agents_) {
    send_(agent, {Message::over, static_cast<uint64_t>(code), "", why});
  }
  agents_.clear();
}

std::vector<int> Rounds::ready() const {
  std::vector<int> result;
  for (const auto& [number, agent] : agents_) {
    if (agent.departing) continue;
    result.insert(agent.hello.hosts ? result.begin() : result.end(), number);
  }
  return result;
}

void Rounds::gather() {
  phase_ = Phase::gathering;
  join_due_ = now_() + rules_.join_timeout;
  last_call_.reset();
  consider();
}

void Rounds::consider() {
  if (phase_ != Phase::gathering) return;
  const auto agents = ready();
  const bool host_is_there = !agents.empty() && agents_.at(agents.front()).hello.hosts;
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
  auto agents = ready();
  size_ = std::min(static_cast<int>(agents.size()), rules_.max_nodes);
  agents.resize(static_cast<size_t>(size_));
  phase_ = Phase::running;
  changes_ = false;
  ends_.clear();
  open_ = {agents.begin(), agents.end()};
  auto place = next_place_();
  place.num_nodes = size_;
  place.round = round_++;
  place.restarts = restarts_;
  for (; place.node_rank < size_; ++place.node_rank) {
    const int agent = agents[static_cast<size_t>(place.node_rank)];
    send_(agent, {Message::round, 0, "", to_json(place)});
  }
}

void Rounds::stop(bool may_save, const std::string& why) {
  phase_ = Phase::stopping;
  stop_due_ = now_() + rules_.stop_timeout;
  for (const int agent : open_) send_(agent, {Message::stop, may_save ? 1u : 0u, "", why});
}

void Rounds::conclude_if_ended() {
  const bool is_round = phase_ == Phase::running || phase_ == Phase::stopping;
  if (is_round && open_.empty()) conclude();
}

void Rounds::conclude() {
  const auto first = [&](Kind kind) {
    const auto found = std::ranges::find(ends_, kind, &RoundEnd::kind);
    return found == ends_.end() ? nullptr : &*found;
  };
  const RoundEnd* failure = first(Kind::failed);
  if (!failure) failure = first(Kind::bereaved);
  // When launches join or leave, ranks fail because others are gone: then only failures that a
  // retry cannot fix count.
  if (failure && (!changes_ || !can_be_retried(failure->code))) {
    if (host_code_ || restarts_ == rules_.max_restarts || !can_be_retried(failure->code)) {
      return end_with(failure->code, "");
    }
    ++restarts_;
    return gather();
  }
  const RoundEnd* saved = first(Kind::saved);
  const RoundEnd* stopped = first(Kind::stopped);
  if (host_code_) {
    return end_with(saved ? saved->code : *host_code_, "the launch that hosts it was told to end");
  }
  const bool all_finished =
      std::ssize(ends_) == size_ &&
      std::ranges::all_of(ends_, [](const auto& end) { return end.kind == Kind::finished; });
  const bool is_requeued = saved && saved->code == static_cast<int>(ExitCode::requeued);
  if (changes_ && !all_finished && !is_requeued) return gather();
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
    for (const int agent : std::set<int>(open_)) {
      send_(agent, {Message::refused, 0, "", to_json(why)});
      lost(agent, "it does not end its ranks");
    }
    return;
  }
  if (phase_ != Phase::gathering) return;
  if (last_call_) return start();
  std::string there;
  for (const int agent : ready()) there += (there.empty() ? "" : ", ") + who(agent);
  end_all(
      {ErrorKind::timeout,
       {.what = fmt::format("too few machines within {}", show_span(rules_.join_timeout.count())),
        .got = there.empty() ? "none" : fmt::format("{} ({})", ready().size(), there),
        .expected = fmt::format("at least {}", rules_.min_nodes),
        .hint = "MIN of --nnodes, and --rdzv-join-timeout" + note}});
}

}  // namespace troika::cluster
