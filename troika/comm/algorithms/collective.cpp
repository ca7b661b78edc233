#include "troika/comm/algorithms/collective.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "troika/base/error.h"
#include "troika/comm/algorithms/all_reduce.h"
#include "troika/comm/algorithms/basic.h"
#include "troika/comm/algorithms/hierarchical.h"
#include "troika/comm/algorithms/ring.h"

namespace troika::comm {

namespace {

ByteSpan span_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {static_cast<char*>(tensor.data_ptr()), tensor.nbytes()};
}

Elements elements_of(const Call& call) {
  return {call.type, call.reduce_op, call.divisor};
}

void reduce_to_root(const RankSubset& subset, Call call) {
  const auto elements = elements_of(call);
  // Reducing overwrites the tensors of all ranks except the root, so work on a copy.
  if (subset.me != call.root) call.output = call.output.clone();
  const ByteSpan whole = span_of(call.output);
  if (elements.is_integer_average()) {
    const auto blocks = even_blocks(whole, elements.size(), subset.size());
    flat_reduce_scatter(subset, blocks, elements);
    return linear_gather(subset, blocks[static_cast<size_t>(subset.me)], blocks, call.root);
  }
  tree_reduce(subset, whole, call.root, elements.divided_ahead(whole));
}

}  // namespace

const Links& MessageCollectives::links(const RankSubset& subset) {
  if (!links_) {
    Traffic uncounted;
    links_ = measure_links(everyone(subset.channel, subset.deadline, uncounted));
  }
  return *links_;
}

void MessageCollectives::all_reduce(const RankSubset& subset, const Call& call) {
  const ByteSpan whole = span_of(call.output);
  const auto elements = elements_of(call);
  if (subset.size() == 1) return;
  if (elements.is_integer_average()) return ring_all_reduce(subset, whole, elements);
  const auto& nodes = subset.channel.info().nodes;
  const bool half = elements.is_half();
  auto algorithm = call.algorithm;
  if (half && (algorithm == Algorithm::automatic || algorithm == Algorithm::ring)) {
    // Fewest roundings. On several nodes, a ring that rounds once would send more data between
    // nodes.
    algorithm = nodes_.has_levels() ? Algorithm::hierarchical : Algorithm::ring;
  } else if (algorithm == Algorithm::automatic) {
    algorithm = choose(links(subset), nodes, whole.bytes);
  }
  switch (algorithm) {
    case Algorithm::recursive_doubling:
      return recursive_doubling_all_reduce(subset, whole, elements);
    case Algorithm::rabenseifner:
      return rabenseifner_all_reduce(subset, whole, elements);
    case Algorithm::double_tree:
      return double_tree_all_reduce(subset, whole, elements);
    case Algorithm::hierarchical:
      return hierarchical_all_reduce(
          subset, nodes_, whole, elements,
          half ? Algorithm::ring : choose_between(links(subset), nodes, whole.bytes));
    default:
      return ring_all_reduce(subset, whole, elements);
  }
}

void MessageCollectives::reduce_scatter(const RankSubset& subset, const Call& call) {
  if (subset.size() == 1) return copy(span_of(call.input), span_of(call.output));
  const auto elements = elements_of(call);
  if (nodes_.has_levels() && !elements.is_integer_average()) {
    const auto blocks = blocks_of(span_of(call.input), elements.size(), call.input_counts);
    return hierarchical_reduce_scatter(subset, nodes_, blocks, span_of(call.output), elements);
  }
  const auto used_up = call.input.clone();
  const auto blocks = blocks_of(span_of(used_up), elements.size(), call.input_counts);
  flat_reduce_scatter(subset, blocks, elements);
  copy(blocks[static_cast<size_t>(subset.me)], span_of(call.output));
}

void MessageCollectives::all_gather(const RankSubset& subset, const Call& call) {
  const auto blocks =
      blocks_of(span_of(call.output), c10::elementSize(call.type), call.output_counts);
  copy(span_of(call.input), blocks[static_cast<size_t>(subset.me)]);
  if (nodes_.has_levels()) return hierarchical_all_gather(subset, nodes_, blocks);
  ring_all_gather(subset, blocks);
}

