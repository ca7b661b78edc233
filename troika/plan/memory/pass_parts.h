// The memory of a forward and backward pass over time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace troika::plan {

// The event that ends a part of a pass.
struct PassEvent {
  enum class Kind {
    forward_done,
    gradient,  // of trained parameter `index`, as ExchangedState counts them
    block,     // block `index` of the model is about to run, forward or backward
    end,
  };
  Kind kind = Kind::end;
  size_t index = 0;
  int64_t next = -1;  // for `block`: the block that follows it; -1: none

  bool operator==(const PassEvent&) const = default;
};

// The bytes of a part of a pass beyond those before the pass. A parameter's gradient counts until
// its event only.
struct PassPart {
  PassEvent until;
  double peak = 0;  // the maximum within this part
  double live = 0;  // at the end of this part
};

}  // namespace troika::plan
