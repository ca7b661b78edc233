// The values of one table in one range of the ring. Internal to the room.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "troika/server/request.h"
#include "troika/server/row_policy.h"
#include "troika/server/wire.h"

namespace troika::server {

// A table and its rule.
struct Table {
  TableSpec spec;
  Update update;
};

// `T` is float or double, as the table's type says. Not thread-safe. `table` must outlive it.
template <typename T>
class Store {
 public:
  Store(const Table& table, uint32_t range, uint32_t ranges);

  // Returns why the request cannot be executed; empty if it can. Executing the request does not
  // change the result for it.
  std::string refusal(const RequestBody& request) const;
  // Execute a request for which refusal() is empty.
  void push(const RequestBody& request);
  void assign(const RequestBody& request);
  // Fixes the number of values of a push's keys for width 0, without changing values.
  void reserve(const RequestBody& request);
  // Returns the values of a pull where they are stored, if they are one after the other. They are
  // valid until the next write, but as long as owner() exists, writes leave them as they are and
  // store the new values elsewhere.
  std::optional<std::span<const T>> stored(const RequestBody& request) const;
  std::shared_ptr<const void> owner() const { return values_; }
  // All values of a table with fixed_rows() and a width, in the order of rows; the second one for a
  // change.
  std::span<const T> all() const { return *values_; }
  std::span<T> change_all() { return writable(); }
  // The number of all values.
  size_t value_count() const { return values_->size(); }
  // Appends the values or the states, and for width 0 the number of values of each key.
  void pull(const RequestBody& request, std::vector<uint32_t>& lengths,
            std::vector<T>& values) const;

  uint64_t keys() const { return updates_.size(); }
  // Bytes of values, rules' state and index.
  size_t bytes() const;
  void save(Writer& writer) const;
  // Throws Error(server, failure) if the saved values do not fit the table.
  void load(Reader& reader);

 private:
  struct Row {
    size_t index = 0;   // in updates_
    size_t offset = 0;  // in values_
    uint32_t length = 0;
  };

  bool is_array() const { return fixed_rows(table_.spec) > 0 && table_.spec.width > 0; }
  std::optional<Row> find(Key key) const;
  Row find_or_add(Key key, uint32_t length);
  std::span<T> state_of(const Row& row);
  void pull_states(const RequestBody& request, std::vector<T>& values) const;
  // Gives the row that was used least recently to another key.
  Row replace_oldest(Key key);
  void apply(const Row& row, std::span<const T> pushed, std::optional<double> rate);
  // Applies a rule that merges to consecutive values, of which the first is number `offset`.
  void apply_merged(size_t offset, std::span<const T> pushed, std::optional<double> rate);
  // Returns values_ for a change. If the values have an owner outside, this copies them.
  std::vector<T>& writable();

  const Table& table_;
  const uint32_t range_;
  const uint32_t ranges_;
  const KeySpan span_;                 // the rows of a table with fixed_rows()
  std::unordered_map<Key, Row> rows_;  // empty for tables with fixed_rows() and of one width
  std::vector<Key> keys_;              // by row; only for tables with TableSpec::rows
  RowPolicy policy_;
  std::shared_ptr<std::vector<T>> values_ = std::make_shared<std::vector<T>>();
  std::vector<T> state_;           // Update::states times as long
  std::vector<uint64_t> updates_;  // of each row
};

extern template class Store<float>;
extern template class Store<double>;

}  // namespace troika::server
