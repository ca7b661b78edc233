// How a member gets the state of another one.
#include <memory>

#include "troika/base/error.h"
#include "troika/net/bytes.h"
#include "troika/quorum/member.h"

namespace troika::quorum {

namespace {

// One attempt to connect to a member, which may be lost.
constexpr Milliseconds kAttempt{200};

}  // namespace

bool Member::connect(const QuorumMember& peer, bool dials, const std::function<bool()>& stops,
                     net::Duration at_most) {
  const auto end = endpoint_.now() + at_most;
  const auto is_over = [&] {
    return peers_.contains(peer.name) || stops() || has_lost_ || !refusal_.empty();
  };
  for (;;) {
    const auto left = end - endpoint_.now();
    const auto slice = dials ? net::Duration(0) : left;
    const bool has_ended = endpoint_.run_until(is_over, slice);
    bool is_up = false;
    net::act_on(endpoint_, [&] { is_up = peers_.contains(peer.name); });
    if (has_ended || left <= net::Duration(0)) return is_up;
    try {
      endpoint_.connect(peer.name, peer.addresses, Deadline::after(kAttempt));
    } catch (const Error& problem) {
      if (problem.kind() != ErrorKind::timeout) throw;
    }
  }
}

std::optional<std::string> Member::heal(const Quorum& quorum, const QuorumMember& donor,
                                        const std::function<bool()>& is_stopped) {
  const auto stops = [&] {
    if (is_stopped()) return true;
    const auto* own = news_.quorum.find(endpoint_.name());
    return founds_ != Founding::none || ending_ == Ending::finished ||
           news_.quorum.step != quorum.step || own == nullptr || own->donor != donor.name;
  };
  if (!connect(donor, /*dials=*/true, stops, seconds(options_.rules.timeout))) return std::nullopt;
  auto request = std::make_shared<std::string>(sizeof(int64_t), '\0');
  net::put<int64_t>(request->data(), quorum.step);
  net::send_owned(endpoint_, donor.name, kHealRequests, request);
  const auto channel = kHealing + static_cast<net::Channel>(quorum.step);
  const auto receive = [&](std::span<char> to) {
    bool is_over = false, is_there = false;
    const auto ticket = endpoint_.receive(donor.name, channel, to, [&](const net::Result& result) {
      is_over = true;
      is_there = result.outcome == net::Outcome::done && result.bytes == to.size();
    });
    // A donor sends its state when it begins the step, which may be after a long validation.
    // `stops` covers its loss.
    endpoint_.run_until([&] { return is_over || stops() || has_lost_ || !refusal_.empty(); },
                        kForever);
    endpoint_.cancel(ticket, net::Outcome::cancelled);
    throw_problem();
    return is_there;
  };
  std::string size(sizeof(uint64_t), '\0');
  if (!receive(size)) return std::nullopt;
  std::string state(net::take<uint64_t>(size.data()), '\0');
  if (!state.empty() && !receive(state)) return std::nullopt;
  return state;
}

void Member::give_state(const std::string& peer, int64_t step) {
  if (step < news_.quorum.step) return;  // the patient gets another donor
  if (step > news_.quorum.step || !state_) {
    patients_.insert(peer);
    return;
  }
  const auto channel = kHealing + static_cast<net::Channel>(step);
  auto size = std::make_shared<std::string>(sizeof(uint64_t), '\0');
  net::put<uint64_t>(size->data(), state_->size());
  net::send_owned(endpoint_, peer, channel, size);
  if (!state_->empty()) net::send_owned(endpoint_, peer, channel, state_, net::Priority::bulk);
}

}  // namespace troika::quorum
