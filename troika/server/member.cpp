#include "troika/server/member.h"

#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"

namespace troika::server {

namespace {

constexpr size_t kMostState = size_t{64} << 20;

}  // namespace

Member::Member(net::Endpoint& endpoint, MemberOptions options, Role role,
               std::function<void(Beat&)> fill, std::function<void(const State&)> on_state)
    : endpoint_(endpoint),
      options_(std::move(options)),
      fill_(std::move(fill)),
      on_state_(std::move(on_state)),
      heard_(endpoint.now()) {
  if (!is_node_name(endpoint.name())) {
    throw Error("server", ErrorKind::usage,
                {.what = "the name of a node's endpoint",
                 .got = "`" + endpoint.name() + "`",
                 .expected = "no white space, control character, @ or +"});
  }
  beat_.role = role;
  beat_.instance = random_number();
  beat_.addresses = options_.addresses;
  endpoint_.handle(kStates, kMostState,
                   [this](const std::string& peer, const std::string& m) { take(peer, m); });
  net::act_on(endpoint_, [this] { tick(); });
}

Member::~Member() {
  endpoint_.handle(kStates, 0, {});
  net::act_on(endpoint_, [this] { endpoint_.cancel(timer_, net::Outcome::cancelled); });
}

void Member::tick() {
  beat();
  timer_ = endpoint_.after(options_.beat, [this] { tick(); });
}

void Member::beat() {
  if (!refusal_.empty()) return;
  ++beat_.number;
  beat_.generation = map_->generation;
  beat_.map = sends_map_ ? to_text(*map_) : "";
  fill_(beat_);
  net::send_owned(endpoint_, options_.scheduler, kBeats,
                  std::make_shared<const std::string>(to_message(beat_)), net::Priority::urgent);
}

Surroundings Member::surroundings() const {
  return {.servers = servers_,
          .is_over = is_over_,
          .refusal = refusal_,
          .scheduler_silence = silence()};
}

void Member::leave() {
  beat_.is_leaving = true;
  beat();
}

std::string Member::scheduler_age() const {
  const double seconds = std::chrono::duration<double>(silence()).count();
  return fmt::format("the scheduler was last heard of {:.1f} s ago", seconds);
}

void Member::take(const std::string& peer, const std::string& message) {
  if (peer != options_.scheduler) return;
  try {
    const State state = parse_state(message);
    if (state.instance != beat_.instance) return;
    heard_ = endpoint_.now();
    is_over_ = is_over_ || state.is_over;
    if (!state.directory.empty()) {
      beat_.directory = state.directory_version;
      servers_.clear();
      for (const auto& line : split(trim(state.directory), '\n')) {
        const auto space = line.find(' ');
        if (space != std::string::npos) servers_[line.substr(0, space)] = line.substr(space + 1);
      }
    }
    if (state.wants_map != std::exchange(sends_map_, state.wants_map)) return beat();
    if (state.wants_map) return;
    const bool has_map = !state.map.empty() && state.generation > map_->generation;
    if (has_map) map_ = std::make_shared<const RingMap>(parse_map(state.map));
    if (!state.refusal.empty()) refusal_ = state.refusal;
    may_leave_ = may_leave_ || state.may_leave;
    // A state of an older or unknown map says nothing about steps.
    if (state.generation <= map_->generation || !refusal_.empty()) on_state_(state);
    if (has_map) beat();
  } catch (const Error& error) {
    log::warn("a state of the scheduler: {}", error.what());
  }
}

}  // namespace troika::server
