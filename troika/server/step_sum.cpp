#include "troika/server/step_sum.h"

#include <algorithm>

namespace troika::server {

template <typename T>
bool StepSum<T>::has_keys_of(const RequestBody& push) const {
  if (push.key_count() != keys_.size()) return false;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (keys_[i] != push.key(i)) return false;
  }
  return true;
}

template <typename T>
void StepSum<T>::add(const RequestBody& push) {
  const T* const pushed = reinterpret_cast<const T*>(push.values.data());
  if (has_keys_of(push)) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] += pushed[i];
    return;
  }
  // Merges the two ascending lists of keys.
  std::vector<Key> keys;
  std::vector<uint32_t> lengths;
  std::vector<T> values;
  size_t here = 0, there = 0, at_here = 0, at_there = 0;
  while (here < keys_.size() || there < push.key_count()) {
    const bool has_here =
        here < keys_.size() && (there == push.key_count() || keys_[here] <= push.key(there));
    const bool has_there =
        there < push.key_count() && (here == keys_.size() || push.key(there) <= keys_[here]);
    const uint32_t size = has_here ? length(here) : width_ > 0 ? width_ : push.lengths[there];
    keys.push_back(has_here ? keys_[here] : push.key(there));
    if (width_ == 0) lengths.push_back(size);
    for (uint32_t i = 0; i < size; ++i) {
      T value = has_here ? values_[at_here + i] : pushed[at_there + i];
      if (has_here && has_there) value += pushed[at_there + i];
      values.push_back(value);
    }
    if (has_here) at_here += size, ++here;
    if (has_there) at_there += size, ++there;
  }
  keys_ = std::move(keys);
  lengths_ = std::move(lengths);
  values_ = std::move(values);
}

template <typename T>
RequestBody StepSum<T>::push() const {
  RequestBody body{.operation = Operation::push, .lengths = lengths_};
  body.values = {reinterpret_cast<const char*>(values_.data()), values_.size() * sizeof(T)};
  const bool is_run =
      takes_runs_ && !keys_.empty() && keys_.back() - keys_.front() + 1 == keys_.size();
  if (is_run) {
    body.run = {keys_.front(), keys_.size()};
  } else {
    body.keys = keys_;
  }
  return body;
}

template class StepSum<float>;
template class StepSum<double>;

}  // namespace troika::server
