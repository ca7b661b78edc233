#include "troika/nn/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/key_value_cache.h"
#include "troika/nn/model.h"

namespace troika::nn {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

void require(bool holds, const char* what, const std::string& got, const char* expected) {
  if (holds) return;
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("{} of samples is out of range", what),
               .got = got,
               .expected = expected});
}

// Removes the least likely tokens that together have at most the probability 1 - p.
at::Tensor most_likely(const at::Tensor& logits, double p) {
  const auto [sorted, places] = logits.sort(/*dim=*/-1, /*descending=*/false);
  at::Tensor removed = sorted.softmax(-1).cumsum(-1).le(1 - p);
  removed[-1] = false;
  return logits.masked_fill(at::empty_like(removed).scatter_(0, places, removed), kNever);
}

}  // namespace

at::Tensor filtered_logits(const at::Tensor& logits, const SamplingOptions& options) {
  const auto& [temperature, top_k, top_p] = options;
  require(temperature >= 0, "temperature", fmt::format("{}", temperature), "at least 0");
  require(top_k >= 0, "top_k", fmt::format("{}", top_k), "at least 0");
  require(top_p > 0 && top_p <= 1, "top_p", fmt::format("{}", top_p), "0 < top_p <= 1");
  at::Tensor result = logits.to(at::promote_types(logits.scalar_type(), at::kFloat));
  if (temperature > 0) result = result / temperature;
  if (top_k > 0 && top_k < result.size(0)) {
    const at::Tensor last = std::get<0>(result.topk(top_k)).min();
    result = result.masked_fill(result < last, kNever);
  }
  return top_p < 1 ? most_likely(result, top_p) : result;
}

int64_t choose_token(const at::Tensor& logits, const SamplingOptions& options) {
  const at::Tensor filtered = filtered_logits(logits, options);
  if (options.temperature == 0) return filtered.argmax().item<int64_t>();
  return at::multinomial(filtered.softmax(-1), 1).item<int64_t>();
}

void continue_text(Model& model, int64_t context, std::vector<int64_t> tokens, int64_t count,
                   const SamplingOptions& options, const std::function<void(int64_t)>& give) {
  TROIKA_CHECK(!tokens.empty(), "a text to continue has a token");
  const at::NoGradGuard no_grad;
  KeyValueCache cache;
  const KeyValueCacheGuard guard(cache);
  const auto size = [&] { return static_cast<int64_t>(tokens.size()); };
  int64_t fresh = std::min(size(), context);  // tokens at the end that the model has not read
  for (int64_t i = 0; i < count; ++i) {
    if (cache.length() + fresh > context) {
      cache.clear();
      fresh = std::max<int64_t>(context / 2, 1);
    }
    const std::vector<int64_t> unread(tokens.end() - fresh, tokens.end());
    const at::Tensor logits = model.forward(torch::tensor(unread).unsqueeze(0))[0][-1];
    cache.advance(fresh);
    tokens.push_back(choose_token(logits, options));
    fresh = 1;
    give(tokens.back());
  }
}

}  // namespace troika::nn
