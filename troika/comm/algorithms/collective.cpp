#include "troika/comm/algorithms/collective.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "troika/base/error.h"
#include "troika/comm/algorithms/all_reduce.h"
#include "troika/comm/algorithms/basic.h"

namespace troika::comm {

namespace {

Span span_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()};
}

bool is_half(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
}

// Their sum may not fit into their type, so it is made and divided in one step: see reduce().
bool is_integer_average(const Call& call) {
  return call.reduce_op == ReduceOp::average &&
         c10::isIntegralType(call.type, /*includeBool=*/false);
}

Elements elements_of(const Call& call, int n) {
  return {call.type, call.reduce_op, call.reduce_op == ReduceOp::average ? n : 1};
}

void copy(Span from, Span into) {
  if (from.bytes > 0 && from.data != into.data) std::memcpy(into.data, from.data, from.bytes);
}

// Algorithms that reduce in steps would round halves at each: they work on a float32 copy.
template <typename Body>
void in_float(const at::Tensor& halves, const Elements& elements, Body&& body) {
  const auto wide = halves.to(at::kFloat);
  body(span_of(wide), Elements{at::kFloat, elements.op, elements.divisor});
  halves.copy_(wide);
}

void run_algorithm(Algorithm algorithm, const Party& party, Span whole, const Elements& elements) {
  switch (algorithm) {
    case Algorithm::recursive_doubling:
      return recursive_doubling_all_reduce(party, whole, elements);
    case Algorithm::rabenseifner:
      return rabenseifner_all_reduce(party, whole, elements);
    case Algorithm::double_tree:
      return double_tree_all_reduce(party, whole, elements);
    case Algorithm::hierarchical:
      return hierarchical_all_reduce(party, whole, elements);
    default:
      return ring_all_reduce(party, whole, elements);
  }
}

void reduce_to_root(const Party& party, Call call) {
  const auto elements = elements_of(call, party.size());
  // All but the root's values are used up.
  if (party.me != call.root) call.output = call.output.clone();
  if (is_integer_average(call)) {
    const auto blocks = even_blocks(span_of(call.output), elements.size(), party.size());
    direct_reduce_scatter(party, blocks, elements);
    return linear_gather(party, blocks[static_cast<size_t>(party.me)], blocks, call.root);
  }
  const auto body = [&](Span whole, const Elements& wide) {
    tree_reduce(party, whole, call.root, wide);
  };
  if (is_half(call.type)) return in_float(call.output, elements, body);
  body(span_of(call.output), elements);
}

void reduce_scatter(const Party& party, const Call& call) {
  const auto elements = elements_of(call, party.size());
  const auto used_up = call.input.clone();
  const auto blocks = blocks_of(span_of(used_up), elements.size(), call.input_counts);
  if (is_half(call.type) || is_integer_average(call)) {
    direct_reduce_scatter(party, blocks, elements);
  } else {
    ring_reduce_scatter(party, blocks, elements);
  }
  copy(blocks[static_cast<size_t>(party.me)], span_of(call.output));
}

void all_gather(const Party& party, const Call& call) {
  const auto blocks =
      blocks_of(span_of(call.output), c10::elementSize(call.type), call.output_counts);
  copy(span_of(call.input), blocks[static_cast<size_t>(party.me)]);
  ring_all_gather(party, blocks);
}

}  // namespace

Algorithm MessageCollectives::algorithm_for(const Party& party, const Call& call, Span whole) {
  if (call.algorithm != Algorithm::automatic) return call.algorithm;
  return choose(links(party), party.channel.station().nodes, whole.bytes);
}

const Links& MessageCollectives::links(const Party& party) {
  if (!links_) {
    Traffic uncounted;
    links_ = measure_links(everyone(party.channel, party.deadline, uncounted));
  }
  return *links_;
}

