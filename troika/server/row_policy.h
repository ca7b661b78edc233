// Decides which keys of a sparse table have rows: admission by frequency, and eviction of the rows
// that were pushed least recently. Internal to the room.
//
// The decisions depend only on the order of writes, so that copies make the same ones.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "troika/server/wire.h"

namespace troika::server {

// Not thread-safe.
class RowPolicy {
 public:
  // A key gets a row with its push number `admit`. `most_rows`: see oldest(); 0: no limit.
  RowPolicy(uint32_t admit, uint64_t most_rows);

  // Counts a push of a key without a row, and returns whether it gets one. Pushes are counted in
  // two arrays of counters that keys share (Cormode and Muthukrishnan, J. Algorithms 2005), so a
  // key may get its row early. All counters are halved at regular intervals.
  bool admits(uint64_t key);

  bool is_full(uint64_t rows) const { return most_rows_ > 0 && rows >= most_rows_; }
  // The row that was used least recently. Rows are numbered from 0 in the order of their first
  // use().
  uint64_t oldest() const { return first_; }
  void use(uint64_t row);

  size_t bytes() const;
  void save(Writer& writer) const;
  // Throws Error(server, failure) if the saved state is not of this many rows.
  void load(Reader& reader, uint64_t rows);

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};

  void unlink(uint64_t row);

  uint32_t admit_;
  uint64_t most_rows_;
  std::array<std::vector<uint8_t>, 2> counters_;
  uint64_t counted_ = 0;  // pushes since the counters were halved
  // A list of rows in the order of their last use; empty without a limit.
  std::vector<uint64_t> before_, after_;
  uint64_t first_ = kNone, last_ = kNone;
};

}  // namespace troika::server
