// Tables of a parameter server: their keys and values, and the range of the ring to which a key
// belongs.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "troika/server/update.h"

namespace troika::server {

using Key = uint64_t;

enum class ValueType : uint8_t { float32, float64 };
// Bytes of a value.
size_t size_of(ValueType type);

// When pushed values are applied.
enum class Application : uint8_t {
  // Each push when it arrives.
  per_push,
  // The pushes of step t when all workers have finished step t: one update with their sum, which is
  // computed in the order of the workers' numbers. Until then, pulls do not see these pushes. If a
  // worker is lost before it has finished the step, all its pushes of this step are left out.
  per_step,
};

// A table, as data. The scheduler sends it to all nodes.
struct TableSpec {
  std::string name;  // without white space; unique
  ValueType type = ValueType::float32;
  // n > 0: the keys are 0 .. n-1, stored in order (dense). 0: any 64-bit number is a key (sparse);
  // keys are hashed onto the ring, and take memory after their first push or assignment.
  uint64_t keys = 0;
  // The number of values of each key. 0: each key has its own number of values, which its first
  // push or assignment sets.
  uint32_t width = 1;
  // The initial value is initial + spread * u, with u uniform in [-1, 1), a function of (seed,
  // name, key, index). With width 0, keys have no initial values.
  double initial = 0;
  double spread = 0;
  uint64_t seed = 0;
  // These bound the memory of sparse tables of one width. hash > 0: keys are hashed to that many
  // rows, which exist from the beginning. Keys with one row share its values; if a push has several
  // of them, they are applied one after the other.
  uint64_t hash = 0;
  // A key takes memory only with its push number `admit` (at most 255); earlier pushes are only
  // counted. Pushes of one step count as one in tables that apply pushes per step.
  uint32_t admit = 1;
  // rows > 0: the table has at most that many rows, shared out evenly to the ranges. The row of a
  // range that was pushed least recently makes room for a new one. A key that lost its row is as
  // new.
  uint64_t rows = 0;
  Application application = Application::per_push;
  UpdateSpec update = {};

  bool operator==(const TableSpec&) const = default;
};

// Throws Error(server, usage) for a table that cannot work.
void check_table(const TableSpec& spec);
// The number of rows that exist from the beginning: `keys` or `hash`; 0: rows are added.
uint64_t fixed_rows(const TableSpec& spec);
// Returns the row of a key, in [0, fixed_rows()), or the key if rows are added.
Key row_of(const TableSpec& spec, Key key);

// Returns one line such as `w float64 keys=1000 width=4 initial=0 spread=0.1 seed=7 per_step sgd
// rate=0.1`. `hash=`, `admit=` and `rows=` follow the seed where they are set.
std::string to_text(const TableSpec& spec);
// The inverse of to_text(). Throws Error(server, usage).
TableSpec parse_table(std::string_view text);

// Returns the range of the ring to which a key belongs. The ring is divided into `ranges` equal
// ranges (virtual servers), the units that servers hold, copy and hand over. This follows OSDI
// 2014, section 4.3, but with equal arcs instead of hashed points, so that servers have equal
// shares. Dense keys are on the ring in their order, so a range has consecutive keys; sparse keys
// are hashed.
uint32_t range_of(const TableSpec& spec, Key key, uint32_t ranges);

// Consecutive keys [first, first + count).
struct KeySpan {
  Key first = 0;
  uint64_t count = 0;

  bool contains(Key key) const { return key - first < count; }
  bool operator==(const KeySpan&) const = default;
};
// Returns the rows that belong to a range, if fixed_rows() > 0. These are the keys of a dense
// table.
KeySpan keys_of(const TableSpec& spec, uint32_t range, uint32_t ranges);

// Worker::pull_state() and assign_state() move these numbers of each key, in the table's type: the
// values, the rule's state (Segment::state), and the number of updates, whose 64 bits fill the last
// 8 / size_of(type) numbers. Returns how many numbers they are; 0 for tables without such states:
// tables of width 0, and tables whose rule is a user's function.
uint64_t state_width(const TableSpec& spec);
template <typename T>
uint64_t updates_of(std::span<const T> key_state) {
  uint64_t updates = 0;
  std::memcpy(&updates, key_state.last(sizeof(updates) / sizeof(T)).data(), sizeof(updates));
  return updates;
}
template <typename T>
void set_updates(std::span<T> key_state, uint64_t updates) {
  std::memcpy(key_state.last(sizeof(updates) / sizeof(T)).data(), &updates, sizeof(updates));
}

// Returns the initial value of element `index` of a row's values.
double initial_value(const TableSpec& spec, Key key, uint32_t index);

}  // namespace troika::server