void MessageCollectives::all_reduce(const Party& party, const Call& call) {
  const Span whole = span_of(call.output);
  const auto elements = elements_of(call, party.size());
  if (party.size() == 1) return;
  if (is_integer_average(call)) return direct_all_reduce(party, whole, elements);
  if (!is_half(call.type)) {
    return run_algorithm(algorithm_for(party, call, whole), party, whole, elements);
  }
  // As much as the ring, with one rounding.
  if (call.algorithm == Algorithm::automatic || call.algorithm == Algorithm::ring) {
    return direct_all_reduce(party, whole, elements);
  }
  in_float(call.output, elements, [&](Span wide, const Elements& floats) {
    run_algorithm(call.algorithm, party, wide, floats);
  });
}

// A message of another length than its receiver expects is refused on receipt, but only by that
// rank, and others may have moved data by then. So lengths are compared before.
void MessageCollectives::check_splits(const Party& party, const Call& call) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int n = party.size();
  Traffic uncounted;
  const Party asking = everyone(party.channel, party.deadline, uncounted);
  const auto bytes_of = [](void* data, size_t count) {
    return Span{static_cast<char*>(data), count * sizeof(int64_t)};
  };
  std::vector<int64_t> sizes = call.input_counts;
  std::vector<int64_t> sent(sizes.size());
  pairwise_all_to_all(asking, even_blocks(bytes_of(sizes.data(), sizes.size()), sizeof(int64_t), n),
                      even_blocks(bytes_of(sent.data(), sent.size()), sizeof(int64_t), n));
  const auto [theirs, mine] = std::ranges::mismatch(sent, call.output_counts);
  const int64_t from = theirs == sent.end() ? kNone : theirs - sent.begin();
  // The lowest rank that was surprised, or none, and what surprised it.
  int64_t surprised = from == kNone ? kNone : int64_t{party.me};
  recursive_doubling_all_reduce(asking, bytes_of(&surprised, 1),
                                {c10::ScalarType::Long, ReduceOp::min});
  if (surprised == kNone) return;
  std::array<int64_t, 3> what{};
  if (surprised == party.me) what = {from, *theirs, *mine};
  tree_broadcast(asking, bytes_of(what.data(), what.size()), static_cast<int>(surprised));
  throw Error(
      "comm", ErrorKind::usage,
      {.what = fmt::format("the splits of {} do not fit together", call.print.describe()),
       .got = fmt::format("{} elements from rank {} to rank {}", what[1], what[0], surprised),
       .expected = fmt::format("{}, by rank {}'s output splits", what[2], surprised)});
}

void MessageCollectives::run(Channel& channel, const Call& call, Deadline deadline) {
  const Party party = everyone(channel, deadline, traffic_);
  const size_t element = c10::elementSize(call.type);
  const Span input = span_of(call.input);
  const Span output = span_of(call.output);
  switch (call.operation) {
    case Operation::all_reduce:
      return all_reduce(party, call);
    case Operation::reduce:
      return reduce_to_root(party, call);
    case Operation::reduce_scatter:
      return reduce_scatter(party, call);
    case Operation::all_gather:
      return all_gather(party, call);
    case Operation::broadcast:
      return tree_broadcast(party, output, call.root);
    case Operation::gather:
      return linear_gather(party, input, blocks_of(output, element, call.output_counts), call.root);
    case Operation::scatter:
      return linear_scatter(party, output, blocks_of(input, element, call.input_counts), call.root);
    case Operation::all_to_all:
      check_splits(party, call);
      return pairwise_all_to_all(party, blocks_of(input, element, call.input_counts),
                                 blocks_of(output, element, call.output_counts));
    case Operation::measure_links:
      links(party);
      return;
    case Operation::barrier: {
      // Dissemination (Hensgen, Finkel and Manber, 1988).
      for (int distance = 1; distance < party.size(); distance <<= 1) {
        Transfers both(party);
        both.send(modulo(party.me + distance, party.size()), {});
        both.receive(modulo(party.me - distance, party.size()), {});
        both.wait();
      }
      return;
    }
  }
}

}  // namespace troika::comm
