#include "troika/compat/flop_counter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace troika::compat {

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

thread_local FlopCounter* counter = nullptr;

// Of [..., m, k] and [..., k, n].
int64_t product(const c10::IValue& a, const c10::IValue& b) {
  return 2 * a.toTensor().numel() * b.toTensor().size(-1);
}

// Each element of `weight` [c_out, c_in / groups, ...] meets each place of a map of the output, or
// transposed of the input.
int64_t convolution(const at::Tensor& places, const at::Tensor& weight) {
  return 2 * (places.numel() / std::max<int64_t>(1, places.size(1))) * weight.numel();
}

// Arguments of aten::convolution: input, weight, bias, stride, padding, dilation, transposed, ...
int64_t convolution_forward(Inputs in) {
  const auto input = in[0].toTensor(), weight = in[1].toTensor();
  if (in[6].toBool()) return convolution(input, weight);
  const auto stride = in[3].toIntVector(), padding = in[4].toIntVector(),
             dilation = in[5].toIntVector();
  int64_t places = input.size(0);
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    const auto of = [&](const std::vector<int64_t>& list) {
      return list[std::min(static_cast<size_t>(dim - 2), list.size() - 1)];
    };
    const int64_t reach = of(dilation) * (weight.size(dim) - 1) + 1;
    places *= (input.size(dim) + 2 * of(padding) - reach) / of(stride) + 1;
  }
  return 2 * places * weight.numel();
}

// Of aten::convolution_backward: grad_output, input, weight, bias_sizes, stride, padding, dilation,
// transposed, output_padding, groups, output_mask.
int64_t convolution_backward(Inputs in) {
  const auto& places = in[7].toBool() ? in[1] : in[0];
  const auto wanted = in[10].toBoolList();
  return (int64_t{wanted[0]} + int64_t{wanted[1]}) *
         convolution(places.toTensor(), in[2].toTensor());
}

int64_t product_of_first(Inputs in) {
  return product(in[0], in[1]);
}

int64_t product_added(Inputs in) {
  return product(in[1], in[2]);
}

using Count = int64_t (*)(Inputs);

// Null for what does not count; of such an operator the inputs may not be there.
Count count_of(std::string_view name) {
  if (name == "aten::mm" || name == "aten::bmm") return &product_of_first;
  if (name == "aten::addmm" || name == "aten::baddbmm") return &product_added;
  if (name == "aten::convolution") return &convolution_forward;
  if (name == "aten::convolution_backward") return &convolution_backward;
  return nullptr;
}

}  // namespace

// Each operator or node that it returns one of these for is left again.
struct FlopCounter::Observer : at::ObserverContext {
  explicit Observer(int& depth_of) : depth(depth_of) { ++depth; }
  int& depth;

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    if (!counter) return nullptr;
    if (call.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      return std::make_unique<Observer>(counter->backward_);
    }
    const Count count = count_of(call.name());
    if (!count) return nullptr;
    if (counter->inside_ == 0) {
      const int64_t flops = count(call.inputs());
      const bool again = counter->backward_ > 0 && at::GradMode::is_enabled();
      (again ? counter->recomputed_ : counter->flops_) += flops;
    }
    return std::make_unique<Observer>(counter->inside_);
  }
  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (context) --static_cast<Observer*>(context)->depth;
  }
};

FlopCounter::FlopCounter() {
  counter = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&Observer::start, &Observer::end)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

FlopCounter::~FlopCounter() {
  at::removeCallback(handle_);
  counter = nullptr;
}

FlopCounter::Pause::Pause() : paused_(std::exchange(counter, nullptr)) {}

FlopCounter::Pause::~Pause() {
  counter = paused_;
}

}  // namespace troika::compat
