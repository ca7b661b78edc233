#include "troika/parallel/diloco/quorum_mean.h"

#include <algorithm>
#include <span>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/encoded_numbers.h"
#include "troika/parallel/quorum_statistics.h"

namespace troika::parallel {

namespace {

template <typename Number>
constexpr auto kTypeOf = std::is_same_v<Number, double> ? at::kDouble : at::kFloat;

size_t numbers_of(const std::vector<at::Tensor>& tensors) {
  size_t count = 0;
  for (const auto& tensor : tensors) count += static_cast<size_t>(tensor.numel());
  return count;
}

bool any_double(const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(
      tensors, [](const at::Tensor& tensor) { return tensor.scalar_type() == at::kDouble; });
}

}  // namespace

QuorumMean::QuorumMean(quorum::Member& member, const QuorumMeanOptions& options)
    : member_(member),
      options_(options),
      encoding_(options.codec == "none" ? nullptr : comm::make_encoding({.name = options.codec})) {}

template <typename Number>
void QuorumMean::average(const std::vector<at::Tensor>& buffers,
                         const std::vector<at::Tensor>& changes) const {
  const at::NoGradGuard no_grad;
  auto tensors = buffers;
  tensors.insert(tensors.end(), changes.begin(), changes.end());
  const auto like = [](Number* at, const at::Tensor& tensor) {
    return at::from_blob(at, tensor.sizes(), at::TensorOptions(kTypeOf<Number>));
  };
  const auto samples = static_cast<double>(member_.share().count);
  const auto fill = [&](std::span<Number> to, bool) {
    Number* at = to.data();
    for (const auto& tensor : tensors) {
      like(at, tensor).copy_(tensor).mul_(samples);
      at += tensor.numel();
    }
  };
  const auto coded =
      encoding_ ? encoded_packing<Number>(encoding_, numbers_of(buffers)) : net::Packing<Number>();
  auto sum = member_.sum<Number>(numbers_of(tensors), fill, encoding_ ? &coded : nullptr);
  const auto all = static_cast<double>(member_.counted().samples());
  Number* at = sum.data();
  for (const auto& tensor : tensors) {
    tensor.copy_(like(at, tensor).div_(all));
    at += tensor.numel();
  }
}

void QuorumMean::start(const std::vector<at::Tensor>& changes,
                       const std::vector<at::Tensor>& buffers) {
  for (const auto& change : changes) {
    if (!options_.require_finite || change.isfinite().all().item<bool>()) continue;
    throw Error("parallel", ErrorKind::failure,
                {.what = "this replica's weights are not finite",
                 .got = "inf or nan",
                 .expected = "numbers",
                 .hint = "the other replicas go on without its steps; "
                         "trainer.terminate_on_nan=false trains on"});
  }
  const bool is_double = any_double(changes) || any_double(buffers);
  sum_ = std::async(std::launch::async, [=, this] {
    is_double ? average<double>(buffers, changes) : average<float>(buffers, changes);
  });
}

void QuorumMean::wait() {
  if (sum_.valid()) sum_.get();
}

std::vector<std::pair<std::string, double>> QuorumMean::statistics() const {
  return quorum_statistics(member_);
}

}  // namespace troika::parallel
