#include "troika/swarm/progress.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr double kFactor = .1;
// Peers that may come before the next record.
constexpr double kDriftPeers = 3;
constexpr double kDriftRate = .2;
// A record counts for so many times its refresh time, and another second.
constexpr int kMissedRefreshes = 3;
// States of each peer that are remembered.
constexpr size_t kMostTold = 64;
// So that all later epochs are numbers, too.
constexpr int64_t kMostEpoch = int64_t{1} << 48;

struct ProgressBody {
  int64_t samples = 0;
  double samples_per_second = 0;
  bool is_client = false;
  std::string history;
  bool is_partial = false;
  bool is_paused = false;
  int64_t refresh = 0;  // milliseconds
  std::string schema;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProgressBody, samples, samples_per_second, is_client, history,
                                   is_partial, is_paused, refresh, schema)

PeerProgress progress_of(const Record& record, WallTime now) {
  const auto body = parsed<ProgressBody>(record.body);
  return {.peer = record.peer,
          .epoch = record.epoch,
          .samples = body.samples,
          .samples_per_second = body.samples_per_second,
          .is_client = body.is_client,
          .history = body.history,
          .is_partial = body.is_partial,
          .is_paused = body.is_paused,
          // The clocks differ by up to the skew, so only what is older than that is old.
          .at = std::min(now, record.created + RecordRules().skew),
          .refresh = WallTime(body.refresh)};
}

bool is_fresh(const PeerProgress& peer, WallTime now) {
  return now - peer.at <= kMissedRefreshes * peer.refresh + std::chrono::seconds(1);
}

bool is_one_state(const PeerProgress& a, const PeerProgress& b) {
  return std::tie(a.epoch, a.history, a.is_partial) == std::tie(b.epoch, b.history, b.is_partial);
}

