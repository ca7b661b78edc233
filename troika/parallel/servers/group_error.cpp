#include "troika/parallel/servers/group_error.h"

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

comm::Work start_barrier(const comm::Group& group, std::string_view label) {
  return group.all_reduce(at::ones({1}), comm::ReduceOp::sum, {.label = label, .async_op = true});
}

void with_group_errors(const comm::Group& group, std::chrono::nanoseconds limit,
                       const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer && error.kind() != ErrorKind::timeout) throw;
    // If only a server is lost, the other ranks may wait for this rank's step instead.
    try {
      start_barrier(group, "after a failure of servers").wait(Deadline::after(limit));
    } catch (const Error& lost) {
      if (lost.kind() == ErrorKind::peer) throw;
    }
    throw;
  }
}

}  // namespace troika::parallel
