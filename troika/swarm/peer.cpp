#include "troika/swarm/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/swarm/gathered.h"
#include "troika/swarm/json_text.h"

namespace troika::swarm {

namespace {

constexpr net::Duration kPeerTick = std::chrono::milliseconds(50);
// In a large swarm, which takes longer to look at.
constexpr net::Duration kTickOfOther = std::chrono::milliseconds(1);
// How long a peer waits for the records of others before it gives its state up for theirs.
constexpr net::Duration kSettling = std::chrono::seconds(1);
constexpr net::Duration kLeastWait = std::chrono::seconds(2);

RecordRules rules_of(const std::string& run, const std::string& authority,
                     std::map<std::string, std::function<bool(const Record&)>> kinds) {
  kinds[kSeeking] = is_seeking;
  kinds[kProgress] = is_progress;
  kinds[kAccusation] = is_accusation;
  return {.run = run, .authority = authority, .kinds = std::move(kinds)};
}

template <typename Number>
std::string schema_of(const PeerOptions<Number>& options) {
  return digest_of(
      text_of({options.schema, options.target_batch, options.packing_name, options.least_part,
               options.aggregation, options.group_size, sizeof(Number)}));
}

}  // namespace

template <typename Number>
Peer<Number>::Peer(net::Endpoint& endpoint, const Identity& identity, PeerOptions<Number> options,
                   PeerCallbacks<Number> callbacks, WallClock clock)
    : endpoint_(endpoint),
      options_(std::move(options)),
      schema_(schema_of(options_)),
      callbacks_(std::move(callbacks)),
      directory_(endpoint, identity, rules_of(options_.run, options_.authority, options_.kinds),
                 std::move(clock), GossipLimits(), options_.reader),
      // Auxiliary peers have no state either, so they do not define the epoch.
      tracker_(endpoint, directory_,
               {.target_batch = options_.target_batch,
                .is_client = options_.mode != Mode::node,
                .schema = schema_,
                .overlaps = options_.overlaps}),
      matchmaking_(endpoint, directory_),
      others_(directory_, tracker_, options_.mode),
      averager_(endpoint),
      states_(endpoint, callbacks_.state, options_.most_state),
      random_(options_.seed),
      times_{.phase = endpoint.now(),
             .matches = AdaptiveTimeout(kLeastWait, options_.matchmaking_time),
             .columns = AdaptiveTimeout(kLeastWait, options_.averaging_time),
             .rounds = AdaptiveTimeout(kLeastWait, options_.sender_timeout)} {
  if (endpoint.name() != identity.name() || options_.target_batch < 1) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "a peer",
                 .got = fmt::format("an endpoint {} and a target batch of {}", endpoint.name(),
                                    options_.target_batch),
                 .expected = "an endpoint with the name of the identity, and at least 1 sample"});
  }
  const double bandwidth = options_.bandwidth.value_or(1);
  if (!std::isfinite(bandwidth) || bandwidth <= 0) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "the bandwidth of a peer",
                 .got = fmt::format("{}", bandwidth),
                 .expected = "a finite number of bytes per second above 0, or none"});
  }
  if (options_.mode != Mode::auxiliary &&
      (!callbacks_.due || !callbacks_.state || !callbacks_.load)) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "the callbacks of a peer that is not auxiliary",
                 .got = "empty ones",
                 .expected = "at least `due`, `state` and `load`"});
  }
  if (options_.group_size > 0 && options_.aggregation != Aggregation::mean) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "groups that are parts of a swarm",
                 .got = "centred clipping",
                 .expected = "a mean: rows of a grid differ in weight"});
  }
  directory_.use_token(options_.token);
  endpoint_.listen_to_peers([this](const net::PeerChange& change) { take_change(change); });
  directory_.watch([this](const Record& record) {
    tracker_.take_change(record);
    others_.take_change(record);
    matchmaking_.reconsider();
  });
  begin_epoch(options_.version);
  endpoint_.after(kPeerTick, alive_.guard([this] { tick(); }));
}

template <typename Number>
Peer<Number>::~Peer() {
  directory_.watch({});
  endpoint_.listen_to_peers({});
}

template <typename Number>
void Peer<Number>::take_change(const net::PeerChange& change) {
  others_.take_change(change);
  directory_.take_change(change);
  averager_.take_change(change);
  matchmaking_.take_change(change);
}

template <typename Number>
void Peer<Number>::tick() {
  endpoint_.after(std::max(kPeerTick, kTickOfOther * static_cast<int64_t>(tracker_.others())),
                  alive_.guard([this] { tick(); }));
  if (phase_ == Phase::discovering && endpoint_.now() - times_.phase >= options_.discovery_time) {
    phase_ = Phase::training;
  }
  others_.update_bans();
  check_state();
  check_due();
}

