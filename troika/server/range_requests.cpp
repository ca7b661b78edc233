#include "troika/server/range_requests.h"

#include <fmt/format.h>

#include <algorithm>

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

std::shared_ptr<RangeRequest> RangeRequests::take(const Message& message) {
  const auto answer = parse_answer(*message);
  if (answer.worker != worker_ || answer.range >= queues_.size()) return nullptr;
  auto& queue = queues_[answer.range];
  const auto* const found = queue.items.find(answer.number);
  if (!found) return nullptr;
  const auto request = *found;
  const auto signature = request->coding.signature;
  if (answer.lacks_keys) {
    // All requests after it were ignored too.
    if (queue.kept.erase(signature) > 0) {
      ++traffic_.key_lists_lacking;
      queue.items.restart();
      send(answer.range);
    }
    return nullptr;
  }
  const bool is_plain = answer.form == ValueForm::plain && !answer.is_packed;
  const auto plain =
      is_plain
          ? message
          : std::make_shared<const std::string>(decode_answer(answer, request->call->table.type));
  check_answer(*request, parse_answer(*plain));
  ++traffic_.answers;
  traffic_.answer_bytes += message->size();
  traffic_.plain_answer_bytes += plain->size();
  if (queue.kept.size() == kMostKept) queue.kept.clear();
  if (answer.has_kept_keys) queue.kept.insert(signature);
  request->answer = plain;
  queue.items.take(answer.number, endpoint_.now());
  send(answer.range);
  return request;
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
                   .rate = request.rate};
  const auto& parts = request.parts;
  const bool is_absent = head.coding.signature != 0 && queue.kept.contains(head.coding.signature);
  head.coding.keys_are_absent = is_absent;
  const auto& keys = is_absent ? absent_keys() : parts.keys;
  std::string text;
  write_head(head, text);
  ++traffic_.requests;
  traffic_.key_lists_absent += is_absent;
  traffic_.request_bytes += text.size() + parts.bytes() - parts.keys->size() + keys->size();
  traffic_.plain_request_bytes += parts.plain_bytes;
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
    if (!request->answer) ranges.push_back(request->keys.range);
  }
  if (ranges.empty()) return "an unfinished call that it waits for";
  return fmt::format("no answer of {} for range {} (and {} other ranges)", map_->master(ranges[0]),
                     ranges[0], ranges.size() - 1);
}

}  // namespace troika::server
