// A tiny process beside the launcher that outlives it: when the launcher is gone without a word
// (SIGKILL, the out-of-memory killer) it kills the ranks' process groups. The kernel's parent-death
// signal reaches only the ranks themselves, not what they started. What has left its rank's group
// (a daemon) it does not see; the living launcher does.
#pragma once

#include <sys/types.h>

#include "troika/net/descriptor.h"

namespace troika::cluster {

class Guardian {
 public:
  // For up to `max_groups` groups.
  explicit Guardian(int max_groups);
  // Sends it home; the groups are the caller's affair again.
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
