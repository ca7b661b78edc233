#include "troika/cli/bench/start.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "troika/base/error.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/launch/launcher.h"
#include "troika/cluster/ranks/exit_status.h"
#include "troika/net/descriptor.h"

namespace troika::cli::bench {

namespace {

constexpr int kNotExecutable = 127;

// Returns the mpirun of the MPI with which Troika was built, or that in PATH if it is gone.
std::string find_mpirun() {
#ifdef TROIKA_MPIEXEC
  std::error_code none;
  if (std::filesystem::exists(TROIKA_MPIEXEC, none)) return TROIKA_MPIEXEC;
#endif
  return "mpirun";
}

// Uses environment variables, because each MPI ignores those of others but rejects their options.
// OMPI_* belong to Open MPI up to version 4, PRTE_* to version 5 and later. Does not override the
// user's variables.
void prepare_environment(int ranks) {
  const auto offer = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 0);
  };
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (::geteuid() == 0) {
    offer("OMPI_ALLOW_RUN_AS_ROOT", "1");
    offer("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  if (ranks > cores) {
    offer("OMPI_MCA_rmaps_base_oversubscribe", "1");
    offer("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
  }
  // As under Troika's launcher, threads of a back end may run on any core, not only on their
  // rank's.
  offer("OMPI_MCA_hwloc_base_binding_policy", "none");
  offer("PRTE_MCA_hwloc_default_binding_policy", "none");
  offer("OMP_NUM_THREADS", std::to_string(std::max(1, cores / ranks)));
  // The address through which groups without MPI connect, independent of this process's own
  // launcher.
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(cluster::free_port()).c_str(), 1);
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
}

int wait_for_exit(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) net::fail_system("bench", "wait for mpirun", errno);
  }
  return WIFSIGNALED(status) ? cluster::ExitStatus{0, WTERMSIG(status)}.as_exit_code()
                             : WEXITSTATUS(status);
}

int run_mpirun(const std::vector<std::string>& command, int ranks) {
  std::vector<std::string> words{find_mpirun(), "-n", std::to_string(ranks)};
  words.insert(words.end(), command.begin(), command.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  prepare_environment(ranks);

  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) net::fail_system("bench", "start mpirun", errno);
  if (child == 0) {
    // mpirun ends its ranks, so they do not outlive this process.
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() == parent) ::execvp(argv[0], argv.data());
    ::_exit(kNotExecutable);
  }
  const int code = wait_for_exit(child);
  if (code == kNotExecutable) {
    throw Error("bench", ErrorKind::usage,
                {.what = "cannot start the ranks of an MPI job",
                 .got = "no success with " + words.front(),
                 .expected = "the mpirun of the MPI that Troika was built with, in PATH"});
  }
  return code;
}

}  // namespace

int start_ranks(const std::vector<std::string>& command, int ranks, bool by_mpi) {
  if (by_mpi) return run_mpirun(command, ranks);
  cluster::LaunchOptions options;
  options.processes = ranks;
  options.command = command;
  return cluster::launch(options);
}

}  // namespace troika::cli::bench
