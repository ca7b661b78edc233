// The filters of one table at a worker, and their state. Internal to the room.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "troika/server/filter.h"
#include "troika/server/request.h"

namespace troika::server {

// A push with the keys that the filters have left.
struct FilteredPush {
  std::vector<Key> keys;
  std::vector<uint32_t> lengths;  // only for tables of width 0
  std::vector<char> values;
};

// Any thread may call its functions.
class PushFilter {
 public:
  // Throws Error(server, usage): see check_filters().
  PushFilter(TableSpec table, Filters push, Filters pull);

  // Whether some filter leaves out keys.
  bool selects() const { return selects_; }
  // Whether saw() must be called with the values of pulls.
  bool needs_values() const { return kkt_.has_value(); }
  // Applies the filters that leave out keys. `draw` numbers the push, for random draws.
  FilteredPush select(const RequestBody& push, int64_t step, uint64_t draw);
  // Notes the values of a pull.
  void saw(const RequestBody& pulled);
  // Returns what `significant` has kept, and forgets it.
  FilteredPush take_kept();

  // Returns how messages of this operation are encoded. `keys` is the hash of the request's keys.
  Coding coding(Operation operation, std::span<const Key> keys) const;
  uint64_t seed() const { return seed_; }

 private:
  bool is_zero(Key key) const;
  template <typename T>
  void select_typed(const RequestBody& push, int64_t step, uint64_t draw, FilteredPush& result);

  const TableSpec table_;
  const Filters push_;
  const Filters pull_;
  bool selects_ = false;
  std::optional<Filter> significant_, skip_, kkt_;
  uint64_t seed_ = 0;  // of fixed-point rounding
  std::mutex mutex_;
  std::unordered_map<Key, std::vector<double>> kept_;  // by `significant`
  // The keys whose last pulled values were zeros; for a dense table, a bit for each key.
  std::unordered_set<Key> zeros_;
  std::vector<bool> dense_zeros_;
};

}  // namespace troika::server
