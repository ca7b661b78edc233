// How far a swarm is with its next batch, which all its peers gather together.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/swarm/alive.h"
#include "troika/swarm/directory.h"

namespace troika::swarm {

// The kind of the records in which peers tell their progress.
inline constexpr const char* kProgress = "progress";
// Whether the body of such a record is valid (RecordRules::kinds).
bool is_progress(const Record& record);

// The same on all peers, except `is_client`.
struct ProgressOptions {
  int64_t target_batch = 1;  // samples of an epoch, of all peers together
  bool is_client = false;    // this peer cannot be reached, and does not define the epoch
  // Peers that tell another schema do not count; empty: all count.
  std::string schema = {};
  bool overlaps = false;  // PeerOptions::overlaps
  // Between two records of a peer. In between, others extrapolate its samples.
  WallTime least_refresh = std::chrono::milliseconds(500);
  WallTime default_refresh = std::chrono::seconds(3);  // while the speed is not known
  WallTime most_refresh = std::chrono::seconds(10);
  // Peers of a large swarm tell theirs less often, so that a peer gets about so many of all others,
  // unless that takes more than most_refresh.
  double records_per_second = 32;
  WallTime lifetime = std::chrono::seconds(60);  // of a record
};

// The progress of one peer, as its last record says.
struct PeerProgress {
  std::string peer = {};
  int64_t epoch = 0;
  int64_t samples = 0;  // since the epoch began
  double samples_per_second = 0;
  bool is_client = false;
  // Names the states that the peer has been through; peers with equal ones have equal states.
  std::string history = {};
  bool is_partial = false;  // not all of the peer's last average was one of its group
  bool is_paused = false;   // it follows, and computes no samples
  // When the record came, by this peer's clock; earlier for a record that was old then.
  WallTime at{};
  WallTime refresh{};  // until the next record, about
};

struct SwarmProgress {
  int64_t epoch = 0;   // the greatest of peers that are not clients, and of this one
  double samples = 0;  // of peers at that epoch, extrapolated to now
  double samples_per_second = 0;
  int peers = 0;  // at that epoch, which are alive
};

// The mean of the time of a sample, over about the last ten reports (an exponential average with
// factor 0.1, without the bias of its start).
class SampleRate {
 public:
  // Time until the next report counts from here.
  void resume(net::Duration now) { since_ = now; }
  void report(int64_t samples, net::Duration now);
  // 0 before the first report.
  double samples_per_second() const;

 private:
  std::optional<net::Duration> since_;
  double seconds_ = 0;  // of a sample, with a total weight of `weight_`
  double weight_ = 0;
};

// Counts this peer's samples, tells them to the others in records, and reads theirs. Construct,
// call and destroy it under Endpoint's rules for callbacks.
class ProgressTracker {
 public:
  // The references must outlive it.
  ProgressTracker(net::Endpoint& endpoint, Directory& directory, ProgressOptions options);

  // To be called for each change of the directory.
  void take_change(const Record& record);

  // Begins an epoch of this peer, with the samples that were reported ahead.
  void begin_epoch(int64_t epoch, const std::string& history, bool is_partial);
  // Tells the others about the samples that this peer has now.
  void announce() { publish(); }
  // Adds samples that this peer has processed; `is_ahead`: for the next epoch.
  void report(int64_t samples, bool is_ahead = false);
  // The samples that were reported ahead count for this epoch, or not at all.
  void count_ahead() { own_.samples += std::exchange(ahead_, 0); }
  void drop_ahead() { ahead_ = 0; }
  // Whether this peer processes no samples for now, which the others are told. The samples that it
  // has remain.
  void set_paused(bool is_paused);

  const std::string& own_name() const { return own_.peer; }
  int64_t epoch() const { return own_.epoch; }
  int64_t samples() const { return own_.samples; }
  const std::string& history() const { return own_.history; }
  bool is_partial() const { return own_.is_partial; }
  bool is_paused() const { return own_.is_paused; }

  // The progress of all peers that are alive, this one included: those whose last record is not
  // much older than the time in which they promised another.
  std::vector<PeerProgress> peers() const;
  // Visits those of other peers.
  void visit_others(const std::function<void(const PeerProgress&)>& visit) const;
  bool is_alive(const std::string& peer) const;
  // These others do not count from now on.
  void ban(std::set<std::string> peers) { banned_ = std::move(peers); }
  // This peer, and the others that are alive, banned ones too, and that are not clients.
  std::set<std::string> nodes() const;
  // The other peers that have told their progress lately, about.
  size_t others() const { return others_.size(); }
  SwarmProgress swarm() const;
  // Whether the swarm has the samples of this peer's epoch, or is in a later epoch.
  bool is_due() const;
  // Whether a peer told lately, in a record that counted, that it was in this state.
  bool has_told(int64_t epoch, const std::string& history, bool is_partial) const;

 private:
  void publish();
  double own_rate() const { return own_.is_paused ? 0 : rate_.samples_per_second(); }
  WallTime refresh() const;

  net::Endpoint& endpoint_;
  Directory& directory_;
  const ProgressOptions options_;
  PeerProgress own_;
  int64_t ahead_ = 0;  // samples for the next epoch
  std::map<std::string, PeerProgress> others_;
  std::set<std::string> banned_;
  std::map<std::string, std::deque<PeerProgress>> told_;  // the last epochs, by peer
  SampleRate rate_;
  net::Ticket timer_ = 0;
  Alive alive_;
};

}  // namespace troika::swarm
