#include "troika/server/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace troika::server {

namespace {

// Values that are copied and changed together.
constexpr size_t kBlock = 4096;

template <typename T>
const std::function<void(const Segment<T>&)>& rule(const Update& update) {
  if constexpr (std::is_same_v<T, float>) {
    return update.apply32;
  } else {
    return update.apply64;
  }
}

template <typename T>
std::span<const T> typed(std::span<const char> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

std::string no_states(const TableSpec& spec) {
  return fmt::format("the states of table {} cannot be moved; they are those of {}", spec.name,
                     spec.width == 0 ? "keys of different lengths" : "a user's rule");
}

// Calls `visit(key, values)` for each key of a write, in order.
template <typename T, typename Visit>
void for_each_segment(const RequestBody& request, uint32_t width, const Visit& visit) {
  const auto values = typed<T>(request.values);
  size_t at = 0;
  for (size_t i = 0; i < request.key_count(); ++i) {
    const uint32_t length = width > 0 ? width : request.lengths[i];
    visit(request.key(i), values.subspan(at, length));
    at += length;
  }
}

}  // namespace

template <typename T>
Store<T>::Store(const Table& table, uint32_t range, uint32_t ranges)
    : table_(table),
      range_(range),
      ranges_(ranges),
      span_(fixed_rows(table.spec) > 0 ? keys_of(table.spec, range, ranges) : KeySpan{}),
      policy_(table.spec.admit, (table.spec.rows + ranges - 1) / ranges) {
  if (!is_array()) return;
  updates_.resize(span_.count);
  auto& values = *values_;
  values.resize(span_.count * table.spec.width);
  state_.resize(values.size() * static_cast<size_t>(table.update.states));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(initial_value(table.spec, span_.first + i / table.spec.width,
                                             static_cast<uint32_t>(i % table.spec.width)));
  }
}

template <typename T>
std::string Store<T>::refusal(const RequestBody& request) const {
  const auto& spec = table_.spec;
  const size_t count = request.key_count();
  // A run may be as long as 2^64, so it is compared before anything is done for each key.
  const bool is_run = request.keys.empty() && count > 0;
  if (is_run && spec.keys == 0) return "table " + spec.name + " is sparse and takes lists of keys";
  if (has_states(request.operation) && state_width(spec) == 0) return no_states(spec);
  const auto belongs = [&](Key key) {
    return fixed_rows(spec) > 0 ? span_.contains(row_of(spec, key))
                                : range_of(spec, key, ranges_) == range_;
  };
  for (size_t i = 0; i < (is_run ? 1 : count); ++i) {
    if (i > 0 && request.keys[i] <= request.keys[i - 1]) return "the keys are not ascending";
    if (!belongs(request.key(i)) ||
        (is_run && count > span_.count - (request.key(0) - span_.first)))
      return fmt::format("key {} of table {} does not belong to range {}", request.key(i),
                         spec.name, range_);
  }
  if (!writes(request.operation)) return "";
  uint64_t expected = count * width_of(spec, request.operation);
  if (spec.width == 0) {
    if (request.lengths.size() != count) return "the keys and their lengths differ in number";
    expected = std::accumulate(request.lengths.begin(), request.lengths.end(), uint64_t{0});
    for (size_t i = 0; i < count; ++i) {
      const auto row = find(request.key(i));
      if (row && row->length != request.lengths[i]) {
        return fmt::format("key {} of table {} has another number of values; got {}, expected {}",
                           request.key(i), spec.name, request.lengths[i], row->length);
      }
    }
  }
  if (request.values.size() != expected * sizeof(T)) {
    return fmt::format("wrong number of values for {} keys of table {}; got {} bytes, expected {}",
                       count, spec.name, request.values.size(), expected * sizeof(T));
  }
  return "";
}

template <typename T>
auto Store<T>::find(Key key) const -> std::optional<Row> {
  if (is_array()) {
    const size_t index = row_of(table_.spec, key) - span_.first;
    return Row{index, index * table_.spec.width, table_.spec.width};
  }
  const auto found = rows_.find(key);
  return found == rows_.end() ? std::nullopt : std::optional(found->second);
}

template <typename T>
auto Store<T>::find_or_add(Key key, uint32_t length) -> Row {
  if (const auto row = find(key)) {
    policy_.use(row->index);
    return *row;
  }
  if (policy_.is_full(updates_.size())) return replace_oldest(key);
  if (table_.spec.rows > 0) keys_.push_back(key);
  policy_.use(updates_.size());
  auto& values = writable();
  const Row row{updates_.size(), values.size(), length};
  rows_.emplace(key, row);
  updates_.push_back(0);
  for (uint32_t i = 0; i < length; ++i) {
    values.push_back(table_.spec.width > 0 ? static_cast<T>(initial_value(table_.spec, key, i))
                                           : T(0));
  }
  state_.resize(values.size() * static_cast<size_t>(table_.update.states));
  return row;
}

