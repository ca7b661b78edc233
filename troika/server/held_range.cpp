#include "troika/server/held_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/log.h"
#include "troika/server/send.h"
#include "troika/server/wire.h"

namespace troika::server {

namespace {

// A worker's step is at most this many steps after the last one that all workers have finished.
constexpr int64_t kMostAhead = int64_t{1} << 40;

std::string head_text(const CopyHead& head) {
  std::string text;
  Writer writer(text);
  for (const uint64_t value :
       {head.generation, head.term, head.number, uint64_t{head.range}, uint64_t{head.is_whole}}) {
    writer.number(value);
  }
  writer.number(head.committed);
  return text;
}

}  // namespace

CopyHead parse_copy_head(std::string_view message) {
  Reader reader(message);
  CopyHead head;
  head.generation = reader.number<uint64_t>();
  head.term = reader.number<uint64_t>();
  head.number = reader.number<uint64_t>();
  head.range = static_cast<uint32_t>(reader.number<uint64_t>());
  head.is_whole = reader.number<uint64_t>() != 0;
  head.committed = reader.number<int64_t>();
  check_step(head.committed);
  return head;
}

Receipt parse_receipt(std::string_view message) {
  Reader reader(message);
  Receipt receipt;
  receipt.term = reader.number<uint64_t>();
  receipt.number = reader.number<uint64_t>();
  receipt.range = static_cast<uint32_t>(reader.number<uint64_t>());
  return receipt;
}

HeldRange::HeldRange(net::Endpoint& endpoint, uint32_t index, uint32_t ranges,
                     const std::vector<Table>& tables, net::Duration patience)
    : endpoint_(endpoint), index_(index), patience_(patience), range_(index, ranges, tables) {}

void HeldRange::load_snapshot(std::string_view saved) {
  range_.load(saved);
  range_.forget_workers();
}

std::string HeldRange::save_after(int64_t step) {
  range_.commit(step, map_->departed);
  return range_.save();
}

void HeldRange::follow(std::shared_ptr<const RingMap> map) {
  map_ = std::move(map);
  ahead_.clear();
  const auto& [holders, joiners, is_lost] = map_->ranges[index_];
  const bool was_master =
      std::exchange(is_master_, !holders.empty() && holders[0] == endpoint_.name());
  if (!is_master_) {
    // Workers ask the new master again.
    copies_.clear();
    waiting_.clear();
    answering_ = std::make_shared<std::set<RequestId>>();
    return;
  }
  if (!was_master) written_ = acknowledged_ = 0;
  std::erase_if(copies_, [&](const auto& entry) {
    const auto& [server, copy] = entry;
    const bool is_holder = std::ranges::find(holders, server) != holders.end();
    return !is_holder && std::ranges::none_of(joiners, [&](const Joiner& joiner) {
      // A server that was lost and joined again needs a new stream.
      return joiner.server == server && joiner.since <= copy.term;
    });
  });
  for (size_t i = 1; i < holders.size(); ++i) start_copy(holders[i], true);
  for (const auto& joiner : joiners) start_copy(joiner.server, false);
  send_acknowledged();
}

void HeldRange::start_copy(const std::string& server, bool is_required) {
  const auto [entry, is_new] = copies_.try_emplace(server, map_->generation, patience_);
  Copy& copy = entry->second;
  copy.is_required = copy.is_required || is_required;
  if (!is_new) return;
  copy.whole = written_;
  copy.queue.add(written_,
                 {std::make_shared<const std::string>(range_.save()), range_.committed()});
  send_to(server, copy);
}

void HeldRange::send_entry(const std::string& server, const Copy& copy, uint64_t number,
                           const Entry& entry, net::Completion completion) {
  const CopyHead head{.generation = map_->generation,
                      .term = copy.term,
                      .number = number,
                      .range = index_,
                      .is_whole = number == copy.whole,
                      .committed = entry.committed};
  send_pieces(endpoint_, server, kCopies, head_text(head), {entry.message}, std::move(completion));
}

void HeldRange::send_to(const std::string& server, Copy& copy) {
  copy.queue.send(endpoint_.now(), [&](uint64_t number, const Entry& entry, net::Completion done) {
    send_entry(server, copy, number, entry, std::move(done));
  });
}

void HeldRange::add_entry(const Message& write) {
  ++written_;
  for (auto& [server, copy] : copies_) {
    copy.queue.add(written_, {write, range_.committed()});
    send_to(server, copy);
  }
}

Message HeldRange::decode(const RequestHead& head, const Message& message) {
  if (head.coding.is_plain()) return message;
  const auto& tables = range_.tables();
  if (head.table >= tables.size()) {
    return std::make_shared<const std::string>(plain_message(head, {.table = head.table}));
  }
  std::span<const Key> keys;
  if (head.coding.keys_are_absent) {
    const auto* const kept = kept_keys_.find(head.coding.signature);
    if (!kept) return nullptr;
    keys = *kept;
  }
  const ValueType type = tables[head.table].spec.type;
  return std::make_shared<const std::string>(decode_request(*message, type, keys));
}

uint64_t HeldRange::take_request(const std::string& worker, const RequestHead& head,
                                 const Message& message) {
  if (!execute(worker, head, message)) return 0;
  uint64_t executed = 1;
  while (const auto next = ahead_.take(head.worker, head.number + executed)) {
    if (!execute(worker, parse_head(*next), next)) break;
    ++executed;
  }
  return executed;
}

bool HeldRange::execute(const std::string& worker, const RequestHead& head,
                        const Message& message) {
  // With a newer map the worker may speak of steps that this server cannot judge yet.
  if (!is_master_ || head.generation > map_->generation || !map_->workers.contains(head.worker)) {
    return false;
  }
  range_.commit(head.committed, map_->departed);
  const bool is_repeated = head.number <= range_.clock(head.worker);
  if (!is_repeated && !range_.is_next(head)) {
    ahead_.keep(head.worker, head.number, message);
    return false;
  }
  if (is_repeated && answering_->contains({head.worker, head.number})) return false;
  const auto plain = decode(head, message);
  if (!plain) {
    std::string text;
    write_answer(
        {.worker = head.worker, .number = head.number, .range = index_, .lacks_keys = true}, {}, {},
        0, text);
    net::send_owned(endpoint_, worker, kAnswers, std::make_shared<const std::string>(text));
    return false;
  }
  const Request request = parse_request(*plain);
  const auto signature = head.coding.signature;
  const bool has_kept_keys = signature != 0 && kept_keys_.add(signature, request.body.keys);
  auto refusal = range_.refusal(request.body);
  if (head.step > range_.committed() + kMostAhead) {
    refusal = fmt::format("step {} is too far after step {}, which all workers have finished",
                          head.step, range_.committed());
  }
  if (!is_repeated) {
    if (refusal.empty() && writes(request.body.operation)) {
      range_.write(request, plain);
      add_entry(plain);
    }
    range_.advance(head);
  }
  answer(worker, request, head.coding, has_kept_keys, refusal);
  return !is_repeated;
}

void HeldRange::answer(const std::string& worker, const Request& request, const Coding& coding,
                       bool has_kept_keys, const std::string& refusal) {
  const auto& [head, body] = request;
  AnswerMessage message;
  if (refusal.empty() && reads(body.operation)) {
    message = range_.read(request, coding, has_kept_keys);
  }
  std::string error = refusal;
  if (message.head && message.size() > kMostMessage) {
    error = "the values are too long for one answer";
  }
  if (!message.head || !error.empty()) {
    std::string text;
    write_answer({.worker = head.worker,
                  .number = head.number,
                  .range = index_,
                  .has_kept_keys = has_kept_keys,
                  .error = error},
                 {}, {}, 0, text);
    message = {std::make_shared<const std::string>(std::move(text))};
  }
  const RequestId id{head.worker, head.number};
  answering_->insert(id);
  if (!writes(body.operation)) return send_answer(worker, id, message);
  waiting_.push_back({written_, worker, id, std::move(message)});
  send_acknowledged();
}

void HeldRange::send_answer(const std::string& worker, RequestId request,
                            const AnswerMessage& answer) {
  const auto sent = [answering = answering_, request](const net::Result&) {
    answering->erase(request);
  };
  if (answer.apart == 0) {
    return send_pieces(endpoint_, worker, kAnswers, {}, {answer.head, answer.values}, sent);
  }
  net::send_owned(endpoint_, worker, kAnswers, answer.head);
  send_pieces(endpoint_, worker, answer.apart, {}, {answer.values}, sent);
}

void HeldRange::send_acknowledged() {
  uint64_t everywhere = written_;
  for (const auto& [server, copy] : copies_) {
    // Without a copy that has all values, not even the writes of the master before are safe.
    if (copy.is_required && !copy.has_begun) return;
    if (copy.is_required) everywhere = std::min(everywhere, copy.received);
  }
  acknowledged_ = std::max(acknowledged_, everywhere);
  while (!waiting_.empty() && waiting_.front().number <= everywhere) {
    const auto first = std::move(waiting_.front());
    waiting_.pop_front();
    send_answer(first.worker, first.request, first.answer);
  }
  for (auto& [server, copy] : copies_) {
    copy.is_done =
        copy.is_done || (copy.is_required && copy.has_begun && copy.received >= acknowledged_);
  }
}

void HeldRange::take_copy(const std::string& master, const CopyHead& head, std::string_view entry) {
  if (is_master_ || head.generation > map_->generation || map_->master(index_) != master) return;
  if (head.is_whole && head.term > term_) {
    range_.load(entry);
    term_ = head.term;
    next_ = head.number + 1;
  } else if (!head.is_whole && head.term == term_ && head.number == next_) {
    write_entry(master, head, std::make_shared<const std::string>(entry));
  } else if (!head.is_whole && (head.term > term_ || (head.term == term_ && head.number > next_))) {
    ahead_.keep(head.term, head.number,
                std::make_shared<const std::string>(head_text(head).append(entry)));
  }
  if (head.term != term_) return;
  while (const auto next = ahead_.take(term_, next_)) {
    const uint64_t number = next_;
    write_entry(master, parse_copy_head(*next),
                std::make_shared<const std::string>(next->substr(kCopyHead)));
    if (next_ == number) break;
  }
  std::string receipt;
  Writer writer(receipt);
  for (const uint64_t value : {term_, next_ - 1, uint64_t{index_}}) writer.number(value);
  net::send_owned(endpoint_, master, kReceipts, std::make_shared<const std::string>(receipt));
}

void HeldRange::write_entry(const std::string& master, const CopyHead& head, const Message& entry) {
  const Request request = parse_request(*entry);
  range_.commit(head.committed, map_->departed);
  const auto refusal = range_.refusal(request.body);
  if (!refusal.empty() || !writes(request.body.operation)) {
    log::warn("a write of master {} does not fit: {}", master, refusal);
    return;
  }
  range_.write(request, entry);
  range_.advance(request.head);
  ++next_;
}

void HeldRange::take_receipt(const std::string& server, const Receipt& receipt) {
  const auto found = copies_.find(server);
  if (found == copies_.end() || found->second.term != receipt.term) return;
  Copy& copy = found->second;
  copy.received = std::max(copy.received, receipt.number);
  // From here on writes wait for the copy, so that it catches up with what was acknowledged.
  copy.has_begun = copy.is_required = true;
  copy.queue.take_through(copy.received, endpoint_.now());
  send_to(server, copy);
  send_acknowledged();
}

void HeldRange::resend() {
  for (auto& [server, copy] : copies_) {
    copy.queue.resend(endpoint_.now(),
                      [&](uint64_t number, const Entry& entry, net::Completion done) {
                        send_entry(server, copy, number, entry, std::move(done));
                      });
  }
}

std::vector<CopyDone> HeldRange::copies_done() const {
  std::vector<CopyDone> done;
  if (!is_master_) return done;
  for (const auto& joiner : map_->ranges[index_].joiners) {
    const auto copy = copies_.find(joiner.server);
    if (copy != copies_.end() && copy->second.is_done) done.push_back({index_, joiner.server});
  }
  return done;
}

}  // namespace troika::server