void MessageCollectives::broadcast(const RankSubset& subset, const Call& call) {
  const ByteSpan whole = span_of(call.output);
  if (nodes_.has_levels()) return hierarchical_broadcast(subset, nodes_, whole, call.root);
  tree_broadcast(subset, whole, call.root);
}

void MessageCollectives::barrier(const RankSubset& subset) {
  if (nodes_.has_levels() && hierarchical_barrier(subset, nodes_)) return;
  dissemination_barrier(subset);
}

// A message of an unexpected length is refused, but only by its receiver, and other ranks may have
// moved data by then. So lengths are compared first.
void MessageCollectives::check_splits(const RankSubset& subset, const Call& call) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int n = subset.size();
  Traffic uncounted;
  const RankSubset asking = everyone(subset.channel, subset.deadline, uncounted);
  const auto bytes_of = [](void* data, size_t count) {
    return ByteSpan{static_cast<char*>(data), count * sizeof(int64_t)};
  };
  std::vector<int64_t> sizes = call.input_counts;
  std::vector<int64_t> sent(sizes.size());
  pairwise_all_to_all(asking, even_blocks(bytes_of(sizes.data(), sizes.size()), sizeof(int64_t), n),
                      even_blocks(bytes_of(sent.data(), sent.size()), sizeof(int64_t), n));
  const auto [theirs, mine] = std::ranges::mismatch(sent, call.output_counts);
  const int64_t from = theirs == sent.end() ? kNone : theirs - sent.begin();
  // The lowest rank with a mismatch, or none, and its mismatch.
  int64_t surprised = from == kNone ? kNone : int64_t{subset.me};
  recursive_doubling_all_reduce(asking, bytes_of(&surprised, 1),
                                {c10::ScalarType::Long, ReduceOp::min});
  if (surprised == kNone) return;
  std::array<int64_t, 3> what{};
  if (surprised == subset.me) what = {from, *theirs, *mine};
  tree_broadcast(asking, bytes_of(what.data(), what.size()), static_cast<int>(surprised));
  const auto name = [&](int64_t rank) {
    return subset.channel.impl().rank_name(static_cast<int>(rank));
  };
  throw Error(
      "comm", ErrorKind::usage,
      {.what = fmt::format("the splits of {} do not fit together", call.fingerprint.describe()),
       .got = fmt::format("{} elements from {} to {}", what[1], name(what[0]), name(surprised)),
       .expected = fmt::format("{}, by {}'s output splits", what[2], name(surprised))});
}

void MessageCollectives::run(Channel& channel, const Call& call, Deadline deadline) {
  const RankSubset subset = everyone(channel, deadline, traffic_);
  const size_t element = c10::elementSize(call.type);
  const ByteSpan input = span_of(call.input);
  const ByteSpan output = span_of(call.output);
  switch (call.operation) {
    case Operation::all_reduce:
      return all_reduce(subset, call);
    case Operation::reduce:
      return reduce_to_root(subset, call);
    case Operation::reduce_scatter:
      return reduce_scatter(subset, call);
    case Operation::all_gather:
      return all_gather(subset, call);
    case Operation::broadcast:
      return broadcast(subset, call);
    case Operation::gather:
      return linear_gather(subset, input, blocks_of(output, element, call.output_counts),
                           call.root);
    case Operation::scatter:
      return linear_scatter(subset, output, blocks_of(input, element, call.input_counts),
                            call.root);
    case Operation::all_to_all:
      check_splits(subset, call);
      return pairwise_all_to_all(subset, blocks_of(input, element, call.input_counts),
                                 blocks_of(output, element, call.output_counts));
    case Operation::measure_links:
      links(subset);
      return;
    case Operation::barrier:
      return barrier(subset);
  }
}

}  // namespace troika::comm
