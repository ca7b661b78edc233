#include "troika/comm/algorithms/collective.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
  if (is_half(call.type)) {
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
  return choose(links(party.deadline), impl_.station().nodes, whole.bytes);
}

const Links& MessageCollectives::links(Deadline deadline) {
  if (!links_) {
    Traffic uncounted;
    links_ = measure_links(everyone(impl_, deadline, uncounted));
  }
  return *links_;
}

void MessageCollectives::all_reduce(const Party& party, const Call& call) {
  const Span whole = span_of(call.output);
  const auto elements = elements_of(call, party.size());
  if (party.size() == 1 || whole.bytes == 0) return;
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

// Each rank knows the sizes it sends and expects; a message of another size than is expected would
// be an error of the transport, on one rank only.
void MessageCollectives::check_splits(const Party& party, const Call& call) {
  const auto n = static_cast<size_t>(party.size());
  std::vector<int64_t> table(2 * n * n);
  int64_t* own = table.data() + 2 * n * static_cast<size_t>(party.me);
  std::ranges::copy(call.input_counts, own);
  std::ranges::copy(call.output_counts, own + n);
  Traffic uncounted;
  const Party asking = everyone(impl_, party.deadline, uncounted);
  ring_all_gather(
      asking, even_blocks({reinterpret_cast<char*>(table.data()), table.size() * sizeof(int64_t)},
                          2 * n * sizeof(int64_t), party.size()));
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const int64_t sent = table[2 * n * from + to];
      const int64_t expected = table[2 * n * to + n + from];
      if (sent == expected) continue;
      throw Error(
          "comm", ErrorKind::usage,
          {.what = fmt::format("the splits of {} do not fit together", call.print.describe()),
           .got = fmt::format("{} elements from rank {} to rank {}", sent, from, to),
           .expected = fmt::format("{}, by rank {}'s output splits", expected, to)});
    }
  }
}

void MessageCollectives::run(const Call& call, Deadline deadline) {
  const Party party = everyone(impl_, deadline, traffic_);
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
    case Operation::barrier: {
      // Dissemination (Hensgen, Finkel and Manber, 1988).
      char out = 0;
      char in = 0;
      for (int distance = 1; distance < party.size(); distance <<= 1) {
        Transfers both(party);
        both.send(modulo(party.me + distance, party.size()), {&out, 1});
        both.receive(modulo(party.me - distance, party.size()), {&in, 1});
        both.wait();
      }
      return;
    }
  }
}

}  // namespace troika::comm
