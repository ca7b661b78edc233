// Child processes in their own process groups, which are killed when this process ends.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/ranks/exit_status.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

struct Child {
  pid_t pid = 0;             // also the id of its process group
  net::Descriptor out, err;  // nonblocking read ends of its outputs
};

// `ignored` is for a command that must complete even if all processes of the job get SIGTERM.
enum class Sigterm { ends_it, ignored };

// Runs the command in a new process group, with standard input from /dev/null and default signal
// handlers (but SIGHUP stays ignored, and SIGTERM is as given). The child is killed when the
// calling thread ends. Throws Error(cluster, usage) if the program cannot be executed.
Child spawn(const std::vector<std::string>& command, const std::vector<std::string>& environment,
            Sigterm sigterm = Sigterm::ends_it);

// Returns how the child ended; nullopt while it runs. The child stays a zombie until reap(), so
// that its process group id is not reused.
std::optional<ExitStatus> status_of(pid_t pid);
void reap(pid_t pid);

// Sends the signal to all processes of the group. An empty group is not an error.
void signal_group(pid_t group, int signal);

// Returns the current children of this process, including zombies.
std::vector<pid_t> children();

// While this object lives, orphaned descendants become children of this process instead of init.
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
