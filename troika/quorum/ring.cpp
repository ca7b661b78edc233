#include "troika/quorum/ring.h"

#include <span>
#include <string_view>

namespace troika::quorum {

namespace {

// The callbacks of a round write to this. It lives until the last of them has run.
struct Round {
  bool is_sent = false, is_received = false;
  std::string problem;
};

template <typename Number>
struct Chunk {
  size_t first, count;

  std::span<Number> of(std::vector<Number>& values) const {
    return std::span(values).subspan(first, count);
  }
};

template <typename Number>
std::span<char> bytes_of(std::span<Number> values) {
  return {reinterpret_cast<char*>(values.data()), values.size_bytes()};
}

template <typename Number>
class Sum {
 public:
  Sum(const Ring& ring, std::shared_ptr<std::vector<Number>> values,
      const std::function<bool()>& stops, net::Duration at_most)
      : ring_(ring),
        values_(std::move(values)),
        stops_(stops),
        end_(ring.endpoint.now() + at_most),
        received_(std::make_shared<std::vector<Number>>(values_->size() / ring.size + 1)) {}

  // Chunk `index`, modulo the size of the ring.
  Chunk<Number> chunk(size_t index) const {
    const size_t n = ring_.size, at = index % n, count = values_->size();
    const size_t first = at * count / n;
    return {first, (at + 1) * count / n - first};
  }

  // Sends chunk `sent`, and receives chunk `received` into `to`.
  RingResult exchange(size_t sent, size_t received, std::shared_ptr<std::vector<Number>> keep,
                      std::span<Number> to) {
    auto& endpoint = ring_.endpoint;
    const auto round = std::make_shared<Round>();
    const auto expected = chunk(received).count * sizeof(Number);
    net::Ticket receiving = 0;
    if (expected == 0) {
      round->is_received = true;
    } else {
      receiving = endpoint.receive(
          ring_.left, ring_.channel, bytes_of(to), [round, keep, expected](const auto& result) {
            round->is_received = true;
            if (result.outcome != net::Outcome::done) {
              round->problem = "nothing more comes from the neighbour: " + result.reason;
            } else if (result.bytes != expected) {
              round->problem = "the neighbour sums another number of values";
            }
          });
    }
    const auto out = bytes_of(chunk(sent).of(*values_));
    if (out.empty()) {
      round->is_sent = true;
    } else {
      endpoint.send(ring_.right, ring_.channel, std::string_view(out.data(), out.size()),
                    net::Priority::normal, [round, values = values_](const auto& result) {
                      round->is_sent = true;
                      if (result.outcome != net::Outcome::done) {
                        round->problem = "the neighbour takes nothing more: " + result.reason;
                      }
                    });
    }
    bool is_stopped = false;
    const bool is_over = endpoint.run_until(
        [&] {
          is_stopped = stops_();
          return is_stopped || !round->problem.empty() || (round->is_sent && round->is_received);
        },
        end_ - endpoint.now());
    RingResult result;
    net::act_on(endpoint, [&] {
      if (is_stopped) {
        result.end = RingResult::End::stopped;
      } else if (!is_over) {
        result = {RingResult::End::failed, "the sum took too long"};
      } else if (!round->problem.empty()) {
        result = {RingResult::End::failed, round->problem};
      }
    });
    if (result.end != RingResult::End::done && receiving != 0) {
      endpoint.cancel(receiving, net::Outcome::cancelled);
    }
    return result;
  }

  RingResult run(const std::function<void()>& after_first) {
    const size_t n = ring_.size, own = ring_.index;
    for (size_t round = 0; round + 1 < n; ++round) {
      const size_t sent = own + n - round, taken = own + n - round - 1;
      const auto into = chunk(taken);
      const auto to = std::span(*received_).first(into.count);
      const auto result = exchange(sent, taken, received_, to);
      if (result.end != RingResult::End::done) return result;
      const auto sum = into.of(*values_);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += to[i];
      if (round == 0) after_first();
    }
    for (size_t round = 0; round + 1 < n; ++round) {
      const size_t sent = own + 1 + n - round, taken = own + n - round;
      const auto result = exchange(sent, taken, values_, chunk(taken).of(*values_));
      if (result.end != RingResult::End::done) return result;
    }
    return {};
  }

 private:
  const Ring& ring_;
  const std::shared_ptr<std::vector<Number>> values_;
  const std::function<bool()>& stops_;
  const net::Duration end_;
  const std::shared_ptr<std::vector<Number>> received_;
};

}  // namespace

template <typename Number>
RingResult ring_sum(const Ring& ring, const std::shared_ptr<std::vector<Number>>& values,
                    const std::function<bool()>& stops, net::Duration at_most,
                    const std::function<void()>& after_first) {
  return Sum<Number>(ring, values, stops, at_most).run(after_first);
}

template RingResult ring_sum<float>(const Ring&, const std::shared_ptr<std::vector<float>>&,
                                    const std::function<bool()>&, net::Duration,
                                    const std::function<void()>&);
template RingResult ring_sum<double>(const Ring&, const std::shared_ptr<std::vector<double>>&,
                                     const std::function<bool()>&, net::Duration,
                                     const std::function<void()>&);

}  // namespace troika::quorum