template <typename T>
std::span<T> Store<T>::state_of(const Row& row) {
  const auto states = static_cast<size_t>(table_.update.states);
  return std::span(state_).subspan(row.offset * states, row.length * states);
}

template <typename T>
auto Store<T>::replace_oldest(Key key) -> Row {
  const uint64_t index = policy_.oldest();
  const Row row = rows_.at(keys_[index]);
  rows_.erase(keys_[index]);
  rows_.emplace(key, row);
  keys_[index] = key;
  updates_[index] = 0;
  policy_.use(index);
  std::ranges::fill(state_of(row), T(0));
  auto& values = writable();
  for (uint32_t i = 0; i < row.length; ++i) {
    values[row.offset + i] = static_cast<T>(initial_value(table_.spec, key, i));
  }
  return row;
}

template <typename T>
void Store<T>::apply(const Row& row, std::span<const T> pushed, std::optional<double> rate) {
  rule<T>(table_.update)({
      .values = std::span(writable()).subspan(row.offset, row.length),
      .state = state_of(row),
      .pushed = pushed,
      .updates = ++updates_[row.index],
      .rate = rate,
  });
}

template <typename T>
std::vector<T>& Store<T>::writable() {
  if (values_.use_count() > 1) values_ = std::make_shared<std::vector<T>>(*values_);
  return *values_;
}

template <typename T>
void Store<T>::apply_merged(size_t offset, std::span<const T> pushed, std::optional<double> rate) {
  const auto apply_to = [&](std::span<T> values, std::span<const T> part) {
    rule<T>(table_.update)({.values = values, .state = {}, .pushed = part, .rate = rate});
  };
  if (values_.use_count() == 1) {
    return apply_to(std::span(*values_).subspan(offset, pushed.size()), pushed);
  }
  // Copies and changes one block at a time, so that each is in the cache when it is changed.
  const auto old = std::exchange(values_, std::make_shared<std::vector<T>>());
  auto& values = *values_;
  values.reserve(old->size());
  const auto copy_to = [&](size_t end) {
    const auto begin = old->begin();
    values.insert(values.end(), begin + static_cast<ptrdiff_t>(values.size()),
                  begin + static_cast<ptrdiff_t>(end));
  };
  copy_to(offset);
  for (size_t at = 0; at < pushed.size();) {
    const auto part = pushed.subspan(at, std::min(kBlock, pushed.size() - at));
    copy_to(offset + at + part.size());
    apply_to(std::span(values).subspan(offset + at, part.size()), part);
    at += part.size();
  }
  copy_to(old->size());
}

template <typename T>
void Store<T>::push(const RequestBody& request) {
  // Only in a dense table do consecutive keys have consecutive rows.
  const bool is_dense = is_array() && table_.spec.keys > 0;
  if (is_dense && request.keys.empty() && table_.update.merges && request.run.count > 0) {
    const auto row = *find(request.run.first);
    return apply_merged(row.offset, typed<T>(request.values), request.rate);
  }
  for_each_segment<T>(request, table_.spec.width, [&](Key key, std::span<const T> pushed) {
    if (table_.spec.admit > 1 && !find(key) && !policy_.admits(key)) return;
    apply(find_or_add(key, static_cast<uint32_t>(pushed.size())), pushed, request.rate);
  });
}

template <typename T>
void Store<T>::assign(const RequestBody& request) {
  const bool assigns_states = has_states(request.operation);
  const uint32_t width = width_of(table_.spec, request.operation);
  for_each_segment<T>(request, width, [&](Key key, std::span<const T> given) {
    const auto length = width > 0 ? table_.spec.width : static_cast<uint32_t>(given.size());
    const Row row = find_or_add(key, length);
    std::ranges::copy(given.first(length), writable().begin() + static_cast<ptrdiff_t>(row.offset));
    const auto state = state_of(row);
    if (assigns_states) {
      std::ranges::copy(given.subspan(length, state.size()), state.begin());
    } else {
      std::ranges::fill(state, T(0));
    }
    updates_[row.index] = assigns_states ? updates_of(given) : 0;
  });
}

template <typename T>
void Store<T>::reserve(const RequestBody& request) {
  if (table_.spec.width > 0) return;
  for_each_segment<T>(request, table_.spec.width, [&](Key key, std::span<const T> values) {
    find_or_add(key, static_cast<uint32_t>(values.size()));
  });
}

