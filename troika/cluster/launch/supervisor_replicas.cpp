#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/base/exit_code.h"
#include "troika/cluster/launch/supervisor.h"
#include "troika/quorum/lighthouse_server.h"

namespace troika::cluster {

namespace {

// Before another process takes a replica's place, so that one that fails at its start does not use
// up all restarts at once.
constexpr Milliseconds kRestartPause{500};
// Between looks at the lighthouse.
constexpr Milliseconds kAttention{200};

// The last process of each rank.
std::vector<RankEnd> last_ends(const std::vector<RankEnd>& ends) {
  std::vector<RankEnd> result;
  for (const auto& end : ends) {
    std::erase_if(result, [&](const RankEnd& other) { return other.rank == end.rank; });
    result.push_back(end);
  }
  return result;
}

}  // namespace

int Supervisor::run_replicas() {
  const auto place = decide_place(options_);
  const auto secret = secret_of_round(secret_.secret, place);
  quorum::LighthouseServer lighthouse(secret, {"127.0.0.1", options_.master_port});
  const auto address = fmt::format("TROIKA_LIGHTHOUSE=127.0.0.1:{}", lighthouse.port());
  outlived_.take_refused = [&lighthouse] { return lighthouse.take_refused(); };
  outlived_.next = [this, place, address, secret](int rank) {
    auto here = place;
    here.restarts = here.round = outlived_.restarts;
    auto process = ranks_at(here)(rank);
    process.environment = [this, here, address, secret, rank](const auto& error_file) {
      auto variables =
          rank_environment(options_, here, secret, rank,
                           {.error_file = error_file, .flight_record = logs_.flight_record()});
      variables.push_back(address);
      return variables;
    };
    return process;
  };
  auto ends = complete_round(outlived_.next);
  if (!ends) return static_cast<int>(ExitCode::not_executable);
  const auto totals = lighthouse.totals();
  say(fmt::format("[cluster] {} of {} samples counted, {} replicas lost, {} started again\n",
                  totals.counted, totals.begun, totals.lost, outlived_.restarts));
  ends = last_ends(*ends);
  const auto went_well = [](const RankEnd& end) { return end.status.ok() || end.status.saved(); };
  if (std::ranges::any_of(*ends, went_well)) {
    std::erase_if(*ends, [&](const RankEnd& end) { return !went_well(end); });
  }
  return conclude(*ends);
}

void Supervisor::follow_replicas() {
  for (const auto& process : processes_.all()) {
    const auto& status = process->end.status;
    if (!process->has_ended || status.ok() || status.saved()) continue;
    if (!outlived_.announced.insert(process->pid).second) continue;
    outlived_.keeps_logs = true;
    const int rank = process->end.rank;
    // Another process would fail in the same way.
    const bool is_usage = status.as_exit_code() == static_cast<int>(ExitCode::usage);
    const bool has_another = !is_usage && outlived_.restarts < options_.max_restarts;
    if (has_another) {
      ++outlived_.restarts;
      outlived_.planned.emplace_back(Deadline::after(kRestartPause), rank);
    }
    say(fmt::format("[cluster] rank {}: {}; {}; log: {}\n", rank, describe(status),
                    has_another
                        ? fmt::format("restart {} of {}", outlived_.restarts, options_.max_restarts)
                        : "the launch lets the others run",
                    logs_.log(stems_.at(rank)).string()));
  }
  for (const pid_t pid : processes_.drop_replaced()) outlived_.announced.erase(pid);
}

Milliseconds Supervisor::attend_replicas() {
  auto& [announced, keeps_logs, restarts, next, planned, take_refused, refused] = outlived_;
  if (phase_ != Phase::running) return Milliseconds::max();
  for (const auto group : take_refused()) {
    refused.emplace(static_cast<pid_t>(group), Deadline::after(options_.shutdown_timeout));
  }
  std::erase_if(refused, [this](const auto& entry) {
    if (!entry.second.passed()) return false;
    processes_.kill(entry.first);
    return true;
  });
  const auto is_due = [](const auto& plan) { return plan.first.passed(); };
  std::vector<int> ranks;
  for (const auto& plan : planned) {
    if (is_due(plan)) ranks.push_back(plan.second);
  }
  std::erase_if(planned, is_due);
  for (const int rank : ranks) {
    try {
      start(next(rank));
    } catch (const Error& error) {
      say(fmt::format("{}\n", error.what()));
    }
  }
  return kAttention;
}

}  // namespace troika::cluster
