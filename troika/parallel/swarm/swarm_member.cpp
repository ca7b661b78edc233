#include "troika/parallel/swarm/swarm_member.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

constexpr Milliseconds kMemberTurn{100};
constexpr Milliseconds kLifeOfContact{300'000};
// How long a member that begins waits for connections to all peers that it knows.
constexpr Milliseconds kMostConnecting{5000};
// A state is prepared in each step for this time after somebody has asked for one.
constexpr net::Duration kStateWanted = std::chrono::seconds(10);

Error swarm_error(ErrorKind kind, const std::string& what, const std::string& got,
                  const std::string& expected, const std::string& hint = "") {
  return Error("swarm", kind, {.what = what, .got = got, .expected = expected, .hint = hint});
}

}  // namespace

SwarmMember::SwarmMember(SwarmMemberOptions options)
    : options_(std::move(options)), limits_{DutyCycle(options_.processor_share)} {
  shared_.report.version = options_.version;
}

SwarmMember::~SwarmMember() {
  leave();
}

void SwarmMember::act(const std::function<void()>& body) {
  net::act_on(*endpoint_, body);
}

SwarmCallbacks SwarmMember::callbacks() {
  return {.averaged =
              [this](const swarm::SwarmStep& step, const at::Tensor& mean) {
                shared_.averaged = mean;
                auto& statistics = shared_.statistics;
                ++statistics.steps;
                statistics.members = step.members.size();
                statistics.lone_steps += step.members.size() == 1 ? 1 : 0;
                statistics.whole_steps +=
                    step.averaging.is_complete() && step.averaging.excluded.empty() ? 1 : 0;
              },
          .state = [this]() -> std::shared_ptr<const std::string> {
            if (is_auxiliary()) return nullptr;
            if (shared_.saved && shared_.saved_version == peer_->version()) return shared_.saved;
            shared_.wanted_until = endpoint_->now() + kStateWanted;
            return nullptr;
          },
          .load =
              [this](const std::string& state) {
                shared_.loaded = state;
                shared_.averaged.reset();
                shared_.computed = shared_.contributed = {};
                ++shared_.statistics.loads;
              }};
}

void SwarmMember::open(const SwarmStart& start) {
  const bool listens = options_.peer.mode != swarm::Mode::client;
  const auto is_open = std::make_shared<std::atomic<bool>>(false);
  endpoint_ = std::make_unique<net::TcpEndpoint>(net::TcpOptions{
      .name = name(),
      .secret = options_.secret,
      .listen = listens ? std::vector{options_.listen} : std::vector<net::Address>(),
      .polls = false,
      .alias = swarm::kDoorName,
      // The peer must know of all connections.
      .accepts = [is_open] { return is_open->load(); }});
  contact_ = {
      .schema = start.schema, .model = start.model, .target_batch = options_.peer.target_batch};
  if (listens) {
    auto own = options_.announce.value_or(endpoint_->addresses().front());
    if (own.port == 0) own.port = endpoint_->addresses().front().port;
    contact_.addresses = {own};
    log::info("[swarm] others join with --peer {}", show(own));
  }
  auto options = options_.peer;
  options.schema = start.schema;
  options.version = {.epoch = start.step, .history = start.state};
  options.kinds[swarm::kContact] = swarm::is_contact;
  options.kinds[swarm::kReport] = swarm::is_report;
  act([&] {
    metered_ = std::make_unique<swarm::MeteredEndpoint>(*endpoint_, options_.cap);
    peer_ = make_swarm_peer(
        {.is_double = start.is_double, .codec = options_.compression.codec, .exact = start.exact},
        *metered_, options_.identity, options, callbacks());
    door_ = std::make_unique<swarm::Door>(*endpoint_, options.run);
    announce();
    publish_report();
    is_open->store(true);
  });
  endpoint_->accept_while({});
}

void SwarmMember::publish_contact() {
  peer_->directory().publish(swarm::kContact, "", 0, kLifeOfContact, text_of(contact_));
}

void SwarmMember::announce() {
  publish_contact();
  endpoint_->after(kLifeOfContact / 3, alive_.guard([this] { announce(); }));
}

