#include "troika/compat/flop_counter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <string_view>

namespace troika::compat {

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

// LibTorch's list of kinds is closed; this kind is meant for its mobile interpreter. In LibTorch
// 2.15 the kinds are static members instead of an enumeration.
const auto kKind = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;

// Nesting depths on this thread:
thread_local int inside = 0;    // of counted operators
thread_local int backward = 0;  // of nodes of a backward pass

struct Count {
  int64_t once = 0;   // FLOPs
  int64_t again = 0;  // recomputed forward-pass FLOPs in an operator of the backward pass
  int64_t bytes = 0;  // FlopCounter::Work::bytes
};

int64_t bytes_of(const at::Tensor& like, int64_t elements) {
  return elements * static_cast<int64_t>(like.element_size());
}

// Counts the product of [..., m, k] and [..., k, n].
Count product(const c10::IValue& first, const c10::IValue& second) {
  const auto a = first.toTensor(), b = second.toTensor();
  const int64_t columns = b.size(-1);
  const int64_t results = a.numel() / std::max<int64_t>(1, a.size(-1)) * columns;
  return {.once = 2 * a.numel() * columns, .bytes = bytes_of(a, a.numel() + b.numel() + results)};
}

// Each element of `weight` [c_out, c_in / groups, ...] is multiplied with each position of an
// output channel; of an input channel for a transposed convolution.
int64_t convolution(const at::Tensor& places, const at::Tensor& weight) {
  return 2 * (places.numel() / std::max<int64_t>(1, places.size(1))) * weight.numel();
}

// Arguments of aten::convolution: input, weight, bias, stride, padding, dilation, transposed, ...
// For a transposed convolution the bytes exclude the result.
Count convolution_forward(Inputs in) {
  const auto input = in[0].toTensor(), weight = in[1].toTensor();
  const int64_t operands = input.numel() + weight.numel();
  if (in[6].toBool()) {
    return {.once = convolution(input, weight), .bytes = bytes_of(input, operands)};
  }
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
  return {.once = 2 * places * weight.numel(),
          .bytes = bytes_of(input, operands + places * weight.size(0))};
}

// Inputs of aten::convolution_backward: grad_output, input, weight, bias_sizes, stride, padding,
// dilation, transposed, output_padding, groups, output_mask.
Count convolution_backward(Inputs in) {
  const auto gradient = in[0].toTensor(), input = in[1].toTensor(), weight = in[2].toTensor();
  const auto wanted = in[10].toBoolList();
  const int64_t products = int64_t{wanted[0]} + int64_t{wanted[1]};
  return {.once = products * convolution(in[7].toBool() ? input : gradient, weight),
          .bytes = products * bytes_of(input, gradient.numel() + input.numel() + weight.numel())};
}

Count product_of_first(Inputs in) {
  return product(in[0], in[1]);
}

Count product_added(Inputs in) {
  return product(in[1], in[2]);
}

// The two products of attention over [..., queries or keys, width]; there may be fewer heads of
// keys than of queries.
struct Attention {
  int64_t scores;  // [queries, width] x [width, keys]
  int64_t values;  // [queries, keys] x [keys, width of values]
  int64_t inputs;  // bytes
  int64_t output;
};
Attention attention(const c10::IValue& query, const c10::IValue& key, const c10::IValue& value) {
  const auto q = query.toTensor(), k = key.toTensor(), v = value.toTensor();
  const int64_t width = std::max<int64_t>(1, q.size(-1));
  const int64_t pairs = q.numel() / width * k.size(-2);
  return {.scores = 2 * pairs * width,
          .values = 2 * pairs * v.size(-1),
          .inputs = bytes_of(q, q.numel() + k.numel() + v.numel()),
          .output = bytes_of(q, q.numel() / width * v.size(-1))};
}

Count attention_forward(Inputs in) {
  const auto one = attention(in[0], in[1], in[2]);
  return {.once = one.scores + one.values, .bytes = one.inputs + one.output};
}

// Counts the gradients of weights and values, and of queries and keys. The scores are recomputed.
Count attention_backward(Inputs in) {
  const auto one = attention(in[1], in[2], in[3]);
  return {.once = 2 * one.scores + 2 * one.values,
          .again = one.scores,
          .bytes = 2 * one.inputs + 2 * one.output};
}

// Counts the products of inputs and states with the weights of a recurrent layer, of input
// [..., width] and `weights`, of which those with two dimensions are matrices.
Count recurrent(const at::Tensor& input, c10::ArrayRef<at::Tensor> weights) {
  const int64_t rows = input.numel() / std::max<int64_t>(1, input.size(-1));
  int64_t numbers = 0, outputs = 0;
  for (const at::Tensor& weight : weights) {
    if (weight.dim() != 2) continue;
    numbers += weight.numel();
    outputs += rows * weight.size(0);
  }
  return {.once = 2 * rows * numbers, .bytes = bytes_of(input, input.numel() + numbers + outputs)};
}

Count of_both_gradients(const Count& forward) {
  return {.once = 2 * forward.once, .bytes = 2 * forward.bytes};
}

// oneDNN's layers have their weights as arguments 1 to 4, cuDNN's as a list.
Count onednn_rnn(Inputs in) {
  return recurrent(in[0].toTensor(), std::array{in[1].toTensor(), in[2].toTensor()});
}

Count onednn_rnn_backward(Inputs in) {
  return of_both_gradients(onednn_rnn(in));
}

Count cudnn_rnn(Inputs in) {
  return recurrent(in[0].toTensor(), in[1].toTensorVector());
}

Count cudnn_rnn_backward(Inputs in) {
  return of_both_gradients(cudnn_rnn(in));
}

struct Row {
  std::string_view name;
  Count (*count)(Inputs);
};

// Fused attention has the arguments query, key, value first; its backward pass has the gradient
// before them. Includes the names in all LibTorch versions.
constexpr std::array kRows{
    Row{"aten::mm", &product_of_first},
    Row{"aten::bmm", &product_of_first},
    Row{"aten::addmm", &product_added},
    Row{"aten::baddbmm", &product_added},
    Row{"aten::convolution", &convolution_forward},
    Row{"aten::convolution_backward", &convolution_backward},
    Row{"aten::mkldnn_rnn_layer", &onednn_rnn},
    Row{"aten::mkldnn_rnn_layer_backward", &onednn_rnn_backward},
    Row{"aten::_cudnn_rnn", &cudnn_rnn},
    Row{"aten::_cudnn_rnn_backward", &cudnn_rnn_backward},
    Row{"aten::_scaled_dot_product_flash_attention", &attention_forward},
    Row{"aten::_scaled_dot_product_flash_attention_for_cpu", &attention_forward},
    Row{"aten::_scaled_dot_product_efficient_attention", &attention_forward},
    Row{"aten::_scaled_dot_product_cudnn_attention", &attention_forward},
    Row{"aten::_scaled_dot_product_fused_attention_overrideable", &attention_forward},
    Row{"aten::_scaled_dot_product_flash_attention_backward", &attention_backward},
    Row{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", &attention_backward},
    Row{"aten::_scaled_dot_product_efficient_attention_backward", &attention_backward},
    Row{"aten::_scaled_dot_product_cudnn_attention_backward", &attention_backward},
    Row{"aten::_scaled_dot_product_fused_attention_overrideable_backward", &attention_backward},
};

// Returns null for operators that are not counted; the inputs of these may be missing.
const Row* row_of(std::string_view name) {
  const auto* found =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.name == name; });
  return found == kRows.end() ? nullptr : found;
}

}  // namespace

