#include "troika/swarm/averaging_round.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "troika/base/error.h"

namespace troika::swarm {

namespace {

using HeadKind = AveragingHead::Kind;

// Chunks on the way to one reducer that the endpoint has not sent.
constexpr size_t kInFlight = 4;
constexpr const char* kNoAverage = "no contribution has a weight, or the average is not finite";

bool is_contributor(Mode mode) {
  return mode != Mode::auxiliary;
}

}  // namespace

template <typename Number>
TypedRound<Number>::TypedRound(net::Endpoint& endpoint, AveragingGroup group, Values values,
                               double weight, AveragingOptions<Number> options,
                               std::function<void(const AveragingResult&)> done)
    : endpoint_(endpoint),
      group_(std::move(group)),
      values_(std::move(values)),
      weight_(weight),
      options_(std::move(options)),
      done_(std::move(done)),
      own_(index_of(endpoint.name())) {
  if (group_.members.size() == 1) options_.packing = {};
}

template <typename Number>
void TypedRound<Number>::begin() {
  size_t first = 0;
  for (size_t i = 0; i < group_.members.size(); ++i) {
    const auto& member = group_.members[i];
    if (member.part > 0) {
      if (contributes()) {
        result_.parts.push_back({.reducer = member.name, .first = first, .count = member.part});
      }
      if (i == own_) {
        begin_reducing(first);
      } else if (contributes()) {
        begin_gathering(i, first);
      }
    }
    first += member.part;
  }
  endpoint_.after(net::Duration(0), [self = this->shared_from_this()] { self->check_times(); });
}

template <typename Number>
bool TypedRound<Number>::contributes() const {
  return is_contributor(group_.members[own_].mode);
}

template <typename Number>
size_t TypedRound<Number>::index_of(const std::string& peer) const {
  const auto found = std::ranges::find(group_.members, peer, &AveragingGroup::Member::name);
  return static_cast<size_t>(found - group_.members.begin());
}

template <typename Number>
void TypedRound<Number>::begin_reducing(size_t first) {
  const auto chunks =
      chunks_of(first, group_.members[own_].part, sizeof(Number), options_.packing.block);
  std::vector<size_t> contributors;
  for (size_t i = 0; i < group_.members.size(); ++i) {
    if (is_contributor(group_.members[i].mode)) contributors.push_back(i);
  }
  reducer_ = std::make_unique<PartReducer<Number>>(
      chunks, contributors, options_.aggregation,
      [this](const Chunk& chunk, const std::vector<Number>* average, double weight,
             const auto& contributions) { send_reduced(chunk, average, weight, contributions); });
  for (const size_t i : contributors) {
    if (i == own_) continue;
    heard_[i] = endpoint_.now();
    send(i, message_of({.kind = HeadKind::ready}, {}));
  }
  if (!contributes()) return;
  for (const auto& chunk : chunks) {
    const auto begin = values_->begin() + static_cast<std::ptrdiff_t>(chunk.first);
    const auto fault = reducer_->add(
        own_, chunk, weight_,
        as_received(chunk, {begin, begin + static_cast<std::ptrdiff_t>(chunk.count)}));
    if (!fault) continue;
    exclude(own_, *fault, false);
    break;
  }
}

template <typename Number>
void TypedRound<Number>::begin_gathering(size_t index, size_t first) {
  auto& gathering = gatherings_[index];
  gathering.part = result_.parts.size() - 1;
  gathering.heard = endpoint_.now();
  const size_t block = options_.packing.block;
  for (const auto& chunk : chunks_of(first, group_.members[index].part, sizeof(Number), block)) {
    gathering.to_send.push_back(chunk);
    gathering.missing[chunk.first] = chunk.count;
  }
}

template <typename Number>
void TypedRound<Number>::take(const std::string& peer, const AveragingHead& head,
                              std::string_view numbers) {
  const size_t index = index_of(peer);
  if (index == group_.members.size() || !done_) return;
  if (head.kind == HeadKind::part) {
    take_part(index, head, numbers);
  } else if (head.kind == HeadKind::left) {
    lose(peer, "it left");
  } else if (const auto found = gatherings_.find(index); found != gatherings_.end()) {
    auto& gathering = found->second;
    gathering.heard = endpoint_.now();
    if (head.kind == HeadKind::ready) {
      gathering.is_ready = true;
      send_more(index);
    } else if (head.kind == HeadKind::averaged) {
      take_averaged(gathering, head, numbers);
      if (gathering.missing.empty()) end_gathering(index, {});
    } else {
      end_gathering(index, fmt::format("it refused: {}", numbers.substr(0, 200)));
    }
  }
  end_if_done();
}

template <typename Number>
void TypedRound<Number>::take_part(size_t index, const AveragingHead& head,
                                   std::string_view bytes) {
  if (!reducer_ || !heard_.contains(index)) return;
  heard_[index] = endpoint_.now();
  result_.received += bytes.size();
  const bool abstains = head.weight == 0 && bytes.empty();
  auto numbers = abstains ? std::vector<Number>() : unpacked(head, bytes);
  auto fault = abstains || numbers.size() == head.count
                   ? reducer_->add(index, {head.first, head.count}, head.weight, std::move(numbers))
                   : "its message has another size";
  if (fault) exclude(index, *fault, true);
}

template <typename Number>
std::vector<Number> TypedRound<Number>::unpacked(const AveragingHead& head,
                                                 std::string_view bytes) const {
  std::vector<Number> numbers;
  if (head.count > (size_t{512} << 10) / sizeof(Number)) return numbers;
  const auto& packing = options_.packing;
  if (packing.bytes) {
    // The size of a range that is in no part may not be asked for.
    size_t all = 0;
    for (const auto& member : group_.members) all += member.part;
    if (head.first > all || head.count > all - head.first) return numbers;
  }
  const size_t size =
      packing.bytes ? packing.bytes(head.first, head.count) : head.count * sizeof(Number);
  if (bytes.size() != size) return numbers;
  numbers.resize(head.count);
  if (packing.unpack) {
    packing.unpack(head.first, bytes, numbers);
  } else if (size > 0) {
    std::memcpy(numbers.data(), bytes.data(), size);
  }
  return numbers;
}

template <typename Number>
void TypedRound<Number>::take_averaged(Gathering& gathering, const AveragingHead& head,
                                       std::string_view bytes) {
  const auto missing = gathering.missing.find(head.first);
  if (missing == gathering.missing.end() || missing->second != head.count) return;
  auto& part = result_.parts[gathering.part];
  gathering.missing.erase(missing);
  result_.received += bytes.size();
  if (head.weight == 0) {
    part.problem = kNoAverage;
    return;
  }
  auto numbers = unpacked(head, bytes);
  if (numbers.size() != head.count) {
    part.problem = "its message has another size";
    return;
  }
  const bool is_finite =
      std::ranges::all_of(numbers, [](Number number) { return std::isfinite(number); });
  if (!is_finite || !std::isfinite(head.weight) || head.weight < 0) {
    part.problem = "its average is not finite";
    return;
  }
  write({head.first, head.count}, numbers, head.weight, gathering.part);
}

template <typename Number>
void TypedRound<Number>::write(const Chunk& chunk, std::span<const Number> numbers, double weight,
                               size_t part) {
  std::ranges::copy(numbers, values_->begin() + static_cast<std::ptrdiff_t>(chunk.first));
  result_.parts[part].averaged += chunk.count;
  note_weight(weight);
}

template <typename Number>
void TypedRound<Number>::note_weight(double weight) {
  result_.weight = result_.weight == 0 ? weight : std::min(result_.weight, weight);
}

template <typename Number>
void TypedRound<Number>::send_more(size_t index) {
  auto& gathering = gatherings_.at(index);
  while (gathering.is_ready && gathering.in_flight < kInFlight && !gathering.to_send.empty()) {
    const auto chunk = gathering.to_send.front();
    gathering.to_send.pop_front();
    ++gathering.in_flight;
    const auto numbers = std::span(*values_).subspan(chunk.first, chunk.count);
    send(
        index,
        message_of(
            {.kind = HeadKind::part, .first = chunk.first, .count = chunk.count, .weight = weight_},
            weight_ > 0 ? numbers : std::span<const Number>()),
        [weak = this->weak_from_this(), index](const net::Result& result) {
          const auto self = weak.lock();
          if (!self || !self->gatherings_.contains(index)) return;
          --self->gatherings_.at(index).in_flight;
          // The end of the connection is reported to the listener, too.
          if (result.outcome == net::Outcome::done) self->send_more(index);
        });
  }
}

template <typename Number>
std::shared_ptr<const std::string> TypedRound<Number>::message_of(
    AveragingHead head, std::span<const Number> numbers) const {
  head.group = group_.id;
  auto message = std::make_shared<std::string>(encoded(head));
  if (numbers.empty()) return message;
  const auto& packing = options_.packing;
  const size_t size =
      packing.bytes ? packing.bytes(head.first, numbers.size()) : numbers.size_bytes();
  message->resize(kAveragingHead + size);
  const std::span to(message->data() + kAveragingHead, size);
  if (packing.pack) {
    packing.pack(head.first, numbers, to);
  } else {
    std::memcpy(to.data(), numbers.data(), size);
  }
  return message;
}

template <typename Number>
void TypedRound<Number>::send(size_t index, const Message& message, net::Completion completion) {
  const size_t size = message->size() - kAveragingHead;
  result_.sent += size;
  net::send_owned(endpoint_, group_.members[index].name, kAveraging, message,
                  size == 0 ? net::Priority::normal : net::Priority::bulk, std::move(completion));
}

template <typename Number>
std::vector<Number> TypedRound<Number>::as_received(const Chunk& chunk,
                                                    std::vector<Number> numbers) const {
  if (!options_.packing.pack) return numbers;
  const AveragingHead head{.first = chunk.first, .count = chunk.count};
  return unpacked(head, std::string_view(*message_of(head, numbers)).substr(kAveragingHead));
}

template <typename Number>
void TypedRound<Number>::send_reduced(
    const Chunk& chunk, const std::vector<Number>* average, double weight,
    const std::map<size_t, typename PartReducer<Number>::Contribution>& from) {
  const AveragingHead head{
      .kind = HeadKind::averaged, .first = chunk.first, .count = chunk.count, .weight = weight};
  const auto message =
      message_of(head, average ? std::span<const Number>(*average) : std::span<const Number>());
  for (const auto& [index, contribution] : from) {
    if (index != own_) send(index, message);
  }
  if (average) note_weight(weight);
  if (average && options_.aggregation == Aggregation::centred_clip) far_.add(*average, from);
  if (!contributes()) return;
  const auto part =
      std::ranges::find(result_.parts, endpoint_.name(), &AveragingResult::Part::reducer);
  if (average && from.contains(own_)) {
    const auto received = unpacked(head, std::string_view(*message).substr(kAveragingHead));
    write(chunk, received, weight, static_cast<size_t>(part - result_.parts.begin()));
  } else {
    part->problem = average ? "its own numbers are not finite" : kNoAverage;
  }
}

template <typename Number>
void TypedRound<Number>::exclude(size_t index, const std::string& why, bool tells) {
  heard_.erase(index);
  result_.excluded.emplace(group_.members[index].name, why);
  if (tells) {
    const AveragingHead head{.kind = HeadKind::refused, .group = group_.id};
    net::send_owned(endpoint_, group_.members[index].name, kAveraging,
                    std::make_shared<const std::string>(encoded(head) + why));
  }
  reducer_->exclude(index);
}

template <typename Number>
void TypedRound<Number>::end_gathering(size_t index, const std::string& problem) {
  const auto found = gatherings_.find(index);
  auto& part = result_.parts[found->second.part];
  if (!problem.empty()) part.problem = problem;
  gatherings_.erase(found);
}

template <typename Number>
void TypedRound<Number>::lose(const std::string& peer, const std::string& why) {
  const size_t index = index_of(peer);
  if (heard_.contains(index)) exclude(index, why, false);
  if (gatherings_.contains(index)) end_gathering(index, why);
  end_if_done();
}

template <typename Number>
void TypedRound<Number>::check_times() {
  if (!done_) return;
  const auto now = endpoint_.now();
  std::vector<size_t> silent;
  for (const auto& [index, heard] : heard_) {
    if (now - heard > options_.sender_timeout && reducer_->waits_for(index)) {
      silent.push_back(index);
    }
  }
  for (const size_t index : silent) exclude(index, kSilent, true);
  silent.clear();
  for (const auto& [index, gathering] : gatherings_) {
    if (now - gathering.heard > 2 * options_.sender_timeout) silent.push_back(index);
  }
  for (const size_t index : silent) end_gathering(index, kSilent);
  end_if_done();
  if (!done_) return;
  endpoint_.after(options_.sender_timeout / 8, [weak = this->weak_from_this()] {
    if (const auto self = weak.lock()) self->check_times();
  });
}

template <typename Number>
void TypedRound<Number>::cancel() {
  if (!done_) return;
  result_.is_cancelled = true;
  for (auto& part : result_.parts) {
    if (part.averaged < part.count) part.problem = "cancelled";
  }
  for (size_t i = 0; i < group_.members.size(); ++i) {
    if (i != own_) send(i, message_of({.kind = HeadKind::left}, {}));
  }
  end();
}

template <typename Number>
void TypedRound<Number>::end_if_done() {
  if (done_ && gatherings_.empty() && (!reducer_ || reducer_->is_done())) end();
}

template <typename Number>
void TypedRound<Number>::end() {
  gatherings_.clear();
  heard_.clear();
  for (const size_t index : far_.found()) result_.far.insert(group_.members[index].name);
  const auto done = std::exchange(done_, {});
  done(result_);
}

template class TypedRound<float>;
template class TypedRound<double>;

}  // namespace troika::swarm
