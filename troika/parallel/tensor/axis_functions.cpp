#include "troika/parallel/tensor/axis_functions.h"

#include <ATen/SequenceNumber.h>

#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include "troika/base/trace.h"
#include "troika/compat/autocast.h"
#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/parallel/collective_node.h"
#include "troika/parallel/tensor/lanes.h"

namespace troika::parallel {

namespace {

using torch::autograd::variable_list;

constexpr const char* kTensorCollective = "a collective over the tensor axis";

// The collectives themselves. They return new tensors.

// A sum that may still be running: `tensor` must not be touched before finish() has returned.
struct RunningSum {
  at::Tensor tensor;
  comm::Work work;

  int64_t bytes() const { return static_cast<int64_t>(tensor.nbytes()); }
  const at::Tensor& finish() const {
    work.wait();
    return tensor;
  }
};

// Images keep their memory format, which is the same on all ranks.
RunningSum summed(const at::Tensor& x, const comm::Group& axis, bool async_op) {
  const auto format = x.suggest_memory_format();
  const bool is_image = format == at::MemoryFormat::ChannelsLast;
  at::Tensor sum = x.clone(is_image ? format : at::MemoryFormat::Contiguous);
  auto work = axis.all_reduce(in_memory_order(sum), comm::ReduceOp::sum,
                              {.label = "tensor axis: sum", .async_op = async_op});
  return {std::move(sum), std::move(work)};
}

// Tensors that may still be gathered: `all` must not be touched before finish() has returned.
struct RunningGather {
  at::Tensor own;
  at::Tensor all;
  comm::Work work;
  int64_t dim;

  int64_t bytes() const { return static_cast<int64_t>(all.nbytes()); }
  at::Tensor finish() const {
    work.wait();
    return all.transpose(0, dim).contiguous();
  }
};

// Finishes a collective of a forward pass. start(async_op) starts it.
template <typename Start>
at::Tensor in_turns(const Start& start, Trace* trace) {
  const auto begin = Clock::now();
  const auto running = start(Lanes::take_turns());
  Lanes::wait(running.work);
  if (trace) {
    const auto times = running.work.times();  // none: the collective blocked the pass
    trace->add({.track = times ? "tensor axis" : "compute",
                .name = "forward sum",
                .start = times ? times->start : begin,
                .end = times ? times->end : Clock::now(),
                .bytes = running.bytes()});
  }
  return running.finish();
}

// Rank r has lengths[r] elements of dimension `dim`.
RunningGather gather(const at::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths,
                     const comm::Group& axis, bool async_op) {
  const at::Tensor own = x.transpose(0, dim).contiguous();
  auto sizes = own.sizes().vec();
  sizes[0] = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const at::Tensor all = at::empty(sizes, own.options());
  auto work =
      axis.all_gather(all, own, lengths, {.label = "tensor axis: gather", .async_op = async_op});
  return {own, all, std::move(work), dim};
}

RunningGather gather_own_tokens(const at::Tensor& x, const comm::Group& axis, bool async_op) {
  const std::vector<int64_t> lengths(static_cast<size_t>(axis.size()), x.size(kTokens));
  return gather(x, kTokens, lengths, axis, async_op);
}

// For backward passes.
at::Tensor gathered_tokens(const at::Tensor& x, const comm::Group& axis) {
  return gather_own_tokens(x, axis, /*async_op=*/false).finish();
}

RunningSum tokens_of_sum(const at::Tensor& x, const comm::Group& axis, bool async_op) {
  const at::Tensor all = x.transpose(0, kTokens).contiguous();
  auto sizes = all.sizes().vec();
  sizes[0] /= axis.size();
  const at::Tensor own = at::empty(sizes, all.options());
  auto work = axis.reduce_scatter(own, all, comm::ReduceOp::sum, {},
                                  {.label = "tensor axis: sum of tokens", .async_op = async_op});
  return {own.transpose(0, kTokens), std::move(work)};
}

at::Tensor part_of_tokens(const at::Tensor& x, const comm::Group& axis) {
  return x.chunk(axis.size(), kTokens)[static_cast<size_t>(axis.rank())].contiguous();
}

// Returns forward(x), whose gradient is backward(gradient).
at::Tensor with_axis_gradient(const at::Tensor& x, const OfTensor& forward, OfTensor backward) {
  return with_gradient(x, forward, std::move(backward), kTensorCollective);
}

// The tokens of all ranks, of which each keeps its own.
class GatheredAgain : public nn::RemadeInput {
 public:
  GatheredAgain(const at::Tensor& own, comm::Group axis)
      : own_(own, /*is_output=*/false), axis_(std::move(axis)) {}

