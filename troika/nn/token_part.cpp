#include "troika/nn/token_part.h"

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/key_value_cache.h"

namespace troika::nn {

namespace {

thread_local const TokenPart* current_part = nullptr;

int64_t cached_tokens() {
  const auto* const cache = KeyValueCache::current();
  return cache ? cache->length() : 0;
}

}  // namespace

std::vector<Stretch> TokenPart::stretches(int64_t own) const {
  TROIKA_CHECK(own % 2 == 0, "a part of a sample has two chunks of tokens");
  const int64_t chunk = own / 2;
  return {{index * chunk, chunk}, {(2 * count - 1 - index) * chunk, chunk}};
}

const TokenPart* TokenPart::current() {
  return current_part;
}

TokenPartGuard::TokenPartGuard(const TokenPart& part) : part_(part), before_(current_part) {
  current_part = &part_;
}

TokenPartGuard::~TokenPartGuard() {
  current_part = before_;
}

std::vector<Stretch> token_positions(int64_t count) {
  if (current_part) return current_part->stretches(count);
  return {{cached_tokens(), count}};
}

int64_t most_tokens(int64_t end) {
  if (current_part) return end / (2 * current_part->count) * 2;
  return end - cached_tokens();
}

at::Tensor rows_at(const at::Tensor& table, const std::vector<Stretch>& positions) {
  std::vector<at::Tensor> rows;
  for (const auto& [first, count] : positions) rows.push_back(table.slice(0, first, first + count));
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

}  // namespace troika::nn
