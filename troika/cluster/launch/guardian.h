// A small helper process that outlives the launcher. When the launcher is killed (SIGKILL, the
// out-of-memory killer), it kills the ranks' process groups. The kernel's parent-death signal would
// reach only the ranks, not their child processes. Processes that have left a rank's group
// (daemons) are only killed by a living launcher.
#pragma once

#include <sys/types.h>

#include "troika/net/descriptor.h"

namespace troika::cluster {

class Guardian {
 public:
  // Can watch up to `max_groups` process groups.
  explicit Guardian(int max_groups);
  // Ends the helper process without killing the groups.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch(pid_t group) const;
  pid_t pid() const { return pid_; }

 private:
  net::Descriptor pipe_;
  pid_t pid_ = 0;
};

}  // namespace troika::cluster
