#include "troika/nn/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"

namespace troika::nn {

namespace {

double scaled(const RopeOptions& options, double frequency) {
  if (options.scaling == "default") return frequency;
  if (options.scaling == "linear") return frequency / options.factor;
  const double turns =
      static_cast<double>(options.original_context) * frequency / (2 * std::numbers::pi);
  const double unchanged = std::clamp(
      (turns - options.low_freq_factor) / (options.high_freq_factor - options.low_freq_factor), 0.0,
      1.0);
  return (1 - unchanged) * frequency / options.factor + unchanged * frequency;
}

void require_above_zero(const char* what, double value) {
  if (value > 0) return;
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("{} of rotary embeddings is out of range", what),
               .got = fmt::format("{}", value),
               .expected = "a number above 0"});
}

}  // namespace

const std::vector<std::string>& rope_scalings() {
  static const std::vector<std::string> names{"default", "linear", "llama3"};
  return names;
}

void check_rope(const RopeOptions& options) {
  if (!std::ranges::count(rope_scalings(), options.scaling)) {
    throw Error("nn", ErrorKind::usage,
                {.what = "unknown scaling of rotary embeddings",
                 .got = options.scaling,
                 .expected = fmt::format("one of {}", fmt::join(rope_scalings(), ", ")),
                 .hint = "did you mean " + nearest(options.scaling, rope_scalings()) + "?"});
  }
  require_above_zero("theta", options.theta);
  require_above_zero("factor", options.factor);
  require_above_zero("low_freq_factor", options.low_freq_factor);
  require_above_zero("original_context", static_cast<double>(options.original_context));
  if (options.scaling != "llama3" || options.high_freq_factor > options.low_freq_factor) return;
  throw Error("nn", ErrorKind::usage,
              {.what = "high_freq_factor of rotary embeddings is too small",
               .got = fmt::format("{}", options.high_freq_factor),
               .expected = fmt::format("more than low_freq_factor, {}", options.low_freq_factor)});
}

Rotation make_rotation(const RopeOptions& options, int64_t size,
                       const std::vector<Stretch>& positions, const at::Tensor& like) {
  const at::NoGradGuard no_grad;
  std::vector<float> frequencies;
  for (int64_t pair = 0; pair < size / 2; ++pair) {
    const double exponent = static_cast<double>(2 * pair) / static_cast<double>(size);
    frequencies.push_back(static_cast<float>(scaled(options, std::pow(options.theta, -exponent))));
  }
  const auto floats = like.options().dtype(at::kFloat).requires_grad(false);
  std::vector<at::Tensor> numbers;
  for (const auto& [first, count] : positions) {
    numbers.push_back(at::arange(first, first + count, floats));
  }
  const at::Tensor angles =
      at::cat(numbers).unsqueeze(1).mul(at::tensor(frequencies).to(like.device()));
  return {angles.cos().to(like.scalar_type()), angles.sin().to(like.scalar_type())};
}

at::Tensor rotate(const at::Tensor& heads, const Rotation& rotation) {
  const at::Tensor cos = rotation.cos.unsqueeze(1), sin = rotation.sin.unsqueeze(1);
  const auto halves = heads.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

}  // namespace troika::nn