struct FlopCounter::Counts {
  std::atomic<int64_t> flops = 0;
  std::atomic<int64_t> recomputed = 0;
  std::mutex mutex;
  std::vector<Work> works;
};

// Where the products of a thread are counted; null: they are not counted.
struct FlopCounter::Target : c10::DebugInfoBase {
  explicit Target(std::shared_ptr<Counts> of) : counts(std::move(of)) {}
  const std::shared_ptr<Counts> counts;
};

// Made at the start of each counted operator or node, and destroyed at its end.
struct FlopCounter::Observer : at::ObserverContext {
  explicit Observer(int& depth_of) : depth(depth_of) { ++depth; }
  int& depth;

  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& call) {
    const auto* target = static_cast<Target*>(c10::ThreadLocalDebugInfo::get(kKind));
    if (!target || !target->counts) return nullptr;
    if (call.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      return std::make_unique<Observer>(backward);
    }
    const Row* row = row_of(call.name());
    if (!row) return nullptr;
    if (inside == 0) {
      const Count count = row->count(call.inputs());
      const bool again = backward > 0 && at::GradMode::is_enabled();
      (again ? target->counts->recomputed : target->counts->flops) += count.once;
      target->counts->recomputed += count.again;
      const std::lock_guard lock(target->counts->mutex);
      target->counts->works.push_back({count.once + count.again, count.bytes, backward > 0});
    }
    return std::make_unique<Observer>(inside);
  }
  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (context) --static_cast<Observer*>(context)->depth;
  }
};

FlopCounter::FlopCounter()
    : counts_(std::make_shared<Counts>()),
      guard_(kKind, std::make_shared<Target>(counts_)),
      handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&Observer::start, &Observer::end)
              .needsInputs(true)
              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {}

FlopCounter::~FlopCounter() {
  at::removeCallback(handle_);
}

FlopCounter::Pause::Pause() : guard_(kKind, std::make_shared<Target>(nullptr)) {}

std::vector<FlopCounter::Work> FlopCounter::works() const {
  const std::lock_guard lock(counts_->mutex);
  return counts_->works;
}

int64_t FlopCounter::flops() const {
  return counts_->flops;
}

int64_t FlopCounter::recomputed() const {
  return counts_->recomputed;
}

}  // namespace troika::compat
