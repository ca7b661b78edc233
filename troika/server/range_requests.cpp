#include "troika/server/range_requests.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/server/control.h"

namespace troika::server {

std::vector<FailedRequest> RangeRequests::follow(std::shared_ptr<const RingMap> map,
                                                 uint64_t worker, int64_t committed) {
  worker_ = worker;
  committed_ = std::max(committed_, committed);
  std::vector<FailedRequest> failed;
  if (map == map_) return failed;
  map_ = std::move(map);
  queues_.resize(map_->ranges.size(), Queue(patience_));
  for (uint32_t range = 0; range < queues_.size(); ++range) {
    auto& queue = queues_[range];
    const auto server = map_->master(range);
    if (queue.server == server) continue;
    queue.server = server;
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

std::shared_ptr<RangeRequest> RangeRequests::take(const Answer& answer) {
  if (answer.worker != worker_ || answer.range >= queues_.size()) return nullptr;
  auto request = queues_[answer.range].items.take(answer.number, endpoint_.now());
  send(answer.range);
  return request.value_or(nullptr);
}

void RangeRequests::send_one(uint32_t range, uint64_t number, const RangeRequest& request) {
  const auto& queue = queues_[range];
  std::string head;
  write_head({.generation = map_->generation,
              .worker = worker_,
              .number = number,
              .floor = queue.items.floor(number),
              .step = request.call->step,
              .committed = committed_,
              .range = range},
             head);
  send_pieces(endpoint_, queue.server, kRequests, std::move(head), request.body);
}

void RangeRequests::send(uint32_t range) {
  auto& queue = queues_[range];
  if (queue.server.empty()) return;
  queue.items.send(endpoint_.now(), [&](uint64_t number, const auto& request) {
    send_one(range, number, *request);
  });
}

void RangeRequests::resend() {
  for (uint32_t range = 0; range < queues_.size(); ++range) {
    auto& queue = queues_[range];
    if (queue.server.empty()) continue;
    queue.items.resend(endpoint_.now(), [&](uint64_t number, const auto& request) {
      send_one(range, number, *request);
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
