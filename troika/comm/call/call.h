// One collective as plain data: describes what a rank is about to do before any data moves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troika/comm/call/reduce.h"
#include "troika/layout/all_reduce.h"

namespace troika::comm {

enum class Operation : int32_t {
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  gather,
  scatter,
  all_to_all,
  barrier,
  measure_links,
};
std::string_view name(Operation operation);

using layout::Algorithm;
// "auto", "ring", ...
std::string_view name(Algorithm algorithm);
// Throws Error(usage) that suggests the nearest name if `name` is unknown.
Algorithm algorithm_from(std::string_view name);

// The fingerprint of a call: the facts that ranks must agree on before a collective moves data, and
// the names for error messages. Sent as raw memory.
struct CollectiveFingerprint {
  int64_t sequence = 0;
  int64_t count = 0;      // elements, equal on all ranks; -1 where they may differ
  uint64_t splits = 0;    // hash of the sizes of an uneven collective
  int32_t operation = 0;  // Operation
  int32_t type = -1;      // c10::ScalarType; -1: no data
  int32_t reduce_op = -1;
  int32_t root = -1;
  int32_t algorithm = 0;
  int32_t device = 0;  // c10::DeviceType of the data
  char label[64] = {};
  char site[36] = {};  // file:line of the call

  bool matches(const CollectiveFingerprint& other) const;
  // "all_reduce #5 'loss' (trainer.cpp:37) of Float x 8 sum"
  std::string describe() const;
};

// A collective and its buffers. The buffers are packed: contiguous, of `type`, and on the host
// unless the back end accepts other devices.
struct Call {
  CollectiveFingerprint fingerprint;
  Operation operation = Operation::barrier;
  c10::ScalarType type = c10::ScalarType::Byte;  // of the buffers
  ReduceOp reduce_op = ReduceOp::sum;
  int divisor = 1;  // of the complete result; the number of ranks for an average
  int root = -1;
  Algorithm algorithm = Algorithm::automatic;
  // all_reduce, reduce and broadcast work in place, on `output`. In a rooted operation, a rank
  // without an input or an output leaves that tensor undefined.
  at::Tensor input;
  at::Tensor output;
  // Elements for each rank: blocks of the input (reduce_scatter, scatter, all_to_all) and of the
  // output (all_gather, gather, all_to_all). Where the operation has blocks, the list has one
  // number per rank.
  std::vector<int64_t> input_counts;
  std::vector<int64_t> output_counts;
};

}  // namespace troika::comm
