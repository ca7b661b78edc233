// The unanswered requests of a worker, in a queue for each range of the ring. Internal to the room.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/call.h"
#include "troika/server/resend_queue.h"
#include "troika/server/ring_map.h"

namespace troika::server {

// A request and why it ended without an answer.
struct FailedRequest {
  std::shared_ptr<RangeRequest> request;
  std::string reason;
};

// All functions run under the endpoint's rules for callbacks.
class RangeRequests {
 public:
  RangeRequests(net::Endpoint& endpoint, net::Duration patience)
      : endpoint_(endpoint), patience_(patience) {}

  // Uses a newer map, with the worker's number and the last step that all workers have finished.
  // Sends requests whose server has changed again at once. Returns the requests to lost ranges.
  std::vector<FailedRequest> follow(std::shared_ptr<const RingMap> map, uint64_t worker,
                                    int64_t committed);
  // Numbers a request and sends it as soon as the window of its range allows. If the range is lost,
  // returns the request with the reason.
  std::vector<FailedRequest> add(std::shared_ptr<RangeRequest> request);
  // Returns the request of an answer, and removes it; null if it was answered already.
  std::shared_ptr<RangeRequest> take(const Answer& answer);
  // Sends requests again that were not answered in time.
  void resend();
  // Returns a text such as `no answer of s1 for range 3 (and 2 others)`.
  std::string missing(const Call& call) const;

 private:
  struct Queue {
    explicit Queue(net::Duration patience) : items(patience, 16) {}

    ResendQueue<std::shared_ptr<RangeRequest>> items;
    uint64_t last = 0;   // the number of the last request
    std::string server;  // to which the requests were sent
  };

  void send(uint32_t range);
  void send_one(uint32_t range, uint64_t number, const RangeRequest& request);
  std::vector<FailedRequest> fail_lost(uint32_t range);

  net::Endpoint& endpoint_;
  const net::Duration patience_;
  std::shared_ptr<const RingMap> map_;
  uint64_t worker_ = 0;
  int64_t committed_ = -1;
  std::vector<Queue> queues_;  // by range
};

}  // namespace troika::server
