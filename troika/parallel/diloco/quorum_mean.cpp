#include "troika/parallel/diloco/quorum_mean.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/parallel/quorum_statistics.h"

namespace troika::parallel {

namespace {

template <typename Number>
constexpr auto kTypeOf = std::is_same_v<Number, double> ? at::kDouble : at::kFloat;

template <typename Number>
at::Tensor view(const Number* numbers, size_t count) {
  return at::from_blob(const_cast<Number*>(numbers), {static_cast<int64_t>(count)},
                       at::TensorOptions(kTypeOf<Number>));
}

at::Tensor view(const char* bytes, size_t count) {
  return at::from_blob(const_cast<char*>(bytes), {static_cast<int64_t>(count)},
                       at::TensorOptions(at::kByte));
}

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
net::Packing<Number> QuorumMean::packing(size_t exact) const {
  const auto exact_of = [exact](size_t first, size_t count) {
    return std::min(count, exact - std::min(first, exact));
  };
  const auto coded_bytes = [this](size_t count) {
    const int64_t size = static_cast<int64_t>(count);
    return static_cast<size_t>(encoding_->bytes_for({size}, kTypeOf<Number>));
  };
  return {.bytes =
              [=](size_t first, size_t count) {
                const size_t plain = exact_of(first, count);
                return plain * sizeof(Number) + coded_bytes(count - plain);
              },
          .pack =
              [=, this](size_t first, std::span<const Number> numbers, std::span<char> to) {
                const size_t plain = exact_of(first, numbers.size());
                std::memcpy(to.data(), numbers.data(), plain * sizeof(Number));
                if (plain == numbers.size()) return;
                const auto rest = to.subspan(plain * sizeof(Number));
                encoding_->encode(view(numbers.data() + plain, numbers.size() - plain),
                                  kTypeOf<Number>, view(rest.data(), rest.size()));
              },
          .unpack =
              [=, this](size_t first, std::span<const char> from, std::span<Number> numbers) {
                const size_t plain = exact_of(first, numbers.size());
                std::memcpy(numbers.data(), from.data(), plain * sizeof(Number));
                if (plain == numbers.size()) return;
                const auto rest = from.subspan(plain * sizeof(Number));
                encoding_->decode(view(rest.data(), rest.size()), kTypeOf<Number>,
                                  view(numbers.data() + plain, numbers.size() - plain));
              }};
}

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
  const auto coded = encoding_ ? packing<Number>(numbers_of(buffers)) : net::Packing<Number>();
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
