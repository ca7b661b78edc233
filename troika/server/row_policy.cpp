#include "troika/server/row_policy.h"

#include <algorithm>
#include <bit>
#include <string>

#include "troika/base/error.h"
#include "troika/base/random.h"

namespace troika::server {

namespace {

constexpr uint64_t kFewestCounters = 1 << 10;
constexpr uint64_t kCountersWithoutLimit = 1 << 16;

}  // namespace

RowPolicy::RowPolicy(uint32_t admit, uint64_t most_rows) : admit_(admit), most_rows_(most_rows) {
  if (admit <= 1) return;
  const uint64_t wanted = most_rows == 0 ? kCountersWithoutLimit : 4 * most_rows;
  for (auto& counters : counters_) {
    counters.resize(std::bit_ceil(std::max(kFewestCounters, wanted)));
  }
}

bool RowPolicy::admits(uint64_t key) {
  if (admit_ <= 1) return true;
  std::array<uint8_t*, 2> counts{};
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i] = &counters_[i][mix(key, i + 1) & (counters_[i].size() - 1)];
  }
  const uint8_t count = std::min(*counts[0], *counts[1]);
  for (auto* const counter : counts) {
    if (*counter == count && count < 255) ++*counter;
  }
  const bool is_admitted = count + 1u >= admit_;
  if (++counted_ == 8 * counters_[0].size()) {
    counted_ = 0;
    for (auto& counters : counters_) {
      for (auto& counter : counters) counter /= 2;
    }
  }
  return is_admitted;
}

void RowPolicy::unlink(uint64_t row) {
  const uint64_t before = before_[row], after = after_[row];
  (before == kNone ? first_ : after_[before]) = after;
  (after == kNone ? last_ : before_[after]) = before;
}

void RowPolicy::use(uint64_t row) {
  if (most_rows_ == 0) return;
  if (row == before_.size()) {
    before_.push_back(kNone);
    after_.push_back(kNone);
  } else {
    unlink(row);
  }
  before_[row] = last_;
  after_[row] = kNone;
  (last_ == kNone ? first_ : after_[last_]) = row;
  last_ = row;
}

size_t RowPolicy::bytes() const {
  return counters_[0].size() + counters_[1].size() +
         (before_.size() + after_.size()) * sizeof(uint64_t);
}

void RowPolicy::save(Writer& writer) const {
  for (const auto& counters : counters_) writer.array(std::span<const uint8_t>(counters));
  writer.number(counted_);
  std::vector<uint64_t> order;
  for (uint64_t row = first_; row != kNone; row = after_[row]) order.push_back(row);
  writer.array(std::span<const uint64_t>(order));
}

void RowPolicy::load(Reader& reader, uint64_t rows) {
  auto counters = counters_;
  bool fits = true;
  for (auto& each : counters) {
    const auto saved = reader.array<uint8_t>();
    fits = fits && saved.size() == each.size();
    each.assign(saved.begin(), saved.end());
  }
  const auto counted = reader.number<uint64_t>();
  const auto order = reader.array<uint64_t>();
  fits = fits && order.size() == (most_rows_ > 0 ? rows : 0);
  std::vector<bool> is_seen(order.size());
  for (const uint64_t row : order) {
    fits = fits && row < order.size() && !is_seen[row];
    if (fits) is_seen[row] = true;
  }
  if (!fits) {
    throw Error("server", ErrorKind::failure,
                {.what = "a copy's rows do not fit its table",
                 .got = std::to_string(order.size()) + " rows",
                 .expected = std::to_string(rows)});
  }
  counters_ = std::move(counters);
  counted_ = counted;
  before_.assign(order.size(), kNone);
  after_.assign(order.size(), kNone);
  first_ = last_ = kNone;
  for (const uint64_t row : order) {
    before_[row] = last_;
    (last_ == kNone ? first_ : after_[last_]) = row;
    last_ = row;
  }
}

}  // namespace troika::server
