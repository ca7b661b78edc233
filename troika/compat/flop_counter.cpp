#include "troika/compat/flop_counter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

namespace troika::compat {

namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

// LibTorch has a closed list of kinds; this one is for programs of its own interpreter on phones.
// LibTorch 2.15 has made the list static members in place of an enumeration.
const auto kKind = c10::DebugInfoKind::MOBILE_RUNTIME_INFO;

// On this thread, one in another:
thread_local int inside = 0;    // operators that count
thread_local int backward = 0;  // nodes of a backward pass

// FLOPs of the product of [..., m, k] and [..., k, n].
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

// Inputs of aten::convolution_backward: grad_output, input, weight, bias_sizes, stride, padding,
// dilation, transposed, output_padding, groups, output_mask.
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

// The two products of attention over [..., queries or keys, width], also with fewer heads of keys
// than of queries.
struct Attention {
  int64_t scores;  // [queries, width] x [width, keys]
  int64_t values;  // [queries, keys] x [keys, width of values]
};
Attention attention(const c10::IValue& query, const c10::IValue& key, const c10::IValue& value) {
  const auto q = query.toTensor(), k = key.toTensor(), v = value.toTensor();
  const int64_t width = std::max<int64_t>(1, q.size(-1));
  const int64_t pairs = q.numel() / width * k.size(-2);
  return {2 * pairs * width, 2 * pairs * v.size(-1)};
}

struct Flops {
  int64_t once = 0;
  int64_t again = 0;  // of the forward pass, by an operator of the backward pass
};

Flops attention_forward(Inputs in) {
  const auto one = attention(in[0], in[1], in[2]);
  return {one.scores + one.values};
}

// Gradients of weights and values, queries and keys; the scores are not kept but made again.
Flops attention_backward(Inputs in) {
  const auto one = attention(in[1], in[2], in[3]);
  return {2 * one.scores + 2 * one.values, one.scores};
}

template <int64_t (*count)(Inputs)>
Flops plain(Inputs in) {
  return {count(in)};
}

struct Row {
  std::string_view name;
  Flops (*count)(Inputs);
};

// Fused attention has query, key and value first, and in its backward pass the gradient before
// them. Names of all versions of LibTorch.
constexpr std::array kRows{
    Row{"aten::mm", &plain<product_of_first>},
    Row{"aten::bmm", &plain<product_of_first>},
    Row{"aten::addmm", &plain<product_added>},
    Row{"aten::baddbmm", &plain<product_added>},
    Row{"aten::convolution", &plain<convolution_forward>},
    Row{"aten::convolution_backward", &plain<convolution_backward>},
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

// Null for what does not count; of such an operator the inputs may not be there.
const Row* row_of(std::string_view name) {
  const auto* found =
      std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.name == name; });
  return found == kRows.end() ? nullptr : found;
}

}  // namespace

struct FlopCounter::Counts {
  std::atomic<int64_t> flops = 0;
  std::atomic<int64_t> recomputed = 0;
};

// Where products of a thread count; null: nowhere.
struct FlopCounter::Target : c10::DebugInfoBase {
  explicit Target(std::shared_ptr<Counts> of) : counts(std::move(of)) {}
  const std::shared_ptr<Counts> counts;
};

// Each operator or node that it returns one of these for is left again.
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
      const Flops flops = row->count(call.inputs());
      const bool again = backward > 0 && at::GradMode::is_enabled();
      (again ? target->counts->recomputed : target->counts->flops) += flops.once;
      target->counts->recomputed += flops.again;
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

int64_t FlopCounter::flops() const {
  return counts_->flops;
}

int64_t FlopCounter::recomputed() const {
  return counts_->recomputed;
}

}  // namespace troika::compat