void SwarmMember::begin(SwarmStart start, const Stops& stops) {
  save_ = std::move(start.save);
  open(start);
  SwarmAcquaintances acquaintances{
      .known = options_.peers,
      .told =
          [this] {
            SwarmAddresses addresses;
            act([&] {
              for (const auto& record : peer_->directory().find(swarm::kContact)) {
                addresses[record.peer] = swarm::contact_from(record.body).addresses;
              }
            });
            return addresses;
          },
      .is_connected =
          [this](const std::string& peer) {
            bool is_connected = false;
            act([&] { is_connected = peer_->is_connected(peer); });
            return is_connected;
          }};
  const auto& authority = options_.peer.authority;
  if (!authority.empty()) acquaintances.named[authority] = {options_.authority};
  dialer_ = std::make_unique<SwarmDialer>(*endpoint_, options_.secret, options_.peer.run,
                                          std::move(acquaintances));
  if (!authority.empty()) get_token(stops);
  if (!options_.peers.empty()) {
    wait_for(
        [this] {
          if (const auto other = dialer_->other_run(); !other.empty()) {
            throw swarm_error(ErrorKind::usage, "a peer trains in another run", other,
                              options_.peer.run, "swarm.run is the same on all peers of a run");
          }
          return !dialer_->names().empty();
        },
        stops,
        [this] {
          std::vector<std::string> texts;
          for (const auto& [address, text] : dialer_->failures()) texts.push_back(text);
          return fmt::format("no peer that answers: {}", fmt::join(texts, "; "));
        });
  }
  std::optional<Error> problem;
  size_t count = 0;
  wait_for(
      [&] {
        act([&] {
          problem = misfit();
          count = peer_->peers().size();
        });
        return static_cast<int64_t>(count) >= options_.min_peers;
      },
      stops,
      [&] {
        return fmt::format("{} peers{}", count, problem ? std::string("; ") + problem->what() : "");
      });
  // A member of a group without a connection to another one is silent for it.
  const auto deadline = Deadline::after(kMostConnecting);
  wait([&] { return !peer_->is_discovering() && (deadline.passed() || has_met_all()); }, stops);
  act([&] { problem = misfit(); });
  if (problem) throw *problem;
}

void SwarmMember::get_token(const Stops& stops) {
  const auto& authority = options_.peer.authority;
  const auto describe = [this] {
    return fmt::format("no answer of the authority at {}", show(options_.authority));
  };
  wait_for(
      [&] {
        bool is_there = false;
        act([&] { is_there = peer_->is_connected(authority); });
        return is_there;
      },
      stops, describe);
  act([&] {
    keeper_ = std::make_unique<swarm::TokenKeeper>(
        *endpoint_, options_.identity, authority,
        [this](const std::string& token) {
          shared_.has_token = true;
          peer_->use_token(token);
          publish_contact();
        },
        [this](const std::string& reason) { shared_.refusal = reason; });
  });
  std::string refusal;
  wait_for(
      [&] {
        bool is_there = false;
        act([&] {
          is_there = shared_.has_token;
          refusal = shared_.refusal;
        });
        if (is_there || refusal.empty()) return is_there;
        throw swarm_error(ErrorKind::usage, "the authority gives this peer no token", refusal,
                          "a peer on its list", "the key of this peer is " + name());
      },
      stops, describe);
}

void SwarmMember::wait_for(const std::function<bool()>& is_there, const Stops& stops,
                           const std::function<std::string()>& describe) {
  const auto deadline = Deadline::after(options_.join_timeout);
  while (!is_there()) {
    if (stops()) return;
    if (deadline.passed()) {
      throw swarm_error(
          ErrorKind::timeout, "the swarm is not there in time", describe(),
          fmt::format("{} peers within comm.join_timeout_seconds", options_.min_peers));
    }
    wait([&] { return false; }, [] { return true; });
  }
}

std::optional<Error> SwarmMember::misfit() const {
  // The first peer of a swarm is right, whoever comes.
  if (options_.peers.empty()) return std::nullopt;
  std::optional<Error> problem;
  for (const auto& record : peer_->directory().find(swarm::kContact)) {
    // Records of peers that have left remain for some time.
    if (!peer_->is_connected(record.peer)) continue;
    const auto other = swarm::contact_from(record.body);
    const auto begin = record.peer.substr(0, 8);
    if (other.target_batch != target_batch()) {
      problem.emplace(swarm_error(ErrorKind::usage,
                                  fmt::format("peer {} of the swarm makes other steps", begin),
                                  fmt::format("data.global_batch_size {}", target_batch()),
                                  fmt::format("{}", other.target_batch)));
    } else if (other.schema != contact_.schema) {
      problem.emplace(swarm_error(ErrorKind::usage,
                                  fmt::format("peer {} of the swarm trains something else", begin),
                                  contact_.model, other.model,
                                  "all peers need the same model, optimizer, seed and averages"));
    } else {
      return std::nullopt;
    }
  }
  return problem;
}