template <typename Number>
void Peer<Number>::check_state() {
  if (phase_ == Phase::averaging) return;
  const auto now = endpoint_.now();
  const auto leading = others_.lead();
  if (leading.is_own) {
    times_.apart.reset();
    if (phase_ != Phase::downloading) return;
    // The peers that were ahead are gone.
    states_.cancel();
    phase_ = Phase::training;
    return;
  }
  if (!times_.apart) times_.apart = now;
  if (phase_ == Phase::downloading) {
    // The peers that were ahead are gone, or have gone back.
    if (leading.version.epoch < states_.least_epoch()) download(leading.version);
    return;
  }
  // Other columns have ended, and this one may be late.
  const bool is_next = leading.version.epoch == epoch() + 1;
  if (is_next && phase_ == Phase::matching && step_.groups.is_column()) return;
  // A node may end the averaging that this client has ended long after it.
  const bool is_late = leading.version.epoch + 1 == epoch();
  const auto patience =
      is_late && options_.mode != Mode::node ? options_.averaging_time : kSettling;
  if (leading.version.epoch > epoch() || now - *times_.apart >= patience) {
    download(leading.version);
  }
}

template <typename Number>
void Peer<Number>::download(const StateVersion& version) {
  matchmaking_.stop();
  step_ = {};
  tracker_.drop_ahead();
  if (options_.mode == Mode::auxiliary) {
    phase_ = Phase::training;
    return begin_epoch(version);
  }
  phase_ = Phase::downloading;
  log::info("[swarm] downloads the state of epoch {}; its own is {}", version.epoch, epoch());
  states_.download(
      version.epoch,
      [this] {
        auto names = others_.donors();
        for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[random_.below(i)]);
        return names;
      },
      options_.download_time,
      [this](const std::optional<State>& state) {
        phase_ = Phase::training;
        if (!state) return;
        begin_epoch(state->version);
        callbacks_.load(state->version.epoch, *state->bytes);
        check_state();
      },
      [this](const StateVersion& told) {
        return tracker_.has_told(told.epoch, told.history, told.is_partial);
      });
}

template <typename Number>
void Peer<Number>::begin_epoch(const StateVersion& version) {
  states_.set_version(version);
  tracker_.begin_epoch(version.epoch, version.history, version.is_partial);
}

template <typename Number>
void Peer<Number>::report(int64_t samples) {
  tracker_.report(samples, options_.overlaps && is_averaging());
  check_due();
}

template <typename Number>
void Peer<Number>::check_due() {
  if (phase_ != Phase::training || !tracker_.is_due()) return;
  const auto leading = others_.lead();
  // Auxiliary peers and clients do not lead, but follow the state that they have.
  if (leading.version.epoch != epoch() || leading.version.history != history()) return;
  phase_ = Phase::due;
  // Others may not know yet that the batch is complete.
  tracker_.announce();
  if (options_.mode == Mode::auxiliary) {
    contribute(epoch(), nullptr, 0);
  } else {
    callbacks_.due(epoch());
  }
}

template <typename Number>
void Peer<Number>::contribute(int64_t epoch, Values values, double weight) {
  if (options_.mode != Mode::auxiliary &&
      (!values || values->size() > kMostNumbers || !is_weight(weight))) {
    throw Error(
        "swarm", ErrorKind::usage,
        {.what = "a contribution",
         .got = fmt::format("{} values with a weight of {}", values ? values->size() : 0, weight),
         .expected = "values, and a weight in [0, 1e15]"});
  }
  if (phase_ != Phase::due || epoch != this->epoch()) return;
  auto peers = others_.expected();
  const StepGroups groups(fmt::format("{} {}", epoch, history()),
                          grid_side(peers.size(), options_.group_size), endpoint_.name());
  step_ = {std::move(values), weight, groups, std::move(peers)};
  times_.averaging_until = endpoint_.now() + options_.averaging_time;
  seek();
}

template <typename Number>
std::string Peer<Number>::gathered(Mode mode) const {
  return Gathered{mode, options_.bandwidth.value_or(0), step_.values ? step_.values->size() : 0,
                  step_.groups.part(), tracker_.is_paused()}
      .text();
}

// Whether these are all peers of the group that this peer knows to come.
template <typename Number>
bool Peer<Number>::is_complete(const std::vector<GroupMember>& members) const {
  if (step_.groups.is_column()) return step_.groups.is_complete(members);
  return std::ranges::all_of(others_.expected(), [&](const std::string& peer) {
    return !step_.groups.may_have(peer) ||
           std::ranges::binary_search(members, peer, {}, &GroupMember::name);
  });
}

template <typename Number>
bool Peer<Number>::is_alone() const {
  return !step_.groups.is_column() && is_complete({GroupMember{endpoint_.name(), {}}});
}

