#include "troika/server/push_filter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "troika/base/checksum.h"
#include "troika/base/random.h"

namespace troika::server {

namespace {

std::optional<Filter> find(const Filters& filters, FilterKind kind) {
  const auto found = std::ranges::find(filters, kind, &Filter::kind);
  return found == filters.end() ? std::nullopt : std::optional(*found);
}

ValueForm form_of(const Filters& filters) {
  if (find(filters, FilterKind::half)) return ValueForm::half;
  const auto fixed = find(filters, FilterKind::fixed);
  if (!fixed) return ValueForm::plain;
  return static_cast<ValueForm>(static_cast<int>(ValueForm::fixed1) +
                                static_cast<int>(fixed->bytes) - 1);
}

// Calls `visit(i, values)` for each key of a body with values of type T.
template <typename T, typename Visit>
void for_each_key(const RequestBody& body, uint32_t width, const Visit& visit) {
  const std::span values(reinterpret_cast<const T*>(body.values.data()),
                         body.values.size() / sizeof(T));
  size_t at = 0;
  for (size_t i = 0; i < body.key_count(); ++i) {
    const size_t length = width > 0 ? width : body.lengths[i];
    visit(i, values.subspan(at, length));
    at += length;
  }
}

template <typename T>
void append(std::vector<char>& to, std::span<const T> values) {
  const auto* const begin = reinterpret_cast<const char*>(values.data());
  to.insert(to.end(), begin, begin + values.size_bytes());
}

}  // namespace

PushFilter::PushFilter(TableSpec table, Filters push, Filters pull)
    : table_(std::move(table)), push_(std::move(push)), pull_(std::move(pull)) {
  check_filters(push_, Direction::push);
  check_filters(pull_, Direction::pull);
  significant_ = find(push_, FilterKind::significant);
  skip_ = find(push_, FilterKind::skip);
  kkt_ = find(push_, FilterKind::kkt);
  selects_ = significant_ || skip_ || kkt_;
  if (kkt_) dense_zeros_.resize(table_.keys);
  for (const auto& filters : {push_, pull_}) {
    if (const auto fixed = find(filters, FilterKind::fixed)) {
      seed_ = mix(seed_, static_cast<uint64_t>(fixed->seed));
    }
  }
}

bool PushFilter::is_zero(Key key) const {
  return table_.keys > 0 ? dense_zeros_[key] : zeros_.contains(key);
}

template <typename T>
void PushFilter::select_typed(const RequestBody& push, int64_t step, uint64_t draw,
                              FilteredPush& result) {
  const double threshold =
      significant_
          ? significant_->threshold /
                (1 + significant_->shrink * static_cast<double>(std::max<int64_t>(step, 0)))
          : 0;
  std::vector<T> values;
  for_each_key<T>(push, table_.width, [&](size_t i, std::span<const T> pushed) {
    const Key key = push.key(i);
    values.assign(pushed.begin(), pushed.end());
    const auto are_at_most = [&](double most) {
      return std::ranges::all_of(
          values, [&](T value) { return std::fabs(static_cast<double>(value)) <= most; });
    };
    for (const auto& filter : push_) {
      if (filter.kind == FilterKind::significant) {
        const auto before = kept_.find(key);
        if (before != kept_.end() && before->second.size() == values.size()) {
          for (size_t k = 0; k < values.size(); ++k) {
            values[k] = static_cast<T>(static_cast<double>(values[k]) + before->second[k]);
          }
        }
        if (are_at_most(threshold)) {
          if (are_at_most(0)) {
            kept_.erase(key);
          } else {
            kept_[key].assign(values.begin(), values.end());
          }
          return;
        }
        if (before != kept_.end()) kept_.erase(before);
      } else if (filter.kind == FilterKind::skip) {
        const uint64_t bits = mix(static_cast<uint64_t>(filter.seed), draw, key);
        if (static_cast<double>(bits >> 11) * 0x1p-53 >= filter.probability) return;
        for (T& value : values) value = static_cast<T>(value / filter.probability);
      } else if (filter.kind == FilterKind::kkt) {
        if (is_zero(key) && are_at_most(filter.l1 - filter.margin)) return;
      }
    }
    result.keys.push_back(key);
    if (table_.width == 0) result.lengths.push_back(static_cast<uint32_t>(values.size()));
    append<T>(result.values, values);
  });
}

FilteredPush PushFilter::select(const RequestBody& push, int64_t step, uint64_t draw) {
  FilteredPush result;
  const std::lock_guard lock(mutex_);
  if (table_.type == ValueType::float32) {
    select_typed<float>(push, step, draw, result);
  } else {
    select_typed<double>(push, step, draw, result);
  }
  return result;
}

void PushFilter::saw(const RequestBody& pulled) {
  const std::lock_guard lock(mutex_);
  const auto note = [&]<typename T>(T) {
    for_each_key<T>(pulled, table_.width, [&](size_t i, std::span<const T> values) {
      const Key key = pulled.key(i);
      const bool is_zero = std::ranges::all_of(values, [](T value) { return value == 0; });
      if (table_.keys > 0) {
        dense_zeros_[key] = is_zero;
      } else if (is_zero) {
        zeros_.insert(key);
      } else {
        zeros_.erase(key);
      }
    });
  };
  if (table_.type == ValueType::float32) {
    note(float());
  } else {
    note(double());
  }
}

FilteredPush PushFilter::take_kept() {
  FilteredPush result;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, values] : kept_) result.keys.push_back(key);
  std::ranges::sort(result.keys);
  for (const Key key : result.keys) {
    const auto& values = kept_.at(key);
    if (table_.width == 0) result.lengths.push_back(static_cast<uint32_t>(values.size()));
    if (table_.type == ValueType::float64) {
      append<double>(result.values, values);
    } else {
      append<float>(result.values, std::vector<float>(values.begin(), values.end()));
    }
  }
  kept_.clear();
  return result;
}

Coding PushFilter::coding(Operation operation, std::span<const Key> keys) const {
  Coding coding;
  const bool is_write = writes(operation);
  const auto& filters = is_write ? push_ : pull_;
  const bool packs = find(filters, FilterKind::zlib).has_value();
  coding.keys_are_packed = packs && !keys.empty();
  coding.values_are_packed = packs && is_write;
  // An assignment keeps all bits.
  if (is_write && operation != Operation::assign) coding.values = form_of(filters);
  if (reads(operation)) {
    coding.answer_values = form_of(pull_);
    coding.packs_answer = find(pull_, FilterKind::zlib).has_value();
  }
  if (!keys.empty() && find(filters, FilterKind::cache_keys)) {
    coding.signature = fingerprint({reinterpret_cast<const char*>(keys.data()), keys.size_bytes()});
    if (coding.signature == 0) coding.signature = 1;
  }
  return coding;
}

}  // namespace troika::server
