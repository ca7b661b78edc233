#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/swarm/averaging.h"
#include "troika/swarm/averaging_round.h"

namespace troika::swarm {

namespace {

// Averagings that this peer has not heard of, of one reducer.
constexpr size_t kMostEarly = 64;
// Averagings that this peer remembers.
constexpr size_t kMostEnded = 64;
constexpr net::Duration kEarlyLife = std::chrono::minutes(2);

void require_group(const AveragingGroup& group, const std::string& own, size_t numbers,
                   double weight) {
  size_t sum = 0;
  bool clients_reduce = false;
  for (const auto& member : group.members) {
    sum += member.part;
    clients_reduce = clients_reduce || (member.mode == Mode::client && member.part > 0);
  }
  const auto found = std::ranges::count(group.members, own, &AveragingGroup::Member::name);
  if (found == 1 && sum == numbers && !clients_reduce && is_weight(weight)) {
    return;
  }
  throw Error("swarm", ErrorKind::usage,
              {.what = "a group of an averaging",
               .got = fmt::format("parts of {} of {} numbers, this peer {} times, a weight of {}",
                                  sum, numbers, found, weight),
               .expected = "all numbers in the parts of nodes and auxiliary peers, this peer once, "
                           "and a weight in [0, 1e15]"});
}

}  // namespace

bool AveragingResult::is_complete() const {
  return std::ranges::all_of(parts, [](const Part& part) { return part.averaged == part.count; });
}

Averager::Averager(net::Endpoint& endpoint) : endpoint_(endpoint) {
  endpoint_.handle(kAveraging, kMostAveraging,
                   [this](const std::string& peer, const std::string& text) { take(peer, text); });
}

Averager::~Averager() {
  endpoint_.handle(kAveraging, 0, {});
}

void Averager::take_change(const net::PeerChange& change) {
  if (change.is_up) return;
  std::erase_if(early_, [&](const auto& early) { return early.first.second == change.peer; });
  const auto rounds = rounds_;
  for (const auto& [id, round] : rounds) round->lose(change.peer, change.reason);
}

template <typename Number>
void Averager::begin(const AveragingGroup& group, std::shared_ptr<std::vector<Number>> values,
                     double weight, AveragingOptions<Number> options,
                     std::function<void(const AveragingResult&)> done) {
  size_t numbers = values ? values->size() : 0;
  const auto own =
      std::ranges::find(group.members, endpoint_.name(), &AveragingGroup::Member::name);
  if (own != group.members.end() && own->mode == Mode::auxiliary) {
    weight = 0, numbers = 0;
    for (const auto& member : group.members) numbers += member.part;
  }
  require_group(group, endpoint_.name(), numbers, weight);
  const uint64_t id = group.id;
  auto round = std::make_shared<TypedRound<Number>>(
      endpoint_, group, std::move(values), weight, std::move(options),
      alive_.guard([this, id, done = std::move(done)](const AveragingResult& result) {
        // The round, which calls this, ends later.
        const auto round = rounds_.at(id);
        rounds_.erase(id);
        ended_.push_back(id);
        if (ended_.size() > kMostEnded) ended_.pop_front();
        endpoint_.after(net::Duration(0), [round] {});
        done(result);
      }));
  rounds_[id] = round;
  round->begin();
  for (auto early = early_.lower_bound({id, {}});
       early != early_.end() && early->first.first == id;) {
    round->take(early->first.second, {.kind = AveragingHead::Kind::ready, .group = id}, {});
    early = early_.erase(early);
  }
}

template void Averager::begin(const AveragingGroup&, std::shared_ptr<std::vector<float>>, double,
                              AveragingOptions<float>, std::function<void(const AveragingResult&)>);
template void Averager::begin(const AveragingGroup&, std::shared_ptr<std::vector<double>>, double,
                              AveragingOptions<double>,
                              std::function<void(const AveragingResult&)>);

void Averager::cancel(uint64_t group) {
  if (const auto found = rounds_.find(group); found != rounds_.end()) {
    const auto round = found->second;
    round->cancel();
  }
}

void Averager::take(const std::string& peer, const std::string& message) {
  const auto head = decoded_head(message);
  if (!head) return;
  if (const auto found = rounds_.find(head->group); found != rounds_.end()) {
    const auto round = found->second;
    round->take(peer, *head, std::string_view(message).substr(kAveragingHead));
  } else if (std::ranges::count(ended_, head->group) > 0) {
    // The peer comes too late, and need not wait.
    if (head->kind != AveragingHead::Kind::ready) return;
    const AveragingHead left{.kind = AveragingHead::Kind::left, .group = head->group};
    net::send_owned(endpoint_, peer, kAveraging,
                    std::make_shared<const std::string>(encoded(left)));
  } else if (head->kind == AveragingHead::Kind::ready) {
    const auto now = endpoint_.now();
    std::erase_if(early_, [&](const auto& early) { return now - early.second > kEarlyLife; });
    const auto of_peer = std::ranges::count_if(
        early_, [&](const auto& early) { return early.first.second == peer; });
    if (static_cast<size_t>(of_peer) < kMostEarly) early_[{head->group, peer}] = now;
  } else if (head->kind == AveragingHead::Kind::left) {
    early_.erase({head->group, peer});
  }
}

}  // namespace troika::swarm
