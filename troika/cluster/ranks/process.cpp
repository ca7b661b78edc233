#include "troika/cluster/ranks/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "troika/base/error.h"
#include "troika/base/text.h"

namespace troika::cluster {

namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (const auto& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

struct Prepared {
  char** argv;
  char** envp;
  int in, out, err, problem;
  pid_t parent;
  Sigterm sigterm;
};

// Between fork and exec only async-signal-safe calls are allowed.
[[noreturn]] void become(const Prepared& prepared) {
  const auto give_up = [&] {
    const int error = errno;
    [[maybe_unused]] const auto told = ::write(prepared.problem, &error, sizeof(error));
    ::_exit(127);
  };
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  // The parent may have died before prctl().
  if (::getppid() != prepared.parent) ::_exit(127);
  if (::dup2(prepared.in, STDIN_FILENO) < 0 || ::dup2(prepared.out, STDOUT_FILENO) < 0 ||
      ::dup2(prepared.err, STDERR_FILENO) < 0) {
    give_up();
  }
  // Resets all signals, since ignored signals stay ignored across exec: a shell ignores SIGINT for
  // background jobs. Keeps only an ignored SIGHUP (nohup).
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  const bool keep = hangup.sa_handler == SIG_IGN;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal != SIGHUP || !keep) ::signal(signal, SIG_DFL);
  }
  if (prepared.sigterm == Sigterm::ignored) ::signal(SIGTERM, SIG_IGN);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  ::execvpe(prepared.argv[0], prepared.argv, prepared.envp);
  give_up();
  ::_exit(127);
}

}  // namespace

Child spawn(const std::vector<std::string>& command, const std::vector<std::string>& environment,
            Sigterm sigterm) {
  const auto argv = pointers(command);
  const auto envp = pointers(environment);
  const net::Descriptor in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in) net::fail_system("cluster", "open /dev/null", errno);
  net::Pipe out = net::make_pipe(), err = net::make_pipe(), problem = net::make_pipe();
  const Prepared prepared{const_cast<char**>(argv.data()),
                          const_cast<char**>(envp.data()),
                          in.get(),
                          out.write.get(),
                          err.write.get(),
                          problem.write.get(),
                          ::getpid(),
                          sigterm};
  // Signal handlers of this process must not run in the child.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  const int fork_error = errno;
  if (pid == 0) become(prepared);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) net::fail_system("cluster", "start a process", fork_error);
  ::setpgid(pid, pid);  // also in the parent: the child may not have run yet

  // A successful exec closes the pipe without writing to it.
  problem.write.reset();
  int error = 0;
  ssize_t got = 0;
  while ((got = ::read(problem.read.get(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (got == sizeof(error)) {
    reap(pid);
    throw Error("cluster", ErrorKind::usage,
                {.what = fmt::format("cannot execute \"{}\"", command[0]),
                 .got = net::system_reason(error),
                 .expected = "a program in PATH or the path of one"});
  }
  net::set_nonblocking(out.read.get());
  net::set_nonblocking(err.read.get());
  return {pid, std::move(out.read), std::move(err.read)};
}

std::optional<ExitStatus> status_of(pid_t pid) {
  siginfo_t info{};
  const int flags = WEXITED | WNOHANG | WNOWAIT;
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, flags) != 0 || info.si_pid == 0) {
    return std::nullopt;
  }
  if (info.si_code == CLD_EXITED) return ExitStatus{info.si_status, 0};
  return ExitStatus{0, info.si_status};
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void signal_group(pid_t group, int signal) {
  ::kill(-group, signal);
}

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto pid = parse_int(entry.path().filename().string());
    if (!pid) continue;
    std::ifstream in(entry.path() / "stat");
    std::ostringstream text;
    text << in.rdbuf();
    // "pid (name) state ppid"; the name may contain any characters.
    const std::string stat = std::move(text).str();
    const size_t name_end = stat.rfind(") ");
    if (name_end == std::string::npos) continue;
    const auto fields = split(std::string_view(stat).substr(name_end + 2), ' ');
    if (fields.size() > 1 && fields[1] == std::to_string(::getpid())) {
      found.push_back(static_cast<pid_t>(*pid));
    }
  }
  return found;
}

Subreaper::Subreaper() {
  ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, before_);
}

}  // namespace troika::cluster