bool SwarmMember::has_met_all() const {
  const auto contacts = peer_->directory().find(swarm::kContact);
  const bool knows_all = std::ranges::all_of(dialer_->names(), [&](const auto& other) {
    return other == name() || dialer_->has_failed_at(other) ||
           (peer_->is_connected(other) &&
            std::ranges::count(contacts, other, &swarm::Record::peer) > 0);
  });
  return knows_all && std::ranges::all_of(peer_->peers(), [&](const auto& other) {
           const bool is_needed = options_.peer.mode == swarm::Mode::node || !other.is_client;
           return other.peer == name() || !is_needed || peer_->is_connected(other.peer) ||
                  dialer_->has_failed_at(other.peer);
         });
}

void SwarmMember::leave() {
  dialer_.reset();
  if (!endpoint_) return;
  // The others may need this member's part of its last average.
  endpoint_->run_until([this] { return !metered_ || !metered_->is_sending(); },
                       options_.peer.averaging_time);
  act([this] {
    keeper_.reset();
    door_.reset();
    peer_.reset();
    metered_.reset();
    alive_ = {};
  });
  endpoint_.reset();
}

bool SwarmMember::is_behind_now() const {
  return shared_.loaded || peer_->is_downloading();
}

bool SwarmMember::wants_state() const {
  // A trainer that goes on while an average is on its way has updated the state.
  const bool has_state = !options_.peer.overlaps || !peer_->is_averaging();
  return has_state && endpoint_->now() < shared_.wanted_until && !shared_.averaged &&
         !is_behind_now() && !(shared_.saved && shared_.saved_version == peer_->version());
}

void SwarmMember::save() {
  swarm::StateVersion version;
  bool wants = false;
  act([&] {
    wants = wants_state();
    version = peer_->version();
  });
  if (!wants) return;
  auto state = std::make_shared<const std::string>(save_());
  act([&] {
    shared_.saved_version = version;
    shared_.saved = std::move(state);
  });
}

bool SwarmMember::wait(const std::function<bool()>& is_over, const Stops& stops) {
  for (;;) {
    bool is_there = false;
    endpoint_->run_until([&] { return (is_there = is_over()) || wants_state(); }, kMemberTurn);
    if (is_there) return true;
    save();
    if (stops()) return false;
  }
}

bool SwarmMember::is_behind() {
  bool is_behind = false;
  act([&] { is_behind = is_behind_now(); });
  return is_behind;
}

bool SwarmMember::is_due() {
  save();
  bool is_due = false;
  act([&] { is_due = peer_->is_due(); });
  return is_due;
}

void SwarmMember::contribute(const at::Tensor& values, double weight) {
  act([&] {
    // It may have begun to download meanwhile.
    if (!peer_->is_due()) return;
    shared_.contributed = std::exchange(shared_.computed, {});
    shared_.contributed.weight = weight;
    peer_->contribute(values, weight);
  });
}

bool SwarmMember::is_over_now() const {
  return shared_.averaged || is_behind_now() || !peer_->is_averaging();
}

bool SwarmMember::is_over() {
  bool is_over = false;
  act([&] { is_over = is_over_now(); });
  return is_over;
}

bool SwarmMember::has_share(int64_t samples) {
  double own = 0, all = 0;
  act([&] {
    const auto peers = peer_->peers();
    own = peers.front().samples_per_second;
    for (const auto& peer : peers) all += peer.samples_per_second;
  });
  return own > 0 && static_cast<double>(samples) * all >= static_cast<double>(target_batch()) * own;
}

SwarmMember::Outcome SwarmMember::finish(at::Tensor& values, const Stops& stops) {
  if (!wait([this] { return is_over_now(); }, stops)) return Outcome::stopped;
  auto outcome = Outcome::no_step;
  act([&] {
    if (shared_.averaged) {
      values = *std::exchange(shared_.averaged, std::nullopt);
      outcome = Outcome::averaged;
      report_step();
    } else if (is_behind_now()) {
      outcome = Outcome::behind;
    }
  });
  return outcome;
}

std::optional<std::string> SwarmMember::take_state(const Stops& stops) {
  wait([this] { return shared_.loaded || !peer_->is_downloading(); }, stops);
  std::optional<std::string> state;
  act([&] { state = std::exchange(shared_.loaded, std::nullopt); });
  return state;
}

SwarmStatistics SwarmMember::statistics() {
  if (!endpoint_) return shared_.statistics;
  SwarmStatistics statistics;
  act([&] { statistics = shared_.statistics; });
  return statistics;
}

}  // namespace troika::parallel
