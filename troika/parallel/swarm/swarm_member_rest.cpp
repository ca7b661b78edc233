// A member's limits, and its reports to people.
#include <chrono>
#include <utility>

#include "troika/base/log.h"
#include "troika/parallel/swarm/swarm_member.h"

namespace troika::parallel {

namespace {

// As with records of progress, a peer of a large swarm should get about 32 a second.
constexpr net::Duration kReports = std::chrono::seconds(3);
constexpr size_t kReportingPeers = 96;
constexpr net::Duration kLifeOfReport = std::chrono::minutes(5);

}  // namespace

void SwarmMember::publish_report() {
  const auto traffic = metered_->traffic();
  shared_.report.steps = shared_.statistics.steps;
  shared_.report.sent = traffic.sent;
  shared_.report.received = traffic.received;
  peer_->directory().publish(swarm::kReport, "", 0,
                             std::chrono::duration_cast<swarm::WallTime>(kLifeOfReport),
                             text_of(shared_.report));
  const auto crowd = static_cast<int64_t>(peer_->peers().size() / kReportingPeers);
  endpoint_->after(kReports * (1 + crowd), alive_.guard([this] { publish_report(); }));
}

void SwarmMember::report_step() {
  auto& report = shared_.report;
  const auto& own = shared_.contributed;
  report.samples += own.weight;
  if (own.samples > 0) report.loss = own.loss_sum / static_cast<double>(own.samples);
  report.loss_samples = own.samples;
}

bool SwarmMember::must_go_on() const {
  return is_behind_now() || peer_->is_due();
}

void SwarmMember::report(const SwarmWork& work, const Stops& stops) {
  act([&] {
    shared_.computed.loss_sum += work.loss * static_cast<double>(work.samples);
    shared_.computed.samples += work.samples;
    peer_->report(work.samples);
  });
  const auto span =
      std::chrono::duration_cast<net::Duration>(std::chrono::duration<double>(work.seconds));
  const auto until = limits_.duty.end_work(span, endpoint_->now());
  const auto left = until - endpoint_->now();
  if (left > net::Duration(0)) {
    // Ends the wait in time.
    endpoint_->after(left, [] {});
    wait([&] { return endpoint_->now() >= until || must_go_on(); }, stops);
  }
}

bool SwarmMember::is_paused() {
  const auto reason = options_.pauses ? options_.pauses() : std::string();
  if (reason.empty() != limits_.pause.empty()) {
    log::info("[swarm] {}", reason.empty() ? "goes on" : "pauses: " + reason);
    act([&] { peer_->set_paused(!reason.empty()); });
  }
  limits_.pause = reason;
  return !reason.empty();
}

void SwarmMember::serve(int64_t steps, const Stops& stops) {
  wait([&] { return steps > 0 && peer_->version().epoch >= steps; }, stops);
}

bool SwarmMember::rest(const Stops& stops) {
  bool averages = false, is_stopped = false;
  act([&] { averages = peer_->is_averaging(); });
  wait([&] { return must_go_on() || (averages && is_over_now()) || shared_.averaged; },
       [&] {
         is_stopped = stops();
         return is_stopped || !is_paused();
       });
  return !is_stopped;
}

}  // namespace troika::parallel