double seconds_of(WallTime time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

bool is_progress(const Record& record) {
  try {
    const auto body = parsed<ProgressBody>(record.body);
    return record.epoch >= 0 && record.epoch <= kMostEpoch && body.samples >= 0 &&
           std::isfinite(body.samples_per_second) && body.samples_per_second >= 0 &&
           body.history.size() <= 64 && body.schema.size() <= 64 && body.refresh >= 0 &&
           body.refresh <= 60'000;
  } catch (const Error&) {
    return false;
  }
}

void SampleRate::report(int64_t samples, net::Duration now) {
  if (since_ && samples > 0) {
    const double seconds = std::chrono::duration<double>(now - *since_).count();
    seconds_ = (1 - kFactor) * seconds_ + kFactor * seconds / static_cast<double>(samples);
    weight_ = (1 - kFactor) * weight_ + kFactor;
  }
  since_ = now;
}

double SampleRate::samples_per_second() const {
  return seconds_ > 0 ? weight_ / seconds_ : 0;
}

ProgressTracker::ProgressTracker(net::Endpoint& endpoint, Directory& directory,
                                 ProgressOptions options)
    : endpoint_(endpoint), directory_(directory), options_(std::move(options)) {
  own_.peer = endpoint_.name();
  own_.is_client = options_.is_client;
  for (const auto& record : directory_.find(kProgress)) take_change(record);
}

void ProgressTracker::take_change(const Record& record) {
  if (record.kind != kProgress || record.peer == own_.peer) return;
  const bool counts =
      !record.body.empty() &&
      (options_.schema.empty() || parsed<ProgressBody>(record.body).schema == options_.schema);
  if (!counts) {
    others_.erase(record.peer);
  } else {
    const auto& progress = others_[record.peer] = progress_of(record, directory_.now());
    auto& told = told_[record.peer];
    if (!told.empty() && is_one_state(told.back(), progress)) return;
    told.push_back(progress);
    if (told.size() > kMostTold) told.pop_front();
  }
}

void ProgressTracker::begin_epoch(int64_t epoch, const std::string& history, bool is_partial) {
  own_.epoch = epoch;
  own_.samples = std::exchange(ahead_, 0);
  own_.history = history;
  own_.is_partial = is_partial;
  // Averaging does not count, unless the peer has gone on meanwhile.
  if (!options_.overlaps) rate_.resume(endpoint_.now());
  publish();
}

void ProgressTracker::report(int64_t samples, bool is_ahead) {
  (is_ahead ? ahead_ : own_.samples) += samples;
  rate_.report(samples, endpoint_.now());
}

void ProgressTracker::set_paused(bool is_paused) {
  if (own_.is_paused == is_paused) return;
  own_.is_paused = is_paused;
  // The pause does not count.
  rate_.resume(endpoint_.now());
  publish();
}

void ProgressTracker::publish() {
  const auto now = directory_.now();
  std::erase_if(others_, [&](const auto& other) { return !is_fresh(other.second, now); });
  std::erase_if(told_, [&](const auto& told) { return !others_.contains(told.first); });
  own_.refresh = refresh();
  directory_.publish(
      kProgress, {}, own_.epoch, options_.lifetime,
      text_of(ProgressBody{own_.samples, own_rate(), own_.is_client, own_.history, own_.is_partial,
                           own_.is_paused, own_.refresh.count(), options_.schema}));
  endpoint_.cancel(timer_, net::Outcome::cancelled);
  timer_ = endpoint_.after(own_.refresh, alive_.guard([this] { publish(); }));
}

// The share of the time to the end of the epoch in which few new peers come.
WallTime ProgressTracker::refresh() const {
  const auto all = swarm();
  if (all.samples_per_second <= 0) return options_.default_refresh;
  const double left = static_cast<double>(options_.target_batch) - all.samples;
  const double peers = all.peers;
  const double most_peers = std::max(peers + kDriftPeers, peers * (1 + kDriftRate));
  const double seconds = std::max(0.0, left) / all.samples_per_second * peers / most_peers;
  const double most = seconds_of(options_.most_refresh);
  const double crowd = static_cast<double>(others_.size()) / options_.records_per_second;
  const double least = std::min(most, std::max(seconds_of(options_.least_refresh), crowd));
  const double bounded = std::clamp(seconds, least, most);
  return std::chrono::duration_cast<WallTime>(std::chrono::duration<double>(bounded));
}

void ProgressTracker::visit_others(const std::function<void(const PeerProgress&)>& visit) const {
  const auto now = directory_.now();
  for (const auto& [name, progress] : others_) {
    if (is_fresh(progress, now) && !banned_.contains(name)) visit(progress);
  }
}

std::set<std::string> ProgressTracker::nodes() const {
  std::set<std::string> names;
  if (!own_.is_client) names.insert(own_.peer);
  const auto now = directory_.now();
  for (const auto& [name, progress] : others_) {
    if (is_fresh(progress, now) && !progress.is_client) names.insert(name);
  }
  return names;
}

bool ProgressTracker::is_alive(const std::string& peer) const {
  const auto found = others_.find(peer);
  return peer == own_.peer || (found != others_.end() && !banned_.contains(peer) &&
                               is_fresh(found->second, directory_.now()));
}

std::vector<PeerProgress> ProgressTracker::peers() const {
  std::vector<PeerProgress> found{own_};
  found.front().samples_per_second = own_rate();
  found.front().at = directory_.now();
  visit_others([&](const PeerProgress& progress) { found.push_back(progress); });
  return found;
}

SwarmProgress ProgressTracker::swarm() const {
  SwarmProgress sum{.epoch = own_.epoch};
  visit_others([&](const PeerProgress& peer) {
    if (!peer.is_client) sum.epoch = std::max(sum.epoch, peer.epoch);
  });
  if (own_.epoch == sum.epoch) {
    sum.samples = static_cast<double>(own_.samples);
    sum.samples_per_second = own_rate();
    sum.peers = 1;
  }
  const auto now = directory_.now();
  visit_others([&](const PeerProgress& peer) {
    if (peer.epoch != sum.epoch) return;
    // After that it may have stopped.
    const auto age = std::clamp(now - peer.at, WallTime(0), 2 * peer.refresh);
    sum.samples += static_cast<double>(peer.samples) + peer.samples_per_second * seconds_of(age);
    sum.samples_per_second += peer.samples_per_second;
    ++sum.peers;
  });
  return sum;
}

bool ProgressTracker::has_told(int64_t epoch, const std::string& history, bool is_partial) const {
  const PeerProgress state{.epoch = epoch, .history = history, .is_partial = is_partial};
  return std::ranges::any_of(told_, [&](const auto& peer) {
    return std::ranges::any_of(peer.second,
                               [&](const auto& one) { return is_one_state(one, state); });
  });
}

bool ProgressTracker::is_due() const {
  const auto all = swarm();
  return all.epoch > own_.epoch || all.samples >= static_cast<double>(options_.target_batch);
}

}  // namespace troika::swarm
