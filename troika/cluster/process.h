// Child processes: started in a group of their own, tied to the life of this process.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/exit_status.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

struct Child {
  pid_t pid = 0;             // also its process group
  net::Descriptor out, err;  // nonblocking ends of its outputs
};

// For a command that must end what it has begun although SIGTERM comes to all processes of the job.
enum class Sigterm { ends_it, ignored };

// Runs the command with standard input from /dev/null, all signals but SIGTERM at their default and
// the group of its own; it is killed when the calling thread ends. Throws Error(cluster, usage)
// when the program cannot be executed.
Child spawn(const std::vector<std::string>& command, const std::vector<std::string>& environment,
            Sigterm sigterm = Sigterm::ends_it);

// How the child ended, or nothing while it runs. It stays a zombie, which keeps its process group's
// number from being given to another, until reap().
std::optional<ExitStatus> status_of(pid_t pid);
void reap(pid_t pid);

// To all processes of the group; none being left is no error.
void signal_group(pid_t group, int signal);

// The processes whose parent this one is now, zombies too.
std::vector<pid_t> children();

// Orphaned descendants become children of this process instead of init's, while this object lives.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

}  // namespace troika::cluster