template <typename Number>
void Peer<Number>::seek() {
  phase_ = Phase::matching;
  times_.phase = endpoint_.now();
  const auto limit = (step_.groups.is_column() ? times_.columns : times_.matches).limit();
  matchmaking_.seek({.key = step_.groups.key(),
                     .schema = schema_,
                     .deadline = directory_.now() + std::chrono::duration_cast<WallTime>(limit),
                     .is_client = options_.mode == Mode::client,
                     .gathered = gathered(options_.mode),
                     .is_complete = [this](const auto& members) { return is_complete(members); },
                     .admits =
                         [this](const std::string& peer) {
                           return !others_.is_banned(peer) &&
                                  (options_.authority.empty() || tracker_.is_alive(peer));
                         }},
                    [this](const std::optional<Match>& match) { take_match(match); });
  if (is_alone()) {
    matchmaking_.stop();
    take_match(std::nullopt);
  }
}

template <typename Number>
void Peer<Number>::take_match(const std::optional<Match>& match) {
  if (match) {
    (step_.groups.is_column() ? times_.columns : times_.matches)
        .add(endpoint_.now() - times_.phase);
    try {
      return begin_round(*match);
    } catch (const Error& problem) {
      log::warn("[swarm] a group is left: {}", problem.what());
    }
  }
  const bool is_behind = others_.lead().version.epoch > epoch();
  if (!is_alone() && !is_behind && endpoint_.now() < times_.averaging_until) return seek();
  // An auxiliary peer has nothing to average.
  if (options_.mode == Mode::auxiliary || is_behind) {
    phase_ = Phase::training;
    return check_state();
  }
  if (!is_alone()) {
    log::warn("[swarm] found no group for epoch {}: makes the step alone", epoch());
    step_.groups = StepGroups(step_.groups.key());
  }
  const auto digest = digest_of(fmt::format("alone {} {}", endpoint_.name(), step_.groups.key()));
  begin_round({.id = std::stoull(digest.substr(0, 16), nullptr, 16),
               .members = {{endpoint_.name(), gathered(Mode::node)}}});
}

template <typename Number>
net::Duration Peer<Number>::round_timeout(const Match& match) {
  // Such a member was slow rather than gone.
  const bool is_back = std::ranges::any_of(
      match.members, [this](const auto& member) { return times_.silent.contains(member.name); });
  if (is_back) times_.rounds.raise();
  const size_t numbers = step_.values ? step_.values->size() : 0;
  const auto bytes = static_cast<double>(numbers * sizeof(Number));
  return times_.rounds.limit(2 * bytes, slowest_link(match));
}

template <typename Number>
void Peer<Number>::begin_round(const Match& match) {
  const auto& values = step_.values;
  const auto group = group_of(match, values ? std::optional(values->size()) : std::nullopt,
                              options_.least_part, options_.packing.block);
  const bool counts =
      !step_.groups.is_column() || sources_of(match).names.contains(endpoint_.name());
  phase_ = Phase::averaging;
  times_.phase = endpoint_.now();
  averager_.begin<Number>(
      group, values, counts ? step_.weight : 0,
      {.sender_timeout = round_timeout(match),
       .packing = options_.packing,
       .aggregation = options_.aggregation},
      [this, match](const AveragingResult& result) { end_round(match, result); });
}

template <typename Number>
void Peer<Number>::end_round(const Match& match, const AveragingResult& result) {
  others_.judge(result);
  times_.silent.clear();
  for (const auto& [name, why] : result.excluded) {
    if (why == kSilent) times_.silent.insert(name);
  }
  for (const auto& part : result.parts) {
    if (part.problem == kSilent) times_.silent.insert(part.reducer);
  }
  // A peer that is alone takes no time.
  if (match.members.size() > 1) times_.rounds.add(endpoint_.now() - times_.phase);
  if (step_.groups.is_row()) {
    step_.groups.end_row(match, result, options_.mode != Mode::auxiliary);
    step_.weight = step_.groups.part().weight;
    return seek();
  }
  auto made = std::exchange(step_, {});
  phase_ = Phase::training;
  // No member had a sample, although others extrapolated some: there is no step.
  if (result.weight == 0) return tracker_.count_ahead();
  // Members of other columns are not known by name.
  auto peers = made.groups.is_column() ? std::move(made.peers) : std::set<std::string>();
  SwarmStep step{.epoch = epoch(), .members = {}, .averaging = result};
  for (const auto& member : match.members) {
    peers.insert(member.name);
    step.members.push_back(member.name);
  }
  others_.set_last_step(std::move(peers));
  const auto name =
      made.groups.is_column() ? name_of_column(match, result) : std::to_string(match.id);
  const bool is_partial = !result.is_complete();
  begin_epoch({.epoch = epoch() + 1,
               .history = digest_of(
                   fmt::format("{} {} {}", history(), name, is_partial ? endpoint_.name() : "")),
               .is_partial = is_partial});
  if (callbacks_.averaged && options_.mode != Mode::auxiliary) {
    callbacks_.averaged(step, made.values);
  }
}

template class Peer<float>;
template class Peer<double>;

}  // namespace troika::swarm
