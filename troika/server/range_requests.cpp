#include "troika/server/range_requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/log.h"
#include "troika/server/control.h"

namespace troika::server {

namespace {

// A worker that uses more lists of keys begins to send them again.
constexpr size_t kMostKept = 4096;

}  // namespace

std::vector<FailedRequest> RangeRequests::follow(std::shared_ptr<const RingMap> map,
                                                 uint64_t worker, int64_t committed) {
  worker_ = worker;
  committed_ = std::max(committed_, committed);
  std::vector<FailedRequest> failed;
  if (map == map_) return failed;
  map_ = std::move(map);
  while (queues_.size() < map_->ranges.size()) queues_.emplace_back(patience_);
  for (uint32_t range = 0; range < queues_.size(); ++range) {
    auto& queue = queues_[range];
    const auto server = map_->master(range);
    if (queue.server == server) continue;
    queue.server = server;
    queue.kept.clear();
    for (auto& request : fail_lost(range)) failed.push_back(std::move(request));
    queue.items.restart();
    send(range);
  }
  return failed;
}

std::vector<FailedRequest> RangeRequests::fail_lost(uint32_t range) {
  std::vector<FailedRequest> failed;
  auto& items = queues_[range].items;
  while (map_->ranges[range].is_lost && !items.is_empty()) {
    failed.push_back({items.take_first(endpoint_.now()),
                      fmt::format("range {} was lost with its servers; got 0 copies, expected at "
                                  "least 1 (keep replicas)",
                                  range)});
    stop(*failed.back().request);
  }
  return failed;
}

std::vector<FailedRequest> RangeRequests::add(std::shared_ptr<RangeRequest> request) {
  const uint32_t range = request->keys.range;
  auto& queue = queues_[range];
  queue.items.add(++queue.last, std::move(request));
  auto failed = fail_lost(range);
  send(range);
  return failed;
}

// Without a receive, the values would stay at the endpoint. One without memory refuses them. A
// server that announces values and sends none must not make the worker keep more and more.
void RangeRequests::refuse_values(const std::string& server, net::Channel channel) {
  constexpr size_t kMostRefused = 64;
  if (channel == 0) return;
  auto& refused = refused_[server];
  refused.push_back(endpoint_.receive(server, channel, {}, {}));
  if (refused.size() <= kMostRefused) return;
  endpoint_.cancel(refused.front(), net::Outcome::cancelled);
  refused.pop_front();
}

void RangeRequests::take(const std::string& server, const Message& message) {
  const auto answer = parse_answer(*message);
  const auto refuse_values = [&] { this->refuse_values(server, answer.apart); };
  const bool is_known = answer.worker == worker_ && answer.range < queues_.size();
  const auto* const found = is_known ? queues_[answer.range].items.find(answer.number) : nullptr;
  if (!found) return refuse_values();
  const auto request = *found;
  if (answer.lacks_keys) {
    refuse_values();
    auto& queue = queues_[answer.range];
    // All requests after it were ignored too.
    if (queue.kept.erase(request->coding.signature) > 0) {
      ++traffic_.key_lists_lacking;
      queue.items.restart();
      send(answer.range);
    }
    return;
  }
  // An answer that comes again replaces the earlier one, whose values may be lost.
  stop(*request);
  const bool is_over = request->call->is_done;
  if (answer.apart != 0) {
    const size_t expected = request->call->place_of(*request).size();
    // Answers whose size only the server knows are never apart.
    if (!is_over && expected > 0 && answer.apart_bytes == expected) {
      return receive_values(server, request, answer, message->size());
    }
    refuse_values();
    if (is_over) return finish(request, answer, message->size(), message->size());
    throw Error("server", ErrorKind::failure,
                {.what = "an answer with values that are a message of their own",
                 .got = std::to_string(answer.apart_bytes) + " bytes",
                 .expected = std::to_string(expected)});
  }
  const bool is_plain = answer.form == ValueForm::plain && !answer.is_packed;
  const auto plain =
      is_plain
          ? message
          : std::make_shared<const std::string>(decode_answer(answer, request->call->table.type));
  check_answer(*request, parse_answer(*plain));
  if (!is_over && answer.error.empty()) request->call->take(*request, plain);
  finish(request, answer, message->size(), plain->size());
}

void RangeRequests::receive_values(const std::string& server,
                                   const std::shared_ptr<RangeRequest>& request, const Answer& head,
                                   size_t head_bytes) {
  const auto place = request->call->place_of(*request);
  const auto received = [this, server, request, head,
                         bytes = head_bytes + place.size()](const net::Result& result) {
    // After any other outcome, the request is sent again.
    if (result.outcome == net::Outcome::done && result.bytes == head.apart_bytes) {
      finish(request, head, bytes, bytes);
    } else if (result.outcome == net::Outcome::done || result.outcome == net::Outcome::too_long) {
      log::warn("an answer of {}: {} bytes of values instead of {}", server, result.bytes,
                head.apart_bytes);
    }
  };
  request->receive = endpoint_.receive(server, head.apart, place, received);
}

void RangeRequests::stop(RangeRequest& request) {
  const auto ticket = std::exchange(request.receive, 0);
  if (ticket != 0) endpoint_.cancel(ticket, net::Outcome::cancelled);
}

void RangeRequests::finish(const std::shared_ptr<RangeRequest>& request, const Answer& answer,
                           size_t bytes, size_t plain_bytes) {
  auto& queue = queues_[answer.range];
  if (!queue.items.take(answer.number, endpoint_.now())) return;
  ++traffic_.answers;
  traffic_.answer_bytes += bytes;
  traffic_.plain_answer_bytes += plain_bytes;
  if (queue.kept.size() == kMostKept) queue.kept.clear();
  if (answer.has_kept_keys) queue.kept.insert(request->coding.signature);
  request->is_answered = true;
  send(answer.range);
  answered_(request, answer.error);
}

void RangeRequests::count_keys(uint64_t keys, uint64_t left_out) {
  traffic_.keys += keys;
  traffic_.keys_left_out += left_out;
}

void RangeRequests::send_one(uint32_t range, uint64_t number, const RangeRequest& request,
                             net::Completion completion) {
  const auto& queue = queues_[range];
  RequestHead head{.generation = map_->generation,
                   .worker = worker_,
                   .number = number,
                   .floor = queue.items.floor(number),
                   .step = request.call->step,
                   .committed = committed_,
                   .range = range,
                   .table = request.table,
                   .operation = request.operation,
                   .coding = request.coding,
                   .run = request.run,
                   .rate = request.rate,
                   .takes_values_apart = !request.call->place_of(request).empty()};
  const auto& parts = request.parts;
  const bool is_absent = head.coding.signature != 0 && queue.kept.contains(head.coding.signature);
  head.coding.keys_are_absent = is_absent;
  const auto& keys = is_absent ? absent_keys() : parts.keys;
  std::string text;
  text.reserve(kRequestHead);
  write_head(head, text);
  ++traffic_.requests;
  traffic_.key_lists_absent += is_absent;
  traffic_.request_bytes += text.size() + parts.bytes() - parts.keys->size() + keys->size();
  traffic_.plain_request_bytes += parts.plain_bytes;
  const net::Pieces pieces{text, *keys, *parts.rest, parts.values.bytes};
  if (endpoint_.gathers(pieces.bytes())) {
    endpoint_.send(queue.server, kRequests, pieces, net::Priority::normal, std::move(completion));
    return;
  }
  send_pieces(endpoint_, queue.server, kRequests, std::move(text), {keys, parts.rest, parts.values},
              std::move(completion));
}

void RangeRequests::send(uint32_t range) {
  auto& queue = queues_[range];
  if (queue.server.empty()) return;
  queue.items.send(endpoint_.now(),
                   [&](uint64_t number, const auto& request, net::Completion done) {
                     send_one(range, number, *request, std::move(done));
                   });
}

void RangeRequests::resend() {
  for (uint32_t range = 0; range < queues_.size(); ++range) {
    auto& queue = queues_[range];
    if (queue.server.empty()) continue;
    queue.items.resend(endpoint_.now(),
                       [&](uint64_t number, const auto& request, net::Completion done) {
                         send_one(range, number, *request, std::move(done));
                       });
  }
}

std::string RangeRequests::missing(const Call& call) const {
  std::vector<uint32_t> ranges;
  for (const auto& request : call.requests) {
    if (!request->is_answered) ranges.push_back(request->keys.range);
  }
  if (ranges.empty()) return "an unfinished call that it waits for";
  return fmt::format("no answer of {} for range {} (and {} other ranges)", map_->master(ranges[0]),
                     ranges[0], ranges.size() - 1);
}

}  // namespace troika::server
