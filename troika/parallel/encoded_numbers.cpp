#include "troika/parallel/encoded_numbers.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

template <typename Number>
constexpr auto kCodedType = std::is_same_v<Number, double> ? at::kDouble : at::kFloat;

at::Tensor view(const void* data, size_t count, c10::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(count)},
                       at::TensorOptions(type));
}

}  // namespace

template <typename Number>
net::Packing<Number> encoded_packing(std::shared_ptr<const comm::Encoding> encoding, size_t exact,
                                     size_t block) {
  const auto exact_of = [exact](size_t first, size_t count) {
    return std::min(count, exact - std::min(first, exact));
  };
  return {.bytes =
              [=](size_t first, size_t count) {
                const size_t plain = exact_of(first, count);
                const auto coded = static_cast<int64_t>(count - plain);
                return plain * sizeof(Number) +
                       static_cast<size_t>(encoding->bytes_for({coded}, kCodedType<Number>));
              },
          .pack =
              [=](size_t first, std::span<const Number> numbers, std::span<char> to) {
                const size_t plain = exact_of(first, numbers.size());
                std::memcpy(to.data(), numbers.data(), plain * sizeof(Number));
                if (plain == numbers.size()) return;
                const auto rest = to.subspan(plain * sizeof(Number));
                encoding->encode(
                    view(numbers.data() + plain, numbers.size() - plain, kCodedType<Number>),
                    kCodedType<Number>, view(rest.data(), rest.size(), at::kByte));
              },
          .unpack =
              [=](size_t first, std::span<const char> from, std::span<Number> numbers) {
                const size_t plain = exact_of(first, numbers.size());
                std::memcpy(numbers.data(), from.data(), plain * sizeof(Number));
                if (plain == numbers.size()) return;
                const auto rest = from.subspan(plain * sizeof(Number));
                encoding->decode(
                    view(rest.data(), rest.size(), at::kByte), kCodedType<Number>,
                    view(numbers.data() + plain, numbers.size() - plain, kCodedType<Number>));
              },
          .block = block};
}

template net::Packing<float> encoded_packing<float>(std::shared_ptr<const comm::Encoding>, size_t,
                                                    size_t);
template net::Packing<double> encoded_packing<double>(std::shared_ptr<const comm::Encoding>, size_t,
                                                      size_t);

}  // namespace troika::parallel