template <typename T>
std::optional<std::span<const T>> Store<T>::stored(const RequestBody& request) const {
  if (!is_array() || !request.keys.empty() || has_states(request.operation)) return std::nullopt;
  if (request.run.count == 0) return std::span<const T>();
  const Row row = *find(request.run.first);
  return std::span<const T>(*values_).subspan(row.offset, row.length * request.run.count);
}

template <typename T>
void Store<T>::pull(const RequestBody& request, std::vector<uint32_t>& lengths,
                    std::vector<T>& values) const {
  if (has_states(request.operation)) return pull_states(request, values);
  if (const auto all = stored(request)) {
    values.insert(values.end(), all->begin(), all->end());
    return;
  }
  for (size_t i = 0; i < request.key_count(); ++i) {
    const Key key = request.key(i);
    const auto row = find(key);
    if (row) {
      const auto begin = values_->begin() + static_cast<ptrdiff_t>(row->offset);
      values.insert(values.end(), begin, begin + static_cast<ptrdiff_t>(row->length));
    }
    for (uint32_t k = 0; !row && k < table_.spec.width; ++k) {
      values.push_back(static_cast<T>(initial_value(table_.spec, key, k)));
    }
    if (table_.spec.width == 0) lengths.push_back(row ? row->length : 0);
  }
}

template <typename T>
void Store<T>::pull_states(const RequestBody& request, std::vector<T>& values) const {
  const auto& spec = table_.spec;
  const auto width = static_cast<size_t>(state_width(spec));
  values.resize(request.key_count() * width);
  for (size_t i = 0; i < request.key_count(); ++i) {
    const Key key = request.key(i);
    const auto state = std::span(values).subspan(i * width, width);
    const auto row = find(key);
    for (uint32_t k = 0; !row && k < spec.width; ++k) {
      state[k] = static_cast<T>(initial_value(spec, key, k));
    }
    if (!row) continue;
    const auto states = static_cast<size_t>(table_.update.states);
    std::ranges::copy(std::span<const T>(*values_).subspan(row->offset, row->length),
                      state.begin());
    std::ranges::copy(std::span(state_).subspan(row->offset * states, row->length * states),
                      state.begin() + spec.width);
    set_updates(state, updates_[row->index]);
  }
}

template <typename T>
size_t Store<T>::bytes() const {
  return (values_->size() + state_.size()) * sizeof(T) + updates_.size() * sizeof(uint64_t) +
         rows_.size() * (sizeof(Key) + sizeof(Row)) + keys_.size() * sizeof(Key) + policy_.bytes();
}

template <typename T>
void Store<T>::save(Writer& writer) const {
  writer.array(std::span<const T>(*values_));
  writer.array(std::span<const T>(state_));
  writer.array(std::span<const uint64_t>(updates_));
  std::vector<uint64_t> index;
  index.reserve(rows_.size() * 4);
  for (const auto& [key, row] : rows_) {
    index.insert(index.end(), {key, row.index, row.offset, row.length});
  }
  writer.array(std::span<const uint64_t>(index));
  policy_.save(writer);
}

template <typename T>
void Store<T>::load(Reader& reader) {
  const auto values = reader.array<T>();
  const auto state = reader.array<T>();
  const auto updates = reader.array<uint64_t>();
  const auto index = reader.array<uint64_t>();
  std::unordered_map<Key, Row> rows;
  std::vector<bool> is_seen(updates.size());
  bool fits = state.size() == values.size() * static_cast<size_t>(table_.update.states);
  if (is_array()) fits = fits && values.size() == values_->size() && updates.size() == span_.count;
  for (size_t i = 0; i + 3 < index.size() && fits; i += 4) {
    const Row row{index[i + 1], index[i + 2], static_cast<uint32_t>(index[i + 3])};
    fits = row.index < updates.size() && !is_seen[row.index] && row.offset <= values.size() &&
           row.length <= values.size() - row.offset &&
           (table_.spec.width == 0 || row.length == table_.spec.width);
    if (fits) is_seen[row.index] = true;
    rows.emplace(index[i], row);
  }
  if (!fits || (!is_array() && rows.size() != updates.size())) {
    throw Error(
        "server", ErrorKind::failure,
        {.what = fmt::format("a copy of range {} does not fit table {}", range_, table_.spec.name),
         .hint = "were the table's options changed?"});
  }
  policy_.load(reader, updates.size());
  keys_.resize(table_.spec.rows > 0 ? updates.size() : 0);
  for (const auto& [key, row] : rows) {
    if (!keys_.empty()) keys_[row.index] = key;
  }
  values_ = std::make_shared<std::vector<T>>(values.begin(), values.end());
  state_.assign(state.begin(), state.end());
  updates_.assign(updates.begin(), updates.end());
  rows_ = std::move(rows);
}

template class Store<float>;
template class Store<double>;

}  // namespace troika::server
