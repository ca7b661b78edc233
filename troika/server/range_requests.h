// The unanswered requests of a worker, in a queue for each range of the ring. Internal to the room.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/call.h"
#include "troika/server/gathered_messages.h"
#include "troika/server/resend_queue.h"
#include "troika/server/ring_map.h"

namespace troika::server {

// A request and why it ended without an answer.
struct FailedRequest {
  std::shared_ptr<RangeRequest> request;
  std::string reason;
};

// Bytes of a worker's messages since its beginning. Requests that were sent again count again.
struct Traffic {
  uint64_t requests = 0;
  uint64_t request_bytes = 0;
  uint64_t plain_request_bytes = 0;  // as if no filter had encoded them
  uint64_t answers = 0;
  uint64_t answer_bytes = 0;
  uint64_t plain_answer_bytes = 0;
  uint64_t keys = 0;               // of pushes
  uint64_t keys_left_out = 0;      // by filters
  uint64_t key_lists_absent = 0;   // requests without their list of keys
  uint64_t key_lists_lacking = 0;  // lists that a server asked for again
};

// All functions run under the endpoint's rules for callbacks.
class RangeRequests {
 public:
  // Gets a request whose answer has come, and the answer's error. The request is no longer in its
  // queue.
  using Answered =
      std::function<void(const std::shared_ptr<RangeRequest>&, const std::string& error)>;

  RangeRequests(net::Endpoint& endpoint, net::Duration patience, Answered answered)
      : endpoint_(endpoint, kRequests), patience_(patience), answered_(std::move(answered)) {}

  // Uses a newer map, with the worker's number and the last step that all workers have finished.
  // Sends requests whose server has changed again at once. Returns the requests to lost ranges.
  std::vector<FailedRequest> follow(std::shared_ptr<const RingMap> map, uint64_t worker,
                                    int64_t committed);
  // Numbers a request and sends it as soon as the window of its range allows. If the range is lost,
  // returns the request with the reason.
  std::vector<FailedRequest> add(std::shared_ptr<RangeRequest> request);
  // Takes an answer of a server, unless the request was answered already. Its call has the values
  // when they are here. Throws Error(server, failure) if the answer does not fit the request, which
  // then stays.
  void take(const std::string& server, const Message& message);
  // Ends the receive of the request's values: they are not written to any more.
  void stop(RangeRequest& request);
  // Small requests between these calls leave together.
  void begin() { endpoint_.begin(); }
  void end() { endpoint_.end(); }
  const Traffic& traffic() const { return traffic_; }
  void count_keys(uint64_t keys, uint64_t left_out);
  // Sends requests again that were not answered in time.
  void resend();
  // Returns a text such as `no answer of s1 for range 3 (and 2 others)`.
  std::string missing(const Call& call) const;

 private:
  struct Queue {
    explicit Queue(net::Duration patience) : items(patience, 16) {}

    ResendQueue<std::shared_ptr<RangeRequest>> items;
    uint64_t last = 0;        // the number of the last request
    std::string server;       // to which the requests were sent
    std::set<uint64_t> kept;  // signatures of the lists of keys that the server has kept
  };

  // Receives values that are a message of their own into the call's memory.
  void receive_values(const std::string& server, const std::shared_ptr<RangeRequest>& request,
                      const Answer& head, size_t head_bytes);
  // `bytes` and `plain_bytes`: of the answer.
  void finish(const std::shared_ptr<RangeRequest>& request, const Answer& answer, size_t bytes,
              size_t plain_bytes);
  // Drops values that come on this channel; 0: none do.
  void refuse_values(const std::string& server, net::Channel channel);
  void send(uint32_t range);
  void send_one(uint32_t range, uint64_t number, const RangeRequest& request,
                net::Completion completion);
  std::vector<FailedRequest> fail_lost(uint32_t range);

  GatheringEndpoint endpoint_;
  const net::Duration patience_;
  const Answered answered_;
  std::shared_ptr<const RingMap> map_;
  uint64_t worker_ = 0;
  int64_t committed_ = -1;
  std::vector<Queue> queues_;                               // by range
  std::map<std::string, std::deque<net::Ticket>> refused_;  // values, by server
  Traffic traffic_;
};

}  // namespace troika::server
