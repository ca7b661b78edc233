#include "troika/quorum/ring.h"

#include <span>
#include <string_view>
#include <utility>

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
  Sum(const Ring& ring, const std::shared_ptr<std::vector<Number>>& values,
      const std::function<bool()>& stops, net::Duration at_most)
      : ring_(ring),
        buffers_(std::make_shared<Buffers>(Buffers{
            .values = values, .received = std::vector<Number>(values->size() / ring.size + 1)})),
        stops_(stops),
        end_(ring.endpoint.now() + at_most) {}

  // Chunk `index`, modulo the size of the ring.
  Chunk<Number> chunk(size_t index) const {
    const size_t n = ring_.size, at = index % n, count = buffers_->values->size();
    const size_t first = at * count / n;
    return {first, (at + 1) * count / n - first};
  }

  // Sends `out`, and receives into `to`, both of which `keep` keeps alive.
  RingResult exchange(std::span<const char> out, std::span<char> to,
                      const std::shared_ptr<const void>& keep) {
    auto& endpoint = ring_.endpoint;
    const auto round = std::make_shared<Round>();
    net::Ticket receiving = 0;
    if (to.empty()) {
      round->is_received = true;
    } else {
      receiving = endpoint.receive(
          ring_.left, ring_.channel, to, [round, keep, expected = to.size()](const auto& result) {
            round->is_received = true;
            if (result.outcome != net::Outcome::done) {
              round->problem = "nothing more comes from the neighbour: " + result.reason;
            } else if (result.bytes != expected) {
              round->problem = "the neighbour sums another number of values";
            }
          });
    }
    if (out.empty()) {
      round->is_sent = true;
    } else {
      endpoint.send(ring_.right, ring_.channel, std::string_view(out.data(), out.size()),
                    net::Priority::normal, [round, keep](const auto& result) {
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
    const std::shared_ptr<const void> keep(buffers_, buffers_.get());
    for (size_t round = 0; round + 1 < n; ++round) {
      const auto from = chunk(own + n - round), into = chunk(own + n - round - 1);
      const auto to = std::span(buffers_->received).first(into.count);
      const auto result = exchange(bytes_of(from.of(*buffers_->values)), bytes_of(to), keep);
      if (result.end != RingResult::End::done) return result;
      add(to, into);
      if (round == 0) after_first();
    }
    for (size_t round = 0; round + 1 < n; ++round) {
      const auto from = chunk(own + 1 + n - round), into = chunk(own + n - round);
      const auto result = exchange(bytes_of(from.of(*buffers_->values)),
                                   bytes_of(into.of(*buffers_->values)), keep);
      if (result.end != RingResult::End::done) return result;
    }
    return {};
  }

  // Each partial sum is packed once. The whole sum of a chunk is packed by one member, and all
  // members, this one too, unpack the same bytes.
  RingResult run(const std::function<void()>& after_first, const net::Packing<Number>& packing) {
    const size_t n = ring_.size, own = ring_.index;
    const std::shared_ptr<const void> keep(buffers_, buffers_.get());
    auto& [values, received, out, in] = *buffers_;
    const auto pack = [&](const Chunk<Number>& from) {
      out.resize(packing.bytes(from.first, from.count));
      packing.pack(from.first, from.of(*values), out);
    };
    for (size_t round = 0; round + 1 < n; ++round) {
      const auto into = chunk(own + n - round - 1);
      pack(chunk(own + n - round));
      in.resize(packing.bytes(into.first, into.count));
      const auto result = exchange(out, in, keep);
      if (result.end != RingResult::End::done) return result;
      const auto to = std::span(received).first(into.count);
      packing.unpack(into.first, in, to);
      add(to, into);
      if (round == 0) after_first();
    }
    const auto whole = chunk(own + 1);
    pack(whole);
    packing.unpack(whole.first, out, whole.of(*values));
    for (size_t round = 0; round + 1 < n; ++round) {
      const auto into = chunk(own + n - round);
      in.resize(packing.bytes(into.first, into.count));
      const auto result = exchange(out, in, keep);
      if (result.end != RingResult::End::done) return result;
      packing.unpack(into.first, in, into.of(*values));
      std::swap(out, in);
    }
    return {};
  }

 private:
  // Messages are read from and written to these, which may outlive the sum.
  struct Buffers {
    std::shared_ptr<std::vector<Number>> values;
    std::vector<Number> received = {};    // of the longest chunk
    std::vector<char> out = {}, in = {};  // packed
  };

  void add(std::span<const Number> numbers, const Chunk<Number>& to) {
    const auto sum = to.of(*buffers_->values);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += numbers[i];
  }

  const Ring& ring_;
  const std::shared_ptr<Buffers> buffers_;
  const std::function<bool()>& stops_;
  const net::Duration end_;
};

}  // namespace

template <typename Number>
RingResult ring_sum(const Ring& ring, const std::shared_ptr<std::vector<Number>>& values,
                    const std::function<bool()>& stops, net::Duration at_most,
                    const std::function<void()>& after_first, const net::Packing<Number>* packing) {
  Sum<Number> sum(ring, values, stops, at_most);
  return packing ? sum.run(after_first, *packing) : sum.run(after_first);
}

template RingResult ring_sum<float>(const Ring&, const std::shared_ptr<std::vector<float>>&,
                                    const std::function<bool()>&, net::Duration,
                                    const std::function<void()>&, const net::Packing<float>*);
template RingResult ring_sum<double>(const Ring&, const std::shared_ptr<std::vector<double>>&,
                                     const std::function<bool()>&, net::Duration,
                                     const std::function<void()>&, const net::Packing<double>*);

}  // namespace troika::quorum
