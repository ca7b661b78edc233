#include "troika/parallel/context/sample_parts.h"

#include "troika/compat/torch.h"
#include "troika/parallel/collective_node.h"
#include "troika/parallel/tensor/axis_functions.h"

namespace troika::parallel {

namespace {

constexpr const char* kContextCollective = "a collective over the context axis";

nn::TokenPart part_of(const comm::Group& axis) {
  return {axis.rank(), axis.size()};
}

}  // namespace

at::Tensor own_part(const at::Tensor& x, const nn::TokenPart& part) {
  std::vector<at::Tensor> chunks;
  for (const auto& [first, count] : part.stretches(x.size(kTokens) / part.count)) {
    chunks.push_back(x.slice(kTokens, first, first + count));
  }
  return at::cat(chunks, kTokens);
}

at::Tensor in_sample_order(const at::Tensor& parts) {
  const at::Tensor chunks = parts.unflatten(1, {2, -1});
  return at::cat({chunks.select(1, 0), chunks.select(1, 1).flip(0)}).flatten(0, 1);
}

at::Tensor in_parts(const at::Tensor& tokens, int64_t parts) {
  const at::Tensor halves = tokens.unflatten(0, {2, parts, -1});
  return at::stack({halves[0], halves[1].flip(0)}, 1).flatten(1, 2);
}

at::Tensor gather_parts(const at::Tensor& part, const comm::Group& axis) {
  const auto gathered = [&](const at::Tensor& x) {
    const at::Tensor own = x.transpose(0, kTokens).contiguous();
    auto sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), axis.size());
    const at::Tensor all = at::empty(sizes, own.options());
    axis.all_gather(all, own, {}, {.label = "context axis: gather"});
    return in_sample_order(all).transpose(0, kTokens).contiguous();
  };
  return with_gradient(
      part, gathered,
      [axis](const at::Tensor& gradient) {
        return own_part(gradient, part_of(axis)).mul_(axis.size());
      },
      kContextCollective);
}

at::Tensor sum_parts(const at::Tensor& x, const comm::Group& axis) {
  return with_gradient(
      x,
      [&](const at::Tensor& own) {
        at::Tensor sum = own.clone();
        axis.all_reduce(sum, comm::ReduceOp::sum, {.label = "context axis: sum"});
        return sum;
      },
      [axis](const at::Tensor& gradient) { return gradient * axis.size(); }, kContextCollective);
}

}  // namespace troika::parallel
