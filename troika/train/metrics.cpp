#include "troika/train/metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

// Logits as [samples, classes] and targets as [samples].
struct Flat {
  at::Tensor logits;
  at::Tensor targets;
};

Flat flatten(const at::Tensor& logits, const at::Tensor& targets) {
  const bool fit =
      logits.dim() >= 1 && logits.size(-1) > 0 && targets.scalar_type() == at::kLong &&
      logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1)) == targets.sizes();
  if (!fit) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = "logits and targets of a metric do not go together",
         .got = fmt::format("logits [{}] and targets [{}] of {}", fmt::join(logits.sizes(), ", "),
                            fmt::join(targets.sizes(), ", "), c10::toString(targets.scalar_type())),
         .expected = "[..., classes] and [...] of Long"});
  }
  return {logits.detach().reshape({-1, logits.size(-1)}), targets.reshape({-1})};
}

}  // namespace

at::Tensor RatioState::state() const {
  return sums_.defined() ? sums_.clone() : at::zeros({2}, at::kDouble);
}

void RatioState::set_state(const at::Tensor& state) {
  TROIKA_CHECK(state.dim() == 1 && state.numel() == 2 && state.scalar_type() == at::kDouble,
               "the state of a metric is two float64");
  sums_ = state.detach().clone();
}

void RatioState::reset() {
  sums_ = at::Tensor();
}

void RatioState::add(const at::Tensor& numerator, const at::Tensor& denominator) {
  const torch::NoGradGuard no_grad;
  const at::Tensor added = at::stack(
      {numerator.to(at::kDouble).reshape({}),
       denominator.to(numerator.device(), at::kDouble, /*non_blocking=*/true).reshape({})});
  sums_ = sums_.defined() ? sums_.to(added.device()) + added : added;
}

double RatioState::ratio() const {
  if (!sums_.defined()) return std::nan("");
  const at::Tensor host = sums_.to(at::kCPU);
  return host.data_ptr<double>()[0] / host.data_ptr<double>()[1];
}

void Mean::update(const at::Tensor& mean, int64_t count) {
  add(mean.detach().to(at::kDouble) * count, at::scalar_tensor(count, at::kDouble));
}

void Mean::update(double mean, int64_t count) {
  update(at::scalar_tensor(mean, at::kDouble), count);
}

void Mean::update_sum(const at::Tensor& sum, const at::Tensor& count) {
  add(sum.detach(), count.detach());
}

Accuracy::Accuracy(int64_t top_k) : top_k_(top_k) {
  if (top_k < 1) {
    throw Error("train", ErrorKind::usage,
                {.what = "bad top_k of an accuracy",
                 .got = std::to_string(top_k),
                 .expected = "at least 1"});
  }
}

void Accuracy::update(const at::Tensor& logits, const at::Tensor& targets) {
  const Flat flat = flatten(logits, targets);
  const int64_t k = std::min(top_k_, flat.logits.size(1));
  const at::Tensor best = k == 1 ? flat.logits.argmax(1, /*keepdim=*/true)
                                 : std::get<1>(flat.logits.topk(k, 1, true, /*sorted=*/false));
  // A class number is never negative, so ignored targets are in no row.
  add(best.eq(flat.targets.unsqueeze(1)).sum(), flat.targets.ne(kIgnored).sum());
}

}  // namespace troika::train
