#include "troika/comm/algorithms/nodes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "troika/comm/algorithms/basic.h"
#include "troika/comm/algorithms/ring.h"

namespace troika::comm {

namespace {

at::Tensor tensor_of(ByteSpan span, c10::ScalarType type) {
  const auto count = static_cast<int64_t>(span.bytes / c10::elementSize(type));
  return at::from_blob(span.data, {count}, type);
}

Call call_of(Operation operation, c10::ScalarType type, int64_t count) {
  Call call;
  call.operation = operation;
  call.type = type;
  call.fingerprint.operation = static_cast<int32_t>(operation);
  call.fingerprint.type = static_cast<int32_t>(type);
  call.fingerprint.count = count;
  return call;
}

ByteSpan whole_of(const std::vector<ByteSpan>& blocks) {
  return {blocks.front().data,
          static_cast<size_t>(blocks.back().data + blocks.back().bytes - blocks.front().data)};
}

std::vector<int64_t> counts_of(const std::vector<ByteSpan>& blocks, c10::ScalarType type) {
  std::vector<int64_t> counts;
  for (const ByteSpan block : blocks) {
    counts.push_back(static_cast<int64_t>(block.bytes / c10::elementSize(type)));
  }
  return counts;
}

}  // namespace

Nodes::Nodes(const std::vector<int>& numbers, int me) : me_(me) {
  std::map<int, size_t> indices;
  for (const int number : numbers) indices.emplace(number, 0);
  for (auto& [_, index] : indices) {
    index = members_.size();
    members_.emplace_back();
  }
  for (const int number : numbers) {
    const size_t index = indices[number];
    auto& node = members_[index];
    places_.push_back(node.size());
    node.push_back(static_cast<int>(nodes_.size()));
    nodes_.push_back(index);
  }
}

size_t Nodes::smallest() const {
  return std::ranges::min(members_, {}, &std::vector<int>::size).size();
}

size_t Nodes::largest() const {
  return std::ranges::max(members_, {}, &std::vector<int>::size).size();
}

std::vector<int> Nodes::across(size_t place) const {
  std::vector<int> chosen;
  for (const auto& node : members_) {
    if (place < node.size()) chosen.push_back(node[place]);
  }
  return chosen;
}

bool InsideNode::run(Call call) const {
  const CollectiveFingerprint& fingerprint = inside_.channel.fingerprint();
  std::ranges::copy(fingerprint.label, call.fingerprint.label);
  std::ranges::copy(fingerprint.site, call.fingerprint.site);
  return inside_.channel.impl().run_within_node(std::move(call), inside_.deadline);
}

void InsideNode::reduce_scatter(const std::vector<ByteSpan>& blocks,
                                const Elements& elements) const {
  const ByteSpan whole = whole_of(blocks);
  Call call = call_of(Operation::reduce_scatter, elements.type,
                      static_cast<int64_t>(elements.count(whole)));
  // The divisor of Elements may differ from the number of the node's members.
  call.reduce_op = elements.op == ReduceOp::average ? ReduceOp::sum : elements.op;
  call.fingerprint.reduce_op = static_cast<int32_t>(call.reduce_op);
  call.input = tensor_of(whole, elements.type);
  call.output = tensor_of(blocks[static_cast<size_t>(inside_.me)], elements.type);
  call.input_counts = counts_of(blocks, elements.type);
  call.divisor = elements.divisor;
  if (size() == 1 || !run(std::move(call))) flat_reduce_scatter(inside_, blocks, elements);
}

void InsideNode::all_gather(const std::vector<ByteSpan>& blocks) const {
  const ByteSpan whole = whole_of(blocks);
  Call call = call_of(Operation::all_gather, at::kByte, static_cast<int64_t>(whole.bytes));
  call.input = tensor_of(blocks[static_cast<size_t>(inside_.me)], at::kByte);
  call.output = tensor_of(whole, at::kByte);
  call.output_counts = counts_of(blocks, at::kByte);
  if (size() > 1 && !run(std::move(call))) ring_all_gather(inside_, blocks);
}

void InsideNode::broadcast(ByteSpan whole, int root) const {
  Call call = call_of(Operation::broadcast, at::kByte, static_cast<int64_t>(whole.bytes));
  call.root = call.fingerprint.root = root;
  call.output = tensor_of(whole, at::kByte);
  if (size() > 1 && !run(std::move(call))) tree_broadcast(inside_, whole, root);
}

bool InsideNode::barrier() const {
  return run(call_of(Operation::barrier, at::kByte, 0));
}

}  // namespace troika::comm