  // Returns a function that makes this object while `x` exists, in the type in which layers
  // compute.
  static std::function<std::shared_ptr<nn::RemadeInput>()> of(const at::Tensor& x,
                                                              const comm::Group& axis) {
    return [weak = c10::weak_intrusive_ptr<at::TensorImpl>(x.getIntrusivePtr()),
            axis]() -> std::shared_ptr<nn::RemadeInput> {
      const auto alive = weak.lock();
      if (!alive) return nullptr;
      const at::Tensor own(alive);
      const auto type = compat::compute_type(own);
      const bool casts = own.scalar_type() != type;
      return std::make_shared<GatheredAgain>(casts ? own.detach().to(type) : own, axis);
    };
  }

  void add_user() override { ++users_; }
  void start() override {
    if (running_ || all_.defined()) return;
    const at::Tensor own = own_.unpack();  // may recompute
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    running_ = gather_own_tokens(own, axis_, /*async_op=*/true);
  }
  at::Tensor take() override {
    start();
    if (!all_.defined()) {
      const at::AutoDispatchBelowADInplaceOrView no_graph;
      all_ = std::exchange(running_, {})->finish();
    }
    if (++takes_ < users_) return all_;
    takes_ = 0;
    return std::exchange(all_, {});
  }

 private:
  const torch::autograd::SavedVariable own_;
  const comm::Group axis_;
  int users_ = 0, takes_ = 0;
  std::optional<RunningGather> running_;
  at::Tensor all_;
};

// A sum between its start in the backward pass and the wait for it.
struct SumInBackward {
  Trace* trace;  // may be null
  bool has_weights_beside = false;
  std::optional<RunningSum> sum = {};
  Clock::time_point start = {};
  std::optional<Clock::time_point> ended = {};  // if the call itself ran the sum

  void begin(const std::function<RunningSum(const at::Tensor&)>& of, const at::Tensor& gradient) {
    start = Clock::now();
    sum = of(gradient);
    if (sum->work.done() && !sum->work.times()) ended = Clock::now();
  }
  at::Tensor finish() {
    const auto wait = Clock::now();
    const auto finished = *std::exchange(sum, {});
    const at::Tensor& tensor = finished.finish();
    if (trace) record(wait, finished);
    return tensor.contiguous(tensor.suggest_memory_format());
  }

 private:
  void record(Clock::time_point wait, const RunningSum& of) const {
    const auto bytes = static_cast<int64_t>(of.tensor.nbytes());
    const auto times = of.work.times();
    if (!times) {  // the sum blocked the backward pass
      trace->add({.track = "compute",
                  .name = "gradient sum",
                  .start = start,
                  .end = ended.value_or(Clock::now()),
                  .bytes = bytes});
      return;
    }
    trace->add({.track = "tensor axis",
                .name = "gradient sum",
                .start = start,
                .end = times->end,
                .bytes = bytes});
    if (!has_weights_beside) return;
    trace->add({.track = "compute", .name = "weight gradients", .start = start, .end = wait});
  }
};

// Starts a sum in the backward pass. The node behind it waits for the sum. Nodes whose sequence
// numbers are between theirs run in between.
class SumStart : public torch::autograd::Node {
 public:
  using Start = std::function<RunningSum(const at::Tensor&)>;
  using Remake = std::function<std::shared_ptr<nn::RemadeInput>()>;

  // `remake` returns the input of layers behind this node, or null; null: they keep it.
  SumStart(Start start, std::shared_ptr<SumInBackward> running, Remake remake,
           torch::autograd::edge_list&& edges)
      : Node(std::move(edges)),
        start_(std::move(start)),
        running_(std::move(running)),
        remake_(std::move(remake)) {}

  nn::LateWeights late_weights() {
    if (!input_ && remake_) input_ = remake_();
    running_->has_weights_beside = true;
    return {sequence_nr() - 1, input_};
  }

  variable_list apply(variable_list&& gradients) override {
    compat::refuse_create_graph(kTensorCollective);
    if (!gradients[0].defined()) return {at::Tensor()};
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    running_->begin(start_, gradients[0]);
    return {running_->sum->tensor};
  }
  void release_variables() override { input_.reset(); }

 private:
  const Start start_;
  const std::shared_ptr<SumInBackward> running_;
  const Remake remake_;
  std::shared_ptr<nn::RemadeInput> input_;
};

// Returns forward(x), whose gradient is the sum that start(gradient) starts.
at::Tensor with_running_sum(const at::Tensor& x, const OfTensor& forward, SumStart::Start start,
                            SumStart::Remake remake, Trace* trace) {
  const auto running = std::make_shared<SumInBackward>(SumInBackward{trace});
  const at::Tensor entering = with_axis_gradient(
      x, [](const at::Tensor& input) { return at::alias(input); },
      [running](const at::Tensor&) { return running->finish(); });
  at::Tensor result = [&] {
    const at::AutoDispatchBelowADInplaceOrView no_graph;
    return forward(entering);
  }();
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return result;
  at::sequence_number::get_and_increment();  // of SumStart::late_weights()
  compat::set_history(result,
                      compat::make_node<SumStart>(std::move(start), running, std::move(remake),
                                                  torch::autograd::collect_next_edges(entering)));
  return result;
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& x) {
  return x.dim() == 4 && !x.is_contiguous() ? x.permute({0, 2, 3, 1}) : x;
}

at::Tensor copy_to_axis(const at::Tensor& x, const comm::Group& axis, Trace* trace) {
  return with_running_sum(
      x, [](const at::Tensor& input) { return at::alias(input); },
      [axis](const at::Tensor& gradient) { return summed(gradient, axis, /*async_op=*/true); },
      /*remake=*/nullptr, trace);
}

at::Tensor sum_over_axis(const at::Tensor& x, const comm::Group& axis, Trace* trace) {
  return with_axis_gradient(
      x,
      [&](const at::Tensor& input) {
        return in_turns([&](bool async_op) { return summed(input, axis, async_op); }, trace);
      },
      [](const at::Tensor& gradient) { return gradient; });
}

at::Tensor gather_columns(const at::Tensor& x, const std::vector<int64_t>& widths,
                          const comm::Group& axis, Trace* trace) {
  const auto own = widths.begin() + axis.rank();
  const int64_t begin = std::accumulate(widths.begin(), own, int64_t{0});
  return with_axis_gradient(
      x,
      [&](const at::Tensor& input) {
        return in_turns(
            [&](bool async_op) { return gather(input, input.dim() - 1, widths, axis, async_op); },
            trace);
      },
      [begin, width = *own](const at::Tensor& gradient) {
        return gradient.slice(-1, begin, begin + width).contiguous();
      });
}

at::Tensor own_tokens(const at::Tensor& x, const comm::Group& axis) {
  return with_axis_gradient(
      x, [&](const at::Tensor& input) { return part_of_tokens(input, axis); },
      [axis](const at::Tensor& gradient) { return gathered_tokens(gradient, axis); });
}

at::Tensor gather_tokens(const at::Tensor& x, const comm::Group& axis, Trace* trace) {
  return with_running_sum(
      x,
      [&](const at::Tensor& input) {
        return in_turns([&](bool async_op) { return gather_own_tokens(input, axis, async_op); },
                        trace);
      },
      [axis](const at::Tensor& gradient) {
        return tokens_of_sum(gradient, axis, /*async_op=*/true);
      },
      GatheredAgain::of(x, axis), trace);
}

std::optional<nn::LateWeights> weights_beside_sum(const at::Tensor& x) {
  auto* const start = dynamic_cast<SumStart*>(x.grad_fn().get());
  if (!start) return std::nullopt;
  return start->late_weights();
}

at::Tensor sum_own_tokens(const at::Tensor& x, const comm::Group& axis, Trace* trace) {
  return with_axis_gradient(
      x,
      [&](const at::Tensor& input) {
        return in_turns([&](bool async_op) { return tokens_of_sum(input, axis, async_op); }, trace)
            .contiguous();
      },
      [axis](const at::Tensor& gradient) { return gathered_tokens(gradient, axis); });
}

}  // namespace troika::parallel
